//! Detection of loops: runs that repeat themselves.
//!
//! Every pattern counts per subject, such as a call, in one map. One table has the counts at which the model is warned and
//! the run ends. Subjects are hashes, so that the cost of an iteration does not grow with the run.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{Code, Output, ToolError};

use crate::RunStopReason;

/// The longest detected cycle, in answers.
const MAX_PERIOD: usize = 8;
/// Counts, results and texts that a run remembers, so that a hostile model cannot exhaust the memory.
const MAX_REMEMBERED: usize = 65_536;
/// Bytes of the last text that a run remembers.
const MAX_TEXT: usize = 65_536;
/// Bytes that a text needs before a longer one counts as its continuation.
const MIN_TEXT: usize = 16;

/// A call and its result.
pub(super) struct Seen<'a> {
    pub(super) tool: &'a str,
    pub(super) arguments: &'a Value,
    pub(super) result: Result<&'a Output, &'a ToolError>,
    /// Whether the tool exists.
    pub(super) exists: bool,
    pub(super) is_read_only: bool,
}

/// The consequence of repetition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Fine,
    /// The model reads this warning.
    Warn(String),
    Stop(RunStopReason),
}

/// What can repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    /// Calls of unknown tools alone.
    UnknownTools,
    /// Timeouts of one tool.
    Timeouts,
    /// Failures of one call.
    FailingCall,
    /// One call: two for each repeated result, one for each other result.
    SameCall,
    /// Answers with the same or growing text, and nothing else new.
    Narration,
    /// Rounds of a cycle of this many answers.
    Cycle(usize),
    /// Answers whose calls return nothing new.
    NoProgress,
}

impl Pattern {
    /// The counts at which the model is warned and the run ends, as multiples of the threshold.
    const fn limits(self) -> (u32, u32) {
        match self {
            Self::SameCall => (4, 6),
            Self::NoProgress => (2, 3),
            _ => (1, 2),
        }
    }

    const fn stop(self) -> RunStopReason {
        match self {
            Self::UnknownTools => RunStopReason::UnknownTool,
            Self::Timeouts => RunStopReason::ToolTimeouts,
            Self::FailingCall => RunStopReason::RepeatedError,
            Self::SameCall => RunStopReason::RepeatedCall,
            Self::Narration => RunStopReason::Narration,
            Self::Cycle(_) => RunStopReason::Cycle,
            Self::NoProgress => RunStopReason::NoProgress,
        }
    }

    /// The warning for the model, about a tool if the pattern has one.
    fn warning(self, tool: &str, count: u32) -> String {
        let tool = tool.get(..tool.floor_char_boundary(64)).unwrap_or_default();
        match self {
            Self::UnknownTools => "None of the tools that you call exists. Call only tools that you were given, or answer without one.".to_owned(),
            Self::Timeouts => format!("`{tool}` has taken too long {count} times in a row. Ask less of it at once, or do without it."),
            Self::FailingCall => format!("`{tool}` has failed {count} times with the same arguments. Change the arguments, use another tool, or answer with what there is."),
            Self::SameCall => format!("`{tool}` has been called again and again with the same arguments. What it said stands above: go on from it."),
            Self::Narration => "You say the same again and again. Do the next step, or give your answer.".to_owned(),
            Self::Cycle(period) => format!("You have done the same {period} steps {count} times in turn, with the same results. Do something else, or answer with what there is."),
            Self::NoProgress => "The last calls have brought nothing new. Try something else, or answer with what there is.".to_owned(),
        }
    }
}

/// The repetition of a run so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Watch {
    /// The count of each pattern and subject.
    counts: HashMap<u64, u32>,
    /// The hash of the last result of each call.
    results: HashMap<u64, u64>,
    /// The hashes of all results and texts.
    known: HashSet<u64>,
    last_text: String,
    /// The latest iterations, newest first.
    latest: VecDeque<u64>,
    #[serde(skip)]
    now: Now,
}

/// The current iteration.
#[derive(Clone, Debug, Default)]
struct Now {
    calls: HashSet<u64>,
    timed_out: HashSet<u64>,
    signature: u64,
    has_calls: bool,
    has_news: bool,
    has_new_result: bool,
    has_known_tool: bool,
    has_text: bool,
    is_same_text: bool,
    is_grown_text: bool,
    warning: Option<String>,
    stop: Option<RunStopReason>,
}

impl Watch {
    /// Observes the text of an answer.
    pub(super) fn answer(&mut self, text: &str) {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        self.now.has_text = true;
        self.now.is_grown_text = self.last_text.len() >= MIN_TEXT
            && text.len() > self.last_text.len()
            && text.starts_with(&self.last_text);
        self.now.is_same_text = !remember(&mut self.known, hash_of(&("text", text)));
        self.last_text.clear();
        self.last_text.push_str(text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default());
    }

    /// Observes a call of the answer.
    pub(super) fn call(&mut self, seen: &Seen<'_>, threshold: u32) {
        let tool = hash_of(&seen.tool);
        let call = hash_of(&(tool, canonical(seen.arguments)));
        let result = hash_of(&(tool, result_hash(seen.result)));
        let is_new_result = remember(&mut self.known, hash_of(&("result", result)));
        let is_new_call = !self.results.contains_key(&call);
        let now = &mut self.now;
        now.has_calls = true;
        now.has_known_tool |= seen.exists;
        now.has_new_result |= is_new_result;
        now.has_news |= is_new_result || (seen.result.is_ok() && is_new_call && !seen.is_read_only);
        // Parallel calls have no order, so the signature ignores it.
        now.signature = now.signature.wrapping_add(hash_of(&(call, result)));
        // The same call twice in one answer counts once.
        if !now.calls.insert(call) {
            return;
        }
        let is_timeout = matches!(seen.result, Err(error) if error.code() == Code::Timeout);
        if !is_timeout || self.now.timed_out.insert(tool) {
            let step = is_timeout.then_some(1);
            self.count(Pattern::Timeouts, tool, step, threshold, seen.tool);
        }
        let has_failed = seen.result.is_ok_and(|output| output.status() == toolpost_core::Status::Error)
            || seen.result.is_err();
        self.count(Pattern::FailingCall, call, has_failed.then_some(1), threshold, seen.tool);
        if is_new_call && self.results.len() >= MAX_REMEMBERED {
            return;
        }
        let is_same = self.results.insert(call, result).is_none_or(|last| last == result);
        self.count(Pattern::SameCall, call, Some(if is_same { 2 } else { 1 }), threshold, seen.tool);
    }

    /// Ends the iteration.
    pub(super) fn judge(&mut self, threshold: u32) -> Verdict {
        let now = std::mem::take(&mut self.now);
        self.now = Now { warning: now.warning, stop: now.stop, ..Now::default() };
        // A pattern grows, ends, or is not affected by this iteration.
        let step_of =
            |grows: bool, is_affected: bool| if grows { Some(1) } else { (!is_affected).then_some(0) };
        let unknown = step_of(now.has_calls && !now.has_known_tool, now.has_calls);
        let (_, unknown) = self.count(Pattern::UnknownTools, 0, unknown, threshold, "");
        // An unknown tool also fails and returns nothing new; this reason is the most specific one.
        if unknown >= threshold.saturating_mul(2) {
            self.now = Now::default();
            return Verdict::Stop(RunStopReason::UnknownTool);
        }
        let narrates = now.has_text
            && ((now.is_same_text && !now.has_news) || (now.is_grown_text && !now.has_new_result));
        let narration = step_of(narrates, now.has_text || now.has_news);
        self.count(Pattern::Narration, 0, narration, threshold, "");
        let is_cycle = now.has_calls && self.count_cycles(now.signature, threshold);
        let stale = step_of(now.has_calls && !now.has_news, now.has_calls);
        let (before, after) = self.add(Pattern::NoProgress, 0, stale);
        // A cycle also returns nothing new.
        let stop = if is_cycle { RunStopReason::Cycle } else { RunStopReason::NoProgress };
        self.apply(Pattern::NoProgress, stop, (before, after), threshold, "");
        let Now { stop, warning, .. } = std::mem::take(&mut self.now);
        match (stop, warning) {
            (Some(stop), _) => Verdict::Stop(stop),
            (None, Some(warning)) => Verdict::Warn(warning),
            (None, None) => Verdict::Fine,
        }
    }

    /// Counts the rounds of cycles of every period. Returns whether one reached the threshold.
    fn count_cycles(&mut self, signature: u64, threshold: u32) -> bool {
        let mut is_cycle = false;
        // The same answer repeated is a cycle of any period; the calls count it.
        let is_constant = self.latest.front() == Some(&signature);
        for period in 1..=MAX_PERIOD {
            let is_same = self.latest.get(period - 1) == Some(&signature);
            let (before, after) = self.add(Pattern::Cycle(period), 0, is_same.then_some(1));
            let rounds = |matches: u32| (matches / period as u32).saturating_add(u32::from(matches > 0));
            let (before, after) = (rounds(before), rounds(after));
            if period > 1 && !is_constant {
                is_cycle |= after >= threshold;
                self.apply(Pattern::Cycle(period), RunStopReason::Cycle, (before, after), threshold, "");
            }
        }
        self.latest.push_front(signature);
        self.latest.truncate(MAX_PERIOD);
        is_cycle
    }

    /// Counts a pattern and applies its limits.
    fn count(
        &mut self,
        pattern: Pattern,
        subject: u64,
        step: Option<u32>,
        threshold: u32,
        tool: &str,
    ) -> (u32, u32) {
        let counts = self.add(pattern, subject, step);
        self.apply(pattern, pattern.stop(), counts, threshold, tool);
        counts
    }

    /// Adds to the count of a pattern and a subject; `None` resets it. Returns the counts before and after.
    fn add(&mut self, pattern: Pattern, subject: u64, step: Option<u32>) -> (u32, u32) {
        let key = hash_of(&(pattern, subject));
        let before = self.counts.get(&key).copied();
        let after =
            step.map(|step| before.unwrap_or_default().saturating_add(step)).filter(|after| *after > 0);
        match after {
            Some(after) if before.is_some() || self.counts.len() < MAX_REMEMBERED => {
                self.counts.insert(key, after);
            }
            Some(_) => return (0, 0),
            None => drop(self.counts.remove(&key)),
        }
        (before.unwrap_or_default(), after.unwrap_or_default())
    }

    /// Ends the run or warns the model if a count reached a limit of its pattern. The first reason counts.
    fn apply(
        &mut self,
        pattern: Pattern,
        stop: RunStopReason,
        (before, after): (u32, u32),
        threshold: u32,
        tool: &str,
    ) {
        let (warn, end) = pattern.limits();
        let (warn, end) = (threshold.saturating_mul(warn), threshold.saturating_mul(end));
        if after >= end {
            self.now.stop.get_or_insert(stop);
        } else if before < warn && after >= warn {
            self.now.warning.get_or_insert_with(|| pattern.warning(tool, after));
        }
    }
}

/// Whether a hash is new. If the set is full, no hash is new.
fn remember(seen: &mut HashSet<u64>, hash: u64) -> bool {
    seen.len() < MAX_REMEMBERED && seen.insert(hash)
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hash of JSON by value: member order and number formats do not matter.
fn canonical(value: &Value) -> u64 {
    match value {
        Value::Null => 1,
        Value::Bool(value) => hash_of(&(2, value)),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => hash_of(&(3, number)),
            (_, Some(number), _) => hash_of(&(4, number)),
            // Below this bound, floats represent integers exactly.
            (_, _, Some(number)) if number.fract() == 0.0 && number.abs() < 9e15 => {
                hash_of(&(3, number as i64))
            }
            (_, _, number) => hash_of(&(5, number.map(f64::to_bits))),
        },
        Value::String(text) => hash_of(&(6, text)),
        Value::Array(items) => hash_of(&(7, items.iter().map(canonical).collect::<Vec<_>>())),
        Value::Object(members) => {
            let sum = members.iter().map(|(name, value)| hash_of(&(name, canonical(value))));
            hash_of(&(8, sum.fold(0, u64::wrapping_add)))
        }
    }
}

/// A hash of a result as the model reads it, without ids and times.
fn result_hash(result: Result<&Output, &ToolError>) -> u64 {
    match result {
        Err(error) => hash_of(&(0, error.code(), error.message())),
        Ok(output) => {
            let mut hasher = DefaultHasher::new();
            output.to_text().hash(&mut hasher);
            for content in &output.content {
                if let toolpost_core::Content::Image { data, .. }
                | toolpost_core::Content::Audio { data, .. } = content
                {
                    // The size and both ends distinguish images well enough.
                    let head = data.floor_char_boundary(1024.min(data.len()));
                    let tail = data.ceil_char_boundary(data.len().saturating_sub(1024));
                    (data.len(), data.get(..head), data.get(tail..)).hash(&mut hasher);
                }
            }
            hasher.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_the_same_by_meaning() {
        let same = |a: &str, b: &str| {
            canonical(&serde_json::from_str(a).unwrap()) == canonical(&serde_json::from_str(b).unwrap())
        };
        assert!(same(r#"{"a":1,"b":[1.0,{"x":2,"y":3}]}"#, r#"{"b":[1,{"y":3,"x":2e0}],"a":1.0}"#));
        for (a, b) in [
            ("1", "\"1\""),
            ("[1,2]", "[2,1]"),
            ("1.5", "1"),
            ("null", "{}"),
            (r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#),
            ("18446744073709551615", "-1"),
        ] {
            assert!(!same(a, b), "{a} and {b}");
        }
    }

    /// A tool, its argument and its result.
    type Call<'a> = (&'a str, i64, Result<&'a str, &'a str>);

    /// The verdicts of iterations, each with calls and a text.
    fn verdicts(iterations: &[(&[Call<'_>], &str)]) -> Vec<Verdict> {
        let mut watch = Watch::default();
        let judged = iterations.iter().map(|(calls, text)| {
            watch.answer(text);
            for (tool, arguments, result) in *calls {
                let output = result.map(Output::text);
                let output = output.map_err(ToolError::not_found);
                let arguments = json!({ "n": arguments });
                watch.call(
                    &Seen {
                        tool,
                        arguments: &arguments,
                        result: output.as_ref(),
                        exists: *tool != "ghost",
                        is_read_only: *tool == "look",
                    },
                    3,
                );
            }
            watch.judge(3)
        });
        judged.collect()
    }

    /// The iteration of the first warning, and that of the end.
    fn ends(verdicts: &[Verdict]) -> (Option<usize>, Option<(usize, RunStopReason)>) {
        let warned = verdicts.iter().position(|verdict| matches!(verdict, Verdict::Warn(_)));
        let stopped = verdicts.iter().enumerate().find_map(|(index, verdict)| match verdict {
            Verdict::Stop(stop) => Some((index + 1, stop.clone())),
            _ => None,
        });
        (warned.map(|index| index + 1), stopped)
    }

    #[test]
    fn each_pattern_is_warned_of_and_then_ended() {
        type Step = (&'static [Call<'static>], &'static str);
        const SAME: &[Step] = &[(&[("do", 1, Ok("ok"))], "")];
        const ERROR: &[Step] = &[(&[("do", 1, Err("no"))], "")];
        const PAIR: &[Step] = &[(&[("do", 1, Ok("a"))], ""), (&[("do", 2, Ok("b"))], "")];
        const UNKNOWN: &[Step] = &[
            (&[("ghost", 1, Err("a"))], ""),
            (&[("ghost", 2, Err("b"))], ""),
            (&[("ghost", 3, Err("c"))], ""),
        ];
        const TEXT: &[Step] = &[(&[("look", 1, Ok("a"))], "Let me look."), (&[], "Let me look.")];
        for (steps, warned, stopped) in [
            (SAME, 6, (9, RunStopReason::RepeatedCall)),
            (ERROR, 3, (6, RunStopReason::RepeatedError)),
            (PAIR, 6, (11, RunStopReason::Cycle)),
            (UNKNOWN, 3, (6, RunStopReason::UnknownTool)),
            (TEXT, 4, (7, RunStopReason::Narration)),
        ] {
            let iterations: Vec<_> = steps.iter().copied().cycle().take(30).collect();
            assert_eq!(ends(&verdicts(&iterations)), (Some(warned), Some(stopped)));
        }
    }

    #[test]
    fn a_search_without_matches_is_no_progress() {
        let calls: Vec<_> = (0..20).map(|n| [("look", n, Ok("no matches"))]).collect();
        let iterations: Vec<_> = calls.iter().map(|calls| (calls.as_slice(), "")).collect();
        assert_eq!(ends(&verdicts(&iterations)), (Some(7), Some((10, RunStopReason::NoProgress))));
        // A tool that does something may well say the same each time.
        let calls: Vec<_> = (0..100).map(|n| [("do", n, Ok("done"))]).collect();
        let iterations: Vec<_> = calls.iter().map(|calls| (calls.as_slice(), "Writing the next.")).collect();
        assert_eq!(ends(&verdicts(&iterations)), (None, None));
    }

    #[test]
    fn polling_with_changing_results_counts_half() {
        let texts: Vec<String> = (0..30).map(|n| format!("{n} %")).collect();
        let calls: Vec<_> = texts.iter().map(|text| [("look", 1, Ok(text.as_str()))]).collect();
        let iterations: Vec<_> = calls.iter().map(|calls| (calls.as_slice(), "")).collect();
        assert_eq!(ends(&verdicts(&iterations)), (Some(11), Some((17, RunStopReason::RepeatedCall))));
    }

    #[test]
    fn the_same_call_many_times_in_one_answer_is_one() {
        let calls = vec![("do", 1, Err("no")); 50];
        assert_eq!(ends(&verdicts(&[(&calls, "")])), (None, None));
    }

    #[test]
    fn counters_of_a_changed_state_stay_in_their_bounds() {
        fn most(value: &mut Value) {
            match value {
                Value::Number(count) if count.as_u64().is_some_and(|count| count < 1_000) => {
                    *value = u32::MAX.into();
                }
                Value::Array(items) => items.iter_mut().for_each(most),
                Value::Object(members) => members.values_mut().for_each(most),
                _ => {}
            }
        }
        for exists in [true, false] {
            let (error, arguments) = (ToolError::new(Code::Timeout, "slow"), json!({ "n": 1 }));
            let step = |watch: &mut Watch| {
                watch.answer("The same again.");
                let seen = Seen {
                    tool: "look",
                    arguments: &arguments,
                    result: Err(&error),
                    exists,
                    is_read_only: true,
                };
                watch.call(&seen, 3);
                watch.judge(3)
            };
            let mut watch = Watch::default();
            step(&mut watch);
            step(&mut watch);
            let mut state = serde_json::to_value(&watch).unwrap();
            most(&mut state);
            let mut watch = serde_json::from_value(state).unwrap();
            assert!(matches!(step(&mut watch), Verdict::Stop(_)));
        }
    }

    #[test]
    fn growing_text_is_narration_even_if_a_tool_stores_it() {
        let texts: Vec<String> = (1..20).map(|n| "I am thinking about it. ".repeat(n)).collect();
        let calls: Vec<_> = (0..20).map(|n| [("note", n, Ok("noted"))]).collect();
        let iterations: Vec<_> =
            texts.iter().zip(&calls).map(|(text, calls)| (calls.as_slice(), text.as_str())).collect();
        assert_eq!(ends(&verdicts(&iterations)), (Some(4), Some((7, RunStopReason::Narration))));
    }
}

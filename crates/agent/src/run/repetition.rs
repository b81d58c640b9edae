//! Runs that get nowhere: the same again and again, in one of its many forms.
//!
//! Everything is counted as it comes, by hashes: an iteration costs the same however long the run is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{Code, Output, ToolError};

use crate::RunStopReason;

/// The longest cycle of answers that is looked for.
const MAX_PERIOD: usize = 8;
/// How many different calls, results and texts are remembered: a hostile model must not fill the memory.
const MAX_REMEMBERED: usize = 65_536;
/// How much of a text is kept to see whether the next one only goes on from it, in bytes.
const MAX_TEXT: usize = 65_536;
/// Texts shorter than this say too little to be called the beginning of another, in bytes.
const MIN_TEXT: usize = 16;

/// A call that was made, and what came of it.
pub(super) struct Seen<'a> {
    pub(super) tool: &'a str,
    pub(super) arguments: &'a Value,
    pub(super) result: Result<&'a Output, &'a ToolError>,
    /// Whether there is such a tool.
    pub(super) exists: bool,
    /// Whether the tool only looks.
    pub(super) is_read_only: bool,
}

/// What is to be done about repetition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Fine,
    /// The model is told.
    Warn(String),
    Stop(RunStopReason),
}

/// What a run has repeated so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Watch {
    /// How often each call has failed since it last succeeded.
    failures: HashMap<u64, u32>,
    /// Each call, with the hash of its last result and how often it was made: twice for each time that told the same
    /// again, once for each time that told something else.
    calls: HashMap<u64, (u64, u32)>,
    /// How often each tool has timed out since it last did not.
    timeouts: HashMap<u64, u32>,
    /// What tools have told.
    told: HashSet<u64>,
    /// What the model has said.
    said: HashSet<u64>,
    last_text: String,
    /// The latest iterations, newest first.
    latest: VecDeque<u64>,
    /// For each period, how many iterations in a row were the same as the one a period before.
    matches: [u32; MAX_PERIOD + 1],
    /// Iterations in a row without anything new, with the same or growing text, and with unknown tools alone.
    stale: u32,
    narration: u32,
    unknown: u32,
    #[serde(skip)]
    now: Now,
}

/// The iteration that is being looked at.
#[derive(Clone, Debug, Default)]
struct Now {
    calls: HashSet<u64>,
    signature: u64,
    has_calls: bool,
    has_news: bool,
    has_new_result: bool,
    has_known_tool: bool,
    text: bool,
    is_same: bool,
    has_grown: bool,
    timed_out: HashSet<u64>,
    warning: Option<String>,
    stop: Option<RunStopReason>,
}

impl Now {
    /// Looks at a counter that has gone from `before` to `after`.
    fn look(
        &mut self,
        before: u32,
        after: u32,
        warn: u32,
        end: u32,
        stop: RunStopReason,
        what: impl FnOnce() -> String,
    ) {
        if after >= end {
            self.stop.get_or_insert(stop);
        } else if before < warn && after >= warn && self.warning.is_none() {
            self.warning = Some(what());
        }
    }
}

impl Watch {
    /// Looks at what an answer says.
    pub(super) fn answer(&mut self, text: &str) {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        self.now.text = true;
        self.now.has_grown = self.last_text.len() >= MIN_TEXT
            && text.len() > self.last_text.len()
            && text.starts_with(&self.last_text);
        self.now.is_same = !remember(&mut self.said, hash_of(&text));
        self.last_text.clear();
        self.last_text.push_str(text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default());
    }

    /// Looks at a call of the answer.
    pub(super) fn call(&mut self, seen: &Seen<'_>, threshold: u32) {
        let tool = hash_of(&seen.tool);
        let call = hash_of(&(tool, canonical(seen.arguments)));
        let result = hash_of(&(tool, result_hash(seen.result)));
        let is_new_result = remember(&mut self.told, result);
        let is_new_call = !self.calls.contains_key(&call);
        let now = &mut self.now;
        now.has_calls = true;
        now.has_known_tool |= seen.exists;
        now.has_new_result |= is_new_result;
        now.has_news |= is_new_result || (seen.result.is_ok() && is_new_call && !seen.is_read_only);
        // In any order: what is called at once has none.
        now.signature = now.signature.wrapping_add(hash_of(&(call, result)));
        // The same call twice in one answer is one.
        if !now.calls.insert(call) {
            return;
        }
        self.count_timeout(tool, seen, threshold);
        self.count_failure(call, seen, threshold);
        self.count_call(call, result, seen, threshold);
    }

    fn count_timeout(&mut self, tool: u64, seen: &Seen<'_>, threshold: u32) {
        if !matches!(seen.result, Err(error) if error.code() == Code::Timeout) {
            self.timeouts.remove(&tool);
            return;
        }
        if !self.now.timed_out.insert(tool) || !has_room(&self.timeouts, tool) {
            return;
        }
        let count = self.timeouts.entry(tool).or_default();
        *count = count.saturating_add(1);
        let warning = || {
            format!(
                "`{}` has taken too long {count} times in a row. Ask less of it at once, or do without it.",
                short(seen.tool)
            )
        };
        self.now.look(
            *count - 1,
            *count,
            threshold,
            threshold.saturating_mul(2),
            RunStopReason::ToolTimeouts,
            warning,
        );
    }

    fn count_failure(&mut self, call: u64, seen: &Seen<'_>, threshold: u32) {
        if seen.result.is_ok_and(|output| output.status() != toolpost_core::Status::Error) {
            self.failures.remove(&call);
            return;
        }
        if !has_room(&self.failures, call) {
            return;
        }
        let count = self.failures.entry(call).or_default();
        *count = count.saturating_add(1);
        let warning = || {
            format!(
                "`{}` has failed {count} times with the same arguments. Change the arguments, use another tool, or answer with what there is.",
                short(seen.tool)
            )
        };
        self.now.look(
            *count - 1,
            *count,
            threshold,
            threshold.saturating_mul(2),
            RunStopReason::RepeatedError,
            warning,
        );
    }

    fn count_call(&mut self, call: u64, result: u64, seen: &Seen<'_>, threshold: u32) {
        if !has_room(&self.calls, call) {
            return;
        }
        let (last, count) = self.calls.entry(call).or_insert((result, 0));
        let before = *count;
        *count = count.saturating_add(if *last == result { 2 } else { 1 });
        *last = result;
        let warning = || {
            format!(
                "`{}` has been called again and again with the same arguments. What it said stands above: go on from it.",
                short(seen.tool)
            )
        };
        let (warn, end) = (threshold.saturating_mul(4), threshold.saturating_mul(6));
        self.now.look(before, *count, warn, end, RunStopReason::RepeatedCall, warning);
    }

    /// Closes the iteration, and says what is to be done.
    pub(super) fn judge(&mut self, threshold: u32) -> Verdict {
        let mut now = std::mem::take(&mut self.now);
        let (twice, thrice) = (threshold.saturating_mul(2), threshold.saturating_mul(3));
        let unknown = count(&mut self.unknown, now.has_calls && !now.has_known_tool, now.has_calls);
        // First what says most: a tool that does not exist also fails, and brings nothing new.
        if self.unknown >= twice {
            return Verdict::Stop(RunStopReason::UnknownTool);
        }
        now.look(unknown, self.unknown, threshold, twice, RunStopReason::UnknownTool, || {
            "None of the tools that you call exists. Call only tools that you were given, or answer without one.".to_owned()
        });
        let narrates = now.text && ((now.is_same && !now.has_news) || (now.has_grown && !now.has_new_result));
        let narration = count(&mut self.narration, narrates, now.text || now.has_news);
        now.look(narration, self.narration, threshold, twice, RunStopReason::Narration, || {
            "You say the same again and again. Do the next step, or give your answer.".to_owned()
        });
        let is_cycle = now.has_calls && self.look_for_cycle(&mut now, threshold);
        // A cycle brings nothing new either.
        let stop = if is_cycle { RunStopReason::Cycle } else { RunStopReason::NoProgress };
        let stale = count(&mut self.stale, now.has_calls && !now.has_news, now.has_calls);
        now.look(stale, self.stale, twice, thrice, stop, || {
            "The last calls have brought nothing new. Try something else, or answer with what there is."
                .to_owned()
        });
        match (now.stop, now.warning) {
            (Some(stop), _) => Verdict::Stop(stop),
            (None, Some(warning)) => Verdict::Warn(warning),
            (None, None) => Verdict::Fine,
        }
    }

    /// Whether the run goes in circles.
    fn look_for_cycle(&mut self, now: &mut Now, threshold: u32) -> bool {
        let mut is_cycle = false;
        let constant = self.latest.front() == Some(&now.signature);
        for period in 1..=MAX_PERIOD {
            let is_same = self.latest.get(period - 1) == Some(&now.signature);
            let Some(matches) = self.matches.get_mut(period) else { continue };
            let rounds = |matches: u32| (matches / period as u32).saturating_add(u32::from(matches > 0));
            let before = rounds(*matches);
            *matches = if is_same { matches.saturating_add(1) } else { 0 };
            let after = rounds(*matches);
            // The same over and over is a cycle of any length; that is counted by call.
            if period > 1 && !constant {
                is_cycle |= after >= threshold;
                now.look(before, after, threshold, threshold.saturating_mul(2), RunStopReason::Cycle, || {
                    format!("You have done the same {period} steps {after} times in turn, with the same results. Do something else, or answer with what there is.")
                });
            }
        }
        self.latest.push_front(now.signature);
        self.latest.truncate(MAX_PERIOD);
        is_cycle
    }
}

/// Counts one more of a kind in a row, or ends the row. Gives the count before.
fn count(counter: &mut u32, is_one_more: bool, ends_otherwise: bool) -> u32 {
    let before = *counter;
    if is_one_more {
        *counter = counter.saturating_add(1);
    } else if ends_otherwise {
        *counter = 0;
    }
    before
}

fn has_room<V>(map: &HashMap<u64, V>, key: u64) -> bool {
    map.len() < MAX_REMEMBERED || map.contains_key(&key)
}

/// Whether something is seen for the first time. What finds no room is taken as known.
fn remember(seen: &mut HashSet<u64>, hash: u64) -> bool {
    seen.len() < MAX_REMEMBERED && seen.insert(hash)
}

fn short(name: &str) -> &str {
    name.get(..name.floor_char_boundary(64)).unwrap_or_default()
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hash of JSON by meaning: the order of members does not count, nor how a number is written.
fn canonical(value: &Value) -> u64 {
    match value {
        Value::Null => 1,
        Value::Bool(value) => hash_of(&(2, value)),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => hash_of(&(3, number)),
            (_, Some(number), _) => hash_of(&(4, number)),
            // Up to here every whole number has one form as a float.
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

/// A hash of what a call came to, as a model sees it, without what differs each time.
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
                    // The size and both ends tell pictures apart well enough.
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

    /// A tool, its argument and its answer.
    type Call<'a> = (&'a str, i64, Result<&'a str, &'a str>);

    /// What becomes of iterations, each of calls (tool, arguments, answer) and a text.
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

    /// After how many iterations the model is first warned, and after how many the run ends.
    fn ends(verdicts: &[Verdict]) -> (Option<usize>, Option<(usize, RunStopReason)>) {
        let warned = verdicts.iter().position(|verdict| matches!(verdict, Verdict::Warn(_)));
        let stopped = verdicts.iter().enumerate().find_map(|(index, verdict)| match verdict {
            Verdict::Stop(stop) => Some((index + 1, stop.clone())),
            _ => None,
        });
        (warned.map(|index| index + 1), stopped)
    }

    #[test]
    fn each_kind_of_repetition_is_warned_of_and_then_ended() {
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
    fn looking_for_what_is_not_there_is_no_progress() {
        let calls: Vec<_> = (0..20).map(|n| [("look", n, Ok("no matches"))]).collect();
        let iterations: Vec<_> = calls.iter().map(|calls| (calls.as_slice(), "")).collect();
        assert_eq!(ends(&verdicts(&iterations)), (Some(7), Some((10, RunStopReason::NoProgress))));
        // A tool that does something may well say the same each time.
        let calls: Vec<_> = (0..100).map(|n| [("do", n, Ok("done"))]).collect();
        let iterations: Vec<_> = calls.iter().map(|calls| (calls.as_slice(), "Writing the next.")).collect();
        assert_eq!(ends(&verdicts(&iterations)), (None, None));
    }

    #[test]
    fn waiting_for_something_that_changes_is_allowed_twice_as_often() {
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
    fn counters_of_a_state_that_somebody_has_changed_stay_in_their_bounds() {
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
    fn text_that_only_grows_is_narration_even_when_it_is_written_down() {
        let texts: Vec<String> = (1..20).map(|n| "I am thinking about it. ".repeat(n)).collect();
        let calls: Vec<_> = (0..20).map(|n| [("note", n, Ok("noted"))]).collect();
        let iterations: Vec<_> =
            texts.iter().zip(&calls).map(|(text, calls)| (calls.as_slice(), text.as_str())).collect();
        assert_eq!(ends(&verdicts(&iterations)), (Some(4), Some((7, RunStopReason::Narration))));
    }
}

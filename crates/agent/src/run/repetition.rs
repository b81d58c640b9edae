//! Detection of loops: runs that repeat themselves.
//!
//! Three patterns count: a failing call, a repeated call, and answers without new results. Calls and results are hashes,
//! so that the cost of an iteration does not grow with the run.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{Content, Output, Status, ToolError};

use crate::RunStopReason;

/// Calls and results that a run remembers, so that a hostile model cannot exhaust the memory.
const MAX_REMEMBERED: usize = 65_536;

/// A call and its result.
pub(super) struct ObservedCall<'a> {
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
    Continue,
    /// The model reads this warning.
    Warn(String),
    Stop(RunStopReason),
}

/// The repeated part.
#[derive(Clone, Copy)]
enum Pattern {
    /// Failures of one call in a row.
    FailingCall,
    /// One call: two for each repeated result, one for each other result.
    RepeatedCall,
    /// Answers in a row whose calls or whose text are not new.
    NoProgress,
}

impl Pattern {
    /// The counts at which the model is warned and the run ends, as multiples of the threshold.
    const fn limits(self) -> (u32, u32) {
        match self {
            Self::FailingCall => (1, 2),
            Self::RepeatedCall => (4, 6),
            Self::NoProgress => (2, 3),
        }
    }

    const fn stop(self) -> RunStopReason {
        match self {
            Self::FailingCall => RunStopReason::RepeatedError,
            Self::RepeatedCall => RunStopReason::RepeatedCall,
            Self::NoProgress => RunStopReason::NoProgress,
        }
    }

    fn warning(self, tool: &str, count: u32) -> String {
        let tool = tool.get(..tool.floor_char_boundary(64)).unwrap_or_default();
        match self {
            Self::FailingCall => format!(
                "`{tool}` failed {count} times with the same arguments. Change the arguments, use another tool, or answer with what you have."
            ),
            Self::RepeatedCall => format!(
                "You repeat `{tool}` with the same arguments. Use the results above and continue from there."
            ),
            Self::NoProgress => format!(
                "The last {count} answers brought nothing new. Try something else, or answer with what you have."
            ),
        }
    }
}

/// The counts of one call.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct CallCount {
    failures: u32,
    repeats: u32,
    /// The hash of the last result.
    result: u64,
}

/// The repetition of a run so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoopDetector {
    calls: HashMap<u64, CallCount>,
    /// The hashes of all results and texts.
    known: HashSet<u64>,
    /// Answers in a row without anything new.
    stale: u32,
    #[serde(skip)]
    now: Iteration,
}

/// The current iteration.
#[derive(Clone, Debug, Default)]
struct Iteration {
    calls: HashSet<u64>,
    /// Whether the text is new, if there is one.
    is_new_text: Option<bool>,
    has_new_result: bool,
    warning: Option<String>,
    stop: Option<RunStopReason>,
}

impl LoopDetector {
    /// Observes the text of an answer.
    pub(super) fn observe_text(&mut self, text: &str) {
        let text = text.trim();
        if !text.is_empty() {
            self.now.is_new_text = Some(remember(&mut self.known, hash_of(&("text", text))));
        }
    }

    /// Observes a call of the answer.
    pub(super) fn observe_call(&mut self, call: &ObservedCall<'_>, threshold: u32) {
        let tool = hash_of(&call.tool);
        let hash = hash_of(&(tool, canonical(call.arguments)));
        let result = hash_of(&(tool, result_hash(call.result)));
        let known = self.calls.get(&hash).copied();
        let is_new_result = remember(&mut self.known, hash_of(&("result", result)));
        // A new call of a tool with effects may return a known result.
        let has_effect = call.result.is_ok() && known.is_none() && !call.is_read_only;
        self.now.has_new_result |= call.exists && (is_new_result || has_effect);
        // The same call twice in one answer counts once.
        if !self.now.calls.insert(hash) || (known.is_none() && self.calls.len() >= MAX_REMEMBERED) {
            return;
        }
        let before = known.unwrap_or_default();
        let has_failed =
            call.result.is_ok_and(|output| output.status() == Status::Error) || call.result.is_err();
        let is_same = known.is_none_or(|known| known.result == result);
        let after = CallCount {
            failures: if has_failed { before.failures.saturating_add(1) } else { 0 },
            repeats: before.repeats.saturating_add(if is_same { 2 } else { 1 }),
            result,
        };
        self.calls.insert(hash, after);
        self.apply(Pattern::FailingCall, (before.failures, after.failures), threshold, call.tool);
        self.apply(Pattern::RepeatedCall, (before.repeats, after.repeats), threshold, call.tool);
    }

    /// Ends the iteration.
    pub(super) fn judge(&mut self, threshold: u32) -> Verdict {
        let before = self.stale;
        // Text beside calls is not progress.
        let is_new =
            if self.now.calls.is_empty() { self.now.is_new_text } else { Some(self.now.has_new_result) };
        match is_new {
            Some(true) => self.stale = 0,
            Some(false) => self.stale = self.stale.saturating_add(1),
            None => {}
        }
        self.apply(Pattern::NoProgress, (before, self.stale), threshold, "");
        match std::mem::take(&mut self.now) {
            Iteration { stop: Some(stop), .. } => Verdict::Stop(stop),
            Iteration { warning: Some(warning), .. } => Verdict::Warn(warning),
            _ => Verdict::Continue,
        }
    }

    /// Ends the run or warns the model if a count reached a limit of its pattern. The first reason counts.
    fn apply(&mut self, pattern: Pattern, (before, after): (u32, u32), threshold: u32, tool: &str) {
        let (warn, end) = pattern.limits();
        let (warn, end) = (threshold.saturating_mul(warn), threshold.saturating_mul(end));
        if after >= end {
            self.now.stop.get_or_insert(pattern.stop());
        } else if before < warn && after >= warn {
            self.now.warning.get_or_insert_with(|| pattern.warning(tool, after));
        }
    }
}

/// Whether a hash is new. If the set is full, no hash is new.
fn remember(known: &mut HashSet<u64>, hash: u64) -> bool {
    known.len() < MAX_REMEMBERED && known.insert(hash)
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
                if let Content::Image { data, .. } | Content::Audio { data, .. } = content {
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
    fn arguments_are_equal_by_value() {
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

    /// Observes one answer with so many equal calls.
    fn answer(detector: &mut LoopDetector, tool: &str, n: i64, count: usize) -> Verdict {
        let (error, output, arguments) =
            (ToolError::not_found("no"), Output::text("done"), json!({ "n": n }));
        let result = if tool == "fails" { Err(&error) } else { Ok(&output) };
        detector.observe_text("Next.");
        for _ in 0..count {
            let call =
                ObservedCall { tool, arguments: &arguments, result, exists: true, is_read_only: false };
            detector.observe_call(&call, 3);
        }
        detector.judge(3)
    }

    #[test]
    fn equal_calls_of_one_answer_count_once_and_new_effects_are_progress() {
        assert_eq!(answer(&mut LoopDetector::default(), "fails", 1, 50), Verdict::Continue);
        let mut detector = LoopDetector::default();
        assert!((0..100).all(|n| answer(&mut detector, "writes", n, 1) == Verdict::Continue));
    }

    #[test]
    fn counts_of_a_modified_state_stay_in_bounds() {
        let mut detector = LoopDetector::default();
        answer(&mut detector, "fails", 1, 1);
        detector.stale = u32::MAX;
        for count in detector.calls.values_mut() {
            (count.failures, count.repeats) = (u32::MAX, u32::MAX);
        }
        let state = serde_json::to_value(&detector).unwrap();
        let mut detector = serde_json::from_value(state).unwrap();
        assert!(matches!(answer(&mut detector, "fails", 1, 1), Verdict::Stop(_)));
    }
}

//! One table of plans and failures for every driver: a row says what a plan's tools do, what comes from outside, how the
//! run ends, and the events of each step in their order.
//!
//! The rows are in `tests/table/*.yaml`. Another crate's tests include this module by its path.

mod causal;
mod tools;
mod trace;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toolpost_core::{Code, ToolError};
use toolpost_flow::{FlowEvent, RunStatus};

use self::causal::Repeats;
pub(crate) use self::tools::Script;
pub(crate) use self::trace::{Entry, Trace};

const FILES: [(&str, &str); 8] = [
    ("steps", include_str!("../../table/steps.yaml")),
    ("blocks", include_str!("../../table/blocks.yaml")),
    ("failures", include_str!("../../table/failures.yaml")),
    ("retries", include_str!("../../table/retries.yaml")),
    ("compensation", include_str!("../../table/compensation.yaml")),
    ("signals", include_str!("../../table/signals.yaml")),
    ("cancellation", include_str!("../../table/cancellation.yaml")),
    ("expressions", include_str!("../../table/expressions.yaml")),
];

/// A plan, what happens to its run, and what must come of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) plan: Value,
    #[serde(default)]
    pub(crate) input: Value,
    /// The behavior of the tools, one per attempt of a step; the last one stays. `echo` returns its argument `value`.
    #[serde(default)]
    pub(crate) tools: BTreeMap<String, Behaviors>,
    /// External packages, each once.
    #[serde(default)]
    pub(crate) outside: Vec<Message>,
    /// Whether the row is for stored runs alone. Rows with signals are, too.
    #[serde(default)]
    stored: bool,
    /// Is not run with a stop in the middle, because a call that was cancelled is not repeated.
    #[serde(default)]
    pub(crate) unstopped: bool,
    #[serde(default = "succeeded")]
    pub(crate) status: RunStatus,
    #[serde(default)]
    pub(crate) output: Value,
    /// A part of the error or of its context.
    #[serde(default)]
    error: String,
    /// The events of each step that begins or ends: `start` of an attempt, the code of its error, `wait` for a signal, and
    /// the status in which the step ends.
    pub(crate) events: BTreeMap<String, String>,
    /// The argument `value` of the last call of a step; null for a step that made none.
    #[serde(default)]
    values: BTreeMap<String, Value>,
}

/// One behavior, or one per attempt.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Behaviors {
    Each(Vec<Behavior>),
    Always(Behavior),
}

/// The behavior of an attempt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Behavior {
    /// The time that it takes.
    #[serde(default)]
    delay: Option<String>,
    /// The output. Default: the argument `value`.
    #[serde(default)]
    output: Option<Value>,
    /// The code of the error with which it fails.
    #[serde(default)]
    error: Option<Code>,
    #[serde(default)]
    message: Option<String>,
    /// When the error allows another attempt.
    #[serde(default)]
    retry_after: Option<String>,
    /// The code of its error if it is cancelled. Default: `CANCELLED`.
    #[serde(default)]
    on_cancel: Option<Code>,
}

/// A signal, an answer or a cancellation, sent after an event of a step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    /// The step and the event, such as `a start`: no end of a step, since a resumed run does not show ends again.
    pub(crate) after: String,
    #[serde(default)]
    pub(crate) signal: Option<String>,
    /// The step whose approval the value answers.
    #[serde(default)]
    pub(crate) answer: Option<String>,
    #[serde(default)]
    pub(crate) value: Value,
    /// Whether the signal is rejected, with this part of the error.
    #[serde(default)]
    pub(crate) rejected: Option<String>,
    /// The reason of a cancellation.
    #[serde(default)]
    pub(crate) cancel: Option<String>,
}

fn succeeded() -> RunStatus {
    RunStatus::Succeeded
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let read = |(file, text): (&str, &str)| -> Vec<Row> {
        serde_saphyr::from_str_with_options(text, options.clone())
            .unwrap_or_else(|error| panic!("{file}.yaml: {error}"))
    };
    let rows: Vec<Row> = FILES.into_iter().flat_map(read).collect();
    for message in rows.iter().flat_map(|row| &row.outside) {
        assert!(!message.after.rsplit(' ').next().is_some_and(trace::is_end), "{message:?}");
    }
    rows
}

impl Message {
    /// Checks how a signal was taken.
    pub(crate) fn check(&self, sent: Result<(), ToolError>) -> Result<(), String> {
        match (&self.rejected, sent) {
            (None, sent) => sent.map_err(|error| error.to_string()),
            (Some(part), Err(error)) if error.to_string().contains(part) => Ok(()),
            (Some(part), sent) => Err(format!("{self:?}: {sent:?}, not `{part}`")),
        }
    }
}

impl Row {
    /// Whether its run must be stored, since an unstored run receives approvals and cancellations alone.
    pub(crate) fn needs_store(&self) -> bool {
        self.stored || self.outside.iter().any(|message| message.signal.is_some())
    }

    /// The end of the run and the arguments of its calls.
    pub(crate) fn check_end(
        &self,
        status: RunStatus,
        output: &Value,
        error: Option<&ToolError>,
        script: &Script,
    ) -> Result<(), String> {
        let text = error
            .map(|error| format!("{error} {}", Value::Object(error.context().clone())))
            .unwrap_or_default();
        if status != self.status {
            return Err(format!("it {}, not {}: {text}", status.as_str(), self.status.as_str()));
        }
        if *output != self.output {
            return Err(format!("its output is {output}, not {}", self.output));
        }
        if !text.contains(&self.error) {
            return Err(format!("its error is `{text}`, not `{}`", self.error));
        }
        for (step, expected) in &self.values {
            let value = script.value(step).unwrap_or_default();
            if value != *expected {
                return Err(format!("{step} was called with {value}, not {expected}"));
            }
        }
        Ok(())
    }

    /// The events of each step, and their causal order.
    pub(crate) fn check_events(&self, trace: &[Entry]) -> Result<(), String> {
        let found = trace::by_step(trace);
        for (step, expected) in &self.events {
            let words = found.get(step.as_str()).map(|words| words.join(" ")).unwrap_or_default();
            if words != *expected {
                return Err(format!("{step}: `{words}`, not `{expected}`"));
            }
        }
        if let Some((step, words)) = found.iter().find(|(step, _)| !self.events.contains_key(**step)) {
            return Err(format!("{step}: `{}`, not nothing", words.join(" ")));
        }
        causal::check(self, trace, Repeats::Nothing)
    }

    /// The events of a run that was stopped and resumed. A step in flight begins again.
    ///
    /// `is_strict` is for a run that stopped before a commit with durability `full`: all events were shown, and no end
    /// twice. Else the last ends may be shown twice or not at all.
    pub(crate) fn check_resumed(
        &self,
        before: &[Entry],
        after: &[Entry],
        is_strict: bool,
    ) -> Result<(), String> {
        let (first, second) = (trace::by_step(before), trace::by_step(after));
        for step in first.keys().chain(second.keys()) {
            if !self.events.contains_key(*step) {
                return Err(format!("{step} began or ended"));
            }
        }
        let mut both = before.to_vec();
        for (step, expected) in &self.events {
            let expected: Vec<&str> = expected.split(' ').collect();
            let (first, second) = (trace::of(&first, step), trace::of(&second, step));
            let wrong = |what: &str| {
                Err(format!(
                    "{step}: {what}: `{}`, then `{}`, of `{}`",
                    first.join(" "),
                    second.join(" "),
                    expected.join(" ")
                ))
            };
            if !expected.starts_with(&first) || !expected.ends_with(&second) {
                return wrong("other events");
            }
            let again = expected.len() - second.len();
            if is_strict && again > first.len() {
                return wrong("events are missing");
            }
            // What the first process stored and did not show.
            let unseen = expected.get(first.len()..again).unwrap_or_default();
            both.extend(unseen.iter().map(|word| (step.clone(), (*word).to_owned())));
            let repeated = expected.get(again..first.len()).unwrap_or_default();
            if is_strict && (repeated.iter().any(|word| trace::is_end(word)) || repeated.len() > 2) {
                return wrong("ended work is repeated");
            }
        }
        both.extend_from_slice(after);
        causal::check(self, &both, if is_strict { Repeats::Attempts } else { Repeats::Ends })
    }

    /// The stored events: each attempt that ended did so once, in the order of the row.
    pub(crate) fn check_journal(&self, events: &[FlowEvent]) -> Result<(), String> {
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for event in events {
            let (step, word) = match event {
                FlowEvent::StepSucceeded { step, .. } => (step, "succeeded"),
                FlowEvent::StepFailed { step, error } => (step, error.code().as_str()),
                FlowEvent::StepCancelled { step } => (step, "cancelled"),
                _ => continue,
            };
            found.entry(step).or_default().push(word);
        }
        for (step, expected) in self.events.iter().filter(|(_, expected)| expected.starts_with("start")) {
            let handled = causal::step_of(&self.plan, step).is_some_and(|step| step["on_error"].is_array());
            let mut words: Vec<&str> = expected.split(' ').filter(|word| *word != "start").collect();
            // What follows from the last attempt is not stored.
            if words.len() > 1 && (words.last() == Some(&"failed") || handled) {
                words.pop();
            }
            let stored = found.remove(step.as_str()).unwrap_or_default();
            if stored != words {
                return Err(format!("{step}: `{}` is stored, not `{}`", stored.join(" "), words.join(" ")));
            }
        }
        Ok(())
    }
}

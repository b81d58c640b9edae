//! Guardrails: checks of input, output and tool calls.

use std::fmt;

use serde_json::Value;
use toolpost_core::BoxFuture;

/// The verdict of a guardrail on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextVerdict {
    /// The text passes.
    Allow,
    /// This text passes instead.
    Replace(String),
    /// The run ends with [`RunStopReason::Guardrail`](crate::RunStopReason::Guardrail). The reason is for the owner of
    /// the run.
    Block(String),
}

/// The verdict of a guardrail on a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallVerdict {
    /// The call runs.
    Allow,
    /// The call runs with these arguments, which are checked like any others.
    Replace(Value),
    /// The call does not run, and the model reads the reason.
    Refuse(String),
    /// The call does not run, and the run ends with [`RunStopReason::Guardrail`](crate::RunStopReason::Guardrail). The
    /// reason is for the owner of the run.
    Block(String),
}

/// Checks input, output and tool calls of a run.
///
/// Several guardrails apply in order, each to the result of the one before. The run waits for the verdict, within its own
/// time limit.
pub trait Guardrail: Send + Sync + fmt::Debug {
    /// The name, for records.
    fn name(&self) -> &str;

    /// Checks the text of the latest user turn, before the first request to the model. Defaults to allow.
    fn input<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        let _ = text;
        Box::pin(async { TextVerdict::Allow })
    }

    /// Checks the text of each answer before it is shown. Defaults to allow.
    ///
    /// A replacement changes what is shown; the provider still gets the model's own text.
    fn output<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        let _ = text;
        Box::pin(async { TextVerdict::Allow })
    }

    /// Whether [`output`](Self::output) checks anything; if so, answers are shown only when complete. Defaults to true.
    fn looks_at_output(&self) -> bool {
        true
    }

    /// Checks a tool call before it runs or is reported as an intent. Defaults to allow.
    ///
    /// An approved call is checked again, with its final arguments.
    fn call<'a>(&'a self, tool: &'a str, arguments: &'a Value) -> BoxFuture<'a, CallVerdict> {
        let _ = (tool, arguments);
        Box::pin(async { CallVerdict::Allow })
    }
}

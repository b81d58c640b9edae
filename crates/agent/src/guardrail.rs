//! Whoever looks at what goes in, what comes out and what is called, and may say no.

use std::fmt;

use serde_json::Value;
use toolpost_core::BoxFuture;

/// What a guardrail says of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextVerdict {
    /// It may pass.
    Allow,
    /// This passes instead.
    Replace(String),
    /// It may not pass, and the run ends ([`StopReason::Guardrail`](crate::StopReason::Guardrail)). The reason is for the
    /// run's owner.
    Block(String),
}

/// What a guardrail says of a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallVerdict {
    /// It may be made.
    Allow,
    /// It is made with these arguments instead. They are checked like any others.
    Replace(Value),
    /// It is not made, and the model is told why. The run goes on.
    Refuse(String),
    /// It is not made, and the run ends ([`StopReason::Guardrail`](crate::StopReason::Guardrail)). The reason is for the
    /// run's owner.
    Block(String),
}

/// Looks at what goes through a run. Several are asked in the order in which they were given, each about what the one
/// before has left. The run waits for the answer, but not beyond its own time.
pub trait Guardrail: Send + Sync + fmt::Debug {
    /// Its name, for records.
    fn name(&self) -> &str;

    /// Looks at the text of the last turn of the user, before the model is asked for the first time. Default: allow.
    fn input<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        let _ = text;
        Box::pin(async { TextVerdict::Allow })
    }

    /// Looks at the text of each answer, before anybody is shown it. What a replaced text goes back to the provider as
    /// is still the model's own. Default: allow.
    fn output<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        let _ = text;
        Box::pin(async { TextVerdict::Allow })
    }

    /// Whether [`output`](Self::output) does anything. If so, answers are shown when they are whole. Default: yes.
    fn looks_at_output(&self) -> bool {
        true
    }

    /// Looks at a tool call, before it is made, or told as an intent. A call that somebody has approved is looked at once
    /// more, with the arguments that it is then made with. Default: allow.
    fn call<'a>(&'a self, tool: &'a str, arguments: &'a Value) -> BoxFuture<'a, CallVerdict> {
        let _ = (tool, arguments);
        Box::pin(async { CallVerdict::Allow })
    }
}

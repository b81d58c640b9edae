//! Limits of a run.

use std::time::Duration;

/// Limits of one run.
///
/// A run that reaches one of the first five limits, or has a detected loop, asks the model for a last answer without tools
/// ([`RunLimits::wrap_up`]). A run exceeds a limit by at most the answer that reached it and that last answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunLimits {
    /// Requests to the model. Defaults to 25.
    pub iterations: u32,
    /// Tool calls, those of nested agents included. Defaults to unlimited.
    pub tool_calls: Option<u32>,
    /// Input and output tokens, checked after each answer. Defaults to unlimited.
    pub tokens: Option<u64>,
    /// US dollars, checked after each answer. Defaults to unlimited.
    ///
    /// A run with this limit ends before its first request if the price of a model that it may ask is unknown. That
    /// includes fallback models, models that write summaries or pick tools, and the models of nested agents.
    pub cost_usd: Option<f64>,
    /// Completions that one tool call may request from the model. Defaults to 32.
    pub completions: u32,
    /// Output tokens of each of those completions. Defaults to 4,096.
    pub completion_tokens: u32,
    /// Duration of the run. Defaults to unlimited.
    pub time: Option<Duration>,
    /// Tools that run in parallel. Defaults to 8.
    pub parallel_tools: usize,
    /// Duration of one tool call, if the tool's own policy is not shorter. Defaults to the tool's own, 60 s.
    ///
    /// A timeout ends an async function at its next await, and a worker or a sandbox with all its processes. It does not
    /// end a blocking function; the result says so.
    pub tool_timeout: Option<Duration>,
    /// Characters of one tool result that the model reads. Defaults to the limit of the toolbox, 64 KiB.
    ///
    /// A longer result keeps its head and tail, with a marker between them. The application gets the whole result.
    pub tool_output_chars: Option<usize>,
    /// Threshold of repetition; 0 turns detection off. Defaults to 3.
    ///
    /// The run warns the model at the threshold and ends at twice the threshold for a failing call. It warns at twice and
    /// ends at three times the threshold for a repeated successful call and for answers that bring nothing new. A repeated
    /// call with a new result counts half.
    pub repetition: u32,
    /// Requests to correct an answer that does not match its schema. Defaults to 2.
    pub repairs: u32,
    /// Whether a run that reached a limit writes a summary, of at most 1,024 tokens in 30 s. Defaults to true.
    pub wrap_up: bool,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            iterations: 25,
            tool_calls: None,
            tokens: None,
            cost_usd: None,
            completions: 32,
            completion_tokens: 4096,
            time: None,
            parallel_tools: 8,
            tool_timeout: None,
            tool_output_chars: None,
            repetition: 3,
            repairs: 2,
            wrap_up: true,
        }
    }
}

//! Stop reasons of runs.

use std::fmt;

/// The reason why a run ended. Only the first two are an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunStopReason {
    /// The model finished its answer.
    EndTurn,
    /// The model wrote a stop sequence.
    StopSequence,
    /// The model reached its limit of output tokens.
    OutputTokens,
    /// The conversation exceeds the context window.
    ContextWindow,
    /// The model or its provider refused.
    Refusal,
    /// The run reached its limit of requests to the model.
    MaxIterations,
    /// The run reached its limit of tool calls.
    MaxToolCalls,
    /// The run reached its limit of tokens.
    MaxTokens,
    /// The run reached its time limit.
    MaxTime,
    /// The run reached its limit of cost.
    MaxCost,
    /// One call failed repeatedly.
    RepeatedError,
    /// One call succeeded repeatedly.
    RepeatedCall,
    /// Answers brought nothing new: calls in a cycle, known results, unknown tools, the same text.
    NoProgress,
    /// No answer matched the required schema.
    AnswerSchema,
    /// A guardrail blocked the run: its name and its reason.
    Guardrail(String),
    /// Calls await approval.
    ApprovalNeeded,
    /// Calls are pending because only the intent was requested.
    ToolIntent,
    /// The approved calls ran, and nothing else was requested.
    ToolsCalled,
    /// The state was resumed before, or the store could not check it: the reason.
    NotClaimed(String),
    /// The cost is unknown, and the run has a limit of cost.
    UnknownCost,
    /// Another agent of the team takes over the conversation.
    Handoff,
    /// The caller cancelled the run.
    Cancelled,
    /// The request to the model failed, or its response was invalid.
    ModelError,
    /// The model stopped for a reason in its provider's words.
    Other(String),
}

impl RunStopReason {
    /// The name in records, such as `max_iterations`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::StopSequence => "stop_sequence",
            Self::OutputTokens => "output_tokens",
            Self::ContextWindow => "context_window",
            Self::Refusal => "refusal",
            Self::MaxIterations => "max_iterations",
            Self::MaxToolCalls => "max_tool_calls",
            Self::MaxTokens => "max_tokens",
            Self::MaxTime => "max_time",
            Self::MaxCost => "max_cost",
            Self::RepeatedError => "repeated_error",
            Self::RepeatedCall => "repeated_call",
            Self::NoProgress => "no_progress",
            Self::AnswerSchema => "answer_schema",
            Self::Guardrail(_) => "guardrail",
            Self::ApprovalNeeded => "approval_needed",
            Self::ToolIntent => "tool_intent",
            Self::ToolsCalled => "tools_called",
            Self::NotClaimed(_) => "not_claimed",
            Self::UnknownCost => "unknown_cost",
            Self::Handoff => "handoff",
            Self::Cancelled => "cancelled",
            Self::ModelError => "model_error",
            Self::Other(word) => word,
        }
    }

    /// Whether the run has an answer.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::EndTurn | Self::StopSequence)
    }

    /// Whether the run paused as requested: for approval, after an intent, or after its pending calls.
    pub fn is_pause(&self) -> bool {
        matches!(self, Self::ApprovalNeeded | Self::ToolIntent | Self::ToolsCalled)
    }

    /// Whether the run ended because of a detected loop.
    pub fn is_repetition(&self) -> bool {
        matches!(self, Self::RepeatedError | Self::RepeatedCall | Self::NoProgress)
    }

    /// Whether the run reached one of its limits; repetition is one.
    pub fn is_limit(&self) -> bool {
        self.is_repetition()
            || matches!(
                self,
                Self::MaxIterations
                    | Self::MaxToolCalls
                    | Self::MaxTokens
                    | Self::MaxTime
                    | Self::MaxCost
                    | Self::UnknownCost
                    | Self::OutputTokens
            )
    }

    /// Whether the model may write a last answer after this stop.
    pub(crate) fn may_wrap_up(&self) -> bool {
        self.is_limit() && !matches!(self, Self::OutputTokens | Self::UnknownCost)
    }
}

impl fmt::Display for RunStopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

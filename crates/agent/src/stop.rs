//! Why a run ended.

use std::fmt;

/// Why a run ended. Only the first two are an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model has said all that it wanted to say.
    EndTurn,
    /// The model wrote one of the texts at which it was told to stop.
    StopSequence,
    /// The model reached the longest answer that it may write.
    OutputTokens,
    /// The conversation has outgrown the model.
    ContextWindow,
    /// The model, or its provider, declined.
    Refusal,
    /// The model was asked as often as it may be.
    MaxIterations,
    /// As many tools were called as may be.
    MaxToolCalls,
    /// As many tokens were used as may be.
    MaxTokens,
    /// The run took as long as it may.
    MaxTime,
    /// The run cost as much as it may.
    MaxCost,
    /// The same call failed again and again.
    RepeatedError,
    /// The same call was made again and again, though it succeeded.
    RepeatedCall,
    /// The same few steps were taken in turn, with the same results.
    Cycle,
    /// Calls brought nothing that was not known.
    NoProgress,
    /// The model said the same again and again, or ever more of the same.
    Narration,
    /// The model called tools that do not exist, again and again.
    UnknownTool,
    /// A tool took too long, again and again.
    ToolTimeouts,
    /// None of the answers fitted the schema that they must fit.
    AnswerSchema,
    /// A guardrail said no: its name, and why.
    Guardrail(String),
    /// Calls wait for somebody to approve them.
    ApprovalNeeded,
    /// Calls wait because only their intent was asked for.
    ToolIntent,
    /// The calls that were chosen have been made, and no more was asked for.
    ToolsCalled,
    /// A state is gone on from once, and somebody has done so before, or the store could not say whether: why.
    NotClaimed(String),
    /// What the run has cost is not known, and it may only cost so much.
    UnknownCost,
    /// The conversation moves to another agent of the team.
    Handoff,
    /// The caller asked to stop.
    Cancelled,
    /// The model could not be asked, or its answer could not be read.
    ModelError,
    /// The model stopped for a reason of its own, in its provider's words.
    Other(String),
}

impl StopReason {
    /// The word in records, such as `max_iterations`.
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
            Self::Cycle => "cycle",
            Self::NoProgress => "no_progress",
            Self::Narration => "narration",
            Self::UnknownTool => "unknown_tool",
            Self::ToolTimeouts => "tool_timeouts",
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

    /// Whether the run reached an answer.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::EndTurn | Self::StopSequence)
    }

    /// Whether the run ended because it got nowhere.
    pub fn is_repetition(&self) -> bool {
        matches!(
            self,
            Self::RepeatedError
                | Self::RepeatedCall
                | Self::Cycle
                | Self::NoProgress
                | Self::Narration
                | Self::UnknownTool
                | Self::ToolTimeouts
        )
    }

    /// Whether the run ended at one of its own limits, of which repetition is one.
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

    /// Whether a run that ended so may sum up: it came to a limit that leaves something for a last answer.
    pub(crate) fn may_sum_up(&self) -> bool {
        self.is_limit() && !matches!(self, Self::OutputTokens | Self::UnknownCost)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

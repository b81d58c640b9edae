//! The exit statuses, in one table.

use toolpost_agent::RunStopReason;
use toolpost_core::{Code, ToolError};
use toolpost_llm::ErrorKind;
use toolpost_sandbox::{Interruption, Verdict};

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    Failed,
    Usage,
    Credentials,
    Unreachable,
    Denied,
    Limit,
    Schema,
    Interrupted,
}

/// Number and meaning, as `toolpost help exit-codes` prints them.
pub(crate) const TABLE: [(Exit, u8, &str); 9] = [
    (Exit::Ok, 0, "all went well; a partial result counts as well and says so"),
    (Exit::Failed, 1, "the tool, the agent or the code reported failure"),
    (Exit::Usage, 2, "the command line, a script or a setting is wrong"),
    (Exit::Credentials, 3, "a key is missing or was refused"),
    (Exit::Unreachable, 4, "something could not be reached, or was too slow"),
    (Exit::Denied, 5, "denied: permission, approval, sandbox policy, or a level that this host cannot give"),
    (Exit::Limit, 6, "a limit was reached: a budget, memory, disk, output, processes"),
    (Exit::Schema, 7, "the answer does not fit the schema that it must fit"),
    (Exit::Interrupted, 130, "interrupted by Ctrl-C, or asked to end by another signal"),
];

impl Exit {
    pub(crate) fn number(self) -> u8 {
        TABLE.iter().find(|(exit, ..)| *exit == self).map_or(1, |(_, number, _)| *number)
    }
}

impl Exit {
    /// The one that a number means.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        TABLE.iter().find(|(_, own, _)| *own == number).map(|(exit, ..)| *exit)
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

impl From<&ToolError> for Exit {
    fn from(error: &ToolError) -> Self {
        if error.is_program_failure() { Self::Failed } else { error.code().into() }
    }
}

impl From<Code> for Exit {
    fn from(code: Code) -> Self {
        match code {
            Code::Dependency | Code::Timeout | Code::Overloaded => Self::Unreachable,
            Code::Permission => Self::Denied,
            Code::Limit => Self::Limit,
            Code::Cancelled => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

impl From<&ErrorKind> for Exit {
    fn from(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::Auth | ErrorKind::Billing => Self::Credentials,
            ErrorKind::NotFound
            | ErrorKind::InvalidRequest
            | ErrorKind::Unsupported
            | ErrorKind::Configuration
            | ErrorKind::Script => Self::Usage,
            ErrorKind::RateLimited { .. }
            | ErrorKind::Overloaded
            | ErrorKind::Network(_)
            | ErrorKind::Timeout(_)
            | ErrorKind::Protocol => Self::Unreachable,
            ErrorKind::NetworkForbidden => Self::Denied,
            ErrorKind::ContextTooLong => Self::Limit,
            _ => Self::Failed,
        }
    }
}

impl From<&RunStopReason> for Exit {
    fn from(stop: &RunStopReason) -> Self {
        match stop {
            stop if stop.is_answer() => Self::Ok,
            RunStopReason::Cancelled => Self::Interrupted,
            RunStopReason::ContextWindow => Self::Limit,
            RunStopReason::AnswerSchema => Self::Schema,
            RunStopReason::Guardrail(_) | RunStopReason::ApprovalNeeded => Self::Denied,
            stop if stop.is_limit() => Self::Limit,
            _ => Self::Failed,
        }
    }
}

impl From<&Verdict> for Exit {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok,
            Verdict::Timeout { .. } => Self::Unreachable,
            Verdict::Idle { .. }
            | Verdict::Cpu { .. }
            | Verdict::Inodes { .. }
            | Verdict::FileSize { .. }
            | Verdict::Memory { .. }
            | Verdict::Processes { .. }
            | Verdict::Disk { .. }
            | Verdict::Output { .. } => Self::Limit,
            Verdict::Denied { .. } => Self::Denied,
            Verdict::Cancelled => Self::Interrupted,
            Verdict::Interrupted { by } => match by {
                Interruption::Caller => Self::Interrupted,
                Interruption::Wall => Self::Unreachable,
                Interruption::Cpu | Interruption::Idle | Interruption::Output => Self::Limit,
                _ => Self::Failed,
            },
            _ => Self::Failed,
        }
    }
}

impl From<&toolpost_sandbox::Error> for Exit {
    fn from(error: &toolpost_sandbox::Error) -> Self {
        use toolpost_sandbox::Error;
        match error {
            Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } => Self::Denied,
            Error::LanguageMissing { .. }
            | Error::Build { .. }
            | Error::Requirement { .. }
            | Error::SessionEnded { .. }
            | Error::SessionRejected { .. } => Self::Failed,
            Error::Backend { .. } => crate::container::exit(error),
            Error::Setup { .. } | Error::Overloaded { .. } => Self::Unreachable,
            _ => Self::Usage,
        }
    }
}

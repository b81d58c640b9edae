//! The table of exit codes.

use toolpost_agent::RunStopReason;
use toolpost_core::{Code, ToolError};
use toolpost_llm::ErrorKind;
use toolpost_sandbox::{Interruption, Verdict};

/// The exit code of the command.
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
    (Exit::Ok, 0, "success; a partial result counts and is reported"),
    (Exit::Failed, 1, "the tool, the agent or the code failed"),
    (Exit::Usage, 2, "invalid command line, script or setting"),
    (Exit::Credentials, 3, "a credential is missing or was rejected"),
    (Exit::Unreachable, 4, "unreachable or too slow"),
    (
        Exit::Denied,
        5,
        "denied: permission, approval, sandbox policy, an unavailable level, or a change that was not applied",
    ),
    (Exit::Limit, 6, "a limit: budget, memory, disk, output, processes"),
    (Exit::Schema, 7, "the answer does not fit its schema"),
    (Exit::Interrupted, 130, "interrupted by Ctrl-C or another signal"),
];

impl Exit {
    pub(crate) fn number(self) -> u8 {
        TABLE.iter().find(|(exit, ..)| *exit == self).map_or(1, |(_, number, _)| *number)
    }
}

impl Exit {
    /// The exit code with this number.
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
        // A change of the working directory that the host did not take.
        if error.context().contains_key("not_applied") {
            Self::Denied
        } else if error.is_program_failure() {
            Self::Failed
        } else {
            error.code().into()
        }
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
            Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } | Error::CopyTooLarge { .. } => {
                Self::Denied
            }
            Error::LanguageMissing { .. }
            | Error::Build { .. }
            | Error::Requirement { .. }
            | Error::SessionEnded { .. }
            | Error::SessionRejected { .. } => Self::Failed,
            Error::Backend { .. } => of_container(error),
            Error::Setup { .. } | Error::Overloaded { .. } => Self::Unreachable,
            _ => Self::Usage,
        }
    }
}

/// The exit code of a container error.
#[cfg(target_os = "linux")]
fn of_container(error: &toolpost_sandbox::Error) -> Exit {
    use toolpost_docker::DockerError;

    match DockerError::from_sandbox(error) {
        Some(
            DockerError::Address { .. }
            | DockerError::ImageMissing { .. }
            | DockerError::ImageUnusable { .. }
            | DockerError::LoginRejected { .. }
            | DockerError::RuntimeMissing { .. }
            | DockerError::Unsupported { .. }
            | DockerError::File { .. },
        ) => Exit::Usage,
        Some(DockerError::NotConfined { .. }) => Exit::Denied,
        _ => Exit::Unreachable,
    }
}

#[cfg(not(target_os = "linux"))]
fn of_container(_error: &toolpost_sandbox::Error) -> Exit {
    Exit::Unreachable
}

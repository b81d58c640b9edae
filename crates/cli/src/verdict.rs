//! Failures for sandbox verdicts, with the option that raises the limit.

use std::time::Duration;

use serde_json::Value;
use toolpost_core::format_duration;
use toolpost_sandbox::{Interruption, Level, Verdict};

use crate::failure::Failure;

/// The signal for a file beyond its size limit.
const SIGXFSZ: i32 = 25;

/// The command that ran the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// `exec` at this level.
    Exec(Level),
    /// `exec` in the private layer of a directory.
    Layer(Level),
    /// A tool of `call`.
    Call {
        /// Whether the tool has an argument `timeout`.
        has_timeout: bool,
    },
}

/// The failure for a verdict and the option that would allow more; `None` for success.
pub(crate) fn failure(verdict: &Verdict, ran: Ran) -> Option<Failure> {
    let more_disk = if matches!(ran, Ran::Layer(_)) { "--live" } else { "--workdir DIR" };
    let (message, hint) = match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => (format!("the program ended with exit status {code}"), None),
        Verdict::Signal { signal: SIGXFSZ } => {
            ("the program ended at its file size limit".to_owned(), Some("--max-file SIZE"))
        }
        Verdict::Signal { signal } => (format!("the program was ended by signal {signal}"), None),
        Verdict::Timeout { limit_ms } => {
            (format!("the program was stopped after {}", time(*limit_ms)), Some("--timeout D"))
        }
        Verdict::Cpu { limit_ms } => {
            let message = format!("the program was stopped after {} of processor time", time(*limit_ms));
            (message, Some("--cpu-time D"))
        }
        Verdict::Idle { limit_ms } => {
            (format!("the program was stopped after {} without activity", time(*limit_ms)), Some("--idle D"))
        }
        Verdict::Inodes { limit } => {
            (format!("the program exceeded {limit} files and directories"), Some(more_disk))
        }
        Verdict::FileSize { limit } => {
            (format!("the program was stopped: a file exceeded {}", size(*limit)), Some("--max-file SIZE"))
        }
        Verdict::Memory { limit } => {
            (format!("the program was stopped: its memory exceeded {}", size(*limit)), Some("--memory SIZE"))
        }
        Verdict::Processes { limit } => (format!("the program exceeded {limit} processes"), Some("--pids N")),
        Verdict::Disk { limit } => {
            (format!("the program's files exceeded {}", size(*limit)), Some(more_disk))
        }
        Verdict::Output { limit } => (
            format!("the program was stopped: its output exceeded {}", size(*limit)),
            Some("--max-total-output SIZE"),
        ),
        Verdict::Denied { rule } => {
            let message = format!("the program was stopped: the sandbox blocks {rule}");
            // Only that level kills for a system call that others allow or fail.
            (
                message,
                matches!(ran, Ran::Exec(Level::Maximum) | Ran::Layer(Level::Maximum))
                    .then_some("--level strict"),
            )
        }
        Verdict::Interrupted { by: Interruption::Caller } => {
            ("the code was interrupted; the session continues".to_owned(), None)
        }
        Verdict::Interrupted { by: Interruption::Wall } => (
            "the code was interrupted at its time limit; the session continues".to_owned(),
            Some("--timeout D"),
        ),
        Verdict::Interrupted { by: Interruption::Cpu } => (
            "the code was interrupted at its processor time limit; the session continues".to_owned(),
            Some("--cpu-time D"),
        ),
        Verdict::Interrupted { by: Interruption::Idle } => {
            ("the code was interrupted at its idle limit; the session continues".to_owned(), Some("--idle D"))
        }
        Verdict::Interrupted { by: Interruption::Output } => (
            "the code was interrupted at its output limit; the session continues".to_owned(),
            Some("--max-total-output SIZE"),
        ),
        Verdict::Cancelled => ("the program was cancelled".to_owned(), None),
        other => (format!("the program ended: {other:?}"), None),
    };
    let kind = serde_json::to_value(verdict).unwrap_or_default();
    let code = kind.get("kind").and_then(Value::as_str).unwrap_or("failed").to_uppercase();
    let failure = Failure::new(verdict.into(), &code, message);
    Some(match hint {
        Some("--timeout D") if ran == (Ran::Call { has_timeout: true }) => {
            failure.hint("Allow more with the argument `timeout`.")
        }
        Some(option) if matches!(ran, Ran::Call { .. }) => {
            failure.hint(format!("`toolpost exec` has `{option}` to allow more."))
        }
        Some(option) => failure.hint(format!("Allow more with `{option}`.")),
        None => failure,
    })
}

fn time(milliseconds: u64) -> String {
    format_duration(Duration::from_millis(milliseconds))
}

/// A size in the units of options.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    const CALL: Ran = Ran::Call { has_timeout: true };

    #[test]
    fn every_failed_verdict_has_a_message() {
        assert!(failure(&Verdict::Ok, CALL).is_none());
        for (verdict, exit, code, message, hint) in [
            (Verdict::Exit { code: 9 }, Exit::Failed, "EXIT", "exit status 9", None),
            (Verdict::Signal { signal: 11 }, Exit::Failed, "SIGNAL", "signal 11", None),
            (Verdict::Signal { signal: 25 }, Exit::Failed, "SIGNAL", "file size limit", Some("--max-file")),
            (Verdict::Timeout { limit_ms: 2000 }, Exit::Unreachable, "TIMEOUT", "after 2", Some("--timeout")),
            (Verdict::Cpu { limit_ms: 2000 }, Exit::Limit, "CPU", "processor time", Some("--cpu-time")),
            (Verdict::Idle { limit_ms: 2000 }, Exit::Limit, "IDLE", "without activity", Some("--idle")),
            (Verdict::Inodes { limit: 40 }, Exit::Limit, "INODES", "40 files", Some("--workdir")),
            (
                Verdict::FileSize { limit: 2048 },
                Exit::Limit,
                "FILE_SIZE",
                "exceeded 2 KiB",
                Some("--max-file"),
            ),
            (Verdict::Memory { limit: 64 << 20 }, Exit::Limit, "MEMORY", "64 MiB", Some("--memory")),
            (Verdict::Processes { limit: 4 }, Exit::Limit, "PROCESSES", "4 processes", Some("--pids")),
            (Verdict::Disk { limit: 2048 }, Exit::Limit, "DISK", "2 KiB", Some("--workdir")),
            (Verdict::Output { limit: 5 }, Exit::Limit, "OUTPUT", "5 bytes", Some("--max-total-output")),
            (
                Verdict::Denied { rule: "x".into() },
                Exit::Denied,
                "DENIED",
                "blocks x",
                Some("--level strict"),
            ),
            (
                Verdict::Interrupted { by: Interruption::Caller },
                Exit::Interrupted,
                "INTERRUPTED",
                "session continues",
                None,
            ),
            (
                Verdict::Interrupted { by: Interruption::Wall },
                Exit::Unreachable,
                "INTERRUPTED",
                "at its time limit",
                Some("--timeout"),
            ),
            (
                Verdict::Interrupted { by: Interruption::Idle },
                Exit::Limit,
                "INTERRUPTED",
                "at its idle limit",
                Some("--idle"),
            ),
            (Verdict::Cancelled, Exit::Interrupted, "CANCELLED", "was cancelled", None),
        ] {
            let failed = failure(&verdict, Ran::Exec(Level::Maximum)).unwrap();
            assert_eq!((failed.exit, failed.code.as_str()), (exit, code));
            assert!(failed.message.contains(message), "{failed:?}");
            assert_eq!(!failed.hints.is_empty(), hint.is_some(), "{failed:?}");
            assert!(hint.is_none_or(|hint| failed.hints[0].contains(hint)), "{failed:?}");
        }
    }
    #[test]
    fn an_option_is_named_only_where_it_helps() {
        let denied = Verdict::Denied { rule: "x".into() };
        for ran in [Ran::Exec(Level::Strict), Ran::Exec(Level::Standard), CALL] {
            assert!(failure(&denied, ran).unwrap().hints.is_empty(), "{ran:?}");
        }
        for (ran, option) in [(Ran::Exec(Level::Strict), "--workdir"), (Ran::Layer(Level::Strict), "--live")]
        {
            let hints = failure(&Verdict::Disk { limit: 1 }, ran).unwrap().hints;
            assert!(hints[0].contains(option), "{hints:?}");
        }
        // Tools have no such option.
        let hints = failure(&Verdict::Memory { limit: 1 }, CALL).unwrap().hints;
        assert!(hints[0].contains("`toolpost exec`") && hints[0].contains("`--memory SIZE`"), "{hints:?}");
        let hints = failure(&Verdict::Timeout { limit_ms: 1 }, CALL).unwrap().hints;
        assert_eq!(hints, ["Allow more with the argument `timeout`."]);
    }
}

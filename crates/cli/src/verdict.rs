//! How a sandboxed program ended, told to the person who started it.

use std::time::Duration;

use serde_json::Value;
use toolpost_core::format_duration;
use toolpost_sandbox::{Interruption, Level, Verdict};

use crate::failure::Failure;

/// The signal for a file that grew beyond its limit.
const SIGXFSZ: i32 = 25;

/// Which command ran the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// `exec`, at this level.
    Exec(Level),
    /// `exec` in the private layer of a directory.
    Layer(Level),
    /// A tool that `call` called.
    Call,
}

/// What went wrong with a program, and the option that would have given it more; `None` if it ended well.
pub(crate) fn failure(verdict: &Verdict, ran: Ran) -> Option<Failure> {
    let more_disk = if matches!(ran, Ran::Layer(_)) { "--live" } else { "--workdir DIR" };
    let (message, hint) = match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => (format!("the program ended with exit status {code}"), None),
        Verdict::Signal { signal: SIGXFSZ } => {
            ("the program was ended because a file grew too large".to_owned(), Some("--max-file SIZE"))
        }
        Verdict::Signal { signal } => (format!("the program was ended by signal {signal}"), None),
        Verdict::Timeout { limit_ms } => (
            format!("the program was stopped: it was not done after {}", time(*limit_ms)),
            Some("--timeout D"),
        ),
        Verdict::Cpu { limit_ms } => {
            let message =
                format!("the program was stopped: it had used {} of processor time", time(*limit_ms));
            (message, Some("--cpu-time D"))
        }
        Verdict::Idle { limit_ms } => {
            (format!("the program was stopped: it did nothing for {}", time(*limit_ms)), Some("--idle D"))
        }
        Verdict::Inodes { limit } => {
            (format!("the program failed: it needed more than {limit} files and folders"), Some(more_disk))
        }
        Verdict::FileSize { limit } => (
            format!("the program was stopped: a file would have grown beyond {}", size(*limit)),
            Some("--max-file SIZE"),
        ),
        Verdict::Memory { limit } => (
            format!("the program was stopped: it needed more memory than {}", size(*limit)),
            Some("--memory SIZE"),
        ),
        Verdict::Processes { limit } => {
            (format!("the program failed: it needed more than {limit} processes"), Some("--pids N"))
        }
        Verdict::Disk { limit } => {
            (format!("the program failed: its files needed more room than {}", size(*limit)), Some(more_disk))
        }
        Verdict::Output { limit } => (
            format!("the program was stopped: it printed more than {}", size(*limit)),
            Some("--max-total-output SIZE"),
        ),
        Verdict::Denied { rule } => {
            let message = format!("the program was stopped: the sandbox does not allow {rule}");
            // Only that level ends a program for a call which others allow or refuse with an error.
            (
                message,
                matches!(ran, Ran::Exec(Level::Maximum) | Ran::Layer(Level::Maximum))
                    .then_some("--level strict"),
            )
        }
        Verdict::Interrupted { by: Interruption::Caller } => {
            ("the code was interrupted, and the session goes on".to_owned(), None)
        }
        Verdict::Interrupted { by: Interruption::Wall } => (
            "the code was interrupted: it was not done in time; the session goes on".to_owned(),
            Some("--timeout D"),
        ),
        Verdict::Interrupted { by: Interruption::Cpu } => (
            "the code was interrupted: it used too much processor time; the session goes on".to_owned(),
            Some("--cpu-time D"),
        ),
        Verdict::Interrupted { by: Interruption::Idle } => (
            "the code was interrupted: it did nothing for too long; the session goes on".to_owned(),
            Some("--idle D"),
        ),
        Verdict::Interrupted { by: Interruption::Output } => (
            "the code was interrupted: it printed too much; the session goes on".to_owned(),
            Some("--max-total-output SIZE"),
        ),
        Verdict::Cancelled => ("the program was stopped, as was asked for".to_owned(), None),
        other => (format!("the program ended: {other:?}"), None),
    };
    let kind = serde_json::to_value(verdict).unwrap_or_default();
    let code = kind.get("kind").and_then(Value::as_str).unwrap_or("failed").to_uppercase();
    let failure = Failure::new(verdict.into(), &code, message);
    Some(match hint {
        Some(option) if ran == Ran::Call => {
            failure.hint(format!("`toolpost exec` gives a program more with `{option}`."))
        }
        Some(option) => failure.hint(format!("If it may have more, say so with `{option}`.")),
        None => failure,
    })
}

fn time(milliseconds: u64) -> String {
    format_duration(Duration::from_millis(milliseconds))
}

/// A number of bytes, in the unit that options take.
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

    #[test]
    fn every_end_but_a_good_one_is_told() {
        assert!(failure(&Verdict::Ok, Ran::Call).is_none());
        for (verdict, exit, code, message, hint) in [
            (Verdict::Exit { code: 9 }, Exit::Failed, "EXIT", "exit status 9", None),
            (Verdict::Signal { signal: 11 }, Exit::Failed, "SIGNAL", "signal 11", None),
            (Verdict::Signal { signal: 25 }, Exit::Failed, "SIGNAL", "too large", Some("--max-file")),
            (Verdict::Timeout { limit_ms: 2000 }, Exit::Unreachable, "TIMEOUT", "after 2", Some("--timeout")),
            (Verdict::Cpu { limit_ms: 2000 }, Exit::Limit, "CPU", "processor time", Some("--cpu-time")),
            (Verdict::Idle { limit_ms: 2000 }, Exit::Limit, "IDLE", "did nothing for 2", Some("--idle")),
            (Verdict::Inodes { limit: 40 }, Exit::Limit, "INODES", "40 files", Some("--workdir")),
            (Verdict::FileSize { limit: 2048 }, Exit::Limit, "FILE_SIZE", "beyond 2 KiB", Some("--max-file")),
            (Verdict::Memory { limit: 64 << 20 }, Exit::Limit, "MEMORY", "64 MiB", Some("--memory")),
            (Verdict::Processes { limit: 4 }, Exit::Limit, "PROCESSES", "4 processes", Some("--pids")),
            (Verdict::Disk { limit: 2048 }, Exit::Limit, "DISK", "2 KiB", Some("--workdir")),
            (Verdict::Output { limit: 5 }, Exit::Limit, "OUTPUT", "5 bytes", Some("--max-total-output")),
            (
                Verdict::Denied { rule: "x".into() },
                Exit::Denied,
                "DENIED",
                "does not allow x",
                Some("--level strict"),
            ),
            (
                Verdict::Interrupted { by: Interruption::Caller },
                Exit::Interrupted,
                "INTERRUPTED",
                "session goes on",
                None,
            ),
            (
                Verdict::Interrupted { by: Interruption::Wall },
                Exit::Unreachable,
                "INTERRUPTED",
                "not done in time",
                Some("--timeout"),
            ),
            (
                Verdict::Interrupted { by: Interruption::Idle },
                Exit::Limit,
                "INTERRUPTED",
                "nothing for too long",
                Some("--idle"),
            ),
            (Verdict::Cancelled, Exit::Interrupted, "CANCELLED", "asked for", None),
        ] {
            let told = failure(&verdict, Ran::Exec(Level::Maximum)).unwrap();
            assert_eq!((told.exit, told.code.as_str()), (exit, code));
            assert!(told.message.contains(message), "{told:?}");
            assert_eq!(!told.hints.is_empty(), hint.is_some(), "{told:?}");
            assert!(hint.is_none_or(|hint| told.hints[0].contains(hint)), "{told:?}");
        }
    }
    #[test]
    fn an_option_is_named_only_where_it_helps() {
        let denied = Verdict::Denied { rule: "x".into() };
        for ran in [Ran::Exec(Level::Strict), Ran::Exec(Level::Standard), Ran::Call] {
            assert!(failure(&denied, ran).unwrap().hints.is_empty(), "{ran:?}");
        }
        for (ran, option) in [(Ran::Exec(Level::Strict), "--workdir"), (Ran::Layer(Level::Strict), "--live")]
        {
            let hints = failure(&Verdict::Disk { limit: 1 }, ran).unwrap().hints;
            assert!(hints[0].contains(option), "{hints:?}");
        }
        // A tool has no such option.
        let hints = failure(&Verdict::Memory { limit: 1 }, Ran::Call).unwrap().hints;
        assert!(hints[0].contains("`toolpost exec`") && hints[0].contains("`--memory SIZE`"), "{hints:?}");
    }
}

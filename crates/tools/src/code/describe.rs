//! Descriptions of a run for a model.

use std::time::Duration;

use toolpost::{WideJson, format_duration};
use toolpost_runtimes::Unmet;
use toolpost_sandbox::{Applied, ApplyState, Interruption, Language, Reached, Report, Verdict};

use super::run::CodeResult;

/// The verdict in words; `None` for success.
pub(super) fn verdict(verdict: &Verdict) -> Option<String> {
    let time = |milliseconds: &u64| format_duration(Duration::from_millis(*milliseconds));
    Some(match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => format!("The program exited with status {code}."),
        Verdict::Signal { signal } => format!("The program was killed by {}.", signal_name(*signal)),
        Verdict::Timeout { limit_ms } => {
            format!("Stopped: it timed out after {}.", time(limit_ms))
        }
        Verdict::Cpu { limit_ms } => {
            format!("Stopped: it exceeded its limit of {} CPU time.", time(limit_ms))
        }
        Verdict::Idle { limit_ms } => {
            format!("Stopped: it was idle for {}, the limit.", time(limit_ms))
        }
        Verdict::Inodes { limit } => {
            format!("Failed: it exceeded its limit of {limit} files and directories.")
        }
        Verdict::FileSize { limit } => {
            format!("Stopped: a file exceeded the size limit of {}.", size(*limit))
        }
        Verdict::Memory { limit } => {
            format!("Stopped: it exceeded its limit of {} memory.", size(*limit))
        }
        Verdict::Processes { limit } => {
            format!("Failed: it exceeded its limit of {limit} processes.")
        }
        Verdict::Disk { limit } => {
            format!("Failed: it exceeded its limit of {} disk space.", size(*limit))
        }
        Verdict::Output { limit } => format!("Stopped: it printed more than {}.", size(*limit)),
        Verdict::Denied { rule } => format!("Stopped: the sandbox blocked it: {rule}."),
        Verdict::Interrupted { by } => {
            let why = match by {
                Interruption::Wall => "it timed out",
                Interruption::Cpu => "it exceeded its CPU time",
                Interruption::Output => "it printed too much",
                _ => "the caller cancelled it",
            };
            format!("Interrupted: {why}. The session continues with its state so far.")
        }
        Verdict::Cancelled => "Stopped: the caller cancelled it.".to_owned(),
        other => format!("Ended: {other:?}."),
    })
}

/// Notes on changes that were not applied to the working directory.
pub(super) fn applied(applied: &Applied) -> Vec<String> {
    /// Maximum number of named paths.
    const MAX_PATHS: usize = 10;
    let mut remarks = Vec::new();
    if applied.state == ApplyState::Held {
        let because = applied.held_because.map_or(String::new(), |because| format!(" because {because}"));
        remarks.push(format!(
            "The changes of the working directory are held{because}; the operator can apply run {}.",
            applied.id
        ));
    }
    for denied in applied.denied.iter().take(MAX_PATHS) {
        remarks.push(format!("`{}` was not applied: {}.", denied.path.display(), denied.reason));
    }
    let more = applied.denied_count.saturating_sub(MAX_PATHS);
    if more > 0 {
        remarks.push(format!("{more} more paths were not applied."));
    }
    if applied.held_count > 0 {
        remarks.push(format!(
            "{} of these changes are held; the operator can apply run {}.",
            applied.held_count, applied.id
        ));
    }
    remarks
}

/// A note on host paths that the program does not see. They are for the operator alone.
pub(super) fn not_shown(report: &Report) -> Option<String> {
    (!report.not_shown.is_empty()).then(|| {
        "Files of the program name host paths that it cannot read; the operator's report lists them."
            .to_owned()
    })
}

/// A note on a missing dependency of the program.
pub(super) fn unmet(unmet: &Unmet) -> Option<String> {
    Some(match unmet {
        Unmet::Module { language: Language::Python, module, profile, .. } => {
            let profile = profile.map_or_else(String::new, |name| format!(" `{name}`"));
            format!(
                "`{module}` is not installed: write the code without it. The operator can add it with the profile{profile}."
            )
        }
        Unmet::Module { module, language, .. } => format!(
            "`{module}` is not installed, and code cannot install it: write the {language} without it."
        ),
        Unmet::Command { name } => format!(
            "The command `{name}` is not available: use another one, or do it in code. The operator can install it."
        ),
        Unmet::Connection { host, has_proxy, .. } => {
            let to = host.as_ref().map(|host| format!(" to `{host}`")).unwrap_or_default();
            let proxy = if *has_proxy { ", and the code must use the proxy of HTTPS_PROXY" } else { "" };
            format!(
                "The sandbox blocks connections{to}. The operator can allow a host with the setting `egress_policy`{proxy}."
            )
        }
        _ => return None,
    })
}

/// A note on a limit that did not stop the program.
pub(super) fn reached(reached: Reached) -> Option<&'static str> {
    Some(match reached {
        Reached::Value => "The value is truncated: write large data to a file.",
        Reached::Artifacts => "Not all files were returned: they are too many or too large.",
        Reached::Inodes => "The workspace reached its limit of files.",
        Reached::FileSize => "A file reached the size limit and is truncated.",
        Reached::Connections | Reached::Requests | Reached::NetworkBytes => {
            "A network limit was reached, and further traffic was blocked."
        }
        Reached::Disk => "The workspace is full.",
        Reached::Memory => "A process was killed because of the memory limit.",
        Reached::Processes => "A process could not start because of the process limit.",
        // The text itself marks missing output.
        _ => return None,
    })
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "SIGILL: an illegal instruction",
        6 => "SIGABRT: it aborted itself",
        7 => "SIGBUS: a bad memory access",
        8 => "SIGFPE: an arithmetic error",
        9 => "SIGKILL",
        11 => "SIGSEGV: a bad memory access",
        13 => "SIGPIPE: its output is closed",
        15 => "SIGTERM",
        25 => "SIGXFSZ: a file exceeded the size limit",
        31 => "SIGSYS: a blocked system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// The text of a run for a model.
pub(super) fn text(result: &CodeResult, ending: Option<&str>, notes: &[String]) -> String {
    let mut parts = Vec::new();
    if let Some(value) = &result.value {
        // A table or an array: the structured result has its rows.
        let shown = value.get("shape").and_then(|_| value.get("text")?.as_str());
        parts.push(match shown {
            Some(text) => format!("value:\n{text}"),
            None => format!("value: {}", WideJson(value)),
        });
    }
    for (name, output) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        if !output.is_empty() {
            parts.push(format!("{name}:\n{}", output.trim_end_matches('\n')));
        }
    }
    if !result.artifacts.is_empty() {
        let files = result
            .artifacts
            .iter()
            .map(|file| format!("{} ({}, {})", file.name, size(file.size), file.media_type))
            .collect::<Vec<_>>();
        parts.push(format!("files: {}", files.join(", ")));
    }
    parts.extend(notes.iter().cloned());
    parts.extend(ending.map(ToOwned::to_owned));
    if parts.is_empty() {
        parts.push("The program succeeded without output.".to_owned());
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_described() {
        for (ended, expected) in [
            (Verdict::Exit { code: 3 }, "The program exited with status 3."),
            (Verdict::Signal { signal: 11 }, "The program was killed by SIGSEGV: a bad memory access."),
            (Verdict::Timeout { limit_ms: 2000 }, "Stopped: it timed out after 2.0 s."),
            (Verdict::Memory { limit: 512 << 20 }, "Stopped: it exceeded its limit of 512 MiB memory."),
            (Verdict::Idle { limit_ms: 2000 }, "Stopped: it was idle for 2.0 s, the limit."),
            (Verdict::Inodes { limit: 9 }, "Failed: it exceeded its limit of 9 files and directories."),
            (Verdict::FileSize { limit: 2048 }, "Stopped: a file exceeded the size limit of 2 KiB."),
            (Verdict::Output { limit: 2048 }, "Stopped: it printed more than 2 KiB."),
            (
                Verdict::Interrupted { by: Interruption::Wall },
                "Interrupted: it timed out. The session continues with its state so far.",
            ),
            (Verdict::Cancelled, "Stopped: the caller cancelled it."),
        ] {
            assert_eq!(verdict(&ended).as_deref(), Some(expected));
        }
        assert_eq!(verdict(&Verdict::Ok), None);
    }
}

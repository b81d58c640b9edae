//! A run in words, for a model.

use std::time::Duration;

use toolpost::format_duration;
use toolpost_sandbox::{Applied, ApplyState, Interruption, Language, Reached, Unmet, Verdict};

use super::run::CodeResult;

/// How a run ended, in words; `None` for a program that ended well.
pub(super) fn verdict(verdict: &Verdict) -> Option<String> {
    let time = |milliseconds: &u64| format_duration(Duration::from_millis(*milliseconds));
    Some(match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => format!("The program ended with exit code {code}."),
        Verdict::Signal { signal } => format!("The program was ended by {}.", signal_name(*signal)),
        Verdict::Timeout { limit_ms } => {
            format!("Stopped: it was not done after {}, the time limit.", time(limit_ms))
        }
        Verdict::Cpu { limit_ms } => {
            format!("Stopped: it used {} of processor time, the limit.", time(limit_ms))
        }
        Verdict::Idle { limit_ms } => {
            format!("Stopped: it did nothing for {}, the limit.", time(limit_ms))
        }
        Verdict::Inodes { limit } => {
            format!("Failed: it needed more files and folders than the limit of {limit}.")
        }
        Verdict::FileSize { limit } => {
            format!("Stopped: a file would have grown beyond the limit of {}.", size(*limit))
        }
        Verdict::Memory { limit } => {
            format!("Stopped: it needed more memory than the limit of {}.", size(*limit))
        }
        Verdict::Processes { limit } => {
            format!("Failed: it started more processes than the limit of {limit}.")
        }
        Verdict::Disk { limit } => {
            format!("Failed: its files needed more room than the limit of {}.", size(*limit))
        }
        Verdict::Output { limit } => format!("Stopped: it printed more than the limit of {}.", size(*limit)),
        Verdict::Denied { rule } => format!("Stopped: the sandbox does not allow this: {rule}."),
        Verdict::Interrupted { by } => {
            let why = match by {
                Interruption::Wall => "it was not done in time",
                Interruption::Cpu => "it used the processor time that it had",
                Interruption::Output => "it printed more than it may",
                _ => "the caller asked to",
            };
            format!("Interrupted: {why}. The session goes on, with what it had computed so far.")
        }
        Verdict::Cancelled => "Stopped: the caller asked to.".to_owned(),
        other => format!("Ended: {other:?}."),
    })
}

/// Remarks on what was not applied to the working directory.
pub(super) fn applied(applied: &Applied) -> Vec<String> {
    /// So many paths are named.
    const MAX_PATHS: usize = 10;
    let mut remarks = Vec::new();
    if applied.state == ApplyState::Held {
        let because = applied.held_because.map_or(String::new(), |because| format!(" because {because}"));
        remarks.push(format!(
            "The changes of the working directory are held{because}; the operator applies them with \
             `toolpost apply {}`.",
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
    remarks
}

/// A remark on something that the program lacked.
pub(super) fn unmet(unmet: &Unmet) -> Option<String> {
    Some(match unmet {
        Unmet::Module { language: Language::Python, module, profile, .. } => {
            let way = match profile {
                Some(name) => format!("`toolpost image build {name}` and the setting `code.profile={name}`"),
                None => "a profile (`toolpost image build`) and the setting `code.profile`".to_owned(),
            };
            format!(
                "`{module}` is not installed: write the code without it. The operator can add it by {way}."
            )
        }
        Unmet::Module { module, language, .. } => format!(
            "`{module}` is not installed, and code cannot install it: write the {language} without it."
        ),
        Unmet::Command { name } => format!(
            "The command `{name}` is not available: use another one, or do it in the code. The operator can install it."
        ),
        Unmet::Connection { host, has_proxy, .. } => {
            let to = host.as_ref().map(|host| format!(" to `{host}`")).unwrap_or_default();
            let proxy = if *has_proxy { ", and the code must use the proxy of HTTPS_PROXY" } else { "" };
            format!(
                "The sandbox blocks connections{to}. The operator can allow a host by the setting `egress_policy`{proxy}."
            )
        }
        _ => return None,
    })
}

/// A remark on a limit that did not end the program.
pub(super) fn reached(reached: Reached) -> Option<&'static str> {
    Some(match reached {
        Reached::Value => "The value was too large to be handed back.",
        Reached::Artifacts => "Not all files were handed back: there were too many, or they were too large.",
        Reached::Inodes => "The workspace had no room for another file at the end.",
        Reached::FileSize => "A file has the largest size that is allowed; what should follow is missing.",
        Reached::Connections | Reached::Requests | Reached::NetworkBytes => {
            "The network refused more because a limit was reached."
        }
        Reached::Disk => "The workspace was full at the end.",
        Reached::Memory => "A process was killed because the memory limit was reached.",
        Reached::Processes => "A process could not be started because the limit was reached.",
        // The text itself says where something is missing.
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
        13 => "SIGPIPE: nobody reads its output",
        15 => "SIGTERM",
        25 => "SIGXFSZ: a file grew beyond the limit",
        31 => "SIGSYS: a system call that is not allowed",
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

/// What a model reads of a run.
pub(super) fn text(result: &CodeResult, ending: Option<&str>, notes: &[String]) -> String {
    let mut parts = Vec::new();
    if let Some(value) = &result.value {
        // A table or an array, whose rows are in the structured result.
        let shown = value.get("shape").and_then(|_| value.get("text")?.as_str());
        parts.push(match shown {
            Some(text) => format!("value:\n{text}"),
            None => format!("value: {value}"),
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
        parts.push("The program ended well and printed nothing.".to_owned());
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_told_in_words() {
        for (ended, expected) in [
            (Verdict::Exit { code: 3 }, "The program ended with exit code 3."),
            (Verdict::Signal { signal: 11 }, "The program was ended by SIGSEGV: a bad memory access."),
            (Verdict::Timeout { limit_ms: 2000 }, "Stopped: it was not done after 2.0 s, the time limit."),
            (
                Verdict::Memory { limit: 512 << 20 },
                "Stopped: it needed more memory than the limit of 512 MiB.",
            ),
            (Verdict::Idle { limit_ms: 2000 }, "Stopped: it did nothing for 2.0 s, the limit."),
            (Verdict::Inodes { limit: 9 }, "Failed: it needed more files and folders than the limit of 9."),
            (
                Verdict::FileSize { limit: 2048 },
                "Stopped: a file would have grown beyond the limit of 2 KiB.",
            ),
            (Verdict::Output { limit: 2048 }, "Stopped: it printed more than the limit of 2 KiB."),
            (
                Verdict::Interrupted { by: Interruption::Wall },
                "Interrupted: it was not done in time. The session goes on, with what it had computed so far.",
            ),
            (Verdict::Cancelled, "Stopped: the caller asked to."),
        ] {
            assert_eq!(verdict(&ended).as_deref(), Some(expected));
        }
        assert_eq!(verdict(&Verdict::Ok), None);
    }
}

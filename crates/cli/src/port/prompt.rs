//! The text of prompts on the terminal.

use std::fmt::Write as _;

use serde_json::Value;
use toolpost_core::{Question, QuestionKind};

use crate::style::{STRONG, WARN, harmless, one_line, paint};

/// The number of lines of an argument in the first prompt.
const FEW_LINES: usize = 12;

/// The number of characters per line of the terminal.
const LINE: usize = 96;

/// The maximum number of lines of all arguments after `show all`.
const MAX_LINES: usize = 20_000;

/// A prompt.
pub(super) struct Prompt {
    pub(super) text: String,
    /// Whether `show all` shows more.
    pub(super) is_cut: bool,
}

impl Prompt {
    /// The text of the prompt, with truncated or full arguments.
    pub(super) fn new(question: &Question, whole: bool) -> Self {
        let message = harmless(&question.message);
        match &question.kind {
            QuestionKind::Approval { tool, arguments } => Self::of_call(tool, arguments, whole),
            // The untrusted message must not look like output of this command.
            _ => {
                let lines: Vec<String> = message.lines().map(|line| format!("  │ {line}\n")).collect();
                let text = format!("{}\n{}  answer: ", paint(WARN, "a tool asks:"), lines.concat());
                Self { text, is_cut: false }
            }
        }
    }

    /// Explains the choices after an unknown answer. The prompt itself is above.
    pub(super) fn again(self) -> Self {
        let show = if self.is_cut { ", `show all` shows the rest of the arguments" } else { "" };
        let choices =
            if self.is_cut { "yes / session / no / show all of it? " } else { "yes / session / no? " };
        let text = format!(
            "  `yes` approves this call, `session` all further calls of the tool, `no` or an empty line declines{show}.\n  {choices}"
        );
        Self { text, ..self }
    }

    /// A call with its arguments by name, so that none hides behind another.
    fn of_call(tool: &str, arguments: &Value, whole: bool) -> Self {
        let mut text = format!("{} {}\n", paint(STRONG, "Approve"), paint(STRONG, one_line(tool, 80)));
        let mut left = if whole { MAX_LINES } else { usize::MAX };
        let mut hidden = 0;
        let mut show = |name: Option<&str>, value: &Value| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let room = if whole { left } else { FEW_LINES };
            let lines = lines(&value);
            let name = name.map(|name| format!("{}: ", one_line(name, 80))).unwrap_or_default();
            if let [line] = lines.as_slice() {
                let _ = writeln!(text, "  {name}{line}");
            } else {
                let _ = writeln!(text, "  {}", name.trim_end());
                for line in lines.iter().take(room) {
                    let _ = writeln!(text, "    │ {line}");
                }
            }
            let more: usize = lines.iter().skip(room.max(1)).map(|line| line.chars().count()).sum();
            if more > 0 {
                let _ = writeln!(text, "    {}", paint(WARN, format!("│ and {more} characters more")));
            }
            hidden += more;
            left = left.saturating_sub(lines.len());
        };
        match arguments.as_object() {
            Some(members) => members.iter().for_each(|(name, value)| show(Some(name), value)),
            None => show(None, arguments),
        }
        let is_cut = hidden > 0 && !whole;
        text.push_str(if is_cut {
            "  yes / session / no / show all of it? "
        } else {
            "  yes / session / no? "
        });
        Self { text, is_cut }
    }
}

/// Wraps a text so that no continuation looks like a new line.
fn lines(text: &str) -> Vec<String> {
    let text = harmless(text).replace('\t', "    ");
    let mut lines = Vec::new();
    for line in text.lines() {
        let characters: Vec<char> = line.chars().collect();
        lines.extend(characters.chunks(LINE).map(|piece| piece.iter().collect::<String>()));
        if characters.is_empty() {
            lines.push(String::new());
        }
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_argument_hides_behind_another_one() {
        let arguments = json!({ "content": "harmless\n".repeat(500), "path": "../.bashrc" });
        let few = Prompt::of_call("write_file", &arguments, false);
        assert!(few.text.contains("path: ../.bashrc") && few.is_cut, "{}", few.text);
        assert!(
            few.text.contains("and 3904 characters more") && few.text.contains("show all"),
            "{}",
            few.text
        );
        let whole = Prompt::of_call("write_file", &arguments, true);
        assert_eq!(whole.text.matches("│ harmless\n").count(), 500);
        assert!(!whole.is_cut && whole.text.ends_with("yes / session / no? "));
    }

    #[test]
    fn an_argument_cannot_imitate_the_prompt() {
        let blanks = format!("{}yes / session / no? y", " ".repeat(200));
        let shown = Prompt::of_call("t", &json!({ "a": blanks, "b": "\u{1b}[2J" }), false);
        assert!(shown.text.lines().all(|line| line.chars().count() < 120), "{}", shown.text);
        assert!(!shown.text.contains("\u{1b}[2J"), "{}", shown.text);
        assert!(!Prompt::of_call("t", &json!({ "a": "short", "n": 2 }), false).is_cut);
    }
}

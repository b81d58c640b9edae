//! What a person is shown before they answer.

use std::fmt::Write as _;

use serde_json::Value;
use toolpost_core::{Question, QuestionKind};

use crate::style::{STRONG, WARN, harmless, one_line, paint};

/// How many lines of one argument are shown at first.
const FEW_LINES: usize = 12;

/// How many characters of one line stand on a line of the terminal.
const LINE: usize = 96;

/// How much of a call's arguments is shown when all is asked for, in lines.
const MOST_LINES: usize = 20_000;

/// What is shown of a question.
pub(super) struct Prompt {
    pub(super) text: String,
    /// Whether there is more, for who asks to see it.
    pub(super) is_cut: bool,
}

impl Prompt {
    /// A question, with the beginning of long arguments or with all of them.
    pub(super) fn of(question: &Question, whole: bool) -> Self {
        let message = harmless(&question.message);
        match &question.kind {
            QuestionKind::Approval { tool, arguments } => Self::of_call(tool, arguments, whole),
            // Whoever asks is not this command, and must not look like it.
            _ => {
                let lines: Vec<String> = message.lines().map(|line| format!("  │ {line}\n")).collect();
                let text = format!("{}\n{}  answer: ", paint(WARN, "a tool asks:"), lines.concat());
                Self { text, is_cut: false }
            }
        }
    }

    /// What the words mean, after one that is none of them. What is asked for stands above.
    pub(super) fn again(self) -> Self {
        let show = if self.is_cut { ", `show all` shows the rest of the arguments" } else { "" };
        let choices =
            if self.is_cut { "yes / session / no / show all of it? " } else { "yes / session / no? " };
        let text = format!(
            "  `yes` lets this call run, `session` all further ones of the tool too, `no` or an empty line declines{show}.\n  {choices}"
        );
        Self { text, ..self }
    }

    /// A call with its arguments, each with its name, so that none can hide behind another one.
    fn of_call(tool: &str, arguments: &Value, whole: bool) -> Self {
        let mut text = format!("{} {}\n", paint(STRONG, "Approve"), paint(STRONG, one_line(tool, 80)));
        let mut left = if whole { MOST_LINES } else { usize::MAX };
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

/// A text in lines that a terminal has room for: what comes after blanks must not look like a line of its own.
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
    fn an_argument_looks_like_nothing_else() {
        let blanks = format!("{}yes / session / no? y", " ".repeat(200));
        let shown = Prompt::of_call("t", &json!({ "a": blanks, "b": "\u{1b}[2J" }), false);
        assert!(shown.text.lines().all(|line| line.chars().count() < 120), "{}", shown.text);
        assert!(!shown.text.contains("\u{1b}[2J"), "{}", shown.text);
        assert!(!Prompt::of_call("t", &json!({ "a": "short", "n": 2 }), false).is_cut);
    }
}

//! The commands of a conversation.

use toolpost_core::did_you_mean;

/// A command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// What it takes, as help shows it.
    pub(super) takes: &'static str,
    /// What it does.
    pub(super) meaning: &'static str,
}

const fn command(name: &'static str, takes: &'static str, meaning: &'static str) -> Command {
    Command { name, takes, meaning }
}

/// All of them, as `/help` lists them.
pub(super) const COMMANDS: &[Command] = &[
    command("/help", "", "list these commands"),
    command("/model", "[MODEL]", "say which model answers, or let another one go on"),
    command("/tools", "[TEXT]", "list the tools, or those whose name or summary has the text"),
    command("/mcp", "", "say how servers and programs with tools are"),
    command("/approve", "[TOOL]", "approve every call of a tool, or list approved tools"),
    command("/usage", "", "say how many tokens were used"),
    command("/cost", "", "say what it has cost"),
    command(
        "/trace",
        "",
        "show the calls of the latest answer: what was called, how it ended, how long it took",
    ),
    command("/sandbox", "", "say at which level code runs, and in which layers it ran"),
    command("/compact", "", "put a summary in the place of the middle of the conversation"),
    command("/undo", "", "take back what you said last, and the answer"),
    command("/clear", "", "begin a new conversation"),
    command("/resume", "[ID]", "list the conversations of this folder, or go on with one of them"),
    command("/save", "FILE", "write the conversation to a new file: Markdown, or JSON if it ends in .json"),
    command("/exit", "", "leave; Ctrl-D does the same"),
];

/// A command and what follows it, of a line that begins with a slash.
pub(super) fn parse(line: &str) -> Result<(&'static str, &str), String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let word = if word == "/quit" { "/exit" } else { word };
    let known = COMMANDS.iter().find(|command| command.name == word);
    let Some(known) = known else {
        let near = did_you_mean(word, COMMANDS.iter().map(|command| command.name)).unwrap_or_default();
        return Err(format!("there is no command `{word}`. {near} `/help` lists them all."));
    };
    let rest = rest.trim();
    if known.takes.is_empty() && !rest.is_empty() {
        return Err(format!("`{word}` takes nothing, and `{rest}` stands after it."));
    }
    if !known.takes.is_empty() && !known.takes.starts_with('[') && rest.is_empty() {
        return Err(format!("`{word}` needs {}: {}.", known.takes, known.meaning));
    }
    Ok((known.name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_command_is_said() {
        assert_eq!(parse("/model  a/b "), Ok(("/model", "a/b")));
        assert_eq!(parse("/quit"), Ok(("/exit", "")));
        assert!(parse("/modl").unwrap_err().contains("Did you mean `/model`?"));
        assert!(parse("/clear all").unwrap_err().contains("takes nothing"));
        assert!(parse("/save").unwrap_err().contains("needs FILE"));
    }
}

//! The table of chat commands.

use toolpost_core::did_you_mean;

/// A chat command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Its argument, as help shows it.
    pub(super) takes: &'static str,
    /// The description.
    pub(super) meaning: &'static str,
}

const fn command(name: &'static str, takes: &'static str, meaning: &'static str) -> Command {
    Command { name, takes, meaning }
}

/// All commands, as `/help` lists them.
pub(super) const COMMANDS: &[Command] = &[
    command("/help", "", "list these commands"),
    command("/model", "[MODEL]", "show the model, or switch to another one"),
    command("/tools", "[TEXT]", "list the tools, or those that match"),
    command("/mcp", "", "show the state of servers and programs"),
    command("/approve", "[TOOL]", "approve every call of a tool, or list approved tools"),
    command("/usage", "", "show the used tokens"),
    command("/cost", "", "show the cost"),
    command("/trace", "", "show the tool calls of the latest answer"),
    command("/sandbox", "", "show the sandbox level and its layers"),
    command("/compact", "", "replace the middle of the conversation by a summary"),
    command("/undo", "", "undo the last question and its answer"),
    command("/clear", "", "start a new conversation"),
    command("/resume", "[ID]", "list the conversations of this directory, or resume one"),
    command("/save", "FILE", "write the conversation to a new file: Markdown, or JSON for .json"),
    command("/exit", "", "leave; so does Ctrl-D"),
];

/// Parses a chat command and its argument.
pub(super) fn parse(line: &str) -> Result<(&'static str, &str), String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let word = if word == "/quit" { "/exit" } else { word };
    let known = COMMANDS.iter().find(|command| command.name == word);
    let Some(known) = known else {
        let near = did_you_mean(word, COMMANDS.iter().map(|command| command.name)).unwrap_or_default();
        return Err(format!("unknown command `{word}`. {near} `/help` lists them all."));
    };
    let rest = rest.trim();
    if known.takes.is_empty() && !rest.is_empty() {
        return Err(format!("`{word}` takes nothing, but `{rest}` follows."));
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
    fn invalid_commands_have_an_error() {
        assert_eq!(parse("/model  a/b "), Ok(("/model", "a/b")));
        assert_eq!(parse("/quit"), Ok(("/exit", "")));
        assert!(parse("/modl").unwrap_err().contains("Did you mean `/model`?"));
        assert!(parse("/clear all").unwrap_err().contains("takes nothing"));
        assert!(parse("/save").unwrap_err().contains("needs FILE"));
    }
}

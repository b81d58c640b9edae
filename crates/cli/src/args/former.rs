//! Errors about former spellings, and about misspelled commands.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};
use toolpost_core::suggestions;

use super::Cli;

/// Former options with the present ones.
const OPTIONS: [(&str, &str); 5] = [
    ("--allow", "--approve"),
    ("--allow-tool", "--approve"),
    ("--env", "--secret"),
    ("--env-raw", "--secret-raw"),
    ("--max-output-tokens", "--config max_output_tokens=N"),
];

/// Adds the present spelling to an error about a former one, or a similar command to one about a command.
pub(crate) fn explain(mut error: Error, words: &[String]) -> Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(found) = word(ContextKind::InvalidArg) else { return error };
            let Some((former, present)) = OPTIONS.iter().find(|(former, _)| *former == found) else {
                return error;
            };
            error.remove(ContextKind::SuggestedArg);
            let tip = StyledStr::from(format!("`{former}` is now `{present}`"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        ErrorKind::InvalidSubcommand => {
            let Some(found) = word(ContextKind::InvalidSubcommand) else { return error };
            let root = Cli::command();
            let (command, _) = named_command(&root, words);
            let names = command.get_subcommands().filter(|command| !command.is_hide_set());
            if let Some(near) = suggestions(&found, names.map(clap::Command::get_name)).first() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::String((*near).to_owned()));
            }
        }
        _ => {}
    }
    error
}

/// The command that a command line names, and its path.
pub(crate) fn named_command<'a>(root: &'a Command, words: &[String]) -> (&'a Command, Vec<&'a str>) {
    let (mut command, mut path) = (root, Vec::new());
    for word in words {
        if let Some(found) = command.find_subcommand(word) {
            command = found;
            path.push(found.get_name());
        }
    }
    (command, path)
}

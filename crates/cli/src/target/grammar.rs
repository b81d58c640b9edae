//! The grammar of targets: URLs, commands, files and lists.

use std::path::Path;

use toolpost_runtimes::Launcher;
use toolpost_sandbox::split_command;

use crate::failure::Failure;

/// The prefixes of URLs and commands.
const PREFIXES: [&str; 6] = ["http://", "https://", "ws://", "wss://", "stdio:", CONTAINER];
/// The prefix of a server in a container.
pub(crate) const CONTAINER: &str = "docker:";

/// The maximum length of a generated namespace, in bytes.
const MAX_NAMESPACE: usize = 24;

/// Whether a target is a URL or a command, and so one target despite commas.
pub(crate) fn is_address(target: &str) -> bool {
    PREFIXES.iter().any(|prefix| target.starts_with(prefix))
}

/// The words of a target that is a command of this host.
pub(crate) fn words_of(target: &str) -> Option<Vec<String>> {
    target.strip_prefix("stdio:").and_then(|command| words(command).ok())
}

/// Whether the server takes a token.
pub(crate) fn takes_token(target: &str) -> bool {
    target.split_once("://").is_some_and(|(scheme, _)| ["http", "https", "ws", "wss"].contains(&scheme))
}

/// Splits a comma-separated list of targets; a URL or command is one target.
pub(crate) fn split(word: &str) -> Vec<&str> {
    if is_address(word.trim()) { vec![word.trim()] } else { word.split(',').map(str::trim).collect() }
}

/// A target of a file, with its path relative to the current directory.
pub(crate) fn below(directory: &Path, target: &str) -> String {
    let is_path = target.contains('/') || is_description(target);
    if is_address(target) || !is_path {
        return target.to_owned();
    }
    let path = directory.join(target.trim_start_matches("./")).display().to_string();
    // A bare name would be that of a configured target.
    if path.contains('/') { path } else { format!("./{path}") }
}

/// A list of targets of a file, with paths relative to the current directory.
pub(crate) fn all_below(directory: &Path, word: &str) -> String {
    split(word).into_iter().map(|target| below(directory, target)).collect::<Vec<_>>().join(",")
}

/// Whether a target is a file that describes tools.
pub(crate) fn is_description(target: &str) -> bool {
    let extension = Path::new(target).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["toml", "yaml", "yml", "json"].contains(&extension))
}

/// The packages that the launcher of a target installs.
pub(crate) fn installs(target: &str) -> Option<String> {
    let command: Vec<_> = words_of(target)?.into_iter().map(Into::into).collect();
    let launcher = Launcher::parse(&command).ok()??;
    Some(launcher.requirements().packages().join(", "))
}

/// Splits a command into words: quotes and backslashes as in a shell, nothing else.
pub(crate) fn words(command: &str) -> Result<Vec<String>, Failure> {
    split_command(command)
        .map_err(|open| Failure::usage(format!("the command `{command}` has an unclosed {open}")))
}

/// The namespace of a target: the name of its file, host or command, without invalid characters.
pub(crate) fn namespace(target: &str) -> String {
    let own = if let Some((_, rest)) = target.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        host.rsplit('@').next().unwrap_or_default()
    } else {
        let words =
            target.strip_prefix("stdio:").or_else(|| target.strip_prefix("docker:")).unwrap_or(target);
        let first = words.split_whitespace().next().unwrap_or_default();
        let file = first.split(',').next().unwrap_or_default();
        let file = file.rsplit('/').next().unwrap_or_default();
        file.rsplit_once('.').map_or(file, |(stem, _)| stem)
    };
    let fits = |one: char| if one.is_ascii_alphanumeric() || matches!(one, '_' | '-') { one } else { '-' };
    let plain: String = own.chars().map(fits).take(MAX_NAMESPACE).collect::<String>().to_lowercase();
    let plain = plain.trim_matches(['-', '_']);
    // A name starts with a letter.
    match plain.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => plain.to_owned(),
        Some(_) => format!("s-{plain}"),
        None => "source".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unclosed_quote_is_named() {
        assert!(words("a 'b").unwrap_err().message.contains("unclosed"));
    }
}

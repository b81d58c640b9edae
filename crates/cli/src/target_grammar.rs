//! The grammar of targets: URLs, commands, files and lists.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use toolpost_core::{Tool, check_tool_name};
use toolpost_runtimes::Launcher;
use toolpost_sandbox::split_command;

use crate::failure::Failure;

/// The local tool with the name of providers' hosted code.
pub(crate) const CODE_EXECUTION: &str = "code_execution";

/// The groups of built-in tools that use no files.
const WITHOUT_FILES: [&str; 3] = ["maths", "text", "web"];

/// The built-in tools.
pub(crate) static BUILT_IN: LazyLock<Vec<Arc<dyn Tool>>> = LazyLock::new(toolpost_tools::builtin);

/// A parsed target. A configured name is resolved before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// All built-in tools.
    BuiltIn,
    /// A built-in tool, by its name or an alias.
    BuiltInTool(String),
    /// A wrapped program that Toolpost includes.
    Command(String),
    /// An MCP server with a URL.
    Url(String),
    /// An MCP server that is a command or a container of this host.
    LocalServer(String),
    /// A file that describes tools.
    Description(PathBuf),
    /// A tool program.
    Program(PathBuf),
    /// `NAME=TARGET`, a target with a namespace.
    Named(String),
    /// Another name, such as that of a server in `.mcp.json`.
    Name(String),
}

impl Target {
    /// Parses a target without reading files.
    pub(crate) fn parse(text: &str) -> Self {
        let name = text.strip_prefix("builtin:").unwrap_or(text);
        if named(text).is_some() {
            Self::Named(text.to_owned())
        } else if text == "builtin" {
            Self::BuiltIn
        } else if built_in_tool(name).is_some() {
            Self::BuiltInTool(name.to_owned())
        } else if let Some(name) = text.strip_prefix("command:") {
            Self::Command(name.to_owned())
        } else if takes_token(text) {
            Self::Url(text.to_owned())
        } else if is_address(text) {
            Self::LocalServer(text.to_owned())
        } else if is_description(text) {
            Self::Description(text.into())
        } else if text.contains('/') {
            Self::Program(text.into())
        } else {
            Self::Name(text.to_owned())
        }
    }

    /// Whether the target is tools of Toolpost itself, whose names are reserved.
    pub(crate) fn is_built_in(&self) -> bool {
        matches!(self, Self::BuiltIn | Self::BuiltInTool(_) | Self::Command(_))
    }

    /// Whether the target runs code, which takes readable paths.
    pub(crate) fn runs_code(&self) -> bool {
        match self {
            Self::BuiltIn => true,
            Self::BuiltInTool(name) => ["run_code", "run_command", CODE_EXECUTION].contains(&name.as_str()),
            _ => false,
        }
    }

    /// Whether tools of the target work in the directory of the command.
    ///
    /// Programs and servers have a directory of their own or none, and some built-in tools use no files.
    pub(crate) fn works_in_directory(&self) -> bool {
        match self {
            Self::BuiltIn | Self::Command(_) | Self::Description(_) => true,
            Self::BuiltInTool(name) => built_in_tool(name).is_some_and(|tool| {
                tool.spec().group.as_deref().is_none_or(|group| !WITHOUT_FILES.contains(&group))
            }),
            Self::Url(_) | Self::LocalServer(_) | Self::Program(_) | Self::Name(_) | Self::Named(_) => false,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("builtin"),
            Self::Command(name) => write!(f, "command:{name}"),
            Self::BuiltInTool(text)
            | Self::Url(text)
            | Self::LocalServer(text)
            | Self::Name(text)
            | Self::Named(text) => f.write_str(text),
            Self::Description(path) | Self::Program(path) => path.display().fmt(f),
        }
    }
}

/// The built-in tool with a name or an alias.
pub(crate) fn built_in_tool(name: &str) -> Option<Arc<dyn Tool>> {
    let known = |tool: &&Arc<dyn Tool>| {
        let spec = tool.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias.name == name)
    };
    // It replaces a hosted tool, so only its name selects it.
    let stand_in =
        || (name == CODE_EXECUTION).then(|| Arc::new(toolpost_tools::code_execution()) as Arc<dyn Tool>);
    BUILT_IN.iter().find(known).map(Arc::clone).or_else(stand_in)
}

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

/// Splits `NAME=TARGET`, if the part before the sign is a name or empty.
pub(crate) fn named(word: &str) -> Option<(&str, &str)> {
    let (name, target) = word.split_once('=')?;
    (name.is_empty() || check_tool_name(name).is_ok()).then_some((name, target))
}

/// A target without the name of `NAME=TARGET`.
pub(crate) fn unnamed(word: &str) -> &str {
    named(word).map_or(word, |(_, target)| target)
}

/// The words of a target that is a command of this host.
pub(crate) fn words_of(target: &str) -> Option<Vec<String>> {
    target.strip_prefix("stdio:").and_then(|command| words(command).ok())
}

/// Whether the server takes a token.
fn takes_token(target: &str) -> bool {
    target.split_once("://").is_some_and(|(scheme, _)| ["http", "https", "ws", "wss"].contains(&scheme))
}

/// Splits a comma-separated list of targets; a URL or command is one target.
pub(crate) fn split(word: &str) -> Vec<&str> {
    if is_address(unnamed(word.trim())) {
        vec![word.trim()]
    } else {
        word.split(',').map(str::trim).collect()
    }
}

/// A target of a file, with its path relative to the current directory.
pub(crate) fn below(directory: &Path, target: &str) -> String {
    if let Some((name, target)) = named(target) {
        return format!("{name}={}", below(directory, target));
    }
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
    fn a_name_stays_before_the_path_of_its_target() {
        let directory = Path::new("/p");
        assert_eq!(all_below(directory, "calc=./calc,./b"), "calc=/p/calc,/p/b");
        assert_eq!(all_below(directory, "c=stdio:./c --key=x a,b"), "c=stdio:./c --key=x a,b");
        for whole in ["https://mcp.example/?a=b", "./a=b", "stdio:A=1 b"] {
            assert_eq!((named(whole), unnamed(whole)), (None, whole));
        }
    }

    #[test]
    fn an_unclosed_quote_is_named() {
        assert!(words("a 'b").unwrap_err().message.contains("unclosed"));
    }
}

//! Entries of MCP servers in configuration files of other clients.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolpost_sandbox::Grants;

use crate::config::reference::{Command, Named, Reference, working_directory};
use crate::{env, grants};

/// The names of configuration files.
const NAMES: [&str; 4] = [".mcp.json", "mcp.json", ".claude.json", "claude_desktop_config.json"];
/// The keys of their servers.
pub(super) const KEYS: [&str; 2] = ["mcpServers", "servers"];

/// A server's entry in a file.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) command: Option<String>,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Map<String, Value>,
    pub(super) cwd: Option<String>,
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) headers: Map<String, Value>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// The grants of the program; other clients ignore them.
    #[serde(default)]
    pub(super) grants: Option<Value>,
}

/// Whether a file is another client's configuration, by its name.
pub(crate) fn is_known(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| NAMES.contains(&name))
}

/// The trusted part of a file: its servers. Clients change other parts with each use.
pub(crate) fn pinned<'a>(path: &Path, content: &'a [u8]) -> Cow<'a, [u8]> {
    let value = if is_known(path) { serde_json::from_slice::<Value>(content).ok() } else { None };
    match value {
        Some(value) => Cow::Owned(all_of(&value).to_string().into_bytes()),
        None => Cow::Borrowed(content),
    }
}

/// All servers of a file: global ones, and those of projects.
fn all_of(value: &Value) -> Value {
    let sections = |value: &Value| -> Map<String, Value> {
        KEYS.iter().filter_map(|key| Some(((*key).to_owned(), value.get(*key)?.clone()))).collect()
    };
    let mut all = sections(value);
    let projects: Map<String, Value> = value
        .get("projects")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(directory, project)| (directory.clone(), Value::Object(sections(project))))
        .filter(|(_, sections)| sections != &json!({}))
        .collect();
    if !projects.is_empty() {
        all.insert("projects".to_owned(), Value::Object(projects));
    }
    Value::Object(all)
}

/// The servers of a file with their commands and URLs, for `toolpost trust`.
pub(crate) fn described(path: &Path, content: &[u8]) -> Vec<String> {
    let value = if is_known(path) { serde_json::from_slice::<Value>(content).ok() } else { None };
    let Some(value) = value else { return Vec::new() };
    let lines = |(name, entry): (&String, &Value)| {
        let words = entry.get("args").and_then(Value::as_array).into_iter().flatten();
        let words = entry.get("command").into_iter().chain(words).filter_map(Value::as_str);
        let target = format!("stdio:{}", words.map(|text| word(text)).collect::<Vec<_>>().join(" "));
        let grants = entry.get(grants::KEY).and_then(|value| grants::read(value, directory(path)).ok());
        let mut lines = vec![format!("{name}: {}", summary(entry))];
        lines.extend(grants::lines_of(name, &target, &grants.unwrap_or_default()));
        lines
    };
    servers(&value).flat_map(lines).collect()
}

/// The directory of the file's project, else of the file.
fn directory(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or(Path::new("."));
    let is_editor = [".cursor", ".vscode"].iter().any(|name| parent.ends_with(name));
    parent.parent().filter(|_| is_editor).unwrap_or(parent)
}

/// The default working directory of a file's servers: the project, else the caller's directory.
pub(super) fn default_directory(path: &Path) -> Option<PathBuf> {
    let in_home = env::get_os("HOME").is_some_and(|home| directory(path) == Path::new(&home));
    let is_project =
        [".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"].iter().any(|name| path.ends_with(name));
    working_directory((is_project && !in_home).then(|| directory(path)))
}

/// The servers of a file: global ones, and those of projects.
fn servers(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let projects = value.get("projects").and_then(Value::as_object).into_iter().flatten();
    std::iter::once(value)
        .chain(projects.map(|(_, project)| project))
        .flat_map(|section| KEYS.iter().filter_map(|key| section.get(*key)?.as_object()))
        .flatten()
}

/// The commands of the servers of a file.
pub(crate) fn named(path: &Path, content: &[u8]) -> Vec<Named> {
    let Ok(value) = serde_json::from_slice::<Value>(content) else { return Vec::new() };
    let entries = servers(&value).filter_map(|(_, entry)| serde_json::from_value(entry.clone()).ok());
    entries.filter_map(|entry: Entry| entry.named(path)).collect()
}

impl Entry {
    /// The files that the command names.
    pub(super) fn references(&self, path: &Path) -> Vec<Reference> {
        self.named(path).iter().flat_map(Named::references).collect()
    }

    /// The command. A server with variables counts as granted.
    fn named(&self, path: &Path) -> Option<Named> {
        let words = std::iter::once(self.command.as_ref()?).chain(&self.args);
        // The start of the server reports a missing variable.
        let expanded = |text: &str| expand(text).unwrap_or_else(|_| text.to_owned());
        let named = self.cwd.as_deref().map(|cwd| expanded(cwd).into());
        let variables =
            self.env.iter().filter_map(|(name, value)| Some((name.clone(), expanded(value.as_str()?))));
        let command = Command {
            words: words.map(|word| expanded(word)).collect(),
            // The start of the server reports invalid grants.
            named: named.or_else(|| self.granted(path).ok()?.workdir),
            default: default_directory(path),
            has_grants: self.has_grants(),
            is_granted: self.has_grants() || self.grants.is_some(),
            variables: variables.collect(),
        };
        Some(Named::Command(command))
    }

    /// The grants of the entry.
    pub(super) fn granted(&self, path: &Path) -> Result<Grants, String> {
        self.grants.as_ref().map_or(Ok(Grants::default()), |value| grants::read(value, directory(path)))
    }

    pub(super) fn has_grants(&self) -> bool {
        let has_variables = !self.env.is_empty() || grants::has_variables(self.grants.as_ref());
        has_variables || self.command.iter().chain(&self.args).any(|word| word.contains("${"))
    }
}

/// The command or URL of an entry, its directory, and the names of its variables and headers.
pub(super) fn summary(entry: &Value) -> String {
    let names = |key: &str, what: &str| match entry.get(key).and_then(Value::as_object) {
        Some(fields) if !fields.is_empty() => {
            format!(", with the {what} {}", fields.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
        }
        _ => String::new(),
    };
    match (entry.get("command").and_then(Value::as_str), entry.get("url").and_then(Value::as_str)) {
        (Some(command), _) => {
            let words = entry.get("args").and_then(Value::as_array).into_iter().flatten();
            let words = std::iter::once(command).chain(words.filter_map(Value::as_str)).map(word);
            let directory = entry.get("cwd").and_then(Value::as_str);
            let directory = directory.map_or(String::new(), |directory| format!(" in `{directory}`"));
            let variables = names("env", "raw variables");
            format!("starts `{}`{directory}{variables}", words.collect::<Vec<_>>().join(" "))
        }
        (None, Some(url)) => {
            let headers = names("headers", "headers");
            format!("connects to `{}`{headers}", url.split(['?', '#']).next().unwrap_or_default())
        }
        (None, None) => "neither a command nor a URL".to_owned(),
    }
}

/// A word of a command, quoted if needed.
fn word(word: &str) -> Cow<'_, str> {
    let is_plain =
        !word.is_empty() && !word.contains(|letter: char| letter.is_whitespace() || "'\"`".contains(letter));
    if is_plain { word.into() } else { format!("'{}'", word.escape_debug()).into() }
}

/// Resolves variables in a text: `${NAME}`, `${NAME:-default}`, `${env:NAME}`.
pub(super) fn expand(text: &str) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, after) = after.split_once('}').ok_or_else(|| "it has an unclosed `${`".to_owned())?;
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("`${{{inside}}}` is not a variable"));
        }
        let value = env::variable(name).or_else(|| default.map(str::to_owned));
        let value = value.ok_or_else(|| format!("the variable `{name}` is not set"))?;
        expanded.push_str(before);
        expanded.push_str(&value);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_of_a_clients_file_are_pinned() {
        let path = Path::new("/of/ada/.claude.json");
        let before = json!({ "used": 1, "mcpServers": { "a": { "command": "x" } }, "projects": { "/p": { "history": [1] } } });
        let later = json!({ "used": 2, "mcpServers": { "a": { "command": "x" } }, "projects": { "/p": { "history": [2] } } });
        let other = json!({ "used": 1, "mcpServers": { "a": { "command": "y" } } });
        let of_project = json!({ "mcpServers": { "a": { "command": "x" } }, "projects": { "/p": { "mcpServers": { "b": { "command": "z" } } } } });
        let pin = |value: &Value| pinned(path, value.to_string().as_bytes()).into_owned();
        assert_eq!(pin(&before), pin(&later));
        assert_ne!(pin(&before), pin(&other));
        assert_ne!(pin(&before), pin(&of_project));
        let other_file = Path::new("/of/ada/git.toml");
        assert_eq!(&*pinned(other_file, b"{\"used\":1}"), b"{\"used\":1}");
        assert_eq!(described(path, of_project.to_string().as_bytes()), ["a: starts `x`", "b: starts `z`"]);
        let whole = json!({ "mcpServers": {
            "a": { "command": "x", "args": ["-c", "rm -rf /; y", ""], "cwd": "/srv", "env": { "KEY": "hunter2", "B": "" } },
            "b": { "url": "https://a.example/mcp?key=hunter2", "headers": { "Authorization": "hunter2" } } } });
        assert_eq!(
            described(path, whole.to_string().as_bytes()),
            [
                "a: starts `x -c 'rm -rf /; y' ''` in `/srv`, with the raw variables KEY, B",
                "b: connects to `https://a.example/mcp`, with the headers Authorization"
            ]
        );
    }
}

//! Servers in the files that people have for other clients of the protocol.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolpost_core::Secret;
use toolpost_mcp::client::Endpoint;
use toolpost_sandbox::Level;

use super::Server;
use crate::config::closure::{self, Reference};
use crate::config::trust::{Pins, Standing, start_check};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 16 << 20;
/// The names of such files.
const NAMES: [&str; 4] = [".mcp.json", "mcp.json", ".claude.json", "claude_desktop_config.json"];
/// Where servers stand in them.
const KEYS: [&str; 2] = ["mcpServers", "servers"];

/// A server, as such a file has it.
#[derive(Debug, Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Map<String, Value>,
    cwd: Option<String>,
    url: Option<String>,
    #[serde(default)]
    headers: Map<String, Value>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// A file and the servers that it names.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    content: Vec<u8>,
    servers: Map<String, Value>,
}

/// Whether a file is one of another client, by its name.
pub(crate) fn is_known(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| NAMES.contains(&name))
}

/// What of a file's content is trusted: the servers alone, as some of these files change with each use of their client.
pub(crate) fn pinned<'a>(path: &Path, content: &'a [u8]) -> Cow<'a, [u8]> {
    let value = if is_known(path) { serde_json::from_slice::<Value>(content).ok() } else { None };
    match value {
        Some(value) => Cow::Owned(all_of(&value).to_string().into_bytes()),
        None => Cow::Borrowed(content),
    }
}

/// All servers of a file: for everybody, and by project.
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
        .map(|(folder, project)| (folder.clone(), Value::Object(sections(project))))
        .filter(|(_, sections)| sections != &json!({}))
        .collect();
    if !projects.is_empty() {
        all.insert("projects".to_owned(), Value::Object(projects));
    }
    Value::Object(all)
}

/// Each server of a file, with what would be started or connected to, for whoever is to trust it.
pub(crate) fn described(path: &Path, content: &[u8]) -> Vec<String> {
    let value = if is_known(path) { serde_json::from_slice::<Value>(content).ok() } else { None };
    let Some(value) = value else { return Vec::new() };
    servers(&value).map(|(name, entry)| format!("{name}: {}", summary(entry))).collect()
}

/// The servers of a file: for everybody, and by project.
fn servers(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let projects = value.get("projects").and_then(Value::as_object).into_iter().flatten();
    std::iter::once(value)
        .chain(projects.map(|(_, project)| project))
        .flat_map(|section| KEYS.iter().filter_map(|key| section.get(*key)?.as_object()))
        .flatten()
}

/// The files that the servers of a file reference.
pub(crate) fn references(content: &[u8]) -> Vec<Reference> {
    let Ok(value) = serde_json::from_slice::<Value>(content) else { return Vec::new() };
    let entries = servers(&value).filter_map(|(_, entry)| serde_json::from_value(entry.clone()).ok());
    entries.flat_map(|entry: Entry| entry.references()).collect()
}

impl Entry {
    /// The files that the command names. A server that is given variables has grants.
    fn references(&self) -> Vec<Reference> {
        let Some(command) = &self.command else { return Vec::new() };
        let has_grants = self.has_grants();
        let words = std::iter::once(command).chain(&self.args);
        // A variable that is not set is an error where the server is started.
        let words: Vec<String> = words.map(|word| expand(word).unwrap_or_else(|_| word.clone())).collect();
        let start = self.cwd.as_deref().map(|cwd| expand(cwd).unwrap_or_else(|_| cwd.to_owned()));
        closure::of_command(&words, start.as_deref().map(Path::new), has_grants)
    }

    fn has_grants(&self) -> bool {
        !self.env.is_empty() || self.command.iter().chain(&self.args).any(|word| word.contains("${"))
    }
}

/// What an entry would start or connect to, as it stands there: the words, the folder, and what else is handed over, of
/// which only the names are shown.
fn summary(entry: &Value) -> String {
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
            let folder = entry.get("cwd").and_then(Value::as_str);
            let folder = folder.map_or(String::new(), |folder| format!(" in `{folder}`"));
            let variables = names("env", "variables");
            format!("starts `{}`{folder}{variables}", words.collect::<Vec<_>>().join(" "))
        }
        (None, Some(url)) => {
            let headers = names("headers", "headers");
            format!("connects to `{}`{headers}", url.split(['?', '#']).next().unwrap_or_default())
        }
        (None, None) => "neither a command nor an address".to_owned(),
    }
}

/// A word of a command, so that it can be told from the next one.
fn word(word: &str) -> Cow<'_, str> {
    let is_plain =
        !word.is_empty() && !word.contains(|letter: char| letter.is_whitespace() || "'\"`".contains(letter));
    if is_plain { word.into() } else { format!("'{}'", word.escape_debug()).into() }
}

/// The files that there may be, the nearest first.
fn places() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let near = |name: &'static str| {
        here.ancestors().map(move |folder| folder.join(name)).find(|path| path.is_file())
    };
    let mut places: Vec<PathBuf> =
        [".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"].into_iter().filter_map(near).collect();
    if let Some(home) = env::get_os("HOME").map(PathBuf::from) {
        let config = env::get_os("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
        places.extend([
            home.join(".claude.json"),
            config.join("Claude/claude_desktop_config.json"),
            home.join("Library/Application Support/Claude/claude_desktop_config.json"),
            home.join(".cursor/mcp.json"),
            config.join("Code/User/mcp.json"),
        ]);
    }
    places
}

/// The files that are there, with the servers that count here.
fn found() -> Vec<Found> {
    let here = std::env::current_dir().unwrap_or_default();
    let mut all: Vec<Found> = Vec::new();
    for path in places() {
        let is_small = path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_SIZE);
        if !is_small || all.iter().any(|known| known.path == path) {
            continue;
        }
        let Ok(content) = std::fs::read(&path) else { continue };
        let Ok(value) = serde_json::from_slice::<Value>(&content) else { continue };
        let project = value.pointer("/projects").and_then(|projects| projects.get(here.to_str()?));
        let mut servers = Map::new();
        for section in std::iter::once(&value).chain(project) {
            for key in KEYS {
                let entries = section.get(key).and_then(Value::as_object).cloned();
                servers.extend(entries.into_iter().flatten());
            }
        }
        all.push(Found { path, content, servers });
    }
    all
}

/// The names of all servers that these files have.
pub(crate) fn names() -> Vec<String> {
    found().into_iter().flat_map(|file| file.servers.into_iter().map(|(name, _)| name)).collect()
}

/// The server of a name, if a file has it and is trusted.
pub(crate) fn named(name: &str, level: Level) -> Result<Option<Server>, Failure> {
    for Found { path, content, servers } in found() {
        let Some(entry) = servers.get(name) else { continue };
        let shown = path.display();
        let parsed = serde_json::from_value::<Entry>(entry.clone());
        let used = parsed.as_ref().map(Entry::references).unwrap_or_default();
        match Pins::load()?.standing_for(&path, &content, &used) {
            Standing::Trusted => {}
            standing => {
                let why = standing.reason(&path);
                return Err(Failure::new(
                    Exit::Denied,
                    "PERMISSION",
                    format!("the server `{name}` {}, and its file `{shown}` {why}", summary(entry)),
                )
                .hint(format!("Read it; then `toolpost trust {shown}`.")));
            }
        }
        let wrong = |why: &str| Failure::usage(format!("the server `{name}` of `{shown}`: {why}"));
        let mut entry = parsed.map_err(|error| wrong(&error.to_string()))?;
        if entry.has_grants() && entry.command.is_some() {
            // A compiled cache that it wrote would be a change of its directory.
            entry.env.entry("PYTHONDONTWRITEBYTECODE").or_insert_with(|| "1".into());
        }
        let check = start_check(used);
        return endpoint(entry, level)
            .map(|endpoint| Some(Server { name: name.to_owned(), endpoint, image: None, check }))
            .map_err(|why| wrong(&why));
    }
    Ok(None)
}

/// Where a server is, with the variables of the environment that its entry names.
fn endpoint(entry: Entry, level: Level) -> Result<Endpoint, String> {
    let pairs = |fields: Map<String, Value>| {
        fields
            .into_iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name, expand(&text)?)),
                Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
                _ => Err(format!("the value of `{name}` is no text")),
            })
            .collect::<Result<Vec<_>, String>>()
    };
    match (entry.command, entry.url) {
        (Some(command), None) => {
            let words = std::iter::once(&command).chain(&entry.args);
            Ok(Endpoint::Program {
                argv: words.map(|word| Ok(expand(word)?.into())).collect::<Result<_, String>>()?,
                env: pairs(entry.env)?.into_iter().map(|(name, value)| (name, value.into())).collect(),
                dir: entry.cwd.as_deref().map(expand).transpose()?.map(PathBuf::from),
                level,
            })
        }
        (None, Some(url)) => match entry.kind.as_deref() {
            None | Some("http" | "streamable-http" | "streamableHttp") => Ok(Endpoint::Http {
                url: expand(&url)?,
                headers: pairs(entry.headers)?
                    .into_iter()
                    .map(|(name, value)| (name, Secret::new(value)))
                    .collect(),
            }),
            Some(other) => Err(format!("it is of the type `{other}`: expected `http` or a command")),
        },
        (Some(_), Some(_)) => Err("it has a command and an address: expected one of them".to_owned()),
        (None, None) => Err("it has neither a command nor an address".to_owned()),
    }
}

/// A text with the variables of the environment that it names: `${NAME}`, `${NAME:-default}`, `${env:NAME}`.
fn expand(text: &str) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, after) =
            after.split_once('}').ok_or_else(|| "it has a `${` that is not closed".to_owned())?;
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("`${{{inside}}}` is no variable of the environment"));
        }
        let value = env::secret(name).or_else(|| default.map(str::to_owned));
        let value = value.ok_or_else(|| format!("the variable `{name}` that it names is not set"))?;
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
                "a: starts `x -c 'rm -rf /; y' ''` in `/srv`, with the variables KEY, B",
                "b: connects to `https://a.example/mcp`, with the headers Authorization"
            ]
        );
    }

    #[test]
    fn entries_of_all_clients_are_understood() {
        let made = |entry: Value| endpoint(serde_json::from_value(entry).unwrap(), Level::Minimal);
        let shown = |entry: Value| made(entry).map(|endpoint| endpoint.to_string());
        assert_eq!(
            shown(json!({ "command": "npx", "args": ["-y", "a"], "env": { "K": "v" } })).unwrap(),
            "npx -y a"
        );
        assert_eq!(shown(json!({ "type": "stdio", "command": "a" })).unwrap(), "a");
        assert_eq!(
            shown(json!({ "type": "http", "url": "https://a.example/${NO_SUCH:-mcp}" })).unwrap(),
            "https://a.example/mcp"
        );
        for (entry, why) in [
            (json!({ "url": "x", "type": "sse" }), "`sse`"),
            (json!({ "url": "x", "command": "y" }), "one of them"),
            (json!({}), "neither"),
            (json!({ "command": "${NO_SUCH_VARIABLE}" }), "`NO_SUCH_VARIABLE`"),
            (json!({ "command": "${input:key}" }), "no variable"),
            (json!({ "command": "${x" }), "not closed"),
            (json!({ "command": "a", "env": { "K": [1] } }), "`K`"),
        ] {
            let error = shown(entry).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

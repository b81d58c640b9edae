//! Servers in the files that people have for other clients of the protocol.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolpost_core::Secret;
use toolpost_mcp::client::Endpoint;
use toolpost_sandbox::{Grants, Level};

use super::Server;
use crate::config::closure::Reference;
use crate::config::trust::{Pins, Standing, start_check};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{grants, mcp};

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
    /// What the program gets beyond its level; other clients do not read it.
    #[serde(default)]
    grants: Option<Value>,
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

/// The directory of the project whose file it is, else that of the file.
fn directory(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or(Path::new("."));
    let is_editor = [".cursor", ".vscode"].iter().any(|name| parent.ends_with(name));
    parent.parent().filter(|_| is_editor).unwrap_or(parent)
}

/// Where the servers of a file work if nothing else is named: in the directory of the project, or in the caller's.
fn usual_directory(path: &Path) -> Option<PathBuf> {
    let in_home = env::get_os("HOME").is_some_and(|home| directory(path) == Path::new(&home));
    let is_project =
        [".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"].iter().any(|name| path.ends_with(name));
    mcp::folder((is_project && !in_home).then(|| directory(path)))
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
pub(crate) fn references(path: &Path, content: &[u8]) -> Vec<Reference> {
    let Ok(value) = serde_json::from_slice::<Value>(content) else { return Vec::new() };
    let entries = servers(&value).filter_map(|(_, entry)| serde_json::from_value(entry.clone()).ok());
    entries.flat_map(|entry: Entry| entry.references(path)).collect()
}

impl Entry {
    /// The files that the command names. A server that is given variables has grants.
    fn references(&self, path: &Path) -> Vec<Reference> {
        let Some(command) = &self.command else { return Vec::new() };
        let has_grants = self.has_grants();
        let words = std::iter::once(command).chain(&self.args);
        // A variable that is not set is an error where the server is started.
        let words: Vec<String> = words.map(|word| expand(word).unwrap_or_else(|_| word.clone())).collect();
        let named = self.cwd.as_deref().map(|cwd| expand(cwd).unwrap_or_else(|_| cwd.to_owned()).into());
        // Grants that are wrong are an error where the server is started.
        let named = named.or_else(|| self.granted(path).ok()?.workdir);
        mcp::references_in(&words, named.as_deref(), usual_directory(path).as_deref(), has_grants)
    }

    /// The grants that the entry names.
    fn granted(&self, path: &Path) -> Result<Grants, String> {
        self.grants.as_ref().map_or(Ok(Grants::default()), |value| grants::read(value, directory(path)))
    }

    fn has_grants(&self) -> bool {
        let has_variables = !self.env.is_empty() || grants::has_variables(self.grants.as_ref());
        has_variables || self.command.iter().chain(&self.args).any(|word| word.contains("${"))
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
            let variables = names("env", "raw variables");
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
        let used = parsed.as_ref().map(|entry| entry.references(&path)).unwrap_or_default();
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
        let mut grants = entry.granted(&path).map_err(|why| wrong(&why))?;
        if entry.command.is_none() && !grants.is_empty() {
            return Err(wrong("a server at an address takes no grants"));
        }
        if entry.cwd.is_none() && entry.command.is_some() && grants.workdir.is_none() {
            grants.workdir = usual_directory(&path);
        }
        let raw = raw_variables(&mut entry).map_err(|why| wrong(&why))?;
        let endpoint = endpoint(entry, level).map_err(|why| wrong(&why))?;
        let check = start_check(used);
        return Ok(Some(Server { check, grants, raw, ..Server::new(name, endpoint) }));
    }
    Ok(None)
}

/// Takes out the variables whose values are from the environment, which are secrets unless they are paths.
fn raw_variables(entry: &mut Entry) -> Result<Vec<(String, String)>, String> {
    if entry.command.is_none() {
        return Ok(Vec::new());
    }
    let mut raw = Vec::new();
    for (name, value) in &entry.env {
        let Some(text) = value.as_str().filter(|text| text.contains("${")) else { continue };
        let value = expand(text)?;
        if !value.starts_with('/') {
            raw.push((name.clone(), value));
        }
    }
    entry.env.retain(|name, _| raw.iter().all(|(taken, _)| taken != name));
    Ok(raw)
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
                "a: starts `x -c 'rm -rf /; y' ''` in `/srv`, with the raw variables KEY, B",
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

//! MCP servers in configuration files of other clients.

use std::path::PathBuf;

use serde_json::{Map, Value};
use toolpost_core::Secret;
use toolpost_mcp::client::Endpoint;
use toolpost_sandbox::Level;

use super::entries::{Entry, KEYS, default_directory, expand, summary};
use super::{Server, start};
use crate::config::trust::{Pins, TrustState, start_check};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{env, grants};

/// The maximum size of a file, in bytes.
const MAX_SIZE: u64 = 16 << 20;
/// A file with its servers.
#[derive(Debug)]
struct ConfigurationFile {
    path: PathBuf,
    content: Vec<u8>,
    servers: Map<String, Value>,
}

/// The configuration files, nearest first.
fn places() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let near = |name: &'static str| {
        here.ancestors().map(move |directory| directory.join(name)).find(|path| path.is_file())
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

/// The existing files with their servers for this directory.
fn configuration_files() -> Vec<ConfigurationFile> {
    let here = std::env::current_dir().unwrap_or_default();
    let mut all: Vec<ConfigurationFile> = Vec::new();
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
        all.push(ConfigurationFile { path, content, servers });
    }
    all
}

/// The names of all servers of these files.
pub(crate) fn names() -> Vec<String> {
    configuration_files()
        .into_iter()
        .flat_map(|file| file.servers.into_iter().map(|(name, _)| name))
        .collect()
}

/// The server of a name, if a trusted file has it.
pub(crate) fn named(name: &str, level: Level) -> Result<Option<Server>, Failure> {
    for ConfigurationFile { path, content, servers } in configuration_files() {
        let Some(entry) = servers.get(name) else { continue };
        let shown = path.display();
        let parsed = serde_json::from_value::<Entry>(entry.clone());
        let used = parsed.as_ref().map(|entry| entry.references(&path)).unwrap_or_default();
        match Pins::load()?.standing_for(&path, &content, &used) {
            TrustState::Trusted => {}
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
            // A compiled cache that the program writes would change its directory.
            entry.env.entry("PYTHONDONTWRITEBYTECODE").or_insert_with(|| "1".into());
        }
        start::warn(name, entry.grants.as_ref().and_then(grants::former_key).as_slice());
        let mut grants = entry.granted(&path).map_err(|why| wrong(&why))?;
        if entry.command.is_none() && !grants.is_empty() {
            return Err(wrong("a server with a URL takes no grants"));
        }
        if entry.cwd.is_none() && entry.command.is_some() && grants.workdir.is_none() {
            grants.workdir = default_directory(&path);
        }
        let raw = raw_variables(&mut entry).map_err(|why| wrong(&why))?;
        let endpoint = endpoint(entry, level).map_err(|why| wrong(&why))?;
        let check = start_check(used);
        return Ok(Some(Server { check, grants, raw, ..Server::new(name, endpoint) }));
    }
    Ok(None)
}

/// Removes variables with values of the environment, which are secrets unless they are paths.
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

/// The endpoint of a server, with resolved variables.
fn endpoint(entry: Entry, level: Level) -> Result<Endpoint, String> {
    let pairs = |fields: Map<String, Value>| {
        fields
            .into_iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name, expand(&text)?)),
                Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
                _ => Err(format!("the value of `{name}` is not a string")),
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
            Some(other) => Err(format!("unknown type `{other}`: expected `http` or a command")),
        },
        (Some(_), Some(_)) => Err("it has both a command and a URL".to_owned()),
        (None, None) => Err("it has neither a command nor a URL".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_all_clients_parse() {
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
            (json!({ "url": "x", "command": "y" }), "both"),
            (json!({}), "neither"),
            (json!({ "command": "${NO_SUCH_VARIABLE}" }), "`NO_SUCH_VARIABLE`"),
            (json!({ "command": "${input:key}" }), "is not a variable"),
            (json!({ "command": "${x" }), "unclosed"),
            (json!({ "command": "a", "env": { "K": [1] } }), "`K`"),
        ] {
            let error = shown(entry).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

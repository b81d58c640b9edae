//! The files that a trusted file references and that affect programs or their rights.
//!
//! Scripts and recordings of models are not among them, because a model's answer has no effect without
//! permission.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use toolpost_sandbox::Grants;

use super::keys::KEYS;
use super::reference::{Command, Named, Reference, server};
use super::{digest, dotenv, paths};
use crate::description;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::grants;
use crate::mcp::entries;
use crate::target_grammar::{all_below, below, is_address, is_description, split, unnamed};

/// The maximum number of files and directories that one trusted file pins.
const MAX_REFERENCES: usize = 256;
/// The maximum depth of references.
const MAX_DEPTH: usize = 16;
/// Settings that name files of this kind. Other settings name files that Toolpost writes.
const DECISIVE: [&str; 5] =
    ["models.file", "models.ca_file", "egress_policy", "packages.certificate", "packages.find_links"];
/// Variables of other programs that name such files.
const DECISIVE_VARIABLES: [&str; 3] = ["SSL_CERT_FILE", "PIP_CERT", "PIP_FIND_LINKS"];
/// The digests of everything that a file with this content references, transitively.
///
/// # Errors
/// A reference is beyond the maxima, or cannot be pinned.
pub(super) fn closure(path: &Path, content: &[u8]) -> Result<BTreeMap<PathBuf, String>, Failure> {
    follow(path, references(path, content))
}

/// The digests of references of a file, transitively.
pub(super) fn follow(root: &Path, first: Vec<Reference>) -> Result<BTreeMap<PathBuf, String>, Failure> {
    let mut closure = BTreeMap::new();
    let mut open: Vec<(Reference, usize)> = first.into_iter().map(|reference| (reference, 1)).collect();
    while let Some((reference, depth)) = open.pop() {
        let path = reference.path();
        if path == root || closure.contains_key(&path) {
            continue;
        }
        if path.to_str().is_none() {
            return Err(Failure::usage(format!("the path `{}` is not UTF-8", path.display()))
                .hint("Rename the file: trust is stored by path in a text file."));
        }
        if closure.len() >= MAX_REFERENCES || depth > MAX_DEPTH {
            let bound = if depth > MAX_DEPTH {
                format!("{MAX_DEPTH} files that reference one another")
            } else {
                format!("{MAX_REFERENCES} files")
            };
            let message = format!("`{}` references more than {bound}", root.display());
            return Err(Failure::new(Exit::Limit, "LIMIT", message).hint("Split it into several files."));
        }
        let content = match &reference {
            Reference::Description(_) => digest::read(&path).ok(),
            _ => None,
        };
        // The followed content is the hashed content.
        let own = match &content {
            Some(content) => {
                let next = references(&path, content);
                open.extend(next.into_iter().map(|reference| (reference, depth + 1)));
                digest::of_content(&path, content)
            }
            None => digest_of(&reference)?,
        };
        closure.insert(path, own);
    }
    Ok(closure)
}

/// The direct references of a file with this content. Invalid content has none; its use reports the error.
pub(crate) fn references(path: &Path, content: &[u8]) -> Vec<Reference> {
    let found = named(path, content);
    found.iter().flat_map(Named::references).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether a file of this name can name programs and files.
pub(super) fn has_references(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == ".env" || is_description(name)
}

/// The programs and files that a file with this content names directly.
pub(super) fn named(path: &Path, content: &[u8]) -> Vec<Named> {
    let Ok(text) = std::str::from_utf8(content) else { return Vec::new() };
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == paths::PROJECT {
        of_settings(path, text)
    } else if name == ".env" {
        of_variables(directory, text)
    } else if entries::is_known(path) {
        entries::named(path, content)
    } else if is_description(name) {
        of_description(path, text)
    } else {
        Vec::new()
    }
}

/// The references of a settings file.
fn of_settings(path: &Path, text: &str) -> Vec<Named> {
    let Ok(entries) = super::file::parse(text, path) else { return Vec::new() };
    let mut found: Vec<Named> = entries
        .settings
        .iter()
        .flat_map(|(key, value, _)| of_setting(key.name, value, Path::new(""), path.parent()))
        .collect();
    let directory = path.parent();
    found.extend(
        entries.targets.values().flat_map(|(target, grants, _)| of_targets(target, directory, grants)),
    );
    found
}

/// The references of a setting with paths relative to a directory. Its servers work in `start`.
fn of_setting(name: &str, value: &Value, directory: &Path, start: Option<&Path>) -> Vec<Named> {
    let texts = || value.as_array().into_iter().flatten().filter_map(Value::as_str);
    match (name, value.as_str()) {
        ("tools", _) => {
            let words = texts().flat_map(split);
            let words = words.map(|word| below(directory, word));
            words.filter_map(|word| of_target(&word, start, &Grants::default())).collect()
        }
        ("packages.find_links", Some(path)) => {
            vec![Named::Reference(Reference::Directory(directory.join(path)))]
        }
        (name, Some(path)) if DECISIVE.contains(&name) => vec![Named::file(directory.join(path))],
        _ => Vec::new(),
    }
}

/// The references of a file with variables.
fn of_variables(directory: &Path, text: &str) -> Vec<Named> {
    let Ok(variables) = dotenv::parse(text) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, text) in variables {
        if let Some(key) = KEYS.iter().find(|key| key.variable() == name) {
            let value = key.parse(&text).unwrap_or_default();
            found.extend(of_setting(key.name, &value, directory, Some(directory)));
        } else if DECISIVE_VARIABLES.contains(&name.as_str()) {
            let path = directory.join(text);
            let is_directory = path.is_dir();
            let reference = if is_directory { Reference::Directory } else { Reference::File };
            found.push(Named::Reference(reference(path)));
        }
    }
    found
}

/// The programs and files of a comma-separated list of targets.
pub(crate) fn of_targets(word: &str, directory: Option<&Path>, grants: &Grants) -> Vec<Named> {
    split(word).into_iter().filter_map(|target| of_target(target, directory, grants)).collect()
}

/// The program or file of a target.
fn of_target(target: &str, directory: Option<&Path>, grants: &Grants) -> Option<Named> {
    let target = unnamed(target);
    if is_address(target) {
        return server(target, directory, grants);
    }
    if is_description(target) {
        return Some(Named::Reference(Reference::Description(target.into())));
    }
    target.contains('/').then(|| Named::Program { path: target.into(), grants: grants.clone() })
}

/// The digest of the current content.
pub(super) fn digest_of(reference: &Reference) -> Result<String, Failure> {
    let path = reference.path();
    match reference {
        Reference::Directory(_) => digest::of_directory(&path),
        Reference::File(_) | Reference::Description(_) => {
            digest::of_file(&path).map_err(|error| Failure::file("the referenced file", &path, &error))
        }
    }
}

/// The files that a description references.
///
/// An agent references its tools and prompt, a gateway its upstreams, a wrapped program its executable and
/// scripts.
fn of_description(path: &Path, text: &str) -> Vec<Named> {
    let Ok(entries) = description::entries(path, text) else { return Vec::new() };
    let value = |name: &str| entries.iter().find(|entry| entry.name == name).map(|entry| &entry.value);
    let directory = path.parent().unwrap_or(Path::new("."));
    let texts = |list: Option<&Value>| -> Vec<String> {
        let items = list.and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(|word| all_below(directory, word)).collect()
    };
    match value("kind").and_then(Value::as_str) {
        Some("agent") => {
            let tools = texts(value("tools"));
            let prompt = value("system_prompt_file").and_then(Value::as_str);
            let prompt = prompt.map(|file| Named::file(directory.join(file)));
            let of_word = |word: &String| of_targets(word, Some(directory), &Grants::default());
            tools.iter().flat_map(of_word).chain(prompt).collect()
        }
        Some("flow") => {
            let tools = texts(value("tools"));
            let of_word = |word: &String| of_targets(word, Some(directory), &Grants::default());
            let flows = toolpost_flow::sub_flows(&Value::Object(
                entries.iter().map(|entry| (entry.name.clone(), entry.value.clone())).collect(),
            ));
            let flows =
                flows.into_iter().map(|path| Named::Reference(Reference::Description(directory.join(path))));
            tools.iter().flat_map(of_word).chain(flows).collect()
        }
        Some("gateway") => {
            let upstreams = value("upstreams").and_then(Value::as_array).into_iter().flatten();
            let of_upstream = |upstream: &Value| {
                let target = upstream.get("target")?.as_str()?;
                // Opening the upstream reports invalid grants.
                let granted = upstream.get(grants::KEY).and_then(|value| grants::read(value, directory).ok());
                let target = all_below(directory, target);
                Some(of_targets(&target, Some(directory), &granted.unwrap_or_default()))
            };
            upstreams.filter_map(of_upstream).flatten().collect()
        }
        Some("command") | None => of_program(directory, &value),
        Some(_) => Vec::new(),
    }
}

/// The commands of a wrapped program: the executable with its fixed arguments.
fn of_program<'a>(directory: &Path, value: &impl Fn(&str) -> Option<&'a Value>) -> Vec<Named> {
    fn fixed(list: Option<&Value>, words: &mut Vec<String>) {
        for item in list.and_then(Value::as_array).into_iter().flatten() {
            match item.as_str() {
                Some(word) if !word.contains('{') => words.push(word.to_owned()),
                Some(_) => {}
                None => {
                    fixed(item.get("args"), words);
                    fixed(item.get("otherwise"), words);
                }
            }
        }
    }
    let Some(program) = value("program").and_then(Value::as_str) else { return Vec::new() };
    let tools: Vec<&Value> = value("tool").and_then(Value::as_array).into_iter().flatten().collect();
    let own = tools.iter().filter_map(|tool| tool.get("env")).chain(value("env"));
    let own: Vec<_> = own.filter_map(Value::as_object).flatten().collect();
    let has_grants = !own.is_empty() || grants::has_variables(value(grants::KEY));
    // The readable paths and the level of a description are grants too.
    let is_granted = has_grants || [grants::KEY, "sandbox"].iter().any(|key| value(key).is_some());
    let text = |(name, value): &(&String, &Value)| Some(((*name).clone(), value.as_str()?.to_owned()));
    let variables: Vec<_> = own.iter().filter_map(text).collect();
    let is_path = program.contains('/');
    let program = if is_path { directory.join(program).display().to_string() } else { program.to_owned() };
    let mut shared = vec![program];
    fixed(value("args"), &mut shared);
    let line = |tool: &&Value| {
        let mut words = shared.clone();
        fixed(tool.get("args"), &mut words);
        let variables = variables.clone();
        Named::Command(Command { words, has_grants, is_granted, variables, ..Command::default() })
    };
    tools.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::Kind;

    #[test]
    fn every_path_setting_is_pinned_or_written_by_toolpost() {
        const WRITTEN: [&str; 3] = ["artifacts", "store", "log_file"];
        for key in KEYS.iter().filter(|key| key.kind == Kind::Path) {
            let (decides, is_written) = (DECISIVE.contains(&key.name), WRITTEN.contains(&key.name));
            assert!(decides != is_written, "`{}`", key.name);
            assert_eq!(of_setting(key.name, &"x".into(), Path::new("/p"), None).is_empty(), is_written);
        }
    }
}

//! Agent files: descriptions with `kind = "agent"`, in TOML, YAML or JSON.
//!
//! Keys of the model and the limits are settings, with the same names and checks.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use toolpost_agent::AgentTool;
use toolpost_core::{Schema, ToolSpec, check_tool_name, did_you_mean, hex};
use toolpost_llm::ModelSpec;

use crate::config::keys::{Key, find};
use crate::config::{Config, Origin};
use crate::description::{Entry, entries, kind};
use crate::failure::Failure;
use crate::target::trail::Trail;
use crate::target::trusted::trusted_as;
use crate::target::{self, NamedTarget, trusted};
use crate::target_grammar::{below as below_directory, split};

/// The version of the format.
pub(crate) const VERSION: u64 = 1;
/// The keys that are not settings.
const OWN: [&str; 6] = ["kind", "v", "name", "description", "system_prompt_file", "output_schema"];
/// The settings that a description may have.
const SETTINGS: [&str; 15] = [
    "model",
    "system_prompt",
    "tools",
    "temperature",
    "top_p",
    "effort",
    "thinking",
    "stop",
    "max_output_tokens",
    "max_iterations",
    "max_tool_calls",
    "max_tokens",
    "max_time",
    "max_cost",
    "no_wrap_up",
];
/// Settings of the operator that do not apply to agent files, because they are for the model of `run`.
const EXCLUDED: [&str; 18] = [
    "system_prompt",
    "tools",
    "tool_choice",
    "strict_tools",
    "temperature",
    "top_p",
    "top_k",
    "effort",
    "thinking",
    "seed",
    "stop",
    "parallel_tool_calls",
    "prompt_caching",
    "provider_options",
    "metadata",
    "betas",
    "max_output_tokens",
    "tags",
];

/// The operator's settings that do not apply to an agent file.
fn excluded(names_model: bool) -> Vec<&'static str> {
    let fallback = names_model.then_some("models.fallback");
    EXCLUDED.into_iter().chain(fallback).collect()
}

/// The keys that a description may have.
#[cfg(test)]
pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(SETTINGS)
}

/// A trusted agent file.
pub(crate) struct AgentFile {
    /// The specification of the agent as a tool.
    pub(crate) spec: ToolSpec,
    pub(crate) names_model: bool,
    /// The SHA-256 of the file.
    pub(crate) digest: String,
    settings: Vec<(&'static Key, Value, Origin)>,
    targets: Vec<String>,
    /// The descriptions that lead to its targets, itself the last.
    trail: Trail,
}

impl AgentFile {
    /// Reads the agent file of a command, which must be trusted.
    pub(crate) fn open(path: &Path, config: &Config) -> Result<Self, Failure> {
        let text = trusted(path)?;
        match kind(path, &text).as_deref() {
            Some("agent") => Self::parse(path, &text, config, &Trail::default()),
            kind => {
                let kind = kind.map_or_else(|| "no `kind`".to_owned(), |kind| format!("the kind `{kind}`"));
                Err(Failure::usage(format!("`{}` has {kind}: expected `agent`", path.display()))
                    .hint("`--tools` takes other descriptions; see `toolpost help agents`."))
            }
        }
    }

    /// The settings of the command with those of the file.
    pub(crate) fn settings(&self, config: &Config) -> Result<Config, Failure> {
        config.with_overrides(&excluded(self.names_model), self.settings.clone())
    }

    /// Its targets.
    pub(crate) fn targets(&self, config: &Config) -> Vec<NamedTarget> {
        target::parse(&self.targets, config, &self.trail)
    }

    /// Parses a trusted agent file that these descriptions lead to.
    pub(crate) fn parse(path: &Path, text: &str, config: &Config, trail: &Trail) -> Result<Self, Failure> {
        let trail = trail.and(path)?;
        let mut file = Reader { path, entries: entries(path, text)? };
        let directory = crate::regular_file::directory_of(path);
        file.take("kind");
        let version = file.need("v")?;
        if version.value.as_u64() != Some(VERSION) {
            let found = &version.value;
            return Err(file.error(
                &version,
                &format!(
                    "expected {VERSION}, found {found}: the description is for another version of Toolpost"
                ),
            ));
        }
        let name = file.need("name")?;
        let name_text = file.text(&name)?;
        check_tool_name(&name_text).map_err(|problem| file.error(&name, &problem))?;
        let description = file.need("description")?;
        let mut spec = AgentTool::spec_for(ToolSpec::new(name_text, file.text(&description)?));
        if let Some(schema) = file.take("output_schema") {
            if !schema.value.is_object() {
                let problem = format!("expected a table with a JSON Schema, found {}", schema.value);
                return Err(file.error(&schema, &problem));
            }
            Schema::new(schema.value.clone())
                .is_valid(&Value::Null)
                .map_err(|error| file.error(&schema, error.message()))?;
            spec = spec.output(schema.value.clone());
            spec.check().map_err(|error| file.error(&schema, &error.to_string()))?;
        }
        spec.check().map_err(|error| file.error(&name, &error.to_string()))?;
        let prompt_file = file.take("system_prompt_file");
        let mut settings = Vec::new();
        for key in SETTINGS.into_iter().filter_map(find) {
            let Some(entry) = file.take(key.name) else { continue };
            let value = key.check(entry.value.clone()).map_err(|problem| file.error(&entry, &problem))?;
            if let Some(other) = prompt_file.as_ref().filter(|_| key.name == "system_prompt") {
                return Err(file.error(other, "conflicts with `system_prompt`: remove one of them"));
            }
            let value = match (key.name, value.as_str()) {
                ("model", Some(model)) => {
                    let model = model_below(directory, model);
                    ModelSpec::parse(&model).map_err(|error| file.error(&entry, &error.to_string()))?;
                    model.into()
                }
                ("thinking", Some(text)) => {
                    crate::parse::thinking(text).map_err(|problem| file.error(&entry, &problem))?;
                    value
                }
                _ => value,
            };
            settings.push((key, value, file.origin(&entry)));
        }
        if let Some(entry) = prompt_file {
            let text = prompt(&directory.join(file.text(&entry)?))?;
            settings.extend(find("system_prompt").map(|key| (key, text.into(), file.origin(&entry))));
        }
        file.end()?;
        let tools = settings.iter().find(|(key, ..)| key.name == "tools").map(|(_, value, _)| value);
        let tools = tools.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let targets = tools.flat_map(split).map(|word| below(directory, word, config)).collect();
        let names_model = settings.iter().any(|(key, ..)| key.name == "model");
        let digest = hex(Sha256::digest(text));
        Ok(Self { spec, names_model, digest, settings, targets, trail })
    }
}

/// Reads a system prompt file, which must be trusted like the description.
fn prompt(path: &Path) -> Result<String, Failure> {
    let text = trusted_as("the system prompt", "A model follows these instructions.", path)?;
    if text.trim().is_empty() {
        return Err(Failure::usage(format!("the system prompt `{}` is empty", path.display())));
    }
    Ok(text)
}

/// A target of a file, relative to the current directory.
pub(crate) fn below(directory: &Path, target: &str, config: &Config) -> String {
    if config.target(target).is_some() { target.to_owned() } else { below_directory(directory, target) }
}

/// A model of a file, relative to the current directory.
pub(crate) fn model_below(directory: &Path, model: &str) -> String {
    let file = ["script:", "replay:"].into_iter().find_map(|kind| Some((kind, model.strip_prefix(kind)?)));
    match file {
        Some((kind, path)) => format!("{kind}{}", directory.join(path).display()),
        None => model.to_owned(),
    }
}

/// Parses a description key by key; an unknown key is an error.
struct Reader<'a> {
    path: &'a Path,
    /// The keys that are not read yet.
    entries: Vec<Entry>,
}

impl Reader<'_> {
    fn take(&mut self, name: &str) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.remove(index))
    }

    fn need(&mut self, name: &str) -> Result<Entry, Failure> {
        self.take(name).ok_or_else(|| {
            Failure::usage(format!("{}: the key `{name}` is missing", self.path.display()))
                .hint("`toolpost help agents` lists the keys.")
        })
    }

    /// A text that is not empty.
    fn text(&self, entry: &Entry) -> Result<String, Failure> {
        match entry.value.as_str().map(str::trim) {
            Some("") => Err(self.error(entry, "expected a string, found an empty one")),
            Some(text) => Ok(text.to_owned()),
            None => Err(self.error(entry, &format!("expected text in quotes, found {}", entry.value))),
        }
    }

    fn origin(&self, entry: &Entry) -> Origin {
        Origin::File { path: self.path.to_owned(), line: entry.line }
    }

    fn error(&self, entry: &Entry, problem: &str) -> Failure {
        Failure::usage(format!("{}:{}: {}: {problem}", self.path.display(), entry.line, entry.name))
    }

    /// Rejects unknown keys.
    fn end(self) -> Result<(), Failure> {
        let Some(entry) = self.entries.first() else { return Ok(()) };
        let mut known = [&OWN[..], &SETTINGS[..]].concat();
        known.sort_unstable();
        let near = did_you_mean(&entry.name, known.iter().copied());
        let hint = near.as_deref().map(|near| near.replacen("Did", "; did", 1)).unwrap_or_default();
        let problem = format!("unknown key{hint} (known keys: {})", known.join(", "));
        let failure = self.error(entry, &problem);
        let name = entry.name.to_lowercase();
        let is_secret = ["key", "token", "secret", "password"].iter().any(|end| name.ends_with(end));
        Err(if is_secret && near.is_none() {
            failure
                .hint("A description has no secrets: set the provider's variable, such as ANTHROPIC_API_KEY.")
        } else {
            failure
        })
    }
}

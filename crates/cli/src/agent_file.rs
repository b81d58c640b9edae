//! An agent in a file: a description with `kind = "agent"`, in TOML, YAML or JSON.
//!
//! What it says of how its model answers and how far it goes are settings, under their own names and checked like them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use serde_saphyr::Spanned;
use toolpost_agent::AgentTool;
use toolpost_core::{BoxFuture, Schema, ToolSpec, check_tool_name, did_you_mean};
use toolpost_llm::ModelSpec;
use toolpost_sandbox::{Grants, Level};

use crate::config::closure::{self, Reference};
use crate::config::keys::{Key, find};
use crate::config::{Config, Origin, toml_entries};
use crate::failure::Failure;
use crate::grants;
use crate::target::{self, Opened, Trail};

/// The version of the format.
const VERSION: u64 = 1;
/// The keys that are no settings.
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
/// The settings of the operator that do not count for an agent of a file: they are for what `run` is asked, and for the
/// model that answers it.
const LEFT_OUT: [&str; 18] = [
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

/// The keys that a description may have.
#[cfg(test)]
pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(SETTINGS)
}

/// An agent of a file, before it is a tool.
pub(crate) struct AgentFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// The tool that it is.
    pub(crate) spec: Arc<ToolSpec>,
    /// The settings that count for it.
    pub(crate) config: Config,
    /// Whether the file names the model, so that it is not the caller's.
    pub(crate) names_model: bool,
    /// What its tools are from.
    pub(crate) opened: Opened,
}

/// The kind of a description, if it says one and can be read at all.
pub(crate) fn kind(path: &Path, text: &str) -> Option<String> {
    let entries = entries(path, text).ok()?;
    let kind = entries.into_iter().find(|entry| entry.name == "kind")?;
    kind.value.as_str().map(str::to_owned)
}

/// The files that a description references: of an agent its tools and its prompt, of a gateway its upstreams, of a
/// program that program and its scripts.
pub(crate) fn references(path: &Path, text: &str) -> Vec<Reference> {
    let Ok(entries) = entries(path, text) else { return Vec::new() };
    let value = |name: &str| entries.iter().find(|entry| entry.name == name).map(|entry| &entry.value);
    let folder = path.parent().unwrap_or(Path::new("."));
    let texts = |list: Option<&Value>| -> Vec<String> {
        let items = list.and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(|word| target::all_below(folder, word)).collect()
    };
    match value("kind").and_then(Value::as_str) {
        Some("agent") => {
            let tools = texts(value("tools"));
            let prompt = value("system_prompt_file").and_then(Value::as_str);
            let prompt = prompt.map(|file| Reference::File(folder.join(file)));
            let of_word = |word: &String| closure::of_targets(word, Some(folder), &Grants::default());
            tools.iter().flat_map(of_word).chain(prompt).collect()
        }
        Some("gateway") => {
            let upstreams = value("upstreams").and_then(Value::as_array).into_iter().flatten();
            let of_upstream = |upstream: &Value| {
                let target = upstream.get("target")?.as_str()?;
                // Grants that are wrong are an error where the upstream is opened.
                let granted = upstream.get(grants::KEY).and_then(|value| grants::read(value, folder).ok());
                let target = target::all_below(folder, target);
                Some(closure::of_targets(&target, Some(folder), &granted.unwrap_or_default()))
            };
            upstreams.filter_map(of_upstream).flatten().collect()
        }
        Some("command") | None => of_program(&value),
        Some(_) => Vec::new(),
    }
}

/// The files of a described program: itself, and those that its fixed arguments name.
fn of_program<'a>(value: &impl Fn(&str) -> Option<&'a Value>) -> Vec<Reference> {
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
    let has_grants = own.filter_map(Value::as_object).any(|variables| !variables.is_empty())
        || grants::has_variables(value(grants::KEY));
    let mut shared = vec![program.to_owned()];
    fixed(value("args"), &mut shared);
    let line = |tool: &&Value| {
        let mut words = shared.clone();
        fixed(tool.get("args"), &mut words);
        closure::of_command(&words, None, has_grants)
    };
    tools.iter().flat_map(line).collect()
}

/// Reads a description whose text is trusted, and opens what it names. Paths in it are relative to its folder.
pub(crate) fn open<'a>(
    path: &'a Path,
    text: &'a str,
    config: &'a Config,
    level: Option<Level>,
    trail: &'a Trail,
) -> BoxFuture<'a, Result<AgentFile, Failure>> {
    Box::pin(async move {
        let trail = trail.and(path)?;
        let Description { spec, settings, targets, names_model } = Description::read(path, text, config)?;
        let mut left_out = LEFT_OUT.to_vec();
        if names_model {
            left_out.push("models.fallback");
        }
        let config = config.with_own(&left_out, settings);
        let opened = target::open_from(&targets, &config, level, true, &Grants::default(), &trail).await?;
        let path = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        Ok(AgentFile { path, spec: Arc::new(spec), config, names_model, opened })
    })
}

/// What a description says.
struct Description {
    spec: ToolSpec,
    settings: Vec<(&'static Key, Value, Origin)>,
    targets: Vec<String>,
    names_model: bool,
}

impl Description {
    fn read(path: &Path, text: &str, config: &Config) -> Result<Self, Failure> {
        let mut file = Reader { path, entries: entries(path, text)? };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        file.take("kind");
        let version = file.need("v")?;
        if version.value.as_u64() != Some(VERSION) {
            let found = &version.value;
            return Err(file.error(
                &version,
                &format!(
                    "expected {VERSION}, found {found}: this description was written for another version"
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
                return Err(file.error(other, "there is a `system_prompt` too: leave one of them out"));
            }
            let value = match (key.name, value.as_str()) {
                ("model", Some(model)) => {
                    let model = model_below(folder, model);
                    ModelSpec::parse(&model).map_err(|error| file.error(&entry, &error.to_string()))?;
                    model.into()
                }
                ("thinking", Some(text)) => {
                    crate::args::thinking(text).map_err(|problem| file.error(&entry, &problem))?;
                    value
                }
                _ => value,
            };
            settings.push((key, value, file.origin(&entry)));
        }
        if let Some(entry) = prompt_file {
            let text = prompt(&folder.join(file.text(&entry)?))?;
            settings.extend(find("system_prompt").map(|key| (key, text.into(), file.origin(&entry))));
        }
        file.end()?;
        let tools = settings.iter().find(|(key, ..)| key.name == "tools").map(|(_, value, _)| value);
        let tools = tools.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let targets = tools.flat_map(target::split).map(|word| below(folder, word, config)).collect();
        let names_model = settings.iter().any(|(key, ..)| key.name == "model");
        Ok(Self { spec, settings, targets, names_model })
    }
}

/// The text of a file with instructions. A model is to follow them, so they are trusted like the description.
fn prompt(path: &Path) -> Result<String, Failure> {
    let text = target::trusted_as("the system prompt", "A model is told to do what it says.", path)?;
    if text.trim().is_empty() {
        return Err(Failure::usage(format!("the system prompt `{}` is empty", path.display())));
    }
    Ok(text)
}

/// A target as it is called from where the command runs.
fn below(folder: &Path, target: &str, config: &Config) -> String {
    if config.target(target).is_some() { target.to_owned() } else { target::below(folder, target) }
}

/// The same for a model that is a file.
fn model_below(folder: &Path, model: &str) -> String {
    let file = ["script:", "replay:"].into_iter().find_map(|kind| Some((kind, model.strip_prefix(kind)?)));
    match file {
        Some((kind, path)) => format!("{kind}{}", folder.join(path).display()),
        None => model.to_owned(),
    }
}

/// One key of a description.
struct Entry {
    name: String,
    value: Value,
    /// From 1.
    line: usize,
}

/// The keys of a description.
fn entries(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let wrong = |form: &str, error: &str| {
        Failure::usage(format!("the description `{}` is not {form}: {}", path.display(), error.trim_end()))
    };
    if is_toml {
        let entries = toml_entries(text).map_err(|error| wrong("TOML", &error))?;
        return Ok(entries.into_iter().map(|(name, value, line)| Entry { name, value, line }).collect());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: 100_000,
            max_aliases: 0,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    // What is JSON is YAML as well.
    let read: BTreeMap<String, Spanned<Value>> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| wrong("YAML or JSON with names and values", &error.to_string()))?;
    let entry = |(name, found): (String, Spanned<Value>)| {
        let line = usize::try_from(found.referenced.line()).unwrap_or_default();
        Entry { name, value: found.value, line }
    };
    Ok(read.into_iter().map(entry).collect())
}

/// Reads a description key by key: what nobody asks for is an error.
struct Reader<'a> {
    path: &'a Path,
    /// Those that nobody has asked for yet.
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
                .hint("`toolpost help agents` says what stands there.")
        })
    }

    /// A text that says something.
    fn text(&self, entry: &Entry) -> Result<String, Failure> {
        match entry.value.as_str().map(str::trim) {
            Some("") => Err(self.error(entry, "expected text, found none")),
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

    /// Refuses keys that nobody asked for.
    fn end(self) -> Result<(), Failure> {
        let Some(entry) = self.entries.first() else { return Ok(()) };
        let mut known = [&OWN[..], &SETTINGS[..]].concat();
        known.sort_unstable();
        let near = did_you_mean(&entry.name, known.iter().copied());
        let hint = near.as_deref().map(|near| near.replacen("Did", "; did", 1)).unwrap_or_default();
        let problem = format!("the key is not known{hint} (known keys: {})", known.join(", "));
        let failure = self.error(entry, &problem);
        let name = entry.name.to_lowercase();
        let is_secret = ["key", "token", "secret", "password"].iter().any(|end| name.ends_with(end));
        Err(if is_secret && near.is_none() {
            failure.hint(
                "No secret stands in a description: set the provider's variable, such as ANTHROPIC_API_KEY; see \
                 `toolpost help environment`.",
            )
        } else {
            failure
        })
    }
}

//! From what programs told to tools with names of their own.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use toolpost_core::{
    Approval, Code, PromptSpec, ResourceSpec, ToolError, ToolSpec, UriPattern, check_tool_name, hex,
};

use super::program::{Program, excerpt};
use super::settings::{Collisions, Settings};
use crate::protocol::dialect::{PromptEntry, ResourceEntry, ToolEntry};

/// The longest name: what every provider takes.
const MAX_NAME: usize = 64;
/// The longest description, in characters.
const MAX_DESCRIPTION: usize = 16_000;
/// The largest schema, in bytes of JSON.
const MAX_SCHEMA: usize = 256 << 10;
/// The longest name of a prompt, in bytes.
const MAX_PROMPT_NAME: usize = 256;

/// What is wrong with an executable, or with one of its tools. It costs only that.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The executable or the folder, as the operator named it.
    pub path: PathBuf,
    /// The tool, resource or prompt; none if it is about all of it.
    pub tool: Option<String>,
    /// What is wrong.
    pub error: ToolError,
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(tool) = &self.tool {
            write!(f, ": `{tool}`")?;
        }
        write!(f, ": {}", self.error.message())
    }
}

/// A tool, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) spec: Arc<ToolSpec>,
    /// Its name at the program.
    pub(super) original: String,
    pub(super) program: Arc<Program>,
}

/// A resource, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct BoundResource {
    pub(super) spec: Arc<ResourceSpec>,
    pub(super) program: Arc<Program>,
}

/// A prompt, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct BoundPrompt {
    pub(super) spec: Arc<PromptSpec>,
    pub(super) original: String,
    pub(super) program: Arc<Program>,
}

/// Everything that there is at one time.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) programs: Vec<Arc<Program>>,
    pub(super) tools: Vec<Bound>,
    pub(super) by_name: HashMap<String, usize>,
    pub(super) resources: Vec<BoundResource>,
    pub(super) prompts: Vec<BoundPrompt>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Catalog {
    /// Of programs in their order.
    pub(super) fn new(
        settings: &Settings,
        programs: Vec<Arc<Program>>,
        diagnostics: Vec<Diagnostic>,
    ) -> Self {
        let mut catalog = Self { programs, diagnostics, ..Self::default() };
        catalog.add_tools(settings);
        catalog.add_resources();
        catalog.add_prompts(settings);
        catalog
    }

    pub(super) fn tool(&self, name: &str) -> Option<&Bound> {
        self.tools.get(*self.by_name.get(name)?)
    }

    fn report(&mut self, program: &Program, tool: Option<&str>, error: ToolError) {
        self.diagnostics.push(Diagnostic {
            path: program.origin.path.clone(),
            tool: tool.map(|name| excerpt(name.as_bytes(), 80)),
            error,
        });
    }

    fn add_tools(&mut self, settings: &Settings) {
        let programs = self.programs.clone();
        let mut named: Vec<(String, &ToolEntry, &Arc<Program>)> = Vec::new();
        for program in &programs {
            let mut own = HashSet::new();
            for entry in &program.known.discovery.tools {
                if !own.insert(entry.name.as_str()) {
                    let error =
                        ToolError::conflict("the program has two tools of this name; the first is taken");
                    self.report(program, Some(&entry.name), error);
                    continue;
                }
                named.push((with_prefix(program.origin.prefix.as_deref(), &entry.name), entry, program));
            }
        }
        let fitting: Vec<String> = named.iter().map(|(name, ..)| fit(name)).collect();
        let mut taken: HashMap<String, usize> = HashMap::new();
        for name in &fitting {
            *taken.entry(name.clone()).or_default() += 1;
        }
        for ((name, entry, program), fitting) in named.into_iter().zip(fitting) {
            let collides = taken.get(&fitting).is_some_and(|count| *count > 1);
            let (name, fitting) = if collides && settings.collisions == Collisions::Prefix {
                let name = with_prefix(Some(&program_name(program)), &entry.name);
                let fitting = fit(&name);
                (name, fitting)
            } else {
                (name, fitting)
            };
            if let Some(other) = self.tool(&fitting) {
                let mut message =
                    format!("`{}` has a tool of this name already", other.program.origin.path.display());
                if other.original != entry.name {
                    // Only what was made of the names is equal.
                    let _ = write!(message, ": its `{}` is `{fitting}` too", other.original);
                }
                let error = ToolError::conflict(message).suggest(
                    "Give one of the programs a prefix, or let names that collide get that of their program in front.",
                );
                self.report(program, Some(&entry.name), error);
                continue;
            }
            match spec(entry, program, &name, &fitting) {
                Ok((spec, problem)) => {
                    self.by_name.insert(fitting, self.tools.len());
                    self.tools.push(Bound {
                        spec: Arc::new(spec),
                        original: entry.name.clone(),
                        program: Arc::clone(program),
                    });
                    if let Some(problem) = problem {
                        self.report(program, Some(&entry.name), problem);
                    }
                }
                Err(error) => self.report(program, Some(&entry.name), error),
            }
        }
    }

    fn add_resources(&mut self) {
        for program in self.programs.clone() {
            for entry in &program.known.discovery.resources {
                match resource(entry) {
                    Ok(spec) => {
                        let same = |bound: &&BoundResource| bound.spec.uri_pattern == spec.uri_pattern;
                        if let Some(other) = self.resources.iter().find(same) {
                            let error = ToolError::conflict(format!(
                                "`{}` has a resource of these addresses already",
                                other.program.origin.path.display()
                            ));
                            self.report(&program, Some(&entry.uri_pattern), error);
                            continue;
                        }
                        self.resources
                            .push(BoundResource { spec: Arc::new(spec), program: Arc::clone(&program) });
                    }
                    Err(error) => self.report(&program, Some(&entry.uri_pattern), error),
                }
            }
        }
    }

    fn add_prompts(&mut self, settings: &Settings) {
        for program in self.programs.clone() {
            for entry in &program.known.discovery.prompts {
                let mut name = with_prefix(program.origin.prefix.as_deref(), &entry.name);
                let exists = |name: &str, prompts: &[BoundPrompt]| {
                    prompts
                        .iter()
                        .find(|bound| bound.spec.name == name)
                        .map(|bound| Arc::clone(&bound.program))
                };
                if exists(&name, &self.prompts).is_some() && settings.collisions == Collisions::Prefix {
                    name = with_prefix(Some(&program_name(&program)), &entry.name);
                }
                if let Some(other) = exists(&name, &self.prompts) {
                    let error = ToolError::conflict(format!(
                        "`{}` has a prompt of this name already",
                        other.origin.path.display()
                    ));
                    self.report(&program, Some(&entry.name), error);
                    continue;
                }
                match prompt(entry, name) {
                    Ok(spec) => self.prompts.push(BoundPrompt {
                        spec: Arc::new(spec),
                        original: entry.name.clone(),
                        program: Arc::clone(&program),
                    }),
                    Err(error) => self.report(&program, Some(&entry.name), error),
                }
            }
        }
    }
}

fn with_prefix(prefix: Option<&str>, name: &str) -> String {
    prefix.map_or_else(|| name.to_owned(), |prefix| format!("{prefix}__{name}"))
}

/// What stands in front of names that collide: the prefix, the file's name, or what the program calls itself.
fn program_name(program: &Program) -> String {
    if let Some(prefix) = &program.origin.prefix {
        return prefix.clone();
    }
    let stem = program.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| program.known.discovery.name.clone())
}

/// A name that every provider takes: itself if it fits; else its letters, digits, `_` and `-`, the others as `_`, with
/// eight digits of its SHA-256 behind, so that different names stay different and the same one is always the same.
fn fit(name: &str) -> String {
    if check_tool_name(name).is_ok() {
        return name.to_owned();
    }
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' };
    let mut fitting: String = name.chars().map(plain).collect();
    if !fitting.starts_with(|first: char| first.is_ascii_alphabetic()) {
        fitting.insert_str(0, "tool_");
    }
    fitting.truncate(MAX_NAME - 9);
    fitting.push('_');
    fitting.extend(hex(Sha256::digest(name.as_bytes())).chars().take(8));
    fitting
}

/// The spec of a tool, and what had to be left out of it.
fn spec(
    entry: &ToolEntry,
    program: &Program,
    name: &str,
    fitting: &str,
) -> Result<(ToolSpec, Option<ToolError>), ToolError> {
    if let Some(schema) = &entry.schema {
        if !schema.is_object() {
            return Err(ToolError::dependency("its schema is no JSON Schema: expected an object"));
        }
        let size = schema.to_string().len();
        if size > MAX_SCHEMA {
            return Err(ToolError::limit(format!("its schema has {size} bytes, at most 256 KiB are taken")));
        }
    }
    let mut spec = entry.to_spec();
    fitting.clone_into(&mut spec.name);
    if spec.description.trim().is_empty() {
        spec.description =
            format!("`{name}` of the program `{}`, which says nothing about it.", program_name(program));
    }
    if spec.description.chars().count() > MAX_DESCRIPTION {
        spec.description = spec.description.chars().take(MAX_DESCRIPTION).collect();
    }
    if spec.input_schema.as_value().get("type").is_none() {
        // A schema that says nothing of it takes objects too, and arguments are one.
        let mut schema = spec.input_schema.as_value().clone();
        if let Some(fields) = schema.as_object_mut() {
            fields.insert("type".to_owned(), "object".into());
        }
        spec = spec.input(schema);
    }
    // A program can ask for more care, never for less.
    if spec.policy.approval == Some(Approval::Allow) {
        spec.policy.approval = None;
    }
    spec.policy.placement = toolpost_core::Placement::default();
    spec.policy.conflict = None;
    let told = &program.known.discovery;
    spec.meta.insert("executable".to_owned(), program.path.to_string_lossy().into());
    spec.meta.insert("program".to_owned(), excerpt(told.name.as_bytes(), 200).into());
    spec.meta.insert("program_version".to_owned(), excerpt(told.version.as_bytes(), 200).into());
    if fitting != entry.name {
        spec.meta.insert("original_name".to_owned(), entry.name.as_str().into());
    }
    let compiled = |spec: &ToolSpec| {
        spec.input_schema.is_valid(&Value::Null).map(|_| ()).map_err(|error| error.message().to_owned())
    };
    let check = |spec: &ToolSpec| {
        spec.check()
            .map_err(|error| error.message)
            .and_then(|()| compiled(spec))
            .map_err(ToolError::dependency)
    };
    let mut problem = None;
    if let Err(error) = check(&spec) {
        // Without what only helps the tool may be fine.
        spec.examples.clear();
        spec.policy.cache = None;
        check(&spec)?;
        problem = Some(ToolError::new(
            Code::Dependency,
            format!("its examples or its policy are left out: {}", error.message()),
        ));
    }
    Ok((spec, problem))
}

fn resource(entry: &ResourceEntry) -> Result<ResourceSpec, ToolError> {
    let pattern: UriPattern = entry.uri_pattern.parse().map_err(ToolError::dependency)?;
    let mut spec = ResourceSpec::new(pattern, entry.summary.clone());
    spec.mime_types.clone_from(&entry.mime_types);
    spec.tags.clone_from(&entry.tags);
    Ok(spec)
}

fn prompt(entry: &PromptEntry, name: String) -> Result<PromptSpec, ToolError> {
    if name.len() > MAX_PROMPT_NAME || name.chars().any(char::is_control) {
        return Err(ToolError::dependency("its name is longer than 256 bytes or has control characters"));
    }
    let mut spec = PromptSpec::new(name, entry.summary.clone());
    for (argument, description) in &entry.arguments {
        // The dialect does not say which may be left out; the program does, when it is rendered.
        spec = spec.argument(argument, description, true);
    }
    spec.tags.clone_from(&entry.tags);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_are_mapped_the_same_way_every_time() {
        for name in ["a", "read_file", "a-b"] {
            assert_eq!(fit(name), name);
        }
        let long = "x".repeat(200);
        let names = ["", "1a", "_a", "a b", "a.b", "a/b", "é", "a\u{0}", "日本", &long];
        let fitted: HashSet<String> = names.iter().map(|name| fit(name)).collect();
        assert_eq!(fitted.len(), names.len(), "{fitted:?}");
        for name in &fitted {
            assert_eq!(check_tool_name(name), Ok(()), "{name}");
        }
        assert_eq!(fit("a b"), fit("a b"));
        assert!(fit("weather.today").starts_with("weather_today_"));
    }
}

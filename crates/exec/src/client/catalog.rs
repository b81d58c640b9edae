//! The catalog: unique names for the tools of all programs.

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
use crate::protocol::dialect::{PromptEntry, ResourceEntry, ToolEntry};

/// Maximum length of a tool name, which every provider accepts.
const MAX_NAME: usize = 64;
/// Maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 16_000;
/// Maximum size of a schema, in bytes of JSON.
const MAX_SCHEMA: usize = 256 << 10;
/// Maximum length of a prompt name, in bytes.
const MAX_PROMPT_NAME: usize = 256;

/// A problem of an executable or one of its tools, which does not affect the others.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The executable or directory, as the operator named it.
    pub path: PathBuf,
    /// The tool, resource or prompt; `None` if the whole program is affected.
    pub tool: Option<String>,
    /// The problem.
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

/// A tool with its program.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) spec: Arc<ToolSpec>,
    /// Its name in the program.
    pub(super) original: String,
    pub(super) program: Arc<Program>,
}

/// A resource with its program.
#[derive(Clone, Debug)]
pub(super) struct BoundResource {
    pub(super) spec: Arc<ResourceSpec>,
    pub(super) program: Arc<Program>,
}

/// A prompt with its program.
#[derive(Clone, Debug)]
pub(super) struct BoundPrompt {
    pub(super) spec: Arc<PromptSpec>,
    pub(super) original: String,
    pub(super) program: Arc<Program>,
}

/// All tools, resources and prompts at one time.
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
    /// Builds the catalog of programs, in order.
    pub(super) fn new(programs: Vec<Arc<Program>>, diagnostics: Vec<Diagnostic>) -> Self {
        let mut catalog = Self { programs, diagnostics, ..Self::default() };
        catalog.add_tools();
        catalog.add_resources();
        catalog.add_prompts();
        catalog
    }

    pub(super) fn tool(&self, name: &str) -> Option<&Bound> {
        self.tools.get(*self.by_name.get(name)?)
    }

    fn report(&mut self, program: &Program, tool: Option<&str>, error: ToolError) {
        self.diagnostics.push(Diagnostic {
            path: program.origin.clone(),
            tool: tool.map(|name| excerpt(name.as_bytes(), 80)),
            error,
        });
    }

    fn add_tools(&mut self) {
        let programs = self.programs.clone();
        for program in &programs {
            let mut own = HashSet::new();
            for entry in &program.known.discovery.tools {
                if !own.insert(entry.name.as_str()) {
                    let error =
                        ToolError::conflict("the program has two tools with this name; the first is used");
                    self.report(program, Some(&entry.name), error);
                    continue;
                }
                let fitting = fit(&entry.name);
                if let Some(other) = self.tool(&fitting) {
                    let mut message =
                        format!("`{}` already has a tool with this name", other.program.origin.display());
                    if other.original != entry.name {
                        // Different names of the programs map to the same name.
                        let _ = write!(message, ": its `{}` also maps to `{fitting}`", other.original);
                    }
                    let error =
                        ToolError::conflict(message).suggest("Rename the tool in one of the programs.");
                    self.report(program, Some(&entry.name), error);
                    continue;
                }
                match spec(entry, program, &fitting) {
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
    }

    fn add_resources(&mut self) {
        for program in self.programs.clone() {
            for entry in &program.known.discovery.resources {
                match resource(entry) {
                    Ok(spec) => {
                        let same = |bound: &&BoundResource| bound.spec.uri_pattern == spec.uri_pattern;
                        if let Some(other) = self.resources.iter().find(same) {
                            let error = ToolError::conflict(format!(
                                "`{}` already has a resource with this URI pattern",
                                other.program.origin.display()
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

    fn add_prompts(&mut self) {
        for program in self.programs.clone() {
            for entry in &program.known.discovery.prompts {
                let same = |bound: &&BoundPrompt| bound.spec.name == entry.name;
                if let Some(other) = self.prompts.iter().find(same) {
                    let error = ToolError::conflict(format!(
                        "`{}` already has a prompt with this name",
                        other.program.origin.display()
                    ));
                    self.report(&program, Some(&entry.name), error);
                    continue;
                }
                match prompt(entry) {
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

/// A name for a program: its file's name, or the name that it reports.
fn program_name(program: &Program) -> String {
    let stem = program.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| program.known.discovery.name.clone())
}

/// Maps a name to one that every provider accepts.
///
/// A valid name stays. In any other name, invalid characters become `_`, and eight digits of its SHA-256 are appended,
/// so that different names stay different.
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

/// The spec of a tool, and the reason for omitted parts of it.
fn spec(
    entry: &ToolEntry,
    program: &Program,
    fitting: &str,
) -> Result<(ToolSpec, Option<ToolError>), ToolError> {
    if let Some(schema) = &entry.schema {
        if !schema.is_object() {
            return Err(ToolError::dependency("its schema is not a JSON Schema: expected an object"));
        }
        let size = schema.to_string().len();
        if size > MAX_SCHEMA {
            return Err(ToolError::limit(format!("its schema has {size} bytes; the maximum is 256 KiB")));
        }
    }
    let mut spec = entry.to_spec();
    fitting.clone_into(&mut spec.name);
    if spec.description.trim().is_empty() {
        spec.description =
            format!("`{}` of the program `{}`, without a description.", entry.name, program_name(program));
    }
    if spec.description.chars().count() > MAX_DESCRIPTION {
        spec.description = spec.description.chars().take(MAX_DESCRIPTION).collect();
    }
    if spec.input_schema.as_value().get("type").is_none() {
        // A schema without a type accepts objects as well, and arguments are an object.
        let mut schema = spec.input_schema.as_value().clone();
        if let Some(fields) = schema.as_object_mut() {
            fields.insert("type".to_owned(), "object".into());
        }
        spec = spec.input(schema);
    }
    // A program may tighten its approval, never loosen it.
    if spec.policy.approval == Some(Approval::Allow) {
        spec.policy.approval = None;
    }
    spec.policy.placement = toolpost_core::Placement::default();
    spec.policy.conflict = None;
    let discovery = &program.known.discovery;
    spec.meta.insert("executable".to_owned(), program.path.to_string_lossy().into());
    spec.meta.insert("program".to_owned(), excerpt(discovery.name.as_bytes(), 200).into());
    spec.meta.insert("program_version".to_owned(), excerpt(discovery.version.as_bytes(), 200).into());
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
        // The tool may be valid without its optional parts.
        spec.examples.clear();
        spec.policy.cache = None;
        check(&spec)?;
        problem = Some(ToolError::new(
            Code::Dependency,
            format!("its examples and its cache policy are ignored: {}", error.message()),
        ));
    }
    Ok((spec, problem))
}

fn resource(entry: &ResourceEntry) -> Result<ResourceSpec, ToolError> {
    let pattern: UriPattern = entry.uri_pattern.parse().map_err(ToolError::dependency)?;
    let mut spec = ResourceSpec::new(pattern, entry.summary.clone());
    spec.name.clone_from(&entry.name);
    spec.mime_types.clone_from(&entry.mime_types);
    spec.tags.clone_from(&entry.tags);
    Ok(spec)
}

fn prompt(entry: &PromptEntry) -> Result<PromptSpec, ToolError> {
    let name = &entry.name;
    if name.len() > MAX_PROMPT_NAME || name.chars().any(char::is_control) {
        return Err(ToolError::dependency("its name is longer than 256 bytes or has control characters"));
    }
    let mut spec = PromptSpec::new(name.clone(), entry.summary.clone());
    for (argument, description) in &entry.arguments {
        // The dialect does not mark required arguments; the program checks them when it renders.
        spec = spec.argument(argument, description, true);
    }
    spec.tags.clone_from(&entry.tags);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_mapped_deterministically() {
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

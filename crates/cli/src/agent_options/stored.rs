//! The options that are stored with a run, for a resume or a replay.
//!
//! Permissions are never restored: approvals, grants, access to host directories, a level below the default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolpost_llm::{CodeExecutionMode, Effort};
use toolpost_sandbox::{Host, Level};

use crate::agent_file::{AgentFile, below, model_below};
use crate::args::{AgentArgs, AgentKind};
use crate::config::Config;
use crate::model::model_name;
use crate::style::label;
use crate::target_grammar::split;

/// The options of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoredOptions {
    /// The directory of relative paths.
    directory: PathBuf,
    agent: Option<StoredAgent>,
    /// The model, unless the agent file names it.
    model: Option<String>,
    fallback: Vec<String>,
    system_prompt: Option<String>,
    tools: Vec<String>,
    mcp_server: Vec<String>,
    code: Option<CodeExecutionMode>,
    dynamic: Option<String>,
    core_tool: Vec<String>,
    compact_tools: bool,
    temperature: Option<f64>,
    effort: Option<Effort>,
    max_iterations: Option<u32>,
    max_tool_calls: Option<u32>,
    max_tokens: Option<u64>,
    max_time_ms: Option<u64>,
    max_cost: Option<f64>,
    ask: bool,
    level: Option<Level>,
    /// The names of permissions, which are not restored.
    permissions: Vec<String>,
}

/// An agent file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredAgent {
    file: PathBuf,
    sha256: String,
}

impl StoredOptions {
    /// The options of a run. The tools and the model of settings are options of the run, too.
    pub(crate) fn new(args: &AgentArgs, config: &Config, file: Option<&AgentFile>) -> Self {
        let agent = match (&args.agent, file) {
            (Some(AgentKind::File(path)), Some(file)) => {
                Some(StoredAgent { file: path.clone(), sha256: file.digest.clone() })
            }
            _ => None,
        };
        let names_model = file.is_some_and(|file| file.names_model);
        let own_model = || if names_model { None } else { model_name(config).ok() };
        let has_own_tools = file.is_some() || !args.tools.is_empty();
        Self {
            directory: std::env::current_dir().unwrap_or_default(),
            agent,
            model: args.model.clone().or_else(own_model),
            fallback: args.fallback.clone(),
            system_prompt: args.system_prompt.clone(),
            tools: if has_own_tools { args.tools.clone() } else { config.settings.tools.clone() },
            mcp_server: args.mcp_server.clone(),
            code: args.code,
            dynamic: args.dynamic.clone(),
            core_tool: args.core_tool.clone(),
            compact_tools: args.compact_tools,
            temperature: args.temperature,
            effort: args.effort,
            max_iterations: args.max_iterations,
            max_tool_calls: args.max_tool_calls,
            max_tokens: args.max_tokens,
            max_time_ms: args.max_time.and_then(|time| u64::try_from(time.as_millis()).ok()),
            max_cost: args.max_cost,
            ask: args.permission.ask,
            level: args.permission.level,
            permissions: permissions(args),
        }
    }

    /// The options with another model.
    pub(crate) fn with_model(&self, model: &str) -> Self {
        Self { model: Some(model.to_owned()), ..self.clone() }
    }

    /// Parses stored options; options of an unknown form are not restored.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// The stored form: only options with a value.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!(self);
        if let Some(options) = value.as_object_mut() {
            options.retain(|_, value| {
                !value.is_null()
                    && *value != Value::Bool(false)
                    && value.as_array().is_none_or(|a| !a.is_empty())
            });
        }
        value
    }

    /// The agent of the option `--agent`.
    pub(crate) fn agent(&self) -> Option<AgentKind> {
        self.agent.as_ref().map(|agent| AgentKind::File(self.path_here(&agent.file)))
    }

    /// The targets of `--tools` and `--mcp-server`.
    pub(crate) fn targets(&self, config: &Config) -> Vec<String> {
        [self.words_here(&self.tools, config), self.words_here(&self.mcp_server, config)].concat()
    }

    /// Whether `--tools` or the settings name tools.
    pub(crate) fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// The notice of an agent file that is not the stored one any more.
    pub(crate) fn changed_agent(&self, file: &AgentFile) -> Option<String> {
        let stored = self.agent.as_ref().filter(|stored| stored.sha256 != file.digest)?;
        let path = label(&self.path_here(&stored.file).display().to_string());
        Some(format!("the agent file `{path}` has changed since the last run of the conversation"))
    }

    /// Fills options that were not given. Returns the restored options, and the names of those that are not.
    pub(crate) fn restore(&self, args: &mut AgentArgs, config: &Config) -> (Vec<String>, Vec<String>) {
        let mut used = Vec::new();
        let mut note = |name: &str, value: &dyn std::fmt::Display| {
            used.push(label(&format!("{name} {value}")).trim_end().to_owned());
        };
        if let Some(kind) = self.agent().filter(|_| args.agent.is_none()) {
            if let AgentKind::File(path) = &kind {
                note("--agent", &path.display());
            }
            args.agent = Some(kind);
        }
        let mut list = |name: &str, given: &mut Vec<String>, stored: Vec<String>| {
            if given.is_empty() && !stored.is_empty() {
                for value in &stored {
                    note(name, value);
                }
                *given = stored;
            }
        };
        list("--tools", &mut args.tools, self.words_here(&self.tools, config));
        list("--mcp-server", &mut args.mcp_server, self.words_here(&self.mcp_server, config));
        list(
            "--fallback",
            &mut args.fallback,
            self.fallback.iter().map(|one| self.model_here(one)).collect(),
        );
        list("--core-tool", &mut args.core_tool, self.core_tool.clone());
        let dynamic = self.dynamic.as_ref().map(|model| self.model_here(model));
        let time = self.max_time_ms.map(Duration::from_millis);
        fill(&mut args.model, self.model.as_ref().map(|model| self.model_here(model)), |it| {
            note("--model", it);
        });
        fill(&mut args.system_prompt, self.system_prompt.clone(), |_| note("--system-prompt", &""));
        fill(&mut args.code, self.code, |_| note("--code", &""));
        fill(&mut args.dynamic, dynamic, |it| note("--dynamic", it));
        fill(&mut args.temperature, self.temperature, |it| note("--temperature", it));
        fill(&mut args.effort, self.effort, |it| note("--effort", &it.as_str()));
        fill(&mut args.max_iterations, self.max_iterations, |it| note("--max-iterations", it));
        fill(&mut args.max_tool_calls, self.max_tool_calls, |it| note("--max-tool-calls", it));
        fill(&mut args.max_tokens, self.max_tokens, |it| note("--max-tokens", it));
        fill(&mut args.max_time, time, |it| note("--max-time", &toolpost_core::format_duration(*it)));
        fill(&mut args.max_cost, self.max_cost, |it| note("--max-cost", it));
        if self.compact_tools && !args.compact_tools {
            args.compact_tools = true;
            note("--compact-tools", &"");
        }
        if self.ask && !args.permission.ask {
            args.permission.ask = true;
            note("--ask", &"");
        }
        let default = config.settings.level.or_else(|| Host::probe().best());
        let mut missing = self.permissions.clone();
        match self.level.filter(|_| args.permission.level.is_none()) {
            Some(level) if default.is_none_or(|default| level >= default) => {
                args.permission.level = Some(level);
                note("--level", &level);
            }
            Some(level) => missing.push(format!("--level {level}")),
            None => {}
        }
        let given = permissions(args);
        missing.retain(|name| !given.contains(name));
        (used, missing)
    }

    /// A path of the run, relative to the current directory.
    fn path_here(&self, path: &Path) -> PathBuf {
        if self.is_here() { path.to_owned() } else { self.directory.join(path) }
    }

    fn words_here(&self, words: &[String], config: &Config) -> Vec<String> {
        if self.is_here() {
            return words.to_vec();
        }
        let targets = words.iter().flat_map(|word| split(word));
        targets.map(|target| below(&self.directory, target, config)).collect()
    }

    fn model_here(&self, model: &str) -> String {
        if self.is_here() { model.to_owned() } else { model_below(&self.directory, model) }
    }

    fn is_here(&self) -> bool {
        std::env::current_dir().is_ok_and(|here| here == self.directory)
    }
}

/// Fills an option that was not given, and reports its value.
fn fill<T>(given: &mut Option<T>, stored: Option<T>, note: impl FnOnce(&T)) {
    if given.is_none()
        && let Some(stored) = stored
    {
        note(&stored);
        *given = Some(stored);
    }
}

/// The given options that allow something.
fn permissions(args: &AgentArgs) -> Vec<String> {
    let (permission, grants) = (&args.permission, &args.grants);
    let directory = &permission.directory;
    let options = [
        ("--approve", !permission.approve.is_empty()),
        ("--yes", permission.yes),
        ("--live", directory.live),
        ("--allow-protected", !directory.allow_protected.is_empty()),
        ("--token-env", args.server.token_env.is_some()),
        ("--token-file", args.server.token_file.is_some()),
        ("--secret", !grants.secret.is_empty()),
        ("--secret-raw", !grants.secret_raw.is_empty()),
        ("--allow-host", !grants.allow_host.is_empty()),
        ("--allow-address", !grants.allow_address.is_empty()),
        ("--readable", !grants.readable.is_empty()),
        ("--writable", !grants.writable.is_empty()),
        ("--target-level", grants.target_level.is_some()),
        ("--target-workdir", grants.target_workdir.is_some()),
        ("--install-scripts", grants.install_scripts),
    ];
    options.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| (*name).to_owned()).collect()
}

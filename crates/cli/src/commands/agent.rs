//! From the words of a command to an agent: what `run` and `chat` have in common.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum as _;
use serde_json::{Map, Value};
use toolpost_agent::{Agent, AgentBuilder, Compaction, CompactionBy, Dynamic, RunLimits};
use toolpost_core::{Artifact, ArtifactData, CallRecord, EventSink, RunId, ToolSource};
use toolpost_llm::{Catalog, Effort, Model, Settings, ToolChoice};
use toolpost_sandbox::{ApplyMode, Level, Sandbox};
use toolpost_toolbox::Toolbox;

use super::hosted::{Hosted, Place};
use super::model::{Tape, catalog, open_model};
use crate::args::{AgentArgs, CompactionKind};
use crate::config::{Config, Origin, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::grants;
use crate::print::Printer;
use crate::style::{FAINT, one_line, paint};
use crate::target::{self, CODE_EXECUTION};
use crate::workspace::{Store, Workspace, all_rejected, names_of};

/// The tools when nobody names any.
const DEFAULT_TOOLS: &str = "read_file,list_directory,calculate,write_file,run_code";

/// How many notices of one kind are given.
const MOST_NOTICES: usize = 5;

/// Everything that an agent is made of but its model: a conversation may change that.
pub(super) struct Parts<'a> {
    args: &'a AgentArgs,
    config: &'a Config,
    tuned: Tuned,
    catalog: Arc<Catalog>,
    hosted: Hosted,
    events: EventSink,
    pub(super) toolbox: Toolbox,
    /// The servers, programs and gateways among what the tools are from.
    pub(super) sources: Vec<Arc<dyn ToolSource>>,
}

impl<'a> Parts<'a> {
    /// Opens the tools. What can be wrong with the words of the command is found before.
    pub(super) async fn open(
        args: &'a AgentArgs,
        config: &'a Config,
        workspace: &Workspace,
        events: EventSink,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let tuned = Tuned::read(args, config)?;
        if !args.core_tool.is_empty() && args.dynamic.is_none() && !args.compact_tools {
            return Err(Failure::usage(
                "`--core-tool` says which tools are offered at once, and here all are",
            )
            .hint("Give it with `--dynamic` or `--compact-tools`."));
        }
        let catalog = catalog(config)?;
        let token = crate::mcp::token(&args.server)?;
        let mut targets = targets(args, config);
        let hosted = Hosted::take(&mut targets, args, config)?;
        let granted = grants::of_args(&args.grants)?;
        let opened =
            target::open_with(&targets, config, args.permission.level, true, token, &granted).await?;
        opened.warnings.iter().for_each(|warning| printer.warn(warning));
        let sources = opened.sources();
        let pool = super::code_pool(config)?;
        let toolbox =
            super::toolbox_in(opened, workspace.root(), &args.permission, config, pool, Arc::clone(&events))
                .await?;
        Ok(Self { args, config, tuned, catalog, hosted, events, toolbox, sources })
    }

    /// Where the code of a model runs, if it has the tool for it.
    pub(super) fn code_place(&self, model: &dyn Model) -> Result<Option<Place>, Failure> {
        self.hosted.place(&self.catalog, model)
    }

    /// The agent with a model. What its models say is recorded where a file for that is named.
    pub(super) fn agent(&self, model: Arc<dyn Model>, tape: &Tape) -> Result<Agent, Failure> {
        let place = self.code_place(&*model)?;
        let hosted = self.hosted.tools(place.as_ref());
        match place {
            // A provider takes no other tool of that name.
            Some(place) if place.is_hosted() => {
                self.toolbox.remove(CODE_EXECUTION);
            }
            Some(_) if self.toolbox.own_tool(CODE_EXECUTION).is_none() => {
                let added = self.toolbox.add(toolpost_tools::code_execution());
                added.map_err(|error| Failure::usage(error.to_string()))?;
            }
            _ => {}
        }
        let mut builder = self
            .tuned
            .builder(tape.of(model), self.toolbox.clone(), Arc::clone(&self.events))
            .hosted_tools(hosted);
        builder = match &self.args.dynamic {
            None => builder,
            Some(how) => builder.dynamic(match how.as_str() {
                "" => Dynamic::Auto,
                "native" => Dynamic::Native,
                "browse" => Dynamic::Browse,
                model => Dynamic::Find(tape.of(open_model(model, self.config)?)),
            }),
        };
        builder =
            builder.core_tools(self.args.core_tool.iter().cloned()).compact_tools(self.args.compact_tools);
        Ok(builder.build())
    }
}

/// What words and settings say of an agent beyond its model and its tools.
pub(super) struct Tuned {
    settings: Settings,
    tool_choice: Option<ToolChoice>,
    provider_options: Map<String, Value>,
    /// Features of the provider that are not yet general.
    betas: Vec<String>,
    metadata: Map<String, Value>,
    strict_tools: bool,
    limits: RunLimits,
    compaction: Option<CompactionBy>,
    system_prompt: Option<String>,
}

impl Tuned {
    pub(super) fn read(args: &AgentArgs, config: &Config) -> Result<Self, Failure> {
        Ok(Self {
            settings: settings(args, config)?,
            tool_choice: tool_choice(args, config)?,
            provider_options: provider_options(args, config)?,
            betas: match args.tuning.beta.as_slice() {
                [] => config.texts("betas"),
                named => named.to_vec(),
            },
            metadata: pairs("--metadata", &args.tuning.metadata, config.entry("metadata"))?,
            strict_tools: args.strict_tools || config.flag("strict_tools"),
            limits: limits(args, config)?,
            compaction: compaction(args, config),
            system_prompt: args.system_prompt.clone().or_else(|| config.text("system_prompt")),
        })
    }

    /// The limits without the one on cost.
    pub(super) fn without_cost_limit(&self) -> RunLimits {
        let mut limits = self.limits.clone();
        limits.cost_usd = None;
        limits
    }

    /// Begins an agent of these.
    pub(super) fn builder(&self, model: Arc<dyn Model>, toolbox: Toolbox, events: EventSink) -> AgentBuilder {
        let mut builder = Agent::builder(model, toolbox)
            .settings(self.settings.clone())
            .provider_options(self.provider_options.clone())
            .betas(self.betas.clone())
            .metadata(self.metadata.clone())
            .strict_tools(self.strict_tools)
            .on_event(events)
            .limits(self.limits.clone());
        if let Some(by) = self.compaction {
            builder = builder.compaction(Compaction::default().by(by));
        }
        if let Some(choice) = self.tool_choice.clone() {
            builder = builder.tool_choice(choice);
        }
        if let Some(system) = self.system_prompt.clone() {
            builder = builder.system(system);
        }
        builder
    }
}

/// What every event of usage carries.
pub(super) fn tags(args: &AgentArgs, config: &Config) -> Result<Map<String, Value>, Failure> {
    pairs("--tag", &args.tuning.tag, config.entry("tags"))
}

/// Texts by their names: those of a setting, and those of an option, which count more.
fn pairs(
    option: &str,
    given: &[String],
    setting: Option<(&Value, &Origin)>,
) -> Result<Map<String, Value>, Failure> {
    let mut pairs = match setting {
        Some((Value::Object(pairs), _)) => pairs.clone(),
        _ => Map::new(),
    };
    for words in given {
        let (name, text) = super::pair(option, words)?;
        pairs.insert(name.to_owned(), text.into());
    }
    Ok(pairs)
}

/// What the tools are from.
pub(super) fn targets(args: &AgentArgs, config: &Config) -> Vec<String> {
    let mut targets = named_or_usual(&args.tools, config);
    targets.extend(args.mcp_server.iter().cloned());
    targets
}

/// The tools that are named, else those of the settings, else the usual ones.
pub(super) fn named_or_usual(named: &[String], config: &Config) -> Vec<String> {
    match (named, config.texts("tools")) {
        ([], configured) if configured.is_empty() => vec![DEFAULT_TOOLS.to_owned()],
        ([], configured) => configured,
        (named, _) => named.to_vec(),
    }
}

/// Where a run works: with `--review` and `--discard` in a private copy of the directory.
pub(super) fn workspace(args: &AgentArgs, config: &Config, printer: &Printer) -> Result<Workspace, Failure> {
    let workspace = Workspace::open(args.workdir.as_deref(), &args.attach)?;
    let mode = args.changes.mode();
    if mode == ApplyMode::Now {
        return Ok(workspace);
    }
    if args.permission.level.or_else(|| config.choice("level")) == Some(Level::Minimal) {
        return Err(Failure::usage("at level `minimal` code can write to the host directory itself")
            .hint("Name `--level standard` or above, or leave out `--review` and `--discard`."));
    }
    let mut sandbox = Sandbox::new()
        .apply(mode)
        .allow_protected(args.permission.directory.allow_protected.iter().cloned())
        .protect(config.protected(Some(workspace.path()))?);
    if let Some(layers) = places::layers() {
        sandbox = sandbox.layers(layers);
    }
    let workspace = workspace.staged(&sandbox)?;
    for note in workspace.notes() {
        printer.note(&format!("{} {}", paint(FAINT, "note:"), one_line(note, 500)));
    }
    Ok(workspace)
}

/// What takes the files that are made; none where they stay in the operator's folder.
pub(super) fn store(args: &AgentArgs, config: &Config, workspace: &Workspace, id: RunId) -> Option<Store> {
    let is_named = args.artifacts.is_some() || config.path("artifacts").is_some();
    let is_fresh = matches!(workspace, Workspace::Fresh { .. });
    (is_named || is_fresh).then(|| Store::new(artifacts(args, config, id)))
}

/// The folder for files that are not where anybody expects them.
pub(super) fn artifacts(args: &AgentArgs, config: &Config, id: RunId) -> PathBuf {
    let usual = || config.path("artifacts").unwrap_or_else(|| "artifacts".into()).join(id.to_string());
    args.artifacts.clone().unwrap_or_else(usual)
}

/// How hard the model thinks.
pub(super) fn effort(args: &AgentArgs, config: &Config) -> Option<Effort> {
    args.effort.or_else(|| config.text("effort").and_then(|text| crate::args::effort(&text).ok()))
}

fn settings(args: &AgentArgs, config: &Config) -> Result<Settings, Failure> {
    let tuning = &args.tuning;
    Ok(Settings {
        temperature: args.temperature.or_else(|| config.fraction("temperature")),
        effort: effort(args, config),
        max_output_tokens: match args.max_output_tokens {
            Some(tokens) => Some(tokens),
            None => config.number("max_output_tokens")?,
        },
        top_p: tuning.top_p.or_else(|| config.fraction("top_p")),
        top_k: tuning.top_k.map_or_else(|| config.number("top_k"), |n| Ok(Some(n)))?,
        seed: tuning.seed.map_or_else(|| config.number("seed"), |n| Ok(Some(n)))?,
        stop: if tuning.stop.is_empty() { config.texts("stop") } else { tuning.stop.clone() },
        thinking: match &tuning.thinking {
            Some(thinking) => Some(thinking.clone()),
            None => config
                .text("thinking")
                .map(|text| crate::args::thinking(&text))
                .transpose()
                .map_err(|error| Failure::usage(format!("the setting `thinking`: {error}")))?,
        },
        parallel_tool_calls: tuning
            .parallel_tool_calls
            .or_else(|| config.entry("parallel_tool_calls").and_then(|(value, _)| value.as_bool())),
        prompt_caching: match &tuning.prompt_caching {
            Some(caching) => caching.clone(),
            None => config
                .text("prompt_caching")
                .and_then(|text| crate::args::prompt_caching(&text).ok())
                .unwrap_or_default(),
        },
        ..Settings::default()
    })
}

/// Who makes a conversation shorter, if anybody does. What is said of it by an option counts more than a setting, and the
/// setting that turns it off more than the other one.
fn compaction(args: &AgentArgs, config: &Config) -> Option<CompactionBy> {
    let own = &args.loop_limits;
    let named = own.compaction.or_else(|| own.no_compaction.then_some(CompactionKind::Off));
    let kind = named
        .or_else(|| config.flag("no_compaction").then_some(CompactionKind::Off))
        .or_else(|| CompactionKind::from_str(&config.text("compaction")?, false).ok());
    match kind.unwrap_or(CompactionKind::Summary) {
        CompactionKind::Summary => Some(CompactionBy::Summary),
        CompactionKind::Provider => Some(CompactionBy::Provider),
        CompactionKind::Auto => Some(CompactionBy::Auto),
        CompactionKind::Off => None,
    }
}

fn tool_choice(args: &AgentArgs, config: &Config) -> Result<Option<ToolChoice>, Failure> {
    if args.tool_choice.is_some() {
        return Ok(args.tool_choice.clone());
    }
    let text = config.text("tool_choice");
    let choice = text.map(|text| crate::args::tool_choice(&text)).transpose();
    choice.map_err(|error| Failure::usage(format!("the setting `tool_choice`: {error}")))
}

/// Fields of the provider's own request: those of the settings, and those of the command, which count more.
fn provider_options(args: &AgentArgs, config: &Config) -> Result<Map<String, Value>, Failure> {
    let mut options = match config.entry("provider_options") {
        Some((Value::Object(options), _)) => options.clone(),
        _ => Map::new(),
    };
    for option in &args.tuning.provider_option {
        let (name, text) = super::pair("--provider-option", option)?;
        let value = serde_json::from_str(text).map_err(|error| {
            Failure::usage(format!("`--provider-option {option}`: the value is no JSON: {error}"))
                .hint(format!("A text needs quotes of its own: `--provider-option '{name}=\"{text}\"'`."))
        })?;
        options.insert(name.to_owned(), value);
    }
    Ok(options)
}

fn limits(args: &AgentArgs, config: &Config) -> Result<RunLimits, Failure> {
    let mut limits = RunLimits::default();
    if let Some(iterations) =
        args.max_iterations.map_or_else(|| config.number("max_iterations"), |n| Ok(Some(n)))?
    {
        limits.iterations = iterations;
    }
    limits.tool_calls =
        args.max_tool_calls.map_or_else(|| config.number("max_tool_calls"), |n| Ok(Some(n)))?;
    limits.tokens = args.max_tokens.map_or_else(|| config.number("max_tokens"), |n| Ok(Some(n)))?;
    limits.time = args.max_time.or_else(|| config.duration("max_time"));
    limits.cost_usd = args.max_cost.or_else(|| config.fraction("max_cost"));
    if args.no_wrap_up || config.flag("no_wrap_up") {
        limits.wrap_up = None;
    }
    let own = &args.loop_limits;
    let number = |given: Option<u32>, name: &'static str| match given {
        Some(number) => Ok(Some(number)),
        None => config.number(name),
    };
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(tools) = number(own.parallel_tools, "parallel_tools")? {
        limits.parallel_tools = size(tools);
    }
    limits.tool_timeout = own.tool_timeout.or_else(|| config.duration("tool_timeout"));
    limits.tool_output_chars = number(own.tool_output_chars, "tool_output_chars")?.map(size);
    limits.repetition = number(own.repetition, "repetition")?.unwrap_or(limits.repetition);
    limits.repairs = number(own.repairs, "repairs")?.unwrap_or(limits.repairs);
    Ok(limits)
}

/// The files of a fresh folder that were not put away.
#[derive(Debug, Default)]
pub(super) struct NotPutAway {
    /// Links, pipes and files with several names.
    left: Vec<PathBuf>,
    /// A sentence about each protected path.
    rejected: Vec<String>,
}

impl NotPutAway {
    /// Fails where everything that was made was rejected.
    pub(super) fn check(&self, artifacts: &[Artifact]) -> Result<(), Failure> {
        let is_nothing_left = !self.rejected.is_empty() && artifacts.is_empty();
        if is_nothing_left { Err(all_rejected(&self.rejected)) } else { Ok(()) }
    }
}

/// Puts the files that were made in a fresh folder away, before it goes, and says where they are.
pub(super) fn put_away(
    workspace: &Workspace,
    store: &Store,
    artifacts: &mut Vec<Artifact>,
) -> Result<NotPutAway, Failure> {
    let (names, left) = workspace.made()?;
    let mut rejected = Vec::new();
    // A call says what it made by a name in the folder; that is where the file is no more.
    artifacts.retain(|artifact| !names.iter().any(|name| name.as_os_str() == artifact.name.as_str()));
    for name in names {
        let text = name.to_string_lossy().into_owned();
        let path = match store.put_file(&text, &workspace.path().join(&name)) {
            Ok(path) => path,
            Err(failure) if failure.exit == Exit::Denied => {
                rejected.push(failure.message);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        artifacts.push(Artifact {
            name: path.display().to_string(),
            media_type: media_type(&name).to_owned(),
            size,
            sha256: None,
            data: ArtifactData::Path(path),
        });
    }
    Ok(NotPutAway { left, rejected })
}

/// What a person is told of what was made and is nowhere: what sandboxes did not hand back, and what stayed in the folder
/// that goes away.
pub(super) fn stayed(calls: &[Arc<CallRecord>], files: &NotPutAway) -> Vec<String> {
    let notes = |call: &Arc<CallRecord>| call.sandbox.as_ref()?.pointer("/report/notes")?.as_array().cloned();
    let notes = calls.iter().filter_map(notes).flatten();
    let mut told: Vec<String> = Vec::new();
    for note in notes.filter_map(|note| note.as_str().map(str::to_owned)) {
        if note.contains(" not handed back") && !told.contains(&note) {
            told.push(note);
        }
    }
    let is_told = |path: &PathBuf| told.iter().any(|note| note.starts_with(&format!("`{}`", path.display())));
    let left: Vec<PathBuf> = files.left.iter().filter(|path| !is_told(path)).cloned().collect();
    told.extend(names_of(&left).map(|names| {
        format!(
            "what was made leaves out {names}: links, pipes and files with several names are not put away"
        )
    }));
    told.extend(files.rejected.iter().cloned());
    at_most(told, "notices of this kind")
}

/// The first of many notices, and how many there are.
pub(super) fn at_most(mut notices: Vec<String>, what: &str) -> Vec<String> {
    let more = notices.len().saturating_sub(MOST_NOTICES);
    if more > 0 {
        notices.truncate(MOST_NOTICES);
        notices.push(format!("and {more} more {what}"));
    }
    notices
}

/// The media types of files that runs usually take and make, by extension.
pub(super) fn media_type(name: &Path) -> &'static str {
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => "text/csv",
        Some("docx") => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        Some("gif") => "image/gif",
        Some("html") => "text/html",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("json") => "application/json",
        Some("md") => "text/markdown",
        Some("pdf") => "application/pdf",
        Some("png") => "image/png",
        Some("py") => "text/x-python",
        Some("svg") => "image/svg+xml",
        Some("txt" | "log") => "text/plain",
        Some("webp") => "image/webp",
        Some("xlsx") => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        Some("xml") => "application/xml",
        Some("zip") => "application/zip",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_files_are_listed_and_not_put_away() {
        for (made, put, is_ok) in [
            (&[".bashrc", "good"][..], &["good"][..], true),
            (&[".git/config", ".npmrc"], &[], false),
            (&[], &[], true),
        ] {
            let workspace = Workspace::open(None, &[]).unwrap();
            for name in made {
                let path = workspace.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            let out = tempfile::tempdir().unwrap();
            let mut artifacts = Vec::new();
            let files = put_away(&workspace, &Store::new(out.path()), &mut artifacts).unwrap();
            let names: Vec<_> = artifacts.iter().map(|artifact| out.path().join(&artifact.name)).collect();
            assert_eq!(names, put.iter().map(|name| out.path().join(name)).collect::<Vec<_>>());
            assert_eq!(
                files.check(&artifacts).map_err(|failure| failure.exit),
                if is_ok { Ok(()) } else { Err(Exit::Denied) }
            );
            let notices = stayed(&[], &files).join("\n");
            for name in made.iter().filter(|name| !put.contains(name)) {
                assert!(notices.contains(&format!("`{name}` was not written")), "{notices}");
            }
        }
    }
}

//! `toolpost runs replay`: repeats a stored run without its provider.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use toolpost_agent::{
    Agent, Compaction, CompactionBy, Dynamic, RunLimits, RunOutput, RunStopReason, Runs, StoredRun,
};
use toolpost_core::{RunId, Scope, ToolError};
use toolpost_gateway::catalog::{ToolSession, is_meta_tool};
use toolpost_llm::{
    ContextEdit, ErrorKind, ExchangeSink, Model, ModelError, ModelId, ModelSettings, OutputFormat, Recording,
    ReplayModel, Request, Response,
};

use super::find;
use crate::agent::tool_targets;
use crate::agent_file::AgentFile;
use crate::agent_options::StoredOptions;
use crate::agent_tool;
use crate::args::{AgentKind, ReplayArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::outcome::count;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::style::{GOOD, paint};
use crate::target::trail::Trail;
use crate::target::{self, NamedTarget, OpenOptions};
use crate::target_grammar::CODE_EXECUTION;
use crate::workspace::Workspace;
use crate::{env, interrupt, output_files, progress};

/// A tool that is opened without tools of its own in the run; the model never gets it.
const SOME_TOOL: &str = "calculate";

/// Replays the run and compares its requests.
pub(super) async fn replay(
    runs: &Runs,
    args: &ReplayArgs,
    config: &Config,
    printer: &Printer,
) -> Result<(), Failure> {
    let id = find(runs, &args.id).await?;
    let stored = runs.load(id).await?;
    let exchanges = Exchanges::default();
    let recorded = runs.export(id, &exchanges).await?;
    // Whole outputs have the same paths in the replay.
    let _outputs = output_files::begin_like(&exchanges.text());
    let (first, used, model) = exchanges.into_model(id)?;
    let outcome = again(&stored, (first, used), &model, args, config, printer).await?;
    if outcome.stop == RunStopReason::Cancelled {
        return Err(Failure::new(Exit::Interrupted, "CANCELLED", "the replay was cancelled"));
    }
    let difference = difference(&stored, &outcome, &model, recorded);
    if !printer.is_text() {
        printer.json(&json!({
            "run": id,
            "same": difference.is_none(),
            "exchanges": recorded,
            "replayed": recorded - model.remaining(),
            "difference": difference,
            "record": *outcome.record,
        }))?;
    }
    match difference {
        None => {
            let calls = count(outcome.record.tool_calls.len(), "tool call");
            let end = if was_late(&stored) { ", up to its time limit" } else { "" };
            let asked = count(recorded - model.remaining(), "exchange");
            printer.note(&format!("{} {asked}, {calls}{end}", paint(GOOD, "the same:")));
            Ok(())
        }
        Some(difference) => Err(Failure::new(Exit::Failed, "REPLAY_MISMATCH", difference)
            .hint("If the change is intended, repeat the run itself.")
            .hint("Tools see the current files: `--attach` and `--workdir` provide them.")),
    }
}

/// The recording in memory, and its first request.
#[derive(Default)]
struct Exchanges {
    text: Buffer,
    first: Mutex<Option<Request>>,
    used: Mutex<Used>,
}

/// The tokens of its answers.
#[derive(Clone, Copy, Default)]
struct Used {
    all: u64,
    before_last: u64,
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ExchangeSink for Exchanges {
    fn exchange(
        &self,
        model: &ModelId,
        request: &Request,
        answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| request.clone());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.before_last = used.all;
        used.all += answer.map_or(0, |response| response.usage.total());
        Recording::new(self.text.clone(), env::scrubber().clone()).exchange(model, request, answer)
    }
}

impl Exchanges {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn into_model(self, id: RunId) -> Result<(Request, Used, Arc<ReplayModel>), Failure> {
        let model = ReplayModel::parse(id.to_string(), &self.text(), env::scrubber().clone())?;
        let first = self.first.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
        let used = self.used.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((first, used, Arc::new(model)))
    }
}

/// The way in which the run loaded its tools.
struct Loading {
    dynamic: Dynamic,
    /// Its core tools.
    core: Vec<String>,
    /// Tools that the conversation had loaded before.
    loaded: Vec<String>,
}

impl Loading {
    /// Derives the loading mode from the first request.
    ///
    /// Core tools come first, then meta-tools, then loaded tools; tools that the provider searches are
    /// deferred.
    fn new(first: &Request, model: &Arc<ReplayModel>) -> Option<Self> {
        let has = |name: &str| first.tools.iter().any(|tool| tool.name == name);
        let dynamic = if first.tools.iter().any(|tool| tool.deferred) {
            Dynamic::Native
        } else if has("browse_toolkit") {
            Dynamic::Browse
        } else if has("find_tools") {
            // Answers of the model of `find_tools` are recorded too.
            Dynamic::Find(Arc::clone(model) as _)
        } else {
            return None;
        };
        let there = first.tools.iter().filter(|tool| !tool.deferred).map(|tool| tool.name.clone());
        let (mut core, mut loaded, mut is_core) = (Vec::new(), Vec::new(), true);
        for name in there {
            if is_meta_tool(&name) {
                is_core = false;
            } else if is_core {
                core.push(name);
            } else {
                loaded.push(name);
            }
        }
        Some(Self { dynamic, core, loaded })
    }

    /// Whether the first request has the names of all tools.
    fn is_whole(&self) -> bool {
        matches!(self.dynamic, Dynamic::Native)
    }

    fn session(&self) -> Result<ToolSession, Failure> {
        let session = serde_json::from_value(json!({ "active_tools": self.loaded }));
        session.map_err(|error| Failure::from(ToolError::internal(error.to_string())))
    }
}

/// Whether a run ended at its time limit, which a replay meets elsewhere.
fn was_late(stored: &StoredRun) -> bool {
    stored.summary.stop_reason.as_deref() == Some("max_time")
}

/// Builds the same agent with the recorded answers.
async fn again(
    stored: &StoredRun,
    (first, used): (Request, Used),
    model: &Arc<ReplayModel>,
    args: &ReplayArgs,
    config: &Config,
    printer: &Printer,
) -> Result<RunOutput, Failure> {
    let names: Vec<String> = first.tools.iter().map(|tool| tool.name.clone()).collect();
    let loading = Loading::new(&first, model);
    let is_partial = loading.as_ref().is_some_and(|loading| !loading.is_whole());
    let targets = targets(stored, &names, is_partial, args, config, printer)?;
    let options = OpenOptions::new(&args.permission, &args.grants)?;
    let workspace = Workspace::open(args.workdir.as_deref(), &args.attach)?;
    let events = progress::sink(printer);
    let (root, sink) = (workspace.root(), Arc::clone(&events));
    let opened = crate::toolbox::open(targets, options, root, &args.permission, config, sink, printer).await;
    let (toolbox, _) = opened.map_err(|failure| failure.hint("`--tools` names the tools of the run."))?;
    let (schema, settings) = match first.settings.output {
        Some(OutputFormat::Schema { schema, .. }) => {
            (schema.to_value().ok(), ModelSettings { output: None, ..first.settings })
        }
        _ => (None, first.settings),
    };
    let mut limits = RunLimits::default();
    limit(&mut limits, stored, used);
    let mut builder = Agent::builder(Arc::clone(model) as _, toolbox)
        .settings(settings)
        .provider_options(first.provider_options)
        .betas(first.betas)
        .metadata(first.metadata)
        .hosted_tools(first.hosted_tools)
        .strict_tools(first.tools.iter().any(|tool| tool.strict))
        .on_event(events)
        // Equal prices per token reproduce the end at a cost limit.
        .pricing(Arc::new(|_, usage| Some(usage.total() as f64)))
        .limits(limits);
    if let Some(compaction) = by_provider(&first.context_edits) {
        builder = builder.compaction(compaction);
    }
    if let Some(choice) = first.tool_choice {
        builder = builder.tool_choice(choice);
    }
    if let Some(system) = first.system {
        builder = builder.system(system);
    }
    let session = loading.as_ref().map(Loading::session).transpose()?;
    let loads = loading.is_some();
    if let Some(Loading { dynamic, core, .. }) = loading {
        builder = builder.dynamic(dynamic).core_tools(core);
    }
    let mut run = builder
        .build()
        .run_turns(first.turns)
        .with_provider_state(first.provider_state)
        .with_caller(crate::toolbox::caller())
        .with_values(agent_tool::replayed(Arc::clone(model) as Arc<dyn Model>))
        .with_scope(Scope::new("replay").with_working_dir(workspace.path()))
        .with_port(Arc::new(TerminalPort::new(printer, &args.permission, None)));
    if let Some(session) = session {
        run = run.with_tool_session(session);
    }
    if !loads {
        run = run.with_tools(names);
    }
    if let Some(schema) = schema {
        run = run.with_answer_schema(schema);
    }
    Ok(run.with_cancellation(interrupt::watch()?).finish().await)
}

/// The targets of a replay: given ones, else those that are stored with the run, else the tools of its first request.
///
/// The agent file of the run must be trusted.
fn targets(
    stored: &StoredRun,
    names: &[String],
    is_partial: bool,
    args: &ReplayArgs,
    config: &Config,
    printer: &Printer,
) -> Result<Vec<NamedTarget>, Failure> {
    let parse = |words: &[String]| target::parse(words, config, &Trail::default());
    if !args.tools.is_empty() {
        return Ok(parse(&args.tools));
    }
    let options = stored.options.as_ref().and_then(StoredOptions::read).unwrap_or_default();
    let mut words = options.targets(config);
    words.retain(|word| !word.starts_with("hosted:"));
    let mut targets = Vec::new();
    if let Some(AgentKind::File(path)) = options.agent() {
        let file = AgentFile::open(&path, config)?;
        options.changed_agent(&file).iter().for_each(|notice| printer.warn(notice));
        if !options.has_tools() {
            targets = file.targets(&file.settings(config)?);
        }
    } else if !options.has_tools() {
        // The record lacks the tools that could be loaded.
        let own = if is_partial || !words.is_empty() { tool_targets(&[], config) } else { names.to_vec() };
        targets = parse(&own);
    }
    targets.extend(parse(&words));
    if targets.is_empty() {
        targets = parse(&[SOME_TOOL.to_owned()]);
    }
    if names.iter().any(|name| name == CODE_EXECUTION) {
        targets.extend(parse(&[CODE_EXECUTION.to_owned()]));
    }
    Ok(targets)
}

/// Enables the provider's compaction if the recorded request had it.
fn by_provider(edits: &[ContextEdit]) -> Option<Compaction> {
    let (mut at, mut keep_results) = (None, None);
    for edit in edits {
        match edit {
            ContextEdit::Compact { at_tokens } => at = *at_tokens,
            ContextEdit::ClearToolResults { keep, .. } => keep_results = *keep,
            _ => {}
        }
    }
    (!edits.is_empty()).then(|| {
        let mut compaction = Compaction::default().by(CompactionBy::Provider);
        compaction.keep_results = keep_results;
        // At the recorded number of tokens, whatever the catalog has now.
        if at.is_some() {
            (compaction.window, compaction.threshold) = (at, 1.0);
        }
        compaction
    })
}

/// Applies the limit that ended the run, and no other.
fn limit(all: &mut RunLimits, stored: &StoredRun, used: Used) {
    let summary = &stored.summary;
    let has_summed_up = has_summed_up(stored);
    if !has_summed_up {
        all.wrap_up = false;
    }
    let used = if has_summed_up { used.before_last } else { used.all };
    all.iterations = summary.iterations.saturating_add(1).max(all.iterations);
    match summary.stop_reason.as_deref() {
        Some("max_iterations") => all.iterations = summary.iterations,
        Some("max_tool_calls") => all.tool_calls = u32::try_from(summary.tool_calls).ok(),
        Some("max_tokens") => all.tokens = Some(used),
        Some("max_cost") => all.cost_usd = Some(used as f64),
        // A tool call takes at most the time of the whole run.
        Some("max_time") => all.time = Duration::try_from_secs_f64(summary.execution_time).ok(),
        _ => {}
    }
}

fn has_summed_up(stored: &StoredRun) -> bool {
    stored.record.as_ref().is_some_and(|record| record["wrapped_up"] == true)
}

/// The first difference, if there is one.
fn difference(
    stored: &StoredRun,
    outcome: &RunOutput,
    model: &ReplayModel,
    recorded: usize,
) -> Option<String> {
    // A cancelled run would have sent further requests.
    let is_whole = !matches!(stored.summary.stop_reason.as_deref(), None | Some("cancelled" | "max_time"));
    // Results of cancelled calls differ each time, and so do later requests.
    if was_late(stored) && model.remaining() <= usize::from(has_summed_up(stored)) {
        return None;
    }
    match &outcome.error {
        Some(error) if error.kind == ErrorKind::ReplayMismatch => {
            return Some(format!("the request differs: {}", error.message.trim_end()));
        }
        Some(error) if error.kind == ErrorKind::ScriptExhausted && is_whole => {
            let recorded = count(recorded, "exchange");
            return Some(format!("the run has {recorded}, but the model got one more request"));
        }
        _ => {}
    }
    let left = model.remaining();
    (left > 0).then(|| {
        let recorded_text = count(recorded, "exchange");
        format!("the run ended ({}) after {} of {recorded_text}", outcome.stop, recorded - left)
    })
}

//! Builds the agent of `run` and `chat`.

use std::sync::Arc;

use toolpost_agent::{Agent, Dynamic};
use toolpost_core::{EventSink, ToolSource};
use toolpost_llm::{Model, ModelCatalog};
use toolpost_sandbox::{ApplyMode, Level, Sandbox};
use toolpost_toolbox::Toolbox;

use crate::agent_options::AgentOptions;
use crate::agent_settings::AgentSettings;
use crate::args::AgentArgs;
use crate::config::{Config, paths};
use crate::failure::Failure;
use crate::hosted::{Hosted, Place};
use crate::model::{Tape, catalog, open_model};
use crate::print::Printer;
use crate::style::{FAINT, one_line, paint};
use crate::target::trail::Trail;
use crate::target::{self, OpenOptions};
use crate::target_grammar::CODE_EXECUTION;
use crate::workspace::Workspace;

/// The tools without `--tools` and the setting `tools`.
const DEFAULT_TOOLS: &str = "read_file,list_directory,calculate,write_file,run_code";

/// The parts of an agent, except the model, which `/model` may change.
pub(crate) struct Parts<'a> {
    options: &'a AgentOptions,
    settings: AgentSettings,
    catalog: Arc<ModelCatalog>,
    hosted: Hosted,
    events: EventSink,
    pub(crate) toolbox: Toolbox,
    /// The servers, programs and gateways that have tools.
    pub(crate) sources: Vec<Arc<dyn ToolSource>>,
}

impl<'a> Parts<'a> {
    /// Checks the options, then opens the tools.
    pub(crate) async fn open(
        options: &'a AgentOptions,
        workspace: &Workspace,
        events: EventSink,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let AgentOptions { args, config, .. } = options;
        let settings = AgentSettings::read(args, config)?;
        if !args.core_tool.is_empty() && args.dynamic.is_none() && !args.compact_tools {
            return Err(Failure::usage("`--core-tool` needs dynamic or compact tools")
                .hint("Add `--dynamic` or `--compact-tools`."));
        }
        let catalog = catalog(config)?;
        // The tools of an agent file replace those of the settings; `--tools` replaces both.
        let file = options.file.as_ref();
        let mut words = match file {
            Some(_) => [args.tools.clone(), args.mcp_server.clone()].concat(),
            None => targets(args, config),
        };
        let hosted = Hosted::take(&mut words, args, config)?;
        let own = file.filter(|_| args.tools.is_empty()).map(|file| file.targets(config));
        let mut targets = own.unwrap_or_default();
        targets.extend(target::parse(&words, config, &Trail::default()));
        let open = OpenOptions {
            sampling: true,
            token: crate::mcp::token(&args.server)?,
            ..OpenOptions::new(&args.permission, &args.grants)?
        };
        let (root, sink) = (workspace.root(), Arc::clone(&events));
        let toolbox = crate::toolbox::open(targets, open, root, &args.permission, config, sink, printer);
        let (toolbox, sources) = toolbox.await?;
        Ok(Self { options, settings, catalog, hosted, events, toolbox, sources })
    }

    /// Where `code_execution` runs with this model, if it is among the tools.
    pub(crate) fn code_place(&self, model: &dyn Model) -> Result<Option<Place>, Failure> {
        self.hosted.place(&self.catalog, model)
    }

    /// Builds the agent with a model, which the tape records.
    pub(crate) fn agent(&self, model: Arc<dyn Model>, tape: &Tape) -> Result<Agent, Failure> {
        let place = self.code_place(&*model)?;
        let hosted = self.hosted.tools(place.as_ref());
        match place {
            // Providers reject a second tool of that name.
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
            .settings
            .builder(tape.record(model), self.toolbox.clone(), Arc::clone(&self.events))
            .hosted_tools(hosted);
        let AgentOptions { args, config, file, .. } = self.options;
        if let Some(schema) = file.as_ref().and_then(|file| file.spec.output_schema.as_ref()) {
            builder = builder.answer_schema(schema.as_value().clone());
        }
        builder = match &args.dynamic {
            None => builder,
            Some(how) => builder.dynamic(match how.as_str() {
                "" => Dynamic::Auto,
                "native" => Dynamic::Native,
                "browse" => Dynamic::Browse,
                model => Dynamic::Find(tape.record(open_model(model, config)?)),
            }),
        };
        builder = builder.core_tools(args.core_tool.iter().cloned()).compact_tools(args.compact_tools);
        Ok(builder.build())
    }
}

/// The targets of `--tools`, the settings and `--mcp-server`.
pub(crate) fn targets(args: &AgentArgs, config: &Config) -> Vec<String> {
    let mut targets = tool_targets(&args.tools, config);
    targets.extend(args.mcp_server.iter().cloned());
    targets
}

/// The tools of the option, else of the settings, else the default ones.
pub(crate) fn tool_targets(named: &[String], config: &Config) -> Vec<String> {
    match (named, config.settings.tools.clone()) {
        ([], configured) if configured.is_empty() => vec![DEFAULT_TOOLS.to_owned()],
        ([], configured) => configured,
        (named, _) => named.to_vec(),
    }
}

/// Opens the workspace; `--review` and `--discard` work in a private copy.
pub(crate) fn workspace(args: &AgentArgs, config: &Config, printer: &Printer) -> Result<Workspace, Failure> {
    let workspace = Workspace::open(args.workdir.as_deref(), &args.attach)?;
    let mode = args.changes.mode();
    if mode == ApplyMode::Now {
        return Ok(workspace);
    }
    if args.permission.level.or(config.settings.level) == Some(Level::Minimal) {
        return Err(Failure::usage("level `minimal` has no private copy of the working directory")
            .hint("Use `--level standard` or above, or remove `--review` and `--discard`."));
    }
    let mut sandbox = Sandbox::new()
        .apply(mode)
        .allow_protected(args.permission.directory.allow_protected.iter().cloned())
        .protect(config.protected(Some(workspace.path()))?);
    if let Some(layers) = paths::layers() {
        sandbox = sandbox.layers(layers);
    }
    let workspace = workspace.staged(&sandbox)?;
    for note in workspace.notes() {
        printer.note(&format!("{} {}", paint(FAINT, "note:"), one_line(note, 500)));
    }
    Ok(workspace)
}

//! Builds the agent of `run` and `chat`.

use std::sync::Arc;

use toolpost_agent::{Agent, Dynamic};
use toolpost_core::{EventSink, ToolSource};
use toolpost_llm::{Catalog, Model};
use toolpost_sandbox::{ApplyMode, Level, Sandbox};
use toolpost_toolbox::Toolbox;

use crate::agent_settings::AgentSettings;
use crate::args::AgentArgs;
use crate::config::{Config, paths};
use crate::failure::Failure;
use crate::grants;
use crate::hosted::{Hosted, Place};
use crate::model::{Tape, catalog, open_model};
use crate::print::Printer;
use crate::style::{FAINT, one_line, paint};
use crate::target::{self, CODE_EXECUTION};
use crate::workspace::Workspace;

/// The tools without `--tools` and the setting `tools`.
const DEFAULT_TOOLS: &str = "read_file,list_directory,calculate,write_file,run_code";

/// The parts of an agent, except the model, which `/model` may change.
pub(crate) struct Parts<'a> {
    args: &'a AgentArgs,
    config: &'a Config,
    settings: AgentSettings,
    catalog: Arc<Catalog>,
    hosted: Hosted,
    events: EventSink,
    pub(crate) toolbox: Toolbox,
    /// The servers, programs and gateways that have tools.
    pub(crate) sources: Vec<Arc<dyn ToolSource>>,
}

impl<'a> Parts<'a> {
    /// Checks the options, then opens the tools.
    pub(crate) async fn open(
        args: &'a AgentArgs,
        config: &'a Config,
        workspace: &Workspace,
        events: EventSink,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let settings = AgentSettings::read(args, config)?;
        if !args.core_tool.is_empty() && args.dynamic.is_none() && !args.compact_tools {
            return Err(Failure::usage("`--core-tool` needs dynamic or compact tools")
                .hint("Add `--dynamic` or `--compact-tools`."));
        }
        let catalog = catalog(config)?;
        let token = crate::mcp::token(&args.server)?;
        let mut targets = targets(args, config);
        let hosted = Hosted::take(&mut targets, args, config)?;
        let granted = grants::of_args(&args.grants)?;
        let opened = target::open_with(&targets, config, &args.permission, true, token, &granted).await?;
        opened.warnings.iter().for_each(|warning| printer.warn(warning));
        let sources = opened.sources();
        let pool = crate::toolbox::code_pool(config)?;
        let toolbox = crate::toolbox::build_in(
            opened,
            workspace.root(),
            &args.permission,
            config,
            pool,
            Arc::clone(&events),
            None,
        )
        .await?;
        Ok(Self { args, config, settings, catalog, hosted, events, toolbox, sources })
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

/// The targets of `--tools`, the settings and `--mcp-server`.
pub(crate) fn targets(args: &AgentArgs, config: &Config) -> Vec<String> {
    let mut targets = tool_targets(&args.tools, config);
    targets.extend(args.mcp_server.iter().cloned());
    targets
}

/// The tools of the option, else of the settings, else the default ones.
pub(crate) fn tool_targets(named: &[String], config: &Config) -> Vec<String> {
    match (named, config.texts("tools")) {
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
    if args.permission.level.or_else(|| config.choice("level")) == Some(Level::Minimal) {
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

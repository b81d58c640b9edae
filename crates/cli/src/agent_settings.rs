//! Options and settings of agents.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_agent::{Agent, AgentBuilder, Compaction, CompactionBy, RunLimits};
use toolpost_core::EventSink;
use toolpost_llm::{Effort, Model, Settings, ToolChoice};
use toolpost_toolbox::Toolbox;

use crate::args::AgentArgs;
use crate::config::Config;
use crate::failure::Failure;
use crate::parse;

/// Options and settings of an agent, except model and tools.
pub(crate) struct AgentSettings {
    settings: Settings,
    tool_choice: Option<ToolChoice>,
    provider_options: Map<String, Value>,
    betas: Vec<String>,
    metadata: Map<String, Value>,
    strict_tools: bool,
    limits: RunLimits,
    compaction: Option<CompactionBy>,
    system_prompt: Option<String>,
}

impl AgentSettings {
    pub(crate) fn read(args: &AgentArgs, config: &Config) -> Result<Self, Failure> {
        Ok(Self {
            settings: settings(args, config)?,
            tool_choice: parsed(config, "tool_choice", parse::tool_choice)?,
            provider_options: config.object("provider_options"),
            betas: config.texts("betas"),
            metadata: config.object("metadata"),
            strict_tools: config.flag("strict_tools"),
            limits: limits(args, config)?,
            compaction: compaction(config),
            system_prompt: args.system_prompt.clone().or_else(|| config.text("system_prompt")),
        })
    }

    /// The limits without the one on cost.
    pub(crate) fn without_cost_limit(&self) -> RunLimits {
        let mut limits = self.limits.clone();
        limits.cost_usd = None;
        limits
    }

    /// Starts the builder of an agent with these settings.
    pub(crate) fn builder(&self, model: Arc<dyn Model>, toolbox: Toolbox, events: EventSink) -> AgentBuilder {
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

/// Parses a setting that is a text.
fn parsed<T>(
    config: &Config,
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    let value = config.text(name).map(|text| parse(&text)).transpose();
    value.map_err(|error| Failure::usage(format!("the setting `{name}`: {error}")))
}

/// The reasoning effort.
pub(crate) fn effort(args: &AgentArgs, config: &Config) -> Option<Effort> {
    args.effort.or_else(|| config.text("effort").and_then(|text| parse::effort(&text).ok()))
}

fn settings(args: &AgentArgs, config: &Config) -> Result<Settings, Failure> {
    Ok(Settings {
        temperature: args.temperature.or_else(|| config.fraction("temperature")),
        effort: effort(args, config),
        max_output_tokens: match args.max_output_tokens {
            Some(tokens) => Some(tokens),
            None => config.number("max_output_tokens")?,
        },
        top_p: config.fraction("top_p"),
        top_k: config.number("top_k")?,
        seed: config.number("seed")?,
        stop: config.texts("stop"),
        thinking: parsed(config, "thinking", parse::thinking)?,
        parallel_tool_calls: config.entry("parallel_tool_calls").and_then(|(value, _)| value.as_bool()),
        prompt_caching: parsed(config, "prompt_caching", parse::prompt_caching)?.unwrap_or_default(),
        ..Settings::default()
    })
}

/// The compaction of long conversations, unless the setting turns it off.
fn compaction(config: &Config) -> Option<CompactionBy> {
    match config.text("compaction").as_deref() {
        Some("off") => None,
        Some("provider") => Some(CompactionBy::Provider),
        Some("auto") => Some(CompactionBy::Auto),
        _ => Some(CompactionBy::Summary),
    }
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
    if config.flag("no_wrap_up") {
        limits.wrap_up = false;
    }
    limits.parallel_tools = config.number("parallel_tools")?.unwrap_or(limits.parallel_tools);
    limits.tool_timeout = config.duration("tool_timeout");
    limits.tool_output_chars = config.number("tool_output_chars")?;
    limits.repetition = config.number("repetition")?.unwrap_or(limits.repetition);
    limits.repairs = config.number("repairs")?.unwrap_or(limits.repairs);
    Ok(limits)
}

//! Options and settings of agents.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_agent::{Agent, AgentBuilder, Compaction, CompactionBy, RunLimits};
use toolpost_core::EventSink;
use toolpost_llm::{Effort, Model, ModelSettings, ToolChoice};
use toolpost_toolbox::Toolbox;

use crate::args::AgentArgs;
use crate::config::Config;
use crate::failure::Failure;
use crate::parse;

/// Options and settings of an agent, except model and tools.
pub(crate) struct AgentSettings {
    settings: ModelSettings,
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
        let own = &config.settings;
        Ok(Self {
            settings: settings(args, config)?,
            tool_choice: parsed(own.tool_choice.as_deref(), "tool_choice", parse::tool_choice)?,
            provider_options: own.provider_options.clone(),
            betas: own.betas.clone(),
            metadata: own.metadata.clone(),
            strict_tools: own.strict_tools,
            limits: limits(args, config),
            compaction: compaction(config),
            system_prompt: args.system_prompt.clone().or_else(|| own.system_prompt.clone()),
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
    value: Option<&str>,
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    let value = value.map(parse).transpose();
    value.map_err(|error| Failure::usage(format!("the setting `{name}`: {error}")))
}

/// The reasoning effort.
pub(crate) fn effort(args: &AgentArgs, config: &Config) -> Option<Effort> {
    args.effort.or_else(|| config.settings.effort.as_deref().and_then(|text| parse::effort(text).ok()))
}

fn settings(args: &AgentArgs, config: &Config) -> Result<ModelSettings, Failure> {
    let own = &config.settings;
    Ok(ModelSettings {
        temperature: args.temperature.or(own.temperature),
        effort: effort(args, config),
        max_output_tokens: own.max_output_tokens,
        top_p: own.top_p,
        top_k: own.top_k,
        seed: own.seed,
        stop: own.stop.clone(),
        thinking: parsed(own.thinking.as_deref(), "thinking", parse::thinking)?,
        parallel_tool_calls: own.parallel_tool_calls,
        prompt_caching: parsed(own.prompt_caching.as_deref(), "prompt_caching", parse::prompt_caching)?
            .unwrap_or_default(),
        ..ModelSettings::default()
    })
}

/// The compaction of long conversations, unless the setting turns it off.
fn compaction(config: &Config) -> Option<CompactionBy> {
    match config.settings.compaction.as_deref() {
        Some("off") => None,
        Some("provider") => Some(CompactionBy::Provider),
        Some("auto") => Some(CompactionBy::Auto),
        _ => Some(CompactionBy::Summary),
    }
}

fn limits(args: &AgentArgs, config: &Config) -> RunLimits {
    let own = &config.settings;
    let mut limits = RunLimits::default();
    limits.iterations = args.max_iterations.or(own.max_iterations).unwrap_or(limits.iterations);
    limits.tool_calls = args.max_tool_calls.or(own.max_tool_calls);
    limits.tokens = args.max_tokens.or(own.max_tokens);
    limits.time = args.max_time.or(own.max_time);
    limits.cost_usd = args.max_cost.or(own.max_cost);
    limits.wrap_up &= !own.no_wrap_up;
    limits.parallel_tools = own.parallel_tools.unwrap_or(limits.parallel_tools);
    limits.tool_timeout = own.tool_timeout;
    limits.tool_output_chars = own.tool_output_chars;
    limits.repetition = own.repetition.unwrap_or(limits.repetition);
    limits.repairs = own.repairs.unwrap_or(limits.repairs);
    limits
}

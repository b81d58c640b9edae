//! What `models` takes, and what every command with a model takes about it.

use clap::{Args, Subcommand};
use toolpost_llm::{CacheLifetime, PromptCaching, Thinking, ToolChoice};

/// What can be asked about models.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models that are known, with their context and price.
    Ls(ModelsListArgs),
    /// Show everything that is known of a model: sizes, what it can do and does not take, prices with their dates.
    Show(ModelsShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ModelsListArgs {
    /// Only those of a provider, such as `anthropic`. May be repeated.
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Vec<String>,
    /// Only those that can do something, such as `tools` or `code_execution`. May be repeated: then all of it.
    #[arg(long, value_name = "FEATURE")]
    pub(crate) can: Vec<String>,
    /// Also those that their provider has ended.
    #[arg(long)]
    pub(crate) retired: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ModelsShowArgs {
    /// The model, such as `anthropic/claude-opus-5-5`.
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
}

/// How a model is asked.
#[derive(Args, Debug, Default)]
pub(crate) struct TuningArgs {
    /// A model that is asked when the one before cannot be had. May be repeated.
    #[arg(long, hide = true, value_name = "MODEL", help_heading = "Model")]
    pub(crate) fallback: Vec<String>,
    /// Sample only from the most probable tokens of this total probability, from 0 to 1.
    #[arg(long, hide = true, value_name = "X", help_heading = "Model", value_parser = probability)]
    pub(crate) top_p: Option<f64>,
    /// Sample only from this many most probable tokens.
    #[arg(long, hide = true, value_name = "N", help_heading = "Model", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top_k: Option<u32>,
    /// The seed of sampling.
    #[arg(long, hide = true, value_name = "N", help_heading = "Model")]
    pub(crate) seed: Option<u64>,
    /// A text that ends the answer; a model that takes none gets none, and a notice says so. May be repeated.
    #[arg(long, hide = true, value_name = "TEXT", help_heading = "Model")]
    pub(crate) stop: Vec<String>,
    /// Whether the model thinks first: `off`, `adaptive`, or at most this many tokens.
    #[arg(long, hide = true, value_name = "HOW", help_heading = "Model", value_parser = thinking)]
    pub(crate) thinking: Option<Thinking>,
    /// Whether the model may call several tools at once: true or false.
    #[arg(long, hide = true, value_name = "BOOL", help_heading = "Model")]
    pub(crate) parallel_tool_calls: Option<bool>,
    /// What the provider keeps of the prompt: `off`, `automatic`, `5m` or `1h`; `marks-5m` or `marks-1h` set marks.
    #[arg(long, hide = true, value_name = "HOW", help_heading = "Model", value_parser = prompt_caching)]
    pub(crate) prompt_caching: Option<PromptCaching>,
    /// A field of the provider's own request, such as `service_tier='"flex"'`. May be repeated.
    #[arg(long, hide = true, value_name = "NAME=JSON", help_heading = "Model")]
    pub(crate) provider_option: Vec<String>,
    /// Something that the provider may know about the requests, such as a pseudonymous `user_id=…`. May be repeated; what
    /// the provider does not take is refused.
    #[arg(long, hide = true, value_name = "KEY=VALUE", help_heading = "Model")]
    pub(crate) metadata: Vec<String>,
    /// The name of a feature of the provider that is not yet general, sent as its beta header. May be repeated.
    #[arg(long, hide = true, value_name = "NAME", help_heading = "Model")]
    pub(crate) beta: Vec<String>,
    /// Something that every event of usage carries, such as a customer's number; no provider is told. May be repeated.
    #[arg(long, hide = true, value_name = "KEY=VALUE", help_heading = "Model")]
    pub(crate) tag: Vec<String>,
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

pub(crate) fn thinking(text: &str) -> Result<Thinking, String> {
    match text {
        "off" => Ok(Thinking::Off),
        "adaptive" => Ok(Thinking::Adaptive),
        _ => match text.parse() {
            Ok(tokens) if tokens > 0 => Ok(Thinking::Budget(tokens)),
            _ => Err("expected `off`, `adaptive` or a number of tokens from 1".to_owned()),
        },
    }
}

/// The words for what a provider keeps.
pub(crate) const CACHING: &[&str] = &["off", "automatic", "5m", "1h", "marks-5m", "marks-1h"];

pub(crate) fn prompt_caching(text: &str) -> Result<PromptCaching, String> {
    Ok(match text {
        "off" => PromptCaching::Off,
        "automatic" => PromptCaching::Automatic,
        "5m" => PromptCaching::AutomaticFor(CacheLifetime::FiveMinutes),
        "1h" => PromptCaching::AutomaticFor(CacheLifetime::OneHour),
        "marks-5m" => PromptCaching::Breakpoints(CacheLifetime::FiveMinutes),
        "marks-1h" => PromptCaching::Breakpoints(CacheLifetime::OneHour),
        _ => return Err(format!("expected one of {}", CACHING.join(", "))),
    })
}

/// What a model does about tools, in words; what is no word for it is the name of a tool.
pub(crate) fn tool_choice(text: &str) -> Result<ToolChoice, String> {
    Ok(match text.trim() {
        "" => return Err("expected `auto`, `any`, `none` or the name of a tool".to_owned()),
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Any,
        "none" => ToolChoice::None,
        name => ToolChoice::Tool(name.to_owned()),
    })
}

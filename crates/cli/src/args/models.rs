//! The arguments of `models`.

use clap::{Args, Subcommand};

/// The subcommands of `models`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List known models with context window and price.
    Ls(ModelsListArgs),
    /// Show one model: limits, features, prices.
    Show(ModelsShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ModelsListArgs {
    /// List models of one provider, such as `anthropic`. May be repeated.
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Vec<String>,
    /// List models with a feature, such as `tools`. May be repeated.
    #[arg(long, value_name = "FEATURE")]
    pub(crate) can: Vec<String>,
    /// Include retired models.
    #[arg(long)]
    pub(crate) retired: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ModelsShowArgs {
    /// The model, such as `anthropic/claude-opus-5-5`.
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
}

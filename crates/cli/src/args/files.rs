//! What `files` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What can be done with the files that a provider keeps.
#[derive(Debug, Subcommand)]
pub(crate) enum FilesCommand {
    /// Upload files. What the provider calls each is printed.
    Put {
        /// The files.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// Download a file into this folder, under its own name; one that is there stays, and the new one gets a number.
    Get {
        /// The provider's id of the file.
        #[arg(value_name = "ID")]
        id: String,
        /// Write it to a new file of this name.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The container that the file lies in, of code that OpenAI has run.
        #[arg(long, value_name = "ID")]
        container: Option<String>,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// List the files.
    Ls {
        /// How many at most.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// Remove files for good.
    Rm {
        /// The provider's ids of the files.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        account: AccountArgs,
    },
}

/// Whose files.
#[derive(Args, Debug)]
pub(crate) struct AccountArgs {
    /// Who keeps them: anthropic, openai, gemini or xai; without it, the provider of the model that `run` asks.
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
}

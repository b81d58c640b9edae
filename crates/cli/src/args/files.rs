//! The arguments of `files`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The subcommands of `files`.
#[derive(Debug, Subcommand)]
pub(crate) enum FilesCommand {
    /// Upload files and print their IDs.
    Put {
        /// The files.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// Download a file into this directory without overwriting.
    Get {
        /// The file's ID at the provider.
        #[arg(value_name = "ID")]
        id: String,
        /// Write to a new file of this name.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The OpenAI container that holds the file.
        #[arg(long, value_name = "ID")]
        container: Option<String>,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// List the files.
    Ls {
        /// Maximum number of files.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        #[command(flatten)]
        account: AccountArgs,
    },
    /// Remove files for good.
    Rm {
        /// The files' IDs at the provider.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        account: AccountArgs,
    },
}

/// The account that owns the files.
#[derive(Args, Debug)]
pub(crate) struct AccountArgs {
    /// The provider; defaults to that of the model of `run`.
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
}

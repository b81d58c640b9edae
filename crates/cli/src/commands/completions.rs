//! `toolpost completions`, and the man pages of packages.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::{Cli, CompletionsArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::{Printer, raw};

pub(crate) fn run(args: &CompletionsArgs, _printer: &Printer) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::help::unhidden(Cli::command()), "toolpost", &mut script);
    raw(&script, true)?;
    Ok(Exit::Ok)
}

/// Writes a page for each command: `toolpost.1`, `toolpost-run.1`, …
pub(crate) fn man_pages(directory: &Path) -> Result<Exit, Failure> {
    clap_mangen::generate_to(crate::help::unhidden(Cli::command()), directory)
        .map_err(|error| Failure::file("the directory of the man pages,", directory, &error))?;
    Ok(Exit::Ok)
}

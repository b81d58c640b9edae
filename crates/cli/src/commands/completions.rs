//! `toolpost completions`

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

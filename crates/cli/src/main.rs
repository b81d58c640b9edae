//! The `toolpost` command: arguments in, text or JSON out.
//!
//! A command is read by [`args`], carried out by one module of [`commands`], and ends in one number of [`exit`].
//! What a program may read goes to standard output; everything else goes to standard error.
//!
//! # Invariants
//!
//! - The only crate that prints, exits, or reads the environment; every variable stands in [`env`], every exit status
//!   in [`exit`].
//! - Text that comes from a model, a tool or a sandbox never reaches a terminal with its control characters.
//! - Nothing is started, written or sent before the arguments are understood as a whole.
//! - No logic that a library user would miss: that belongs into the libraries.
//!
//! Deliberately absent: a configuration file, stored runs, tools that are not built in, and any connection but the one
//! to the model that was named.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod env;
mod exit;
mod failure;
mod help;
mod interrupt;
mod logs;
mod port;
mod print;
mod progress;
mod style;
mod target;
mod verdict;
mod workspace;

use clap::Parser as _;

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;

fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let (format, color) = args::glance(std::env::args_os().skip(1));
            return failure::tell(&error, &Printer::new(format, color)).into();
        }
    };
    let global = &cli.global;
    let mut printer = Printer::new(global.format(), global.color);
    printer.quiet = global.quiet;
    printer.verbose = global.verbose;
    let exit = match run(cli, &printer) {
        Ok(exit) => exit,
        Err(failure) => printer.failure(&failure),
    };
    exit.into()
}

fn run(cli: Cli, printer: &Printer) -> Result<Exit, Failure> {
    logs::start(&cli.global)?;
    match cli.command {
        Command::Run(args) => commands::run::run(&args, printer),
        Command::Call(args) => commands::call::run(&args, printer),
        Command::Tools(args) => commands::tools::run(&args, printer),
        Command::Exec(args) => commands::exec::run(&args, printer),
        Command::Doctor => commands::doctor::run(printer),
        Command::Schema(args) => commands::schema::run(&args, printer),
        Command::Completions(args) => commands::completions::run(&args, printer),
        Command::Help(args) => help::run(&args, printer),
    }
}

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
//! - A file of a folder that nobody trusts starts nothing, allows nothing and sends nothing.
#![forbid(unsafe_code)]

mod agent_file;
mod args;
mod calls;
mod commands;
mod config;
mod container;
mod egress;
mod env;
mod exit;
mod failure;
mod gateway;
mod grants;
mod help;
mod holder;
mod interrupt;
mod launcher;
mod logs;
mod mcp;
mod packages;
mod port;
mod print;
mod progress;
mod regular_file;
mod session;
mod store;
mod style;
mod target;
mod terminal;
mod verdict;
mod wanted;
mod workspace;

use crate::args::{Cli, Color, Command, Format, LogFormat};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;

fn main() -> std::process::ExitCode {
    let cli = match args::parse::<Cli>(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            let (format, color) = args::glance(std::env::args_os().skip(1));
            let printer = Printer::new(format, color);
            let page = args::asks_for_all(std::env::args_os().skip(1)).filter(|_| !error.use_stderr());
            let exit = match page.map(|words| printer.result(&help::whole(&words))) {
                None => failure::tell(&error, &printer),
                Some(Ok(())) => Exit::Ok,
                Some(Err(failure)) => printer.failure(&failure),
            };
            return exit.into();
        }
    };
    let global = &cli.global;
    let mut printer = Printer::new(global.format().unwrap_or_default(), global.color.unwrap_or_default());
    printer.quiet = global.quiet;
    printer.verbose = global.verbose;
    let exit = match run(cli, &mut printer) {
        Ok(exit) => exit,
        Err(failure) => printer.failure(&failure),
    };
    exit.into()
}

fn run(cli: Cli, printer: &mut Printer) -> Result<Exit, Failure> {
    let global = &cli.global;
    let config = Config::load(global)?;
    let format = global.format().or(chosen::<Format>(&config, "format")).unwrap_or_default();
    printer.look(format, global.color.or(chosen::<Color>(&config, "color")).unwrap_or_default());
    let log_format = global.log_format.or(chosen::<LogFormat>(&config, "log_format")).unwrap_or_default();
    logs::start(global, &config, log_format, matches!(cli.command, Command::Serve(_)))?;
    mcp::start::report_to(printer);
    env::check_certificates()?;
    for warning in &config.warnings {
        printer.warn(warning);
    }
    match cli.command {
        Command::Run(args) => commands::run::run(&args, &config, printer),
        Command::Chat(args) => commands::chat::run(&args, &config, printer),
        Command::Call(args) => commands::call::run(&args, &config, printer),
        Command::Tools(args) => commands::tools::run(&args, &config, printer),
        Command::Serve(args) => commands::serve::run(&args, &config, printer),
        Command::Exec(args) => commands::exec::run(&args, &config, printer),
        Command::Doctor => commands::doctor::run(&config, printer),
        Command::HoldSession => session::hold(),
        Command::Image(command) => commands::image::run(&command, &config, printer),
        Command::Schema(args) => commands::schema::run(&args, printer),
        Command::Completions(args) => commands::completions::run(&args, printer),
        Command::Init(command) => commands::init::run(&command, printer),
        Command::Runs(command) => commands::runs::run(&command, &config, printer),
        Command::State(command) => commands::state::run(&command, &config, printer),
        Command::Models(command) => commands::models::run(&command, &config, printer),
        Command::Files(command) => commands::files::run(&command, &config, printer),
        Command::Config(command) => commands::config::run(&command, &config, printer),
        Command::Trust(args) => commands::trust::run(&args, &config, printer),
        Command::Apply(args) => commands::held::apply(&args, printer),
        Command::Discard(args) => commands::held::discard(&args, printer),
        Command::Undo(args) => commands::held::undo(&args, printer),
        Command::Login(args) => commands::login::run(&args, &config, printer),
        Command::Logout(args) => commands::login::end(&args, &config, printer),
        Command::Help(args) => help::run(&args, printer),
    }
}

/// A word of the settings, as the command line would read it.
fn chosen<T: clap::ValueEnum>(config: &Config, name: &'static str) -> Option<T> {
    T::from_str(&config.text(name)?, true).ok()
}

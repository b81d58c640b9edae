//! The `toolpost` command.
//!
//! [`args`] parses the command line, one module of [`commands`] runs the command, and [`exit`] has its exit
//! code. Results go to standard output, everything else to standard error.
//!
//! # Invariants
//!
//! - Only this crate prints, exits, and reads the environment. [`env`] lists every variable, [`exit`] every
//!   exit code.
//! - Text of a model, a tool or a sandbox never reaches a terminal with its control characters.
//! - A command starts, writes and sends nothing before it has parsed all arguments.
//! - Logic that a library user needs is in a library.
//! - A file of an untrusted directory starts nothing, allows nothing and sends nothing.
#![forbid(unsafe_code)]

mod agent;
mod agent_file;
mod agent_options;
mod agent_session;
mod agent_settings;
mod agent_tool;
mod args;
mod arguments;
mod artifacts;
mod call_records;
mod chat;
mod commands;
mod config;
mod container;
mod crash;
mod defaults;
mod description;
mod egress;
mod env;
mod exit;
mod failure;
mod gateway;
mod granted;
mod grants;
mod guides;
mod held_changes;
mod help;
mod hints;
mod hosted;
mod interrupt;
mod launcher;
mod logs;
mod mcp;
mod memory;
mod model;
mod outcome;
mod output_files;
mod packages;
mod pages;
mod parse;
mod port;
mod print;
mod process_identity;
mod progress;
#[cfg(test)]
mod reference;
mod regular_file;
mod run_changes;
mod run_files;
mod runtime;
mod sandbox_options;
mod session;
mod store;
mod style;
mod target;
mod target_grammar;
mod terminal;
mod toml_text;
mod toolbox;
mod uploads;
mod verdict;
mod version;
mod workspace;

use crate::args::values::LogFormat;
use crate::args::{Cli, Color, Command, Format};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;

/// The allocator of musl is slow.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    let cli = match args::parse::<Cli>(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            let words = args::words_before_values(std::env::args_os().skip(1));
            let error = args::former::explain(error, &words);
            let (format, color) = args::scan_output_options(std::env::args_os().skip(1));
            let printer = Printer::new(format, color);
            let is_help = error.kind() == clap::error::ErrorKind::DisplayHelp;
            let is_version = error.kind() == clap::error::ErrorKind::DisplayVersion;
            let result = match () {
                () if is_help => Some(printer.result(&help::page(&words))),
                () if is_version && !printer.is_text() => Some(printer.json(&version::report())),
                () => None,
            };
            let exit = match result {
                None => printer.clap_error(&error),
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
    let config = Config::load(&global.config, global.store.as_deref(), &global.env_file)?;
    let format = global.format().or(chosen::<Format>(config.settings.format.as_deref())).unwrap_or_default();
    printer.set_style(
        format,
        global.color.or(chosen::<Color>(config.settings.color.as_deref())).unwrap_or_default(),
    );
    let log_format = chosen::<LogFormat>(config.settings.log_format.as_deref()).unwrap_or_default();
    logs::start(global, &config, log_format, matches!(cli.command, Command::Serve(_)))?;
    mcp::start::report_to(printer);
    env::check_certificates()?;
    let is_trust = matches!(cli.command, Command::Trust(_));
    let trust_warnings = config.trust_warnings.iter().filter(|_| !is_trust);
    for warning in config.warnings.iter().chain(trust_warnings) {
        printer.warn(warning);
    }
    let log_file = global.log_file.clone().or_else(|| config.settings.log_file.clone());
    let is_run =
        matches!(cli.command, Command::Run(_) | Command::Chat(_) | Command::Call(_) | Command::Flow(_));
    if is_run {
        run_changes::begin();
    }
    let has_model = match &cli.command {
        Command::Run(_) | Command::Chat(_) => true,
        // Over HTTP, clients would see the outputs of each other.
        Command::Serve(args) => args.address().is_none(),
        _ => false,
    };
    let stored = has_model.then(output_files::begin);
    let ended = command(cli.command, log_file.as_deref(), &config, printer);
    drop(stored);
    run_changes::end(printer);
    ended
}

fn command(
    command: Command,
    log_file: Option<&std::path::Path>,
    config: &Config,
    printer: &mut Printer,
) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => commands::run::run(&args, config, printer),
        Command::Chat(args) => chat::start(&args.work, args.text.clone(), config, printer),
        Command::Call(args) => commands::call::run(&args, config, printer),
        Command::Tools(args) => commands::tools::run(&args, config, printer),
        Command::Serve(args) => commands::serve::run(&args, log_file, config, printer),
        Command::Exec(args) => commands::exec::run(&args, config, printer),
        Command::Doctor => commands::doctor::run(config, printer),
        #[cfg(unix)]
        Command::Bench(args) => commands::bench::run(&args, printer),
        #[cfg(unix)]
        Command::BenchSubject(args) => commands::bench::subjects::run(&args, printer),
        Command::HoldSession => session::hold(),
        Command::Image(command) => commands::image::run(&command, config, printer),
        Command::Schema(args) => commands::schema::run(&args, printer),
        Command::Completions(args) => commands::completions::run(&args, printer),
        Command::ManPages { directory } => commands::completions::man_pages(&directory),
        Command::Init(command) => commands::init::run(&command, printer),
        Command::Flow(command) => commands::flow::run(&command, config, printer),
        Command::Runs(command) => commands::runs::run(&command, config, printer),
        Command::State(command) => commands::state::run(&command, config, printer),
        Command::Models(command) => commands::models::run(&command, config, printer),
        Command::Files(command) => commands::files::run(&command, config, printer),
        Command::Config(command) => commands::config::run(&command, config, printer),
        Command::Trust(args) => commands::trust::run(&args, config, printer),
        Command::Apply(args) => held_changes::apply(&args, printer),
        Command::Discard(args) => held_changes::discard(&args, printer),
        Command::Undo(args) => held_changes::undo(&args, printer),
        Command::Login(args) => commands::login::run(&args, config, printer),
        Command::Logout(args) => commands::login::logout(&args, config, printer),
        Command::Help(args) => help::run(&args, printer),
    }
}

/// A setting, parsed like the option of the same name.
fn chosen<T: clap::ValueEnum>(setting: Option<&str>) -> Option<T> {
    T::from_str(setting?, true).ok()
}

//! Commands whose options are built only when the command line names them.

use std::ffi::OsString;
use std::ops::Deref;
use std::sync::RwLock;

use clap::{ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand};

/// The words of the command line during parsing; empty otherwise, which builds every command completely.
static WORDS: RwLock<Vec<OsString>> = RwLock::new(Vec::new());

/// Parses the command line without the options of commands that it does not name.
///
/// Building all options takes longer than loading the program.
pub(crate) fn parse<T: Parser>(words: Vec<OsString>) -> Result<T, clap::Error> {
    set(words.clone());
    let parsed = T::try_parse_from(words);
    set(Vec::new());
    parsed
}

fn set(words: Vec<OsString>) {
    *WORDS.write().unwrap_or_else(std::sync::PoisonError::into_inner) = words;
}

fn is_parsed(command: &Command) -> bool {
    let words = WORDS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    words.is_empty() || words.iter().any(|word| word == command.get_name())
}

/// The arguments of a command, built when needed.
#[derive(Debug)]
pub(crate) struct Lazy<T>(Box<T>);

impl<T> Deref for Lazy<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: FromArgMatches> FromArgMatches for Lazy<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(|args| Self(Box::new(args)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Lazy<T> {
    fn augment_args(command: Command) -> Command {
        if is_parsed(&command) { T::augment_args(command) } else { command }
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Subcommand> Subcommand for Lazy<T> {
    fn augment_subcommands(command: Command) -> Command {
        if is_parsed(&command) { T::augment_subcommands(command) } else { command }
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        T::augment_subcommands_for_update(command)
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

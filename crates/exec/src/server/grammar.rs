//! The command line of a tool program.

use std::ffi::OsString;
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{ToolError, ToolSpec, did_you_mean};

use super::flags::Flags;

/// A parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Help,
    Version,
    Discover,
    Tools,
    Resources,
    Prompts,
    Resource(String),
    Prompt { name: String, arguments: String },
    Resident,
    ToolHelp(Spec),
    Manifest(Spec),
    Run(Run),
}

/// A spec, compared by identity.
#[derive(Clone, Debug)]
pub(super) struct Spec(Arc<ToolSpec>);

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::ops::Deref for Spec {
    type Target = ToolSpec;

    fn deref(&self) -> &ToolSpec {
        &self.0
    }
}

/// The source of the arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Value(Value),
    Text(String),
    File(String),
    Standard,
}

/// The destination of sampling requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SampleVia {
    /// The caller, over standard output and input.
    Standard,
    /// An HTTP server.
    Http(super::http::Address),
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) spec: Spec,
    pub(super) validate: bool,
    pub(super) stream: bool,
    pub(super) session: bool,
    pub(super) sample_via: Option<SampleVia>,
    pub(super) input: Input,
}

/// Converts the arguments into strings.
pub(super) fn texts(arguments: Vec<OsString>) -> Result<Vec<String>, ToolError> {
    let texts = arguments.into_iter().map(|argument| {
        argument.into_string().map_err(|argument| {
            ToolError::invalid_input(format!("the argument {} is not valid UTF-8", argument.display()))
        })
    });
    texts.collect()
}

/// Commands without arguments.
fn simple(word: &str) -> Option<Command> {
    Some(match word {
        "--discover" => Command::Discover,
        "--tools" => Command::Tools,
        "--resources" => Command::Resources,
        "--prompts" => Command::Prompts,
        _ => return None,
    })
}

/// A command of the program at the start of these words.
fn program_command(words: &[String]) -> Option<Result<Command, ToolError>> {
    let word = words.first()?;
    if let Some(command) = simple(word) {
        return Some(Ok(command));
    }
    match word.as_str() {
        "--resource" => Some(match words.get(1) {
            Some(uri) => Ok(Command::Resource(uri.clone())),
            None => Err(ToolError::missing_param("`--resource` needs a URI: `--resource URI`")),
        }),
        "--prompt" => Some(match (words.get(1), words.get(2)) {
            (Some(name), arguments) => {
                Ok(Command::Prompt { name: name.clone(), arguments: arguments.cloned().unwrap_or_default() })
            }
            (None, _) => Err(ToolError::missing_param("`--prompt` needs a name: `--prompt NAME '{…}'`")),
        }),
        _ => None,
    }
}

/// Parses a command line.
pub(super) fn parse(words: &[String], specs: &[Arc<ToolSpec>]) -> Result<Command, ToolError> {
    let Some(first) = words.first() else { return Ok(Command::Help) };
    if let Some(command) = program_command(words) {
        return command;
    }
    match first.as_str() {
        "--help" | "-h" if words.len() == 1 => return Ok(Command::Help),
        "--version" if words.len() == 1 => return Ok(Command::Version),
        "--resident" if words.len() == 1 => return Ok(Command::Resident),
        _ => {}
    }
    if let Some(spec) = specs.iter().find(|spec| spec.name == *first) {
        return tool(&Spec(Arc::clone(spec)), words.get(1..).unwrap_or_default());
    }
    if let [only] = specs {
        return tool(&Spec(Arc::clone(only)), words);
    }
    // A command of the program is accepted at any position.
    let mut tails = (1..words.len()).filter_map(|start| words.get(start..));
    if let Some(command) = tails.find_map(program_command) {
        return command;
    }
    let names = specs.iter().map(|spec| spec.name.as_str());
    let shown: String = first.chars().take(80).collect();
    Err(ToolError::not_found(format!("Unknown command: {shown}")).suggest(
        did_you_mean(first, names).unwrap_or_else(|| "See `--tools` for the available tools.".to_owned()),
    ))
}

/// Parses the words after a tool's name.
fn tool(spec: &Spec, words: &[String]) -> Result<Command, ToolError> {
    let mut flags = Flags::new(spec);
    let mut run = Run {
        spec: spec.clone(),
        validate: false,
        stream: false,
        session: false,
        sample_via: None,
        input: Input::Value(Value::Null),
    };
    let mut manifest = false;
    let mut help = false;
    let mut text: Option<Input> = None;
    // A later command takes precedence over an error.
    let mut first_error: Option<ToolError> = None;
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        let result = match word.strip_prefix("--") {
            Some(flag) if !flag.is_empty() => {
                let (name, own) = match flag.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (flag, None),
                };
                let next = || words.get(at).map(String::as_str);
                if let Some((parameter, schema)) = flags.find(name) {
                    let types = flags.types(schema);
                    let follows = next().filter(|_| own.is_none());
                    if let Some(value) = own {
                        flags.give(parameter, schema, value)
                    } else if types.is_boolean()
                        && !follows.is_some_and(|word| matches!(word, "true" | "false"))
                    {
                        flags.switch(parameter, true)
                    } else if let Some(value) = follows.filter(|word| !is_flag_of(&flags, word)) {
                        at += 1;
                        flags.give(parameter, schema, value)
                    } else if types.boolean || types.is_unknown() {
                        flags.switch(parameter, true)
                    } else {
                        Err(ToolError::invalid_input(format!("`--{name}` needs a value"))
                            .with("pointer", format!("/{parameter}")))
                    }
                } else if let Some(command) = words.get(at - 1..).and_then(program_command) {
                    return command;
                } else {
                    match (name, own) {
                        ("manifest", None) => {
                            manifest = true;
                            Ok(())
                        }
                        ("help", None) => {
                            help = true;
                            Ok(())
                        }
                        ("validate", None) => {
                            run.validate = true;
                            Ok(())
                        }
                        ("stream", None) => {
                            run.stream = true;
                            Ok(())
                        }
                        ("session", None) => {
                            run.session = true;
                            Ok(())
                        }
                        ("sample-via", own) => match own.or_else(next) {
                            Some(value) => {
                                at += usize::from(own.is_none());
                                sample_via(value).map(|via| run.sample_via = Some(via))
                            }
                            None => Err(ToolError::invalid_input(
                                "`--sample-via` needs `stdin` or a URL, such as http://127.0.0.1:8080/",
                            )),
                        },
                        _ => {
                            let opposite = name.strip_prefix("no-").and_then(|name| flags.find(name));
                            match opposite {
                                Some((parameter, schema)) if own.is_none() && flags.types(schema).boolean => {
                                    flags.switch(parameter, false)
                                }
                                _ => {
                                    let follows =
                                        next().filter(|word| own.is_none() && !word.starts_with("--"));
                                    at += usize::from(follows.is_some());
                                    if flags.takes_any() {
                                        let name = name.replace('-', "_");
                                        match own.or(follows) {
                                            Some(value) => flags.give(&name, &Value::Null, value),
                                            None => flags.switch(&name, true),
                                        }
                                    } else {
                                        Err(flags.unknown(name))
                                    }
                                }
                            }
                        }
                    }
                }
            }
            _ if word == "-h" => {
                help = true;
                Ok(())
            }
            _ => {
                let input = match word.as_str() {
                    "-" => Some(Input::Standard),
                    word if word.starts_with('{') => Some(Input::Text(word.to_owned())),
                    word => word.strip_prefix('@').map(|path| Input::File(path.to_owned())),
                };
                match (input, &text) {
                    (Some(input), None) => {
                        text = Some(input);
                        Ok(())
                    }
                    (Some(_), Some(_)) => Err(ToolError::invalid_input("the arguments are given twice")
                        .suggest("Give one JSON object, one `@FILE`, or `-`.")),
                    (None, _) => {
                        let shown: String = word.chars().take(80).collect();
                        Err(ToolError::invalid_input(format!(
                            "`{shown}` is neither a flag nor a JSON object"
                        ))
                        .suggest("Write `--name value`, `'{\"name\": …}'`, `@FILE` or `-`."))
                    }
                }
            }
        };
        if let Err(error) = result {
            first_error.get_or_insert(error);
        }
    }
    if manifest {
        return Ok(Command::Manifest(spec.clone()));
    }
    if help {
        return Ok(Command::ToolHelp(spec.clone()));
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    run.input = match text {
        None => Input::Value(flags.into_value()),
        Some(input) if flags.is_empty() => input,
        Some(_) => {
            return Err(ToolError::invalid_input("the arguments are given both as JSON and as flags")
                .suggest("Use one of them."));
        }
    };
    Ok(Command::Run(run))
}

/// Whether a word is a flag of the tool, and therefore not the value of the flag before it. Any other word is a value,
/// even one that looks like a command of the program.
fn is_flag_of(flags: &Flags<'_>, word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|flag| {
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        flags.find(name).is_some()
    })
}

fn sample_via(value: &str) -> Result<SampleVia, ToolError> {
    if value == "stdin" {
        return Ok(SampleVia::Standard);
    }
    value.parse().map(SampleVia::Http).map_err(ToolError::invalid_input)
}

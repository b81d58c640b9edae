//! The arguments of a tool or the inputs of a flow, as words of a command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::{Map, Value};
use toolpost_core::ToolSpec;
use toolpost_exec::server::typed_argument;

use crate::exit::Exit;
use crate::failure::Failure;

/// The maximum size of JSON arguments, in bytes.
const MAX_ARGUMENTS: u64 = 16 << 20;

/// Parses the arguments: `key=value` pairs, one JSON object, `@FILE`, or `-`.
pub(crate) fn arguments(words: &[String], tool: &str, spec: Option<&ToolSpec>) -> Result<Value, Failure> {
    match words {
        [only] if only == "-" => read_json(Path::new("-"), io::stdin().lock()),
        [only] if only.starts_with('@') => {
            let path = Path::new(only.trim_start_matches('@'));
            read_json(path, File::open(path).map_err(|error| Failure::file("the arguments", path, &error))?)
        }
        [only] if only.trim_start().starts_with('{') => parse("the arguments", only),
        words => {
            let mut map = Map::new();
            for word in words {
                let (key, text) =
                    word.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                        Failure::usage(format!("`{word}` is not an argument of `{tool}`"))
                            .hint("Give key=value pairs, one JSON object, @FILE, or - for standard input.")
                    })?;
                if map.insert(key.to_owned(), value(text, key, spec)).is_some() {
                    return Err(Failure::usage(format!("duplicate argument `{key}`"))
                        .hint("Give it once; several values are a JSON array: key='[1, 2]'."));
                }
            }
            Ok(map.into())
        }
    }
}

/// Converts a text to the parameter's type; without a specification, JSON if it parses.
fn value(text: &str, key: &str, spec: Option<&ToolSpec>) -> Value {
    match spec {
        Some(spec) => typed_argument(spec, key, text),
        None => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

fn read_json(path: &Path, source: impl Read) -> Result<Value, Failure> {
    let wrong = |error: io::Error| Failure::file("the arguments", path, &error);
    let mut bytes = Vec::new();
    source.take(MAX_ARGUMENTS + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > MAX_ARGUMENTS {
        return Err(Failure::new(
            Exit::Limit,
            "LIMIT",
            format!("the arguments in `{}` are larger than 16 MiB", path.display()),
        )
        .hint("Give large data as a file and pass its path."));
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| wrong(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))?;
    parse(&format!("the arguments in `{}`", path.display()), &text)
}

fn parse(what: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!("{what} are not JSON: {error}"))
            .hint("Give one object, such as '{\"path\": \"README.md\"}', or key=value pairs.")
    })
}

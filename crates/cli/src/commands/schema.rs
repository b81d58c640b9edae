//! `toolpost schema`

use toolpost_core::did_you_mean;

use crate::args::SchemaArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::{Printer, raw};
use crate::style::{HINT, paint};

/// Name, meaning and text of each schema. Fields are only ever added.
pub(crate) const SCHEMAS: [(&str, &str, &str); 10] = [
    ("call-record", "what is kept of a call", include_str!("../../schemas/call-record.json")),
    ("doctor", "what `doctor --format json` prints", include_str!("../../schemas/doctor.json")),
    ("envelope", "what `call --format json` prints", include_str!("../../schemas/envelope.json")),
    ("error", "the line on standard error when a command fails", include_str!("../../schemas/error.json")),
    ("event", "one line of `run --format jsonl`", include_str!("../../schemas/event.json")),
    ("exec-event", "one line of `exec --format jsonl`", include_str!("../../schemas/exec-event.json")),
    ("files", "what `files … --format json` prints", include_str!("../../schemas/files.json")),
    ("outcome", "what `exec --format json` prints", include_str!("../../schemas/outcome.json")),
    ("run-record", "what `run --format json` prints", include_str!("../../schemas/run-record.json")),
    ("script", "a file for `--model script:FILE`", include_str!("../../schemas/script.json")),
];

pub(crate) fn run(args: &SchemaArgs, printer: &Printer) -> Result<Exit, Failure> {
    let Some(name) = &args.name else {
        let lines: Vec<String> = SCHEMAS
            .iter()
            .map(|(name, meaning, _)| {
                format!("{}{}{meaning}", paint(HINT, name), " ".repeat(14 - name.len()))
            })
            .collect();
        printer.result(&lines.join("\n"))?;
        return Ok(Exit::Ok);
    };
    let (.., text) = SCHEMAS.iter().find(|(known, ..)| known == name).ok_or_else(|| {
        let known = SCHEMAS.map(|(name, ..)| name);
        let hint = did_you_mean(name, known).unwrap_or_else(|| format!("There are: {}.", known.join(", ")));
        Failure::usage(format!("there is no schema `{name}`")).hint(hint)
    })?;
    raw(text.as_bytes(), true)?;
    Ok(Exit::Ok)
}

//! `toolpost trust`

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::args::TrustArgs;
use crate::config::places;
use crate::config::trust::{Pins, Standing};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mcp::files as files_of_servers;
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, WARN, harmless, paint};

pub(crate) fn run(args: &TrustArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut pins = Pins::load()?;
    if args.paths.is_empty() {
        list(&pins, printer)?;
        return Ok(Exit::Ok);
    }
    if args.remove {
        for path in &args.paths {
            if !pins.remove(path) {
                return Err(Failure::usage(format!("`{}` is not trusted", path.display()))
                    .hint("`toolpost trust` lists what is."));
            }
        }
        pins.save()?;
        return Ok(Exit::Ok);
    }
    let mut added = Vec::new();
    for path in
        args.paths.iter().map(|path| files(path)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten()
    {
        added.push(pins.add(&path)?);
    }
    pins.save()?;
    for (path, hash) in &added {
        // What may be started from now on.
        let content = std::fs::read(path).unwrap_or_default();
        for server in files_of_servers::described(path, &content) {
            printer.note(&format!("  {}", harmless(&server)));
        }
        let short = hash.get(..12).unwrap_or(hash);
        printer.note(&format!(
            "{} {} {}",
            paint(GOOD, "trusted"),
            paint(HINT, path.display()),
            paint(FAINT, short)
        ));
    }
    if !printer.is_text() {
        let files: Vec<Value> =
            added.iter().map(|(path, hash)| json!({ "path": path, "sha256": hash })).collect();
        printer.json(&json!({ "files": files }))?;
    }
    Ok(Exit::Ok)
}

/// The files that a path means: itself, or those of a folder that count only when they are trusted.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files: Vec<PathBuf> = [places::PROJECT, ".env", ".mcp.json"]
        .iter()
        .map(|name| path.join(name))
        .filter(|path| path.is_file())
        .collect();
    if files.is_empty() {
        return Err(Failure::usage(format!("in the folder `{}` there is nothing to trust", path.display()))
            .hint(format!(
                "Trusted are its `{}`, `.env` and `.mcp.json`; name other files one by one.",
                places::PROJECT
            )));
    }
    Ok(files)
}

fn list(pins: &Pins, printer: &Printer) -> Result<(), Failure> {
    let state = |path: &Path| match pins.standing(path) {
        Standing::Trusted => "trusted",
        Standing::Changed => "changed since",
        Standing::Unknown => "gone",
    };
    if !printer.is_text() {
        let files: Vec<Value> = pins
            .iter()
            .map(|(path, hash)| json!({ "path": path, "sha256": hash, "state": state(path) }))
            .collect();
        return printer.json(&json!({ "files": files }));
    }
    let lines: Vec<String> = pins
        .iter()
        .map(|(path, _)| {
            let state = state(path);
            let style = if state == "trusted" { FAINT } else { WARN };
            format!("{} {}", paint(HINT, path.display()), paint(style, format!("({state})")))
        })
        .collect();
    if lines.is_empty() {
        printer.note("nothing is trusted");
    }
    printer.result(&lines.join("\n"))
}

//! `toolpost init`

use std::path::{Path, PathBuf};

use serde_json::json;
use toolpost_exec::scaffold::{Dependency, ProjectKind, scaffold};

use crate::args::{InitCommand, InitToolArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{GOOD, HINT, STRONG, paint};

pub(crate) fn run(command: &InitCommand, printer: &Printer) -> Result<Exit, Failure> {
    let InitCommand::Tool(args) = command;
    let (kind, name) = project(args);
    let folder = args.folder.clone().unwrap_or_else(|| PathBuf::from(name));
    let project = scaffold(&kind, name, &folder)?;
    if !printer.is_text() {
        printer.json(&json!({
            "folder": project.folder,
            "files": project.files,
            "try_it": project.try_it,
            "test": project.test,
        }))?;
        return Ok(Exit::Ok);
    }
    for file in &project.files {
        printer.note(&format!(
            "{} {}",
            paint(GOOD, "made"),
            paint(HINT, project.folder.join(file).display())
        ));
    }
    if matches!(kind, ProjectKind::Rust(Dependency::Version(_))) {
        printer.warn("toolpost is not published yet: give `--toolpost DIR` with the folder crates/toolpost of a checkout");
    }
    let line = |words: &[String]| words.join(" ");
    printer.result(&format!(
        "{}\n  cd {}\n  {}\n  {}",
        paint(STRONG, "Next:"),
        project.folder.display(),
        line(&project.try_it),
        line(&project.test)
    ))?;
    Ok(Exit::Ok)
}

fn project(args: &InitToolArgs) -> (ProjectKind, &str) {
    match (&args.exec, &args.rust) {
        (Some(name), _) => (ProjectKind::Executable, name),
        (None, rust) => {
            let dependency = match &args.toolpost {
                Some(path) => {
                    Dependency::Path(path.canonicalize().unwrap_or_else(|_| Path::new(path).to_owned()))
                }
                None => Dependency::Version(env!("CARGO_PKG_VERSION").to_owned()),
            };
            (ProjectKind::Rust(dependency), rust.as_deref().unwrap_or_default())
        }
    }
}

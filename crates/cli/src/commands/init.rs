//! `toolpost init`

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use toolpost_core::check_tool_name;
use toolpost_exec::scaffold::{Dependency, ProjectKind, scaffold};

use crate::args::{InitCommand, InitFileArgs, InitToolArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{GOOD, HINT, STRONG, label, paint, shell_word};

pub(crate) fn run(command: &InitCommand, printer: &Printer) -> Result<Exit, Failure> {
    let args = match command {
        InitCommand::Tool(args) => args,
        InitCommand::Agent(args) => {
            return file(args, AGENT, "call FILE prompt='What is 6 times 7?'", printer);
        }
        InitCommand::Command(args) => return file(args, COMMAND, "call FILE format=%F", printer),
        InitCommand::Gateway(args) => return file(args, GATEWAY, "tools FILE", printer),
    };
    let (kind, name) = project(args);
    let directory = args.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    let project = scaffold(&kind, name, &directory)?;
    if !printer.is_text() {
        printer.json(&json!({
            "directory": project.directory,
            "files": project.files,
            "try_it": project.try_it,
            "test": project.test,
        }))?;
        return Ok(Exit::Ok);
    }
    for file in &project.files {
        printer.note(&format!(
            "{} {}",
            paint(GOOD, "created"),
            paint(HINT, label(&project.directory.join(file).display().to_string()))
        ));
    }
    if matches!(kind, ProjectKind::Rust(Dependency::Version(_))) {
        printer.warn("the library `toolpost` is not published: pass `--toolpost DIR` with crates/toolpost of a checkout");
    }
    let line = |words: &[String]| label(&words.join(" "));
    printer.result(&format!(
        "{}\n  cd {}\n  {}\n  {}",
        paint(STRONG, "Next:"),
        label(&project.directory.display().to_string()),
        line(&project.try_it),
        line(&project.test)
    ))?;
    Ok(Exit::Ok)
}

const AGENT: &str = "\
# An agent is a tool: a prompt in, an answer out. See `toolpost help agents`.
kind = \"agent\"
v = 1
name = \"NAME\"
description = \"Answers questions about numbers.\"
# model = \"anthropic/claude-sonnet-5-5\"  # default: the caller's, else the setting `model`
system_prompt = \"Calculate with the tool. Answer in one sentence.\"
tools = [\"calculate\"]
max_iterations = 10
";

const COMMAND: &str = "\
# This description wraps a program as a tool. `toolpost schema command` has all keys.
kind = \"command\"
v = 1
program = \"date\"

[[tool]]
name = \"NAME\"
description = \"Print the time in a format.\"
read_only = true
working_directory = \"none\"
args = [\"--utc\", \"+{format}\"]

[tool.parameters.format]
type = \"string\"
default = \"%FT%TZ\"
description = \"The format, as `date` reads it.\"
";

const GATEWAY: &str = "\
# A gateway merges several targets into one. See `toolpost help gateway`.
kind = \"gateway\"

[[upstreams]]
name = \"NAME\"              # its tools are NAME__TOOL
target = \"builtin:calculate\"  # any target: ./program, https://HOST/mcp, stdio:COMMAND
allow = [\"*\"]
";

/// Creates a file from a template and prints the next step.
fn file(args: &InitFileArgs, template: &str, try_it: &str, printer: &Printer) -> Result<Exit, Failure> {
    let name = &args.name;
    check_tool_name(name).map_err(|problem| Failure::usage(format!("the name `{name}`: {problem}")))?;
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Err(Failure::usage(format!("the file `{}` does not end in `.toml`", path.display()))
            .hint("Name a file such as `tool.toml`."));
    }
    let wrong = |error: std::io::Error| Failure::file("the file", &path, &error);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(wrong)?;
    file.write_all(template.replace("NAME", name).as_bytes()).map_err(wrong)?;
    let word = shell_word(&path.display().to_string());
    let next = [format!("toolpost trust {word}"), format!("toolpost {}", try_it.replace("FILE", &word))];
    if !printer.is_text() {
        printer.json(&json!({ "file": path, "next": next }))?;
        return Ok(Exit::Ok);
    }
    printer.note(&format!("{} {}", paint(GOOD, "created"), paint(HINT, label(&path.display().to_string()))));
    let next = next.map(|line| label(&line)).join("\n  ");
    printer.result(&format!("{}\n  {next}", paint(STRONG, "Next:")))?;
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

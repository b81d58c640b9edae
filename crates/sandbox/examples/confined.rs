//! Runs a command line, or code with `-l LANGUAGE CODE`, in the best sandbox of this host and prints the outcome.

use std::process::ExitCode;

use toolpost_sandbox::{Cancel, Event, Language, Program, Sandbox};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut sandbox = Sandbox::new();
    if arguments.first().is_some_and(|first| first == "--level") {
        sandbox = sandbox.level(arguments.get(1).ok_or("--level needs a name")?.parse()?);
        arguments.drain(..2);
    }
    let program = match arguments.split_first() {
        Some((first, [language, code])) if first == "-l" => {
            Program::code(language.parse::<Language>()?, code.as_str())
        }
        Some(_) => Program::argv(arguments),
        None => return Err("usage: confined [--level LEVEL] (-l LANGUAGE CODE | PROGRAM ARGUMENTS…)".into()),
    };
    let mut show = |event: Event<'_>| {
        use std::io::Write as _;
        // A closed terminal is no reason to stop the program.
        let _ = match event {
            Event::Stdout(bytes) => std::io::stdout().write_all(bytes),
            Event::Stderr(bytes) => std::io::stderr().write_all(bytes),
            _ => Ok(()),
        };
    };
    let outcome = sandbox.run(&program, &Cancel::new(), &mut show)?;
    let report = serde_json::to_string_pretty(&outcome)?;
    std::io::Write::write_all(&mut std::io::stdout(), format!("{report}\n").as_bytes())?;
    Ok(if outcome.verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

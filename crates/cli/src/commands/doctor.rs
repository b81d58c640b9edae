//! `toolpost doctor`

use serde_json::{Value, json};
use toolpost_sandbox::{Cancel, Host, Language, Program, Sandbox};

use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{BAD, GOOD, HINT, STRONG, WARN, paint};

pub(crate) fn run(printer: &Printer) -> Result<Exit, Failure> {
    let host = Host::probe();
    let languages = [Language::Python, Language::Bash, Language::JavaScript].map(language);
    let key = env::get("ANTHROPIC_API_KEY").is_some();
    if !printer.is_text() {
        printer.json(&json!({
            "v": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "host": host,
            "languages": languages,
            "keys": { "anthropic": key },
        }))?;
        return Ok(verdict(host));
    }
    let mut lines = vec![format!("{} {}", paint(STRONG, "Host"), host.system)];
    for capability in &host.capabilities {
        lines.push(line(capability.available, capability.name, &capability.reason, capability.fix));
    }
    lines.push(paint(STRONG, "Sandbox levels"));
    for level in &host.levels {
        let reason = level.reason.as_deref().unwrap_or("available");
        lines.push(line(level.available, &level.level.to_string(), reason, level.fix.as_deref()));
    }
    lines.push(paint(STRONG, "Languages"));
    for found in &languages {
        let text = |key: &str| found[key].as_str().unwrap_or_default();
        lines.push(line(found["available"] == true, text("language"), text("detail"), None));
    }
    lines.push(paint(STRONG, "Keys"));
    let fix = (!key).then_some("set it for `anthropic/…` models");
    lines.push(line(key, "ANTHROPIC_API_KEY", if key { "is set" } else { "is not set" }, fix));
    printer.result(&lines.join("\n"))?;
    Ok(verdict(host))
}

fn verdict(host: &Host) -> Exit {
    if host.best().is_some() { Exit::Ok } else { Exit::Denied }
}

/// Runs the smallest program of a language in the sandbox.
fn language(language: Language) -> Value {
    let code = match language {
        Language::Python => "import platform; print(platform.python_version())",
        Language::JavaScript => "console.log(process.version)",
        _ => "echo $BASH_VERSION",
    };
    let sandbox = Sandbox::new().search_path(env::get_os("PATH").unwrap_or_default());
    let (available, detail) = match sandbox.run(&Program::code(language, code), &Cancel::new(), &mut |_| {}) {
        Ok(outcome) if outcome.verdict.is_ok() => (true, outcome.stdout.text().trim().to_owned()),
        Ok(outcome) => {
            (false, format!("it does not run: {:?} {}", outcome.verdict, outcome.stderr.text().trim()))
        }
        Err(error) => (false, error.to_string()),
    };
    json!({ "language": language.to_string(), "available": available, "detail": detail })
}

fn line(good: bool, name: &str, reason: &str, fix: Option<&str>) -> String {
    let mark = match (good, fix) {
        (true, _) => paint(GOOD, "✓"),
        (false, Some(_)) => paint(WARN, "!"),
        (false, None) => paint(BAD, "✗"),
    };
    let fix =
        fix.filter(|_| !good).map(|fix| format!("\n      {} {fix}", paint(HINT, "fix:"))).unwrap_or_default();
    format!("  {mark} {name}: {}{fix}", crate::style::one_line(reason, 300))
}

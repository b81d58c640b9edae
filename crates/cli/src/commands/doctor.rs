//! `toolpost doctor`

use serde_json::{Value, json};
use toolpost_sandbox::{Host, LanguageStatus, Languages};

use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{BAD, GOOD, HINT, STRONG, WARN, paint};

pub(crate) fn run(printer: &Printer) -> Result<Exit, Failure> {
    let host = Host::probe();
    let languages = host.languages(env::get_os("PATH").as_deref());
    let key = env::get("ANTHROPIC_API_KEY").is_some();
    if !printer.is_text() {
        printer.json(&json!({
            "v": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "host": host,
            "languages": languages.iter().map(told).collect::<Vec<_>>(),
            "keys": { "anthropic": key },
        }))?;
        return Ok(verdict(host));
    }
    let mut page = Page::default();
    page.section("Host", &host.system);
    for capability in &host.capabilities {
        page.row(capability.available, capability.name, &capability.reason, capability.fix);
    }
    page.section("Sandbox levels", "");
    for level in &host.levels {
        let reason = level.reason.as_deref().unwrap_or("available");
        page.row(level.available, &level.level.to_string(), reason, level.fix.as_deref());
    }
    page.languages(&languages);
    page.section("Keys", "");
    let fix = "set it for `anthropic/…` models";
    page.row(key, "ANTHROPIC_API_KEY", if key { "is set" } else { "is not set" }, Some(fix));
    printer.result(&page.lines.join("\n"))?;
    Ok(verdict(host))
}

fn verdict(host: &Host) -> Exit {
    if host.best().is_some() { Exit::Ok } else { Exit::Denied }
}

/// What is said of a language, in words.
fn detail(status: &LanguageStatus) -> String {
    match (&status.reason, &status.version) {
        (Some(reason), _) => reason.clone(),
        (None, Some(version)) => version.clone(),
        (None, None) => "it runs, and tells no version".to_owned(),
    }
}

fn told(status: &LanguageStatus) -> Value {
    let mut value = json!(status);
    value["detail"] = detail(status).into();
    value
}

/// What people read: sections, and a row for each thing that is there or not.
#[derive(Default)]
struct Page {
    lines: Vec<String>,
}

impl Page {
    fn section(&mut self, title: &str, about: &str) {
        let about = crate::style::one_line(about, 300);
        self.lines.push(format!("{} {about}", paint(STRONG, title)).trim_end().to_owned());
    }

    /// A thing, what was found of it, and what mends it. What cannot be mended is a cross.
    fn row(&mut self, is_good: bool, name: &str, reason: &str, fix: Option<&str>) {
        let mark = match (is_good, fix) {
            (true, _) => paint(GOOD, "✓"),
            (false, Some(_)) => paint(WARN, "!"),
            (false, None) => paint(BAD, "✗"),
        };
        self.lines.push(format!("  {mark} {name}: {}", crate::style::one_line(reason, 300)));
        if let Some(fix) = fix.filter(|_| !is_good) {
            self.lines.push(format!("      {} {fix}", paint(HINT, "fix:")));
        }
    }

    /// Those that run, each with its version; those that do not, each with what to install.
    fn languages(&mut self, languages: &Languages) {
        let there = languages.iter().filter(|status| status.available).count();
        self.section("Languages", &format!("{there} of {} run here", languages.iter().count()));
        for status in languages.iter() {
            let fix = status.hint.unwrap_or("install it");
            self.row(status.available, status.language.name(), &detail(status), Some(fix));
        }
    }
}

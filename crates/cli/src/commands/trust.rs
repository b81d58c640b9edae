//! `toolpost trust`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Code;
use toolpost_sandbox::Cancel;
use toolpost_toolbox::sources::{PinStatus, PinVerdict};

use crate::args::TrustArgs;
use crate::config::trust::{Pin, Pins, Standing as FileStanding};
use crate::config::{Config, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, WARN, harmless, label, paint, shell_word};
use crate::{gateway, target};

pub(crate) fn run(args: &TrustArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    if !args.tool.is_empty() {
        return tools(args, config, printer);
    }
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
    let named: Vec<Vec<PathBuf>> = args.paths.iter().map(|path| files(path)).collect::<Result<_, _>>()?;
    let mut added = Vec::new();
    for path in named.iter().flatten() {
        added.push(pins.add(path)?);
    }
    pins.save()?;
    tell(&added, printer);
    if !printer.is_text() {
        let files: Vec<Value> = added.iter().map(|(path, pin)| entry(path, pin)).collect();
        printer.json(&json!({ "files": files }))?;
    }
    if args.watch {
        let watched: Vec<PathBuf> = added.into_iter().map(|(path, _)| path).collect();
        printer.note("each change is trusted at once; Ctrl-C ends it");
        super::cancellable(|stop| watch(&watched, stop, printer))?;
    }
    Ok(Exit::Ok)
}

/// How often watched files are checked.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// Trusts files again whenever they, or what they reference, change. A file whose trust was removed stays untrusted.
fn watch(paths: &[PathBuf], stop: &Cancel, printer: &Printer) {
    let mut failed = String::new();
    while !stop.is_cancelled() {
        std::thread::sleep(WATCH_EVERY);
        if let Err(failure) = trust_changed(paths, printer) {
            // Half of an edit is no reason to stop.
            if failure.message != failed {
                printer.warn(&failure.message);
                failed = failure.message;
            }
        }
    }
}

fn trust_changed(paths: &[PathBuf], printer: &Printer) -> Result<(), Failure> {
    let mut pins = Pins::load()?;
    let mut added = Vec::new();
    for path in paths {
        if matches!(pins.standing(path), FileStanding::Changed(_)) {
            added.push(pins.add(path)?);
        }
    }
    if !added.is_empty() {
        pins.save()?;
        tell(&added, printer);
    }
    Ok(())
}

/// Prints what is trusted now, and what may be started from now on.
fn tell(added: &[(PathBuf, Pin)], printer: &Printer) {
    for (path, pin) in added {
        for line in &pin.grants {
            printer.note(&format!("  {}", harmless(line)));
        }
        let line = |path: &Path, digest: &str| {
            let digest = digest.strip_prefix("tree:").unwrap_or(digest);
            let path = label(&path.display().to_string());
            format!("{} {}", paint(HINT, path), paint(FAINT, digest.get(..12).unwrap_or(digest)))
        };
        printer.note(&format!("{} {}", paint(GOOD, "trusted"), line(path, &pin.sha256)));
        for (path, digest) in pin.references() {
            printer.note(&format!("  {} {}", paint(GOOD, "with"), line(path, digest)));
        }
    }
}

/// Shows how the definitions of tools behind a gateway stand, and approves those that are named.
fn tools(args: &TrustArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let [path] = args.paths.as_slice() else {
        return Err(Failure::usage("`--tool` approves the tools of one gateway: name one path"));
    };
    let text = target::trusted(path)?;
    let runtime = super::runtime()?;
    let done = runtime.block_on(async {
        let gateway = gateway::open(path, &text, config, None, &target::Trail::default()).await?;
        // Which are there, and which are in quarantine, is known when they are listed.
        gateway.source().list().await?;
        let mut standings: BTreeMap<String, Vec<PinStatus>> = BTreeMap::new();
        for upstream in gateway.status() {
            match gateway.pin_statuses(&upstream.name).await {
                Ok(found) => {
                    standings.insert(upstream.name, found);
                }
                Err(error) if error.code() == Code::Precondition => {}
                Err(error) => printer.warn(&format!("{}: {}", upstream.name, error.message())),
            }
        }
        let mut approved = Vec::new();
        for wanted in args.tool.iter().filter(|wanted| *wanted != "?") {
            let (upstream, tool) = wanted.split_once('/').ok_or_else(|| {
                Failure::usage(format!("`--tool {wanted}`: expected UPSTREAM/TOOL, such as calc/add"))
            })?;
            let found = standings.get(upstream).and_then(|all| all.iter().find(|found| found.name == tool));
            let Some(standing) = found else {
                return Err(Failure::usage(format!("`--tool {wanted}`: there is no such tool")).hint(
                    format!(
                        "`toolpost trust {} --tool '?'` shows all.",
                        shell_word(&path.display().to_string())
                    ),
                ));
            };
            gateway.approve(upstream, tool, &standing.sha256).await?;
            printer.note(&format!("{} {}", paint(GOOD, "approved"), paint(HINT, wanted)));
            approved.push(json!({ "upstream": upstream, "tool": tool, "sha256": standing.sha256 }));
        }
        if args.tool.iter().any(|wanted| wanted == "?") {
            show(&standings, printer)?;
        } else if !printer.is_text() {
            printer.json(&json!({ "approved": approved }))?;
        }
        Ok(Exit::Ok)
    });
    super::end(runtime);
    done
}

/// Every tool that is not as it was approved, with what it says and what is wrong with it.
fn show(standings: &BTreeMap<String, Vec<PinStatus>>, printer: &Printer) -> Result<(), Failure> {
    if !printer.is_text() {
        return printer.json(&json!({ "upstreams": standings }));
    }
    let mut lines = Vec::new();
    for (upstream, standing) in
        standings.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one)))
    {
        let name = format!("{upstream}/{}", harmless(&standing.name));
        if standing.verdict == PinVerdict::Approved {
            lines.push(format!("{} {}", paint(HINT, name), paint(FAINT, "(approved)")));
            continue;
        }
        let word = match standing.verdict {
            PinVerdict::Changed { .. } => "(changed)",
            PinVerdict::New => "(new)",
            _ => "(suspicious)",
        };
        lines.push(format!("{} {}", paint(HINT, name), paint(WARN, word)));
        // What a stranger wrote is shown with everything written out that a terminal would obey.
        let before = standing.approved_definition.as_ref().map(described);
        lines.extend(before.map(|text| format!("  was: {}", text.escape_debug())));
        lines.push(format!("  now: {}", described(&standing.definition).escape_debug()));
        lines.extend(standing.findings.iter().map(|finding| format!("  {finding}")));
    }
    printer.result(&lines.join("\n"))
}

/// What a definition says of itself.
fn described(definition: &Value) -> &str {
    let text = definition.get("description").or_else(|| definition.get("summary"));
    text.and_then(Value::as_str).unwrap_or_default()
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

/// A trusted file with what it references, for a program.
fn entry(path: &Path, pin: &Pin) -> Value {
    let references: Vec<Value> =
        pin.references().map(|(path, digest)| json!({ "path": path, "digest": digest })).collect();
    json!({ "path": path, "sha256": pin.sha256, "references": references, "grants": pin.grants })
}

fn list(pins: &Pins, printer: &Printer) -> Result<(), Failure> {
    let state = |path: &Path| match pins.standing(path) {
        FileStanding::Trusted => ("trusted", None),
        FileStanding::Changed(changed) => ("changed since", Some(changed).filter(|changed| changed != path)),
        FileStanding::Unknown => ("gone", None),
    };
    if !printer.is_text() {
        let file = |(path, pin): (&Path, &Pin)| {
            let (state, changed) = state(path);
            let mut entry = entry(path, pin);
            entry["state"] = state.into();
            if let Some(changed) = changed {
                entry["changed"] = changed.display().to_string().into();
            }
            entry
        };
        return printer.json(&json!({ "files": pins.iter().map(file).collect::<Vec<_>>() }));
    }
    let lines: Vec<String> = pins
        .iter()
        .map(|(path, pin)| {
            let (state, changed) = state(path);
            let style = if state == "trusted" { FAINT } else { WARN };
            let changed = changed.map_or(String::new(), |changed| format!(": `{}`", changed.display()));
            let line =
                format!("{} {}", paint(HINT, path.display()), paint(style, format!("({state}{changed})")));
            let grants = pin.grants.iter().map(|grant| format!("  {}", harmless(grant)));
            std::iter::once(line).chain(grants).collect::<Vec<_>>().join("\n")
        })
        .collect();
    if lines.is_empty() {
        printer.note("nothing is trusted");
    }
    printer.result(&lines.join("\n"))
}

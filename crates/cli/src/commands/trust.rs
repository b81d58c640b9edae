//! `toolpost trust`

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Code;
use toolpost_flow::Plan;
use toolpost_gateway::{PinStatus, PinVerdict};
use toolpost_sandbox::Cancel;

use crate::agent_file::AgentFile;
use crate::args::TrustArgs;
use crate::config::trust::{Pin, Pins, TrustState};
use crate::config::{self, Config, dotenv, paths};
use crate::description::kind;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, WARN, label, paint, shell_word};
use crate::target::trail::Trail;
use crate::toml_text::toml_value;
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
                    .hint("`toolpost trust` lists the trusted files."));
            }
        }
        pins.save()?;
        return Ok(Exit::Ok);
    }
    let named: Vec<Vec<PathBuf>> = args.paths.iter().map(|path| files(path)).collect::<Result<_, _>>()?;
    let mut added = Vec::new();
    for path in named.iter().flatten() {
        check(path, config)?;
        added.push(pins.add(path)?);
    }
    pins.save()?;
    print_added(&added, printer);
    if !printer.is_text() {
        let files: Vec<Value> = added.iter().map(|(path, pin)| entry(path, pin)).collect();
        printer.json(&json!({ "files": files }))?;
    }
    if args.watch {
        let watched: Vec<PathBuf> = added.into_iter().map(|(path, _)| path).collect();
        printer.note("trusting each change at once; Ctrl-C stops");
        crate::runtime::cancellable(|stop| watch(&watched, stop, config, printer))?;
    }
    Ok(Exit::Ok)
}

/// Checks the content of settings, variables and descriptions. Other files have any content.
fn check(path: &Path, config: &Config) -> Result<(), Failure> {
    let wrong =
        |error: String| Failure::usage(format!("the file `{}`: {}", path.display(), error.trim_end()));
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if name != ".env" && !crate::target_grammar::is_description(name) {
        return Ok(());
    }
    let text = target::text(path)?;
    match name {
        paths::PROJECT => return config::check_file(&text, path),
        ".env" => return dotenv::parse(&text).map(drop).map_err(wrong),
        ".mcp.json" => {
            return serde_json::from_str(&text).map(|_: Value| ()).map_err(|error| wrong(error.to_string()));
        }
        _ => {}
    }
    if is_toml {
        toml_value(&text).map_err(wrong)?;
    }
    match kind(path, &text).as_deref() {
        Some("gateway") if is_toml => gateway::parse(path, &text).map(drop),
        // Its prompt file is trusted together with it.
        Some("agent") => match AgentFile::parse(path, &text, config, &Trail::default()) {
            Err(failure) if !matches!(failure.exit, Exit::Denied) => Err(failure),
            _ => Ok(()),
        },
        Some("flow") => Plan::read(path).map(drop).map_err(|error| target::plan_defects(path, &error.0)),
        Some("command") if is_toml => target::described(path, &text).map(drop),
        _ => Ok(()),
    }
}

/// The interval between checks of watched files.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// Trusts files again when they or their references change, unless their trust was revoked.
fn watch(paths: &[PathBuf], stop: &Cancel, config: &Config, printer: &Printer) {
    let mut failed = String::new();
    while !stop.is_cancelled() {
        std::thread::sleep(WATCH_EVERY);
        if let Err(failure) = trust_changed(paths, config, printer) {
            // Half of an edit is not a reason to stop.
            if failure.message != failed {
                printer.warn(&failure.message);
                failed = failure.message;
            }
        }
    }
}

fn trust_changed(paths: &[PathBuf], config: &Config, printer: &Printer) -> Result<(), Failure> {
    let mut pins = Pins::load()?;
    let mut added = Vec::new();
    for path in paths {
        if matches!(pins.standing(path), TrustState::Changed(_)) {
            check(path, config)?;
            added.push(pins.add(path)?);
        }
    }
    if !added.is_empty() {
        pins.save()?;
        print_added(&added, printer);
    }
    Ok(())
}

/// Prints the trusted file, its references, and the commands it may start.
fn print_added(added: &[(PathBuf, Pin)], printer: &Printer) {
    for (path, pin) in added {
        for line in &pin.grants {
            printer.note(&format!("  {}", label(line)));
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

/// Lists the definitions behind a gateway, and approves the named ones.
fn tools(args: &TrustArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let [path] = args.paths.as_slice() else {
        return Err(Failure::usage("`--tool` needs one path, that of the gateway"));
    };
    let text = target::trusted(path)?;
    let runtime = crate::runtime::start()?;
    let done = runtime.block_on(async {
        let trail = target::trail::Trail::default();
        let gateway = gateway::open(path, &text, config, None, &trail, None).await?;
        let missing = gateway.settled().await;
        for one in &missing {
            printer.warn(&gateway::missing::warning(one));
        }
        // Listing the tools finds the quarantined ones.
        gateway.source().list().await?;
        let mut standings: BTreeMap<String, Vec<PinStatus>> = BTreeMap::new();
        let is_missing = |name: &str| missing.iter().any(|one| one.name == name);
        for upstream in gateway.status().into_iter().filter(|upstream| !is_missing(&upstream.name)) {
            match gateway.pin_statuses(&upstream.name).await {
                Ok(found) => {
                    standings.insert(upstream.name, found);
                }
                Err(error) if error.code() == Code::Precondition => {}
                Err(error) => printer.warn(&format!("{}: {}", upstream.name, error.message())),
            }
        }
        let mut approved = Vec::new();
        for definition in args.tool.iter().filter(|definition| *definition != "?") {
            let (upstream, tool) = definition.split_once('/').ok_or_else(|| {
                Failure::usage(format!("`--tool {definition}`: expected UPSTREAM/TOOL, such as calc/add"))
            })?;
            let found = standings.get(upstream).and_then(|all| all.iter().find(|found| found.name == tool));
            let Some(standing) = found else {
                if is_missing(upstream) {
                    return Err(gateway::missing::failure(&missing));
                }
                return Err(Failure::usage(format!("`--tool {definition}`: unknown tool")).hint(format!(
                    "`toolpost trust {} --tool '?'` lists all.",
                    shell_word(&path.display().to_string())
                )));
            };
            gateway.approve(upstream, tool, &standing.sha256).await?;
            printer.note(&format!("{} {}", paint(GOOD, "approved"), paint(HINT, label(definition))));
            approved.push(json!({ "upstream": upstream, "tool": tool, "sha256": standing.sha256 }));
        }
        if args.tool.iter().any(|definition| definition == "?") {
            print_definitions(&standings, printer)?;
        } else if !printer.is_text() {
            printer.json(&json!({ "approved": approved }))?;
        }
        Ok(Exit::Ok)
    });
    crate::runtime::end(runtime);
    done
}

/// Prints each unapproved or changed tool with its definition and findings.
fn print_definitions(standings: &BTreeMap<String, Vec<PinStatus>>, printer: &Printer) -> Result<(), Failure> {
    if !printer.is_text() {
        return printer.json(&json!({ "upstreams": standings }));
    }
    let mut lines = Vec::new();
    for (upstream, standing) in
        standings.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one)))
    {
        let name = label(&format!("{upstream}/{}", standing.name));
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
        // Untrusted text is printed with escaped control characters.
        let before = standing.approved_definition.as_ref().map(described);
        lines.extend(before.map(|text| format!("  was: {}", text.escape_debug())));
        lines.push(format!("  now: {}", described(&standing.definition).escape_debug()));
        lines.extend(standing.findings.iter().map(|finding| format!("  {}", label(&finding.to_string()))));
    }
    printer.result(&lines.join("\n"))
}

/// The text of a definition.
fn described(definition: &Value) -> &str {
    let text = definition.get("description").or_else(|| definition.get("summary"));
    text.and_then(Value::as_str).unwrap_or_default()
}

/// The files of a path: itself, or those of a directory that need trust.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files: Vec<PathBuf> = [paths::PROJECT, ".env", ".mcp.json"]
        .iter()
        .map(|name| path.join(name))
        .filter(|path| path.is_file())
        .collect();
    if files.is_empty() {
        return Err(Failure::usage(format!("the directory `{}` has no file to trust", path.display())).hint(
            format!(
                "A directory stands for its `{}`, `.env` and `.mcp.json`; name other files one by one.",
                paths::PROJECT
            ),
        ));
    }
    Ok(files)
}

/// A trusted file with its references as JSON.
fn entry(path: &Path, pin: &Pin) -> Value {
    let references: Vec<Value> =
        pin.references().map(|(path, digest)| json!({ "path": path, "digest": digest })).collect();
    json!({ "path": path, "sha256": pin.sha256, "references": references, "grants": pin.grants })
}

fn list(pins: &Pins, printer: &Printer) -> Result<(), Failure> {
    let state = |path: &Path| match pins.standing(path) {
        TrustState::Trusted => ("trusted", None),
        TrustState::Changed(changed) => ("changed since", Some(changed).filter(|changed| changed != path)),
        TrustState::Unknown => ("gone", None),
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
            let path = label(&path.display().to_string());
            let line =
                format!("{} {}", paint(HINT, path), paint(style, label(&format!("({state}{changed})"))));
            let grants = pin.grants.iter().map(|grant| format!("  {}", label(grant)));
            std::iter::once(line).chain(grants).collect::<Vec<_>>().join("\n")
        })
        .collect();
    if lines.is_empty() {
        printer.note("no trusted files");
    }
    printer.result(&lines.join("\n"))
}

//! `toolpost config`

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item};

use crate::args::{ConfigCommand, Format};
use crate::config::keys::{KEYS, Key};
use crate::config::trust::{Pins, TrustState};
use crate::config::{Config, Origin, known, paths};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::regular_file::directory_of;
use crate::style::{FAINT, GOOD, HINT, WARN, label, paint};

pub(crate) fn run(command: &ConfigCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::List { show_origin } => list(*show_origin, config, printer)?,
        ConfigCommand::Get { key } => get(key, config, printer)?,
        ConfigCommand::Set { key, value, project } => set(key, value, *project, printer)?,
        ConfigCommand::Unset { key, project } => unset(key, *project, printer)?,
        ConfigCommand::Path => paths(config, printer)?,
    }
    Ok(Exit::Ok)
}

/// The settings and targets with values: name, value, origin.
fn entries(config: &Config) -> Vec<(String, Value, Origin)> {
    let settings = KEYS.iter().filter_map(|key| {
        let (value, origin) = config.entry(key.name)?;
        Some((key.name.to_owned(), value.clone(), origin.clone()))
    });
    let targets = config
        .targets()
        .map(|(name, target, origin)| (format!("targets.{name}"), target.into(), origin.clone()));
    settings.chain(targets).collect()
}

fn list(show_origin: bool, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let to_json = |(name, value, origin): &(String, Value, Origin)| {
        let mut entry = json!({ "key": name, "value": value });
        if show_origin {
            entry["origin"] = origin.to_string().into();
        }
        entry
    };
    let to_text = |(name, value, origin): &(String, Value, Origin)| {
        let value = label(&value.to_string());
        let line = format!("{} = {value}", paint(HINT, label(name)));
        let origin = show_origin.then(|| paint(FAINT, label(&format!("({origin})"))));
        origin.map_or(line.clone(), |origin| format!("{line}  {origin}"))
    };
    printer.list("settings", &entries(config), to_json, to_text)
}

fn get(name: &str, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let value = match name.strip_prefix("targets.") {
        Some(target) => config.target(target).map(Value::from),
        None => config.entry(known(name)?.name).map(|(value, _)| value.clone()),
    };
    let value = value.ok_or_else(|| {
        Failure::new(Exit::Failed, "NOT_FOUND", format!("the setting `{name}` has no value"))
            .hint(format!("Set it: `toolpost config set {name} VALUE`."))
    })?;
    match (&value, printer.is_text()) {
        (Value::String(text), true) => printer.foreign_result(text),
        (Value::Array(items), true) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            printer.foreign_result(&items.join(","))
        }
        _ => printer.foreign_json(&value),
    }
}

/// The edited settings file.
struct Edited {
    path: PathBuf,
    document: DocumentMut,
    pins: Pins,
    is_project: bool,
    was_trusted: bool,
}

impl Edited {
    fn open(project: bool) -> Result<Self, Failure> {
        let path = match (project, paths::project()) {
            (true, nearest) => nearest.unwrap_or_else(|| PathBuf::from(paths::PROJECT)),
            (false, _) => paths::user().ok_or_else(paths::no_home)?,
        };
        let pins = Pins::load()?;
        let was_trusted = project && pins.standing(&path) == TrustState::Trusted;
        let old = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::file("the settings", &path, &error)),
        };
        // Comments and order are preserved.
        let document: DocumentMut = old.parse().map_err(|error: toml_edit::TomlError| {
            Failure::usage(format!(
                "the settings `{}` are invalid TOML: {}",
                path.display(),
                error.to_string().trim_end()
            ))
        })?;
        Ok(Self { path, document, pins, is_project: project, was_trusted })
    }

    /// Writes the file and prints the change.
    fn save(mut self, done: &str, name: &str, printer: &Printer) -> Result<(), Failure> {
        let path = &self.path;
        write(path, &self.document.to_string())?;
        // The operator just changed a trusted file.
        if self.was_trusted {
            self.pins.add(path)?;
            self.pins.save()?;
        }
        let shown = label(&path.display().to_string());
        printer.note(&format!("{} {} in `{shown}`", paint(GOOD, done), label(name)));
        if self.is_project && !self.was_trusted {
            printer.note(&format!("run `toolpost trust {shown}` for settings that need trust"));
        }
        Ok(())
    }
}

/// The table and the key of a setting.
fn parts(name: &str) -> (Option<&str>, &str) {
    name.split_once('.').map_or((None, name), |(table, key)| (Some(table), key))
}

fn set(name: &str, text: &str, project: bool, printer: &Printer) -> Result<(), Failure> {
    let mut edited = Edited::open(project)?;
    let value = match name.strip_prefix("targets.") {
        Some(target) if !target.is_empty() => Value::from(text),
        _ => {
            let key: &Key = known(name)?;
            key.parse(text).map_err(|error| Failure::usage(format!("the setting `{name}`: {error}")))?
        }
    };
    let mut table = edited.document.as_item_mut();
    let (part, last) = parts(name);
    if let Some(part) = part {
        table = &mut table[part];
        if table.is_none() {
            *table = toml_edit::table();
        }
    }
    if !table.is_table_like() {
        return Err(Failure::usage(format!(
            "the settings `{}`: the parent of `{name}` is not a table",
            edited.path.display()
        )));
    }
    table[last] = Item::Value(toml_value(&value));
    edited.save("set", name, printer)
}

fn unset(name: &str, project: bool, printer: &Printer) -> Result<(), Failure> {
    if name.strip_prefix("targets.").is_none_or(str::is_empty) {
        known(name)?;
    }
    let mut edited = Edited::open(project)?;
    let (part, last) = parts(name);
    let root = edited.document.as_table_mut();
    let removed = match part {
        None => root.remove(last),
        Some(part) => {
            root.get_mut(part).and_then(Item::as_table_like_mut).and_then(|table| table.remove(last))
        }
    };
    if removed.is_none() {
        let message = format!("`{}` has no setting `{name}`", edited.path.display());
        return Err(Failure::new(Exit::Failed, "NOT_FOUND", message)
            .hint("`toolpost config list --show-origin` lists the settings and their files."));
    }
    edited.save("unset", name, printer)
}

fn toml_value(value: &Value) -> toml_edit::Value {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::Array(items) => items.iter().map(toml_value).collect(),
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

/// Replaces a file atomically and preserves its mode.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |error: &std::io::Error| Failure::file("the settings", path, error);
    // A symbolic link stays; its target changes.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let directory = directory_of(path);
    std::fs::create_dir_all(directory).map_err(|error| wrong(&error))?;
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(|error| wrong(&error))?;
    file.write_all(text.as_bytes()).map_err(|error| wrong(&error))?;
    if let Ok(metadata) = path.metadata() {
        file.as_file().set_permissions(metadata.permissions()).map_err(|error| wrong(&error))?;
    }
    file.persist(path).map_err(|error| wrong(&error.error))?;
    Ok(())
}

fn paths(config: &Config, printer: &Printer) -> Result<(), Failure> {
    let state = |layer: &crate::config::SettingsLayer| match (layer.exists, &layer.standing) {
        (false, _) => "absent",
        (true, None) => "read",
        (true, Some(TrustState::Trusted)) => "read, trusted",
        (true, Some(TrustState::Changed(_))) => "changed since it was trusted",
        (true, Some(TrustState::Unknown)) => "not trusted",
    };
    if printer.format != Format::Text {
        let files: Vec<Value> = config
            .layers
            .iter()
            .map(|layer| json!({ "layer": layer.name, "path": layer.path, "state": state(layer) }))
            .collect();
        return printer.json(&json!({ "files": files, "trust": paths::trust(), "store": paths::store() }));
    }
    let lines: Vec<String> = config
        .layers
        .iter()
        .map(|layer| {
            let path = layer
                .path
                .as_ref()
                .map_or_else(|| format!("no {}", paths::PROJECT), |path| label(&path.display().to_string()));
            let style =
                if state(layer).contains("trust") && state(layer) != "read, trusted" { WARN } else { FAINT };
            format!("{:8} {} {}", layer.name, paint(HINT, path), paint(style, format!("({})", state(layer))))
        })
        .collect();
    printer.result(&lines.join("\n"))
}

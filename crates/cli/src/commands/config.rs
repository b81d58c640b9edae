//! `toolpost config`

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item};

use crate::args::{ConfigCommand, Format};
use crate::config::keys::{KEYS, Key};
use crate::config::trust::{Pins, Standing};
use crate::config::{Config, Origin, known, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
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

/// What has a value: name, value, origin.
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
    let entries = entries(config);
    if printer.format != Format::Text {
        let told = |(name, value, origin): &(String, Value, Origin)| {
            let mut entry = json!({ "key": name, "value": value });
            if show_origin {
                entry["origin"] = origin.to_string().into();
            }
            entry
        };
        return match printer.format {
            Format::Jsonl => entries.iter().try_for_each(|entry| printer.json(&told(entry))),
            _ => printer.json(&json!({ "settings": entries.iter().map(told).collect::<Vec<_>>() })),
        };
    }
    let lines: Vec<String> = entries
        .iter()
        .map(|(name, value, origin)| {
            let origin = if show_origin {
                format!("  {}", paint(FAINT, format!("({origin})")))
            } else {
                String::new()
            };
            format!("{} = {}{origin}", paint(HINT, name), crate::style::harmless(&value.to_string()))
        })
        .collect();
    printer.result(&lines.join("\n"))
}

fn get(name: &str, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let value = match name.strip_prefix("targets.") {
        Some(target) => config.target(target).map(Value::from),
        None => config.entry(known(name)?.name).map(|(value, _)| value.clone()),
    };
    let value = value.ok_or_else(|| {
        Failure::new(Exit::Failed, "NOT_FOUND", format!("the setting `{name}` has no value"))
            .hint(format!("Give it one: `toolpost config set {name} VALUE`."))
    })?;
    match (&value, printer.is_text()) {
        (Value::String(text), true) => printer.foreign_result(text),
        (Value::Array(items), true) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            printer.foreign_result(&items.join(","))
        }
        _ => printer.json(&value),
    }
}

/// The file of settings that is edited, with its text.
struct Edited {
    path: PathBuf,
    document: DocumentMut,
    pins: Pins,
    is_project: bool,
    was_trusted: bool,
}

impl Edited {
    fn open(project: bool) -> Result<Self, Failure> {
        let path = match (project, places::project()) {
            (true, nearest) => nearest.unwrap_or_else(|| PathBuf::from(places::PROJECT)),
            (false, _) => places::user().ok_or_else(places::no_home)?,
        };
        let pins = Pins::load()?;
        let was_trusted = project && pins.standing(&path) == Standing::Trusted;
        let old = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::file("the settings", &path, &error)),
        };
        // Comments and order are the person's.
        let document: DocumentMut = old.parse().map_err(|error: toml_edit::TomlError| {
            Failure::usage(format!(
                "the settings `{}` are not TOML: {}",
                path.display(),
                error.to_string().trim_end()
            ))
        })?;
        Ok(Self { path, document, pins, is_project: project, was_trusted })
    }

    /// Writes the file, and prints what was done.
    fn save(mut self, done: &str, name: &str, printer: &Printer) -> Result<(), Failure> {
        let path = &self.path;
        write(path, &self.document.to_string())?;
        // The operator who trusted it has changed it just now.
        if self.was_trusted {
            self.pins.add(path)?;
            self.pins.save()?;
        }
        printer.note(&format!("{} {name} in `{}`", paint(GOOD, done), path.display()));
        if self.is_project && !self.was_trusted {
            let path = label(&path.display().to_string());
            printer.note(&format!("what acts only in trusted files waits for `toolpost trust {path}`"));
        }
        Ok(())
    }
}

/// The table of a setting, and its key there.
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
            "the settings `{}`: `{name}` lies in what is no table",
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

/// Replaces a file in one step, so that no reader sees half of it. A file keeps who may read it.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |error: &std::io::Error| Failure::file("the settings", path, error);
    // What a symbolic link leads to is changed, not the link.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(|error| wrong(&error))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| wrong(&error))?;
    file.write_all(text.as_bytes()).map_err(|error| wrong(&error))?;
    if let Ok(metadata) = path.metadata() {
        file.as_file().set_permissions(metadata.permissions()).map_err(|error| wrong(&error))?;
    }
    file.persist(path).map_err(|error| wrong(&error.error))?;
    Ok(())
}

fn paths(config: &Config, printer: &Printer) -> Result<(), Failure> {
    let state = |layer: &crate::config::Layer| match (layer.exists, &layer.standing) {
        (false, _) => "absent",
        (true, None) => "read",
        (true, Some(Standing::Trusted)) => "read, trusted",
        (true, Some(Standing::Changed(_))) => "changed since it was trusted",
        (true, Some(Standing::Unknown)) => "not trusted",
    };
    if printer.format != Format::Text {
        let files: Vec<Value> = config
            .layers
            .iter()
            .map(|layer| json!({ "layer": layer.name, "path": layer.path, "state": state(layer) }))
            .collect();
        return printer.json(&json!({ "files": files, "trust": places::trust(), "store": places::store() }));
    }
    let lines: Vec<String> = config
        .layers
        .iter()
        .map(|layer| {
            let path = layer
                .path
                .as_ref()
                .map_or_else(|| format!("no {}", places::PROJECT), |path| path.display().to_string());
            let style =
                if state(layer).contains("trust") && state(layer) != "read, trusted" { WARN } else { FAINT };
            format!("{:8} {} {}", layer.name, paint(HINT, path), paint(style, format!("({})", state(layer))))
        })
        .collect();
    printer.result(&lines.join("\n"))
}

//! A settings file: its entries with their lines.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::Value;
use toml_edit::{Document, TableLike};
use toolpost_core::did_you_mean;
use toolpost_sandbox::Grants;

use super::keys::{KEYS, Key, Kind, find, renamed};
use crate::failure::Failure;
use crate::target_grammar::all_below;
use crate::toml_text::json;
use crate::{grants, regular_file};

/// The maximum size of a file, in bytes.
const MAX_SIZE: u64 = 1 << 20;
/// The table of named targets.
pub(super) const TARGETS: &str = "targets";

/// The entries of a file.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) settings: Vec<(&'static Key, Value, usize)>,
    pub(super) targets: BTreeMap<String, (String, Grants, usize)>,
    /// Warnings about unknown settings.
    pub(super) warnings: Vec<String>,
}

/// The content of a file; `None` if it is missing.
pub(super) fn content(path: &Path) -> Result<Option<String>, Failure> {
    match regular_file::read_text(path, MAX_SIZE) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Failure::file("the settings", path, &error)),
    }
}

/// Parses the content of a file.
pub(super) fn parse(text: &str, path: &Path) -> Result<Entries, Failure> {
    let document = Document::parse(text).map_err(|error| {
        Failure::usage(format!(
            "the settings `{}` are invalid TOML: {}",
            path.display(),
            error.to_string().trim_end()
        ))
    })?;
    let mut entries = Entries::default();
    let reader = Reader { text, path };
    reader.table(document.as_table(), "", &mut entries)?;
    Ok(entries)
}

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Reader<'_> {
    fn table(&self, table: &dyn TableLike, prefix: &str, entries: &mut Entries) -> Result<(), Failure> {
        for (name, item) in table.iter() {
            let line = item.span().map_or(0, |span| self.line(span.start));
            let mut name = format!("{prefix}{name}");
            if let Some(present) = renamed(&name) {
                let place = format!("{}:{line}", self.path.display());
                entries.warnings.push(format!("{place}: the setting `{name}` is now `{present}`"));
                present.clone_into(&mut name);
            }
            match (find(&name), item.as_table_like()) {
                (Some(key), _) => {
                    let value = key.check(json(item)).map_err(|error| self.wrong(line, &name, &error))?;
                    entries.settings.push((key, self.absolute(key, value), line));
                }
                (None, Some(targets)) if name == TARGETS => self.targets(targets, entries)?,
                (None, Some(table)) if KEYS.iter().any(|key| key.name.starts_with(&format!("{name}."))) => {
                    self.table(table, &format!("{name}."), entries)?;
                }
                (None, _) => {
                    let hint = did_you_mean(&name, KEYS.iter().map(|key| key.name).chain([TARGETS]));
                    let hint = hint.map(|hint| format!(" {hint}")).unwrap_or_default();
                    entries
                        .warnings
                        .push(format!("{}:{line}: unknown setting `{name}`.{hint}", self.path.display()));
                }
            }
        }
        Ok(())
    }

    fn targets(&self, table: &dyn TableLike, entries: &mut Entries) -> Result<(), Failure> {
        for (name, item) in table.iter() {
            let line = item.span().map_or(0, |span| self.line(span.start));
            let place = format!("{TARGETS}.{name}");
            let wrong = |why: &str| self.wrong(line, &place, why);
            let (target, granted) = match json(item) {
                Value::String(target) => (target, None),
                Value::Object(mut fields) => {
                    let (target, granted) = (fields.remove("target"), fields.remove(grants::KEY));
                    if let Some(unknown) = fields.keys().next() {
                        return Err(wrong(&format!(
                            "unknown key `{unknown}`: expected `target` and `grants`"
                        )));
                    }
                    let target = target.as_ref().and_then(Value::as_str).map(str::to_owned);
                    (target.ok_or_else(|| wrong("the key `target` is missing"))?, granted)
                }
                _ => return Err(wrong("expected a target, such as \"./weather\"")),
            };
            let former = granted.as_ref().and_then(grants::former_key);
            entries
                .warnings
                .extend(former.map(|why| format!("{}:{line}: `{place}`: {why}", self.path.display())));
            let granted = granted.map(|value| grants::read(&value, self.directory())).transpose();
            let granted = granted.map_err(|why| wrong(&why))?.unwrap_or_default();
            let target = all_below(self.directory(), &target);
            entries.targets.insert(name.to_owned(), (target, granted, line));
        }
        Ok(())
    }

    fn line(&self, at: usize) -> usize {
        self.text.get(..at).map_or(0, |before| before.matches('\n').count() + 1)
    }

    fn wrong(&self, line: usize, name: &str, error: &str) -> Failure {
        Failure::usage(format!("{}:{line}: the setting `{name}`: {error}", self.path.display()))
    }

    /// Resolves a path relative to the directory of its file.
    fn absolute(&self, key: &Key, value: Value) -> Value {
        match (key.kind, &value) {
            (Kind::Path, Value::String(path)) => {
                self.directory().join(path.trim_start_matches("./")).display().to_string().into()
            }
            (Kind::Texts, Value::Array(words)) if key.name == "tools" => {
                let words = words.iter().filter_map(Value::as_str);
                words.map(|word| all_below(self.directory(), word)).collect()
            }
            _ => value,
        }
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Entries, Failure> {
        parse(text, Path::new("/p/toolpost.toml"))
    }

    #[test]
    fn entries_have_lines_and_paths_are_relative_to_the_file() {
        let text = "# mine\nmodel = \"a/b\"\nartifacts = \"out\"\n\n[targets]\nweather = \"./bin/weather\"\nfar = \"builtin\"\n";
        let entries = read(text).unwrap();
        let lines: Vec<_> =
            entries.settings.iter().map(|(key, value, line)| (key.name, value.clone(), *line)).collect();
        assert_eq!(lines, [("model", "a/b".into(), 2), ("artifacts", "/p/out".into(), 3)]);
        assert_eq!(entries.targets["weather"], ("/p/bin/weather".to_owned(), Grants::default(), 6));
        assert_eq!(entries.targets["far"], ("builtin".to_owned(), Grants::default(), 7));
        assert!(entries.warnings.is_empty());
    }

    #[test]
    fn unknown_settings_are_warnings_and_invalid_ones_errors_with_a_line() {
        let entries = read("\nmodle = 1\n[nothing]\nx = 1\n").unwrap();
        assert_eq!(entries.warnings.len(), 2);
        assert!(
            entries.warnings[0].contains("toolpost.toml:2") && entries.warnings[0].contains("`model`"),
            "{entries:?}"
        );
        let text = "[targets.x]\ntarget = \"./x\"\ngrants = { readable = [\"data\"], secrets = [\"K\"] }\n";
        let (target, granted, _) = &read(text).unwrap().targets["x"];
        assert_eq!(
            (target.as_str(), granted.describe().join(", ")),
            ("/p/x", "sends `K` to  (placeholder), reads `/p/data`".into())
        );
        for text in [
            "\nask = \"yes\"",
            "\ntargets.x = {}",
            "\ntargets.x = { target = \"a\", gants = {} }",
            "\ntargets.x = { target = \"a\", grants = { envs = [] } }",
            "\ntargets.x = 1",
            "\nmodel = [1]",
            "\nx = = 1",
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.message.contains('2'), "{text}: {failure:?}");
        }
    }
}

//! The catalog's file, and files of users that change it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};
use toolpost_core::did_you_mean;

use super::{BUILT_IN, Feature, ModelInfo, PricePeriod, ServicePeriod, SessionPrice, Setting, without_date};
use crate::{Effort, ErrorKind, ModelError, ModelId};

/// One line about the file, then one line for each model. `import.py` makes it.
const FILE: &str = include_str!("models.jsonl");

/// The longest file of a user, in bytes.
const LONGEST_FILE: usize = 16 * 1024 * 1024;

/// How often a name is looked for with less at its end.
const MOST_ENDS: usize = 4;

/// What is known of models: a table that comes with this crate, and rows of users that change it.
pub struct Catalog {
    about: About,
    /// The rows as JSON, by id. Each is read when it is looked for.
    rows: BTreeMap<String, Cow<'static, str>>,
    /// The ids of further names.
    names: BTreeMap<String, String>,
}

/// The first line of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct About {
    made: String,
    sources: Vec<String>,
    code_execution: BTreeMap<String, SessionPrice>,
    uses: BTreeMap<String, BTreeMap<String, f64>>,
}

/// A model's row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: ModelId,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    context_window: Option<u64>,
    #[serde(default)]
    max_input_tokens: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    retires: Option<super::Date>,
    #[serde(default)]
    features: BTreeMap<Feature, bool>,
    #[serde(default)]
    hosted_versions: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    efforts: Option<Vec<Effort>>,
    #[serde(default)]
    not_taken: Vec<Setting>,
    #[serde(default)]
    not_taken_while_thinking: Vec<Setting>,
    #[serde(default)]
    thinks_by_default: Option<bool>,
    #[serde(default)]
    prices: Vec<PricePeriod>,
    #[serde(default)]
    services: BTreeMap<String, Vec<ServicePeriod>>,
}

/// The beginning of a row; the rest is skipped.
#[derive(Deserialize)]
struct RowNames<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default)]
    aliases: Vec<String>,
}

/// The members of a price, which are checked by hand because a misspelt one would only be missed.
const PRICE_MEMBERS: &[&str] = &[
    "from",
    "until",
    "input",
    "output",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "above",
    "uses",
    "input_tokens",
];

impl Catalog {
    /// The catalog that comes with this crate.
    pub fn built_in() -> &'static Arc<Self> {
        LazyLock::force(&BUILT_IN)
    }

    pub(super) fn read_built_in() -> Self {
        let mut lines = FILE.lines();
        let about = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let mut catalog = Self { about, rows: BTreeMap::new(), names: BTreeMap::new() };
        for line in lines {
            // A test reads every line in full: a file that comes with the crate is right.
            if let Ok(row) = serde_json::from_str::<RowNames<'_>>(line) {
                catalog.put(&row.id, &row.aliases, Cow::Borrowed(line));
            }
        }
        catalog
    }

    fn put(&mut self, id: &str, aliases: &[String], row: Cow<'static, str>) {
        let provider = id.split_once('/').map_or(id, |(provider, _)| provider);
        for alias in aliases {
            self.names.insert(format!("{provider}/{alias}"), id.to_owned());
        }
        self.rows.insert(id.to_owned(), row);
    }

    /// The same catalog with a user's rows, which are YAML or JSON: `models: [{id: PROVIDER/NAME, …}]`, with the
    /// members of [`ModelInfo`]. A row of a known model changes only the members that it names; `features`,
    /// `hosted_versions` and `services` change by their own members. `file` is named in errors.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] with the row and the member that cannot be used.
    pub fn with_file(&self, file: &str, text: &str) -> Result<Self, ModelError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            models: Vec<Map<String, Value>>,
        }
        let wrong = |what: String| ModelError::new(ErrorKind::Configuration, format!("`{file}`: {what}"));
        if text.len() > LONGEST_FILE {
            return Err(wrong(format!("the file is larger than {} MiB", LONGEST_FILE >> 20)));
        }
        let read: File = serde_saphyr::from_str(text).map_err(|error| {
            wrong(format!("expected `models:` with a list of rows that have an `id`. {error}"))
        })?;
        let mut catalog =
            Self { about: self.about.clone(), rows: self.rows.clone(), names: self.names.clone() };
        for (index, theirs) in read.models.into_iter().enumerate() {
            let at = |what: String| wrong(format!("row {}: {what}", index + 1));
            let Some(Value::String(id)) = theirs.get("id") else {
                return Err(at("expected an `id` such as `anthropic/claude-x`".to_owned()));
            };
            let id = id.clone();
            check_prices(&theirs).map_err(|what| at(format!("`{id}`: {what}")))?;
            let mut row = match catalog.row_of(&id) {
                Some(row) => serde_json::from_str(row).map_err(|error| at(error.to_string()))?,
                None => Map::new(),
            };
            let known_as = row.get("id").cloned();
            for (name, value) in theirs {
                match (row.get_mut(&name), value) {
                    (Some(Value::Object(ours)), Value::Object(theirs)) => ours.extend(theirs),
                    (_, value) => {
                        row.insert(name, value);
                    }
                }
            }
            if let Some(known_as) = known_as {
                row.insert("id".to_owned(), known_as);
            }
            let text = Value::Object(row).to_string();
            let row: Row = serde_json::from_str(&text).map_err(|error| at(format!("`{id}`: {error}")))?;
            catalog.put(&row.id.to_string(), &row.aliases, Cow::Owned(text));
        }
        Ok(catalog)
    }

    /// The day on which the built-in table was made, such as `2026-11-22`.
    pub fn made(&self) -> &str {
        &self.about.made
    }

    /// Where its figures are from.
    pub fn sources(&self) -> &[String] {
        &self.about.sources
    }

    /// What is known of a model. A name may end in a date or `-latest`, which the catalog's own does not.
    pub fn find(&self, id: &ModelId) -> ModelInfo {
        let mut name = Cow::Borrowed(id.name.as_str());
        for _ in 0..MOST_ENDS {
            if let Some(row) = self.row_of(&format!("{}/{name}", id.provider)) {
                return self.read(id, row);
            }
            match without_date(&name) {
                Some(shorter) => name = Cow::Owned(shorter.into_owned()),
                None => break,
            }
        }
        let mut info = ModelInfo::unknown(id);
        self.add_provider(&mut info);
        info
    }

    /// Every model, by provider and name.
    pub fn models(&self) -> impl Iterator<Item = ModelInfo> {
        self.rows.iter().filter_map(|(id, row)| {
            let (provider, name) = id.split_once('/')?;
            Some(self.read(&ModelId::new(provider, name), row))
        })
    }

    /// A sentence that names the nearest known model, if one is near.
    pub fn did_you_mean(&self, id: &ModelId) -> Option<String> {
        let provider = format!("{}/", id.provider);
        let names = self.rows.keys().filter_map(|known| known.strip_prefix(&provider));
        did_you_mean(&id.name, names)
    }

    fn row_of(&self, id: &str) -> Option<&str> {
        let row = self.rows.get(id).or_else(|| self.rows.get(self.names.get(id)?));
        row.map(|row| &**row)
    }

    /// Reads a row. One that cannot be read, which a test and [`Catalog::with_file`] rule out, is of an unknown model.
    fn read(&self, id: &ModelId, row: &str) -> ModelInfo {
        let mut info = ModelInfo::unknown(id);
        if let Ok(row) = serde_json::from_str::<Row>(row) {
            info = ModelInfo {
                known_as: Some(row.id),
                aliases: row.aliases,
                context_window: row.context_window,
                max_input_tokens: row.max_input_tokens,
                max_output_tokens: row.max_output_tokens,
                retires: row.retires,
                features: row.features,
                hosted_versions: row.hosted_versions,
                efforts: row.efforts,
                not_taken: row.not_taken,
                not_taken_while_thinking: row.not_taken_while_thinking,
                thinks_by_default: row.thinks_by_default,
                prices: row.prices,
                services: row.services,
                ..info
            };
        }
        self.add_provider(&mut info);
        info
    }

    /// What holds for every model of a provider.
    fn add_provider(&self, info: &mut ModelInfo) {
        info.code_execution_price = self.about.code_execution.get(&info.id.provider).cloned();
        info.uses = self.about.uses.get(&info.id.provider).cloned().unwrap_or_default();
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, rows, .. } = self;
        f.debug_struct("Catalog").field("made", &about.made).field("models", &rows.len()).finish()
    }
}

/// Whether every member of a row's prices is known, and every amount one that can be.
fn check_prices(row: &Map<String, Value>) -> Result<(), String> {
    let standard = row.get("prices").and_then(Value::as_array).into_iter().flatten();
    let services = row.get("services").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let services = services.filter_map(Value::as_array).flatten();
    for period in standard.chain(services) {
        let above = period.get("above").and_then(Value::as_array).into_iter().flatten();
        for prices in std::iter::once(period).chain(above) {
            for (name, value) in prices.as_object().into_iter().flatten() {
                if !PRICE_MEMBERS.contains(&name.as_str()) {
                    let near = did_you_mean(name, PRICE_MEMBERS.iter().copied()).unwrap_or_default();
                    return Err(format!(
                        "a price has no `{name}`; expected one of {}. {near}",
                        PRICE_MEMBERS.join(", ")
                    ));
                }
                let uses = value.as_object().into_iter().flat_map(Map::values);
                if let Some(wrong) = std::iter::once(value)
                    .chain(uses)
                    .filter_map(Value::as_f64)
                    .find(|amount| !amount.is_finite() || *amount < 0.0)
                {
                    return Err(format!("`{name}`: expected an amount from 0, found {wrong}"));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_file_is_read() {
        let mut lines = FILE.lines();
        let about: About = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert!(about.made.parse::<crate::catalog::Date>().is_ok() && about.sources.len() >= 2, "{about:?}");
        let mut count = 0;
        for line in lines {
            let row: Row = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let found = Catalog::built_in().find(&row.id);
            assert_eq!(found.known_as.as_ref(), Some(&row.id));
            check_prices(&serde_json::from_str(line).unwrap()).unwrap();
            let days = found.prices.iter().map(|period| period.from);
            assert!(days.is_sorted(), "{}: the prices are not in the order of their days", row.id);
            count += 1;
        }
        assert_eq!(Catalog::built_in().models().count(), count);
        assert!(count > 100);
    }
}

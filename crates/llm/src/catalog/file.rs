//! The catalog's file, and files of users that extend it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};
use toolpost_core::did_you_mean;

use super::{BUILT_IN, Feature, ModelInfo, PricePeriod, ServicePeriod, SessionPrice, Setting, without_date};
use crate::{Effort, ErrorKind, ModelError, ModelId};

/// One line of data about providers, then one line per model. `import.py` generates the file.
const FILE: &str = include_str!("models.jsonl");

/// The largest file of a user, in bytes.
const MAX_FILE: usize = 16 * 1024 * 1024;

/// Maximum number of suffixes that are removed from a name.
const MAX_SUFFIXES: usize = 4;

/// The data about models: a built-in table, extended by users' rows.
pub struct ModelCatalog {
    header: Header,
    /// The rows as JSON, by id. A row is parsed on lookup.
    rows: BTreeMap<String, Cow<'static, str>>,
    /// The ids by alias.
    aliases: BTreeMap<String, String>,
}

/// The first line of the file: its date and sources, and prices by provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Header {
    date: String,
    sources: Vec<String>,
    code_execution: BTreeMap<String, SessionPrice>,
    hosted_tool_prices: BTreeMap<String, BTreeMap<String, f64>>,
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
    unsupported_settings: Vec<Setting>,
    #[serde(default)]
    unsupported_while_thinking: Vec<Setting>,
    #[serde(default)]
    thinks_by_default: Option<bool>,
    #[serde(default)]
    prices: Vec<PricePeriod>,
    #[serde(default)]
    services: BTreeMap<String, Vec<ServicePeriod>>,
}

/// The names of a row.
#[derive(Deserialize)]
struct RowNames<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default)]
    aliases: Vec<String>,
}

/// The members of a price. They are checked here, because `flatten` accepts unknown members.
const PRICE_MEMBERS: &[&str] = &[
    "from",
    "until",
    "input",
    "output",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "tiers",
    "hosted_tools",
    "input_tokens",
];

impl ModelCatalog {
    /// The built-in catalog.
    pub fn built_in() -> &'static Arc<Self> {
        LazyLock::force(&BUILT_IN)
    }

    pub(super) fn read_built_in() -> Self {
        let mut lines = FILE.lines();
        let header = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let mut catalog = Self { header, rows: BTreeMap::new(), aliases: BTreeMap::new() };
        for line in lines {
            // A test parses every line completely.
            if let Ok(row) = serde_json::from_str::<RowNames<'_>>(line) {
                catalog.insert(&row.id, &row.aliases, Cow::Borrowed(line));
            }
        }
        catalog
    }

    fn insert(&mut self, id: &str, aliases: &[String], row: Cow<'static, str>) {
        let provider = id.split_once('/').map_or(id, |(provider, _)| provider);
        for alias in aliases {
            self.aliases.insert(format!("{provider}/{alias}"), id.to_owned());
        }
        self.rows.insert(id.to_owned(), row);
    }

    /// Extends the catalog by a user's rows in YAML or JSON: `models: [{id: PROVIDER/NAME, …}]`.
    ///
    /// A row has the members of [`ModelInfo`]. It replaces only the members that it names; `features`,
    /// `hosted_versions` and `services` are merged. `file` is the name in errors.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] with the invalid row and member.
    pub fn with_file(&self, file: &str, text: &str) -> Result<Self, ModelError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            models: Vec<Map<String, Value>>,
        }
        let wrong = |what: String| ModelError::new(ErrorKind::Configuration, format!("`{file}`: {what}"));
        if text.len() > MAX_FILE {
            return Err(wrong(format!("the file is larger than {} MiB", MAX_FILE >> 20)));
        }
        let read: File = serde_saphyr::from_str(text)
            .map_err(|error| wrong(format!("expected `models:` with a list of rows. {error}")))?;
        let mut catalog =
            Self { header: self.header.clone(), rows: self.rows.clone(), aliases: self.aliases.clone() };
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
            let catalog_id = row.get("id").cloned();
            for (name, value) in theirs {
                match (row.get_mut(&name), value) {
                    (Some(Value::Object(ours)), Value::Object(theirs)) => ours.extend(theirs),
                    (_, value) => {
                        row.insert(name, value);
                    }
                }
            }
            if let Some(catalog_id) = catalog_id {
                row.insert("id".to_owned(), catalog_id);
            }
            let text = Value::Object(row).to_string();
            let row: Row = serde_json::from_str(&text).map_err(|error| at(format!("`{id}`: {error}")))?;
            catalog.insert(&row.id.to_string(), &row.aliases, Cow::Owned(text));
        }
        Ok(catalog)
    }

    /// The date of the built-in table, such as `2026-11-22`.
    pub fn date(&self) -> &str {
        &self.header.date
    }

    /// The sources of the built-in table.
    pub fn sources(&self) -> &[String] {
        &self.header.sources
    }

    /// Finds a model. Its name may end in a date or `-latest`.
    pub fn find(&self, id: &ModelId) -> ModelInfo {
        let mut name = Cow::Borrowed(id.name.as_str());
        for _ in 0..MAX_SUFFIXES {
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

    /// Every model, sorted by provider and name.
    pub fn models(&self) -> impl Iterator<Item = ModelInfo> {
        self.rows.iter().filter_map(|(id, row)| {
            let (provider, name) = id.split_once('/')?;
            Some(self.read(&ModelId::new(provider, name), row))
        })
    }

    /// A suggestion of a known model with a similar name.
    pub fn did_you_mean(&self, id: &ModelId) -> Option<String> {
        let provider = format!("{}/", id.provider);
        let names = self.rows.keys().filter_map(|known| known.strip_prefix(&provider));
        did_you_mean(&id.name, names)
    }

    fn row_of(&self, id: &str) -> Option<&str> {
        let row = self.rows.get(id).or_else(|| self.rows.get(self.aliases.get(id)?));
        row.map(|row| &**row)
    }

    /// Parses a row. An invalid row, which a test and [`ModelCatalog::with_file`] exclude, counts as unknown.
    fn read(&self, id: &ModelId, row: &str) -> ModelInfo {
        let mut info = ModelInfo::unknown(id);
        if let Ok(row) = serde_json::from_str::<Row>(row) {
            info = ModelInfo {
                catalog_id: Some(row.id),
                aliases: row.aliases,
                context_window: row.context_window,
                max_input_tokens: row.max_input_tokens,
                max_output_tokens: row.max_output_tokens,
                retires: row.retires,
                features: row.features,
                hosted_versions: row.hosted_versions,
                efforts: row.efforts,
                unsupported_settings: row.unsupported_settings,
                unsupported_while_thinking: row.unsupported_while_thinking,
                thinks_by_default: row.thinks_by_default,
                prices: row.prices,
                services: row.services,
                ..info
            };
        }
        self.add_provider(&mut info);
        info
    }

    /// Adds the prices of the provider.
    fn add_provider(&self, info: &mut ModelInfo) {
        info.code_execution_price = self.header.code_execution.get(&info.id.provider).cloned();
        info.hosted_tool_prices =
            self.header.hosted_tool_prices.get(&info.id.provider).cloned().unwrap_or_default();
    }
}

impl fmt::Debug for ModelCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCatalog").field("models", &self.rows.len()).finish_non_exhaustive()
    }
}

/// Checks that the members of a row's prices are known and the amounts valid.
fn check_prices(row: &Map<String, Value>) -> Result<(), String> {
    let standard = row.get("prices").and_then(Value::as_array).into_iter().flatten();
    let services = row.get("services").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let services = services.filter_map(Value::as_array).flatten();
    for period in standard.chain(services) {
        let tiers = period.get("tiers").and_then(Value::as_array).into_iter().flatten();
        for prices in std::iter::once(period).chain(tiers) {
            for (name, value) in prices.as_object().into_iter().flatten() {
                if !PRICE_MEMBERS.contains(&name.as_str()) {
                    let near = did_you_mean(name, PRICE_MEMBERS.iter().copied()).unwrap_or_default();
                    return Err(format!(
                        "unknown member `{name}` of a price: expected one of {}. {near}",
                        PRICE_MEMBERS.join(", ")
                    ));
                }
                let amounts = value.as_object().into_iter().flat_map(Map::values);
                if let Some(wrong) = std::iter::once(value)
                    .chain(amounts)
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
    fn every_line_of_the_file_is_valid() {
        let mut lines = FILE.lines();
        let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert!(
            header.date.parse::<crate::catalog::Date>().is_ok() && header.sources.len() >= 2,
            "{header:?}"
        );
        let mut count = 0;
        for line in lines {
            let row: Row = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let found = ModelCatalog::built_in().find(&row.id);
            assert_eq!(found.catalog_id.as_ref(), Some(&row.id));
            check_prices(&serde_json::from_str(line).unwrap()).unwrap();
            let days = found.prices.iter().map(|period| period.from);
            assert!(days.is_sorted(), "{}: the prices are not sorted by date", row.id);
            count += 1;
        }
        assert_eq!(ModelCatalog::built_in().models().count(), count);
        assert!(count > 100);
    }
}

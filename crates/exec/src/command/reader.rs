//! Strict parsing of TOML tables: unknown keys are errors, and every error has a line.

use std::ops::Range;
use std::str::FromStr;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolpost_core::did_you_mean;

use super::place::{DescriptionError, Source};

type Result<T> = std::result::Result<T, DescriptionError>;

/// A value with its location and key.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    source: &'a Source<'a>,
    pub(super) key: String,
    span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    /// An error for this value.
    pub(super) fn error(&self, message: impl Into<String>) -> DescriptionError {
        self.source.error(&self.span, &self.key, message)
    }

    fn expected(&self, what: &str) -> DescriptionError {
        self.error(format!("expected {what}, found {}", describe(self.value)))
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    /// A non-empty string.
    pub(super) fn non_empty(&self) -> Result<String> {
        let text = self.text()?.trim();
        if text.is_empty() { Err(self.error("expected a non-empty string")) } else { Ok(text.to_owned()) }
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(super) fn integer(&self) -> Result<i64> {
        let number = self.value.as_integer().ok_or_else(|| self.expected("an integer"))?;
        i64::from_str_radix(number.as_str(), number.radix())
            .map_err(|_| self.expected("an integer of at most 64 bits"))
    }

    /// An integer of at least 1.
    pub(super) fn count(&self) -> Result<usize> {
        usize::try_from(self.integer()?)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| self.expected("an integer of at least 1"))
    }

    /// A string that parses into another type, such as a duration.
    pub(super) fn parse<T: FromStr>(&self) -> Result<T>
    where
        T::Err: std::fmt::Display,
    {
        self.text()?.parse().map_err(|error: T::Err| self.error(error.to_string()))
    }

    /// One of several keywords.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let text = self.text()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = hint(text, &known);
            self.error(format!("expected one of {}, found `{text}`{hint}", known.join(", ")))
        })
    }

    pub(super) fn list(&self) -> Result<Vec<Item<'a>>> {
        let array = self.value.as_array().ok_or_else(|| self.expected("an array"))?;
        Ok(array
            .iter()
            .enumerate()
            .map(|(index, value)| Item {
                source: self.source,
                key: format!("{}[{index}]", self.key),
                span: value.span(),
                value: value.get_ref(),
            })
            .collect())
    }

    pub(super) fn texts(&self) -> Result<Vec<String>> {
        self.list()?.iter().map(Item::non_empty).collect()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(super) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    pub(super) fn table(&self) -> Result<Section<'a>> {
        let table = self.value.as_table().ok_or_else(|| self.expected("a table"))?;
        Ok(Section::new(self.source, self.key.clone(), self.span.clone(), table))
    }

    /// The value as JSON.
    pub(super) fn json(&self) -> Result<Value> {
        Ok(match self.value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Integer(_) => Value::from(self.integer()?),
            DeValue::Float(number) => {
                let value: f64 = number.as_str().replace('_', "").parse().unwrap_or(f64::NAN);
                Value::Number(Number::from_f64(value).ok_or_else(|| self.expected("a finite number"))?)
            }
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(_) => Value::Array(self.list()?.iter().map(Item::json).collect::<Result<_>>()?),
            DeValue::Table(_) => {
                let entries = self.table()?.entries();
                let entries = entries.into_iter().map(|(name, item)| Ok((name, item.json()?)));
                Value::Object(entries.collect::<Result<Map<_, _>>>()?)
            }
        })
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let short: String = text.chars().take(40).collect();
            format!("the string {short:?}")
        }
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The end of a message about an unknown name.
pub(super) fn hint(found: &str, known: &[&str]) -> String {
    let near = did_you_mean(found, known.iter().copied());
    near.map(|near| near.replacen("Did", "; did", 1)).unwrap_or_default()
}

/// A table that is read key by key. Its reader calls [`Section::end`] after the last key.
#[derive(Debug)]
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    key: String,
    span: Range<usize>,
    /// Unread entries, in the order of the file.
    left: Vec<(&'a str, Range<usize>, &'a Spanned<DeValue<'a>>)>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        source: &'a Source<'a>,
        key: String,
        span: Range<usize>,
        table: &'a DeTable<'a>,
    ) -> Self {
        let mut left: Vec<_> =
            table.iter().map(|(name, value)| (name.get_ref().as_ref(), name.span(), value)).collect();
        left.sort_by_key(|(_, span, _)| span.start);
        Self { source, key, span, left, asked: Vec::new() }
    }

    fn child(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// The value of a key, if present.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Item<'a>> {
        self.asked.push(name);
        let index = self.left.iter().position(|(key, ..)| *key == name)?;
        let (_, key_span, value) = self.left.remove(index);
        // For a table, report the key's location: the table may start elsewhere.
        let span = if value.get_ref().is_table() { key_span } else { value.span() };
        Some(Item { source: self.source, key: self.child(name), span, value: value.get_ref() })
    }

    /// The value of a required key.
    pub(super) fn need(&mut self, name: &'static str) -> Result<Item<'a>> {
        self.take(name).ok_or_else(|| self.error(format!("the key `{name}` is missing")))
    }

    /// The value of a key, read by a function.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Item<'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.take(name).map(|item| read(&item)).transpose()
    }

    /// A boolean that defaults to false.
    pub(super) fn switch(&mut self, name: &'static str) -> Result<bool> {
        Ok(self.read(name, Item::boolean)?.unwrap_or_default())
    }

    /// The tables of an array of tables, such as `[[tool]]`.
    pub(super) fn tables(&mut self, name: &'static str) -> Result<Vec<Section<'a>>> {
        let items = self.read(name, Item::list)?.unwrap_or_default();
        items.iter().map(Item::table).collect()
    }

    /// The unread entries, for a table with arbitrary keys.
    pub(super) fn entries(mut self) -> Vec<(String, Item<'a>)> {
        let left = std::mem::take(&mut self.left);
        left.into_iter()
            .map(|(name, span, value)| {
                let key = self.child(name);
                let span = if value.get_ref().is_table() { span } else { value.span() };
                (name.to_owned(), Item { source: self.source, key, span, value: value.get_ref() })
            })
            .collect()
    }

    /// An error for this table.
    pub(super) fn error(&self, message: impl Into<String>) -> DescriptionError {
        self.source.error(&self.span, &self.key, message)
    }

    /// Rejects unread keys.
    pub(super) fn end(self) -> Result<()> {
        let Some((name, span, _)) = self.left.first() else { return Ok(()) };
        let mut known = self.asked.clone();
        known.sort_unstable();
        known.dedup();
        let hint = hint(name, &known);
        let message = format!("unknown key `{name}`{hint} (known keys: {})", known.join(", "));
        Err(self.source.error(span, &self.child(name), message))
    }
}

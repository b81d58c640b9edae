//! Reads tables key by key: what nobody asks for is an error, and every error has its line.

use std::ops::Range;
use std::str::FromStr;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolpost_core::did_you_mean;

use super::place::{DescriptionError, Source};

type Result<T> = std::result::Result<T, DescriptionError>;

/// A value with its place and the key that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    source: &'a Source<'a>,
    pub(super) key: String,
    span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    /// An error at this value.
    pub(super) fn error(&self, message: impl Into<String>) -> DescriptionError {
        self.source.error(&self.span, &self.key, message)
    }

    fn expected(&self, what: &str) -> DescriptionError {
        self.error(format!("expected {what}, found {}", describe(self.value)))
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.expected("text in quotes"))
    }

    /// A text that says something.
    pub(super) fn filled_text(&self) -> Result<String> {
        let text = self.text()?.trim();
        if text.is_empty() { Err(self.error("expected text, found none")) } else { Ok(text.to_owned()) }
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(super) fn integer(&self) -> Result<i64> {
        let number = self.value.as_integer().ok_or_else(|| self.expected("a whole number"))?;
        i64::from_str_radix(number.as_str(), number.radix())
            .map_err(|_| self.expected("a whole number of at most 64 bits"))
    }

    /// A whole number from 1.
    pub(super) fn count(&self) -> Result<usize> {
        usize::try_from(self.integer()?)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| self.expected("a whole number of at least 1"))
    }

    /// A text that stands for something else, such as a duration.
    pub(super) fn parse<T: FromStr>(&self) -> Result<T>
    where
        T::Err: std::fmt::Display,
    {
        self.text()?.parse().map_err(|error: T::Err| self.error(error.to_string()))
    }

    /// One of some words.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let text = self.text()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = hint(text, &known);
            self.error(format!("expected one of {}, found `{text}`{hint}", known.join(", ")))
        })
    }

    pub(super) fn list(&self) -> Result<Vec<Item<'a>>> {
        let array = self.value.as_array().ok_or_else(|| self.expected("a list"))?;
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
        self.list()?.iter().map(Item::filled_text).collect()
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
            format!("the text {short:?}")
        }
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The end of a sentence about a name that is not known.
pub(super) fn hint(found: &str, known: &[&str]) -> String {
    let near = did_you_mean(found, known.iter().copied());
    near.map(|near| near.replacen("Did", "; did", 1)).unwrap_or_default()
}

/// A table that is read key by key. Whoever reads it says [`Section::end`] when all keys were asked for.
#[derive(Debug)]
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    key: String,
    span: Range<usize>,
    /// The entries that nobody has asked for yet, in the order of the file.
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

    /// The value of a key, if it is there.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Item<'a>> {
        self.asked.push(name);
        let index = self.left.iter().position(|(key, ..)| *key == name)?;
        let (_, key_span, value) = self.left.remove(index);
        // A table of its own begins far from where its key stands: the key is what people look for.
        let span = if value.get_ref().is_table() { key_span } else { value.span() };
        Some(Item { source: self.source, key: self.child(name), span, value: value.get_ref() })
    }

    /// The value of a key that must be there.
    pub(super) fn need(&mut self, name: &'static str) -> Result<Item<'a>> {
        self.take(name).ok_or_else(|| self.error(format!("the key `{name}` is missing")))
    }

    /// A value, read by a function, or nothing.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Item<'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.take(name).map(|item| read(&item)).transpose()
    }

    /// A switch; absent is no.
    pub(super) fn switch(&mut self, name: &'static str) -> Result<bool> {
        Ok(self.read(name, Item::boolean)?.unwrap_or_default())
    }

    /// The tables of a list of tables, such as `[[tool]]`.
    pub(super) fn tables(&mut self, name: &'static str) -> Result<Vec<Section<'a>>> {
        let items = self.read(name, Item::list)?.unwrap_or_default();
        items.iter().map(Item::table).collect()
    }

    /// Everything that nobody asked for, as a map whose names are free.
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

    /// An error at this table.
    pub(super) fn error(&self, message: impl Into<String>) -> DescriptionError {
        self.source.error(&self.span, &self.key, message)
    }

    /// Refuses keys that nobody asked for.
    pub(super) fn end(self) -> Result<()> {
        let Some((name, span, _)) = self.left.first() else { return Ok(()) };
        let mut known = self.asked.clone();
        known.sort_unstable();
        known.dedup();
        let hint = hint(name, &known);
        let message = format!("the key `{name}` is not known{hint} (known keys: {})", known.join(", "));
        Err(self.source.error(span, &self.child(name), message))
    }
}

//! Parsing of a program's output into text, JSON or a list of items.

use std::fmt;

use regex::Regex;
use serde_json::{Map, Value, json};
use toolpost_core::Truncation;
use toolpost_sandbox::Captured;

use super::place::DescriptionError;
use super::reader::{Item, Section};
use super::table;

/// Default maximum of retained output, in bytes.
const DEFAULT_LIMIT_BYTES: usize = 1 << 20;
/// The largest `limit_bytes` of a description.
const MAX_LIMIT_BYTES: usize = 64 << 20;
/// Default maximum number of items.
const DEFAULT_LIMIT: usize = 1000;
/// Maximum memory of a compiled pattern, in bytes.
const MAX_PATTERN: usize = 4 << 20;

/// The type of a captured text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
}

const KINDS: [(&str, Kind); 4] = [
    ("string", Kind::Text),
    ("integer", Kind::Integer),
    ("number", Kind::Number),
    ("boolean", Kind::Boolean),
];

/// The columns of a table, or the groups of a pattern, with their types.
#[derive(Clone, Debug)]
struct Columns(Vec<(String, Kind)>);

/// The format of the output.
#[derive(Clone, Debug)]
enum Format {
    Text,
    Json { empty: Value },
    JsonLines,
    Lines,
    Captures { pattern: Regex, columns: Columns },
    Fields { separator: String, columns: Columns },
    Csv { columns: Option<Columns>, kinds: Vec<(String, Kind)> },
}

const FORMATS: [(&str, &str); 7] = [
    ("text", "text"),
    ("json", "json"),
    ("json_lines", "json_lines"),
    ("lines", "lines"),
    ("captures", "captures"),
    ("fields", "fields"),
    ("csv", "csv"),
];

/// The stream to parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The parser of the output.
#[derive(Clone, Debug)]
pub(super) struct OutputFormat {
    pub(super) stream: Stream,
    pub(super) limit_bytes: usize,
    limit: usize,
    format: Format,
    record_separator: String,
    /// Whether the result is the first item instead of a list.
    single: bool,
    schema: Option<Value>,
}

/// The retained output of a program.
#[derive(Debug)]
pub(super) struct Printed<'a> {
    /// The start.
    pub(super) head: &'a [u8],
    /// The retained text, with a mark where the rest is missing.
    pub(super) text: String,
    /// Whether some output is missing.
    pub(super) is_truncated: bool,
}

/// The parsed output.
#[derive(Debug, PartialEq)]
pub(super) enum Parsed {
    Text(String),
    Value(Value),
}

/// The reason why the output does not match its description.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// It is too long for a single value.
    TooLong,
    /// It has another format.
    Form(String),
    /// Nothing matched where one item was expected.
    Nothing,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("it is too long"),
            Self::Form(sentence) => f.write_str(sentence),
            Self::Nothing => f.write_str("nothing in it matches the description's pattern"),
        }
    }
}

impl Default for OutputFormat {
    fn default() -> Self {
        Self {
            stream: Stream::Stdout,
            limit_bytes: DEFAULT_LIMIT_BYTES,
            limit: DEFAULT_LIMIT,
            format: Format::Text,
            record_separator: "\n".into(),
            single: false,
            schema: None,
        }
    }
}

impl OutputFormat {
    /// Parses the table `output` of a tool.
    pub(super) fn read(table: Section<'_>) -> Result<Self, DescriptionError> {
        let mut table = table;
        let default = Self::default();
        let name = table.need("format")?.one_of(&FORMATS)?;
        let only_for = |given: bool, key: &str, formats: &[&str]| {
            if given && !formats.contains(&name) {
                let formats = formats.join(", ");
                return Err(table_error(name, key, &formats));
            }
            Ok(())
        };
        let stream = table
            .read("stream", |item| item.one_of(&[("stdout", Stream::Stdout), ("stderr", Stream::Stderr)]))?
            .unwrap_or(default.stream);
        let limit_bytes = table
            .read("limit_bytes", |item| {
                let bytes = item.count()?;
                if bytes > MAX_LIMIT_BYTES {
                    return Err(
                        item.error(format!("expected at most {MAX_LIMIT_BYTES} bytes, found {bytes}"))
                    );
                }
                Ok(bytes)
            })?
            .unwrap_or(default.limit_bytes);
        let limit = table.read("limit", Item::count)?;
        let record_separator = table.read("record_separator", separator)?;
        let field_separator = table.read("field_separator", separator)?;
        let pattern = table.read("pattern", pattern)?;
        let names = table.read("columns", Item::texts)?;
        let types = table.take("types");
        let empty = table.read("empty", Item::json)?;
        let single = table.read("single", Item::boolean)?;
        let schema = table.read("schema", Item::json)?;
        let checks = [
            (limit.is_some(), "limit", ["json_lines", "lines", "captures", "fields", "csv"].as_slice()),
            (record_separator.is_some(), "record_separator", &["lines", "captures", "fields"]),
            (field_separator.is_some(), "field_separator", &["fields"]),
            (pattern.is_some(), "pattern", &["captures"]),
            (names.is_some(), "columns", &["fields", "csv"]),
            (types.is_some(), "types", &["captures", "fields", "csv"]),
            (empty.is_some(), "empty", &["json"]),
            (single.is_some(), "single", &["captures", "fields"]),
            (schema.is_some(), "schema", &["json"]),
        ];
        for (given, key, formats) in checks {
            only_for(given, key, formats).map_err(|message| table.error(message))?;
        }
        let format = match name {
            "json" => Format::Json { empty: empty.unwrap_or(Value::Null) },
            "json_lines" => Format::JsonLines,
            "lines" => Format::Lines,
            "captures" => {
                let pattern =
                    pattern.ok_or_else(|| table.error("`format = \"captures\"` needs a `pattern`"))?;
                let groups: Vec<String> = pattern.capture_names().flatten().map(ToOwned::to_owned).collect();
                if groups.is_empty() {
                    return Err(
                        table.error("the pattern has no named group; write `(?<name>…)` around each value")
                    );
                }
                Format::Captures { columns: Columns::new(groups, types.as_ref())?, pattern }
            }
            "fields" => {
                let names = names.ok_or_else(|| table.error("`format = \"fields\"` needs `columns`"))?;
                Format::Fields {
                    separator: field_separator.unwrap_or_else(|| "\t".into()),
                    columns: Columns::new(names, types.as_ref())?,
                }
            }
            "csv" => match names {
                Some(names) => {
                    Format::Csv { columns: Some(Columns::new(names, types.as_ref())?), kinds: Vec::new() }
                }
                None => Format::Csv { columns: None, kinds: kinds(types.as_ref())? },
            },
            _ => Format::Text,
        };
        table.end()?;
        Ok(Self {
            stream,
            limit_bytes,
            limit: limit.unwrap_or(default.limit),
            format,
            record_separator: record_separator.unwrap_or(default.record_separator),
            single: single.unwrap_or_default(),
            schema,
        })
    }

    /// The JSON Schema of the result, if known.
    pub(super) fn schema(&self) -> Option<Value> {
        let item = match &self.format {
            Format::Text => return None,
            Format::Json { .. } => return self.schema.clone(),
            Format::JsonLines => json!({}),
            Format::Lines => json!({ "type": "string" }),
            Format::Captures { columns, .. }
            | Format::Fields { columns, .. }
            | Format::Csv { columns: Some(columns), .. } => columns.schema(),
            Format::Csv { columns: None, .. } => json!({ "type": "object" }),
        };
        if self.single {
            return Some(item);
        }
        Some(json!({
            "type": "object",
            "properties": {
                "items": { "type": "array", "items": item },
                "truncated": { "type": "boolean", "description": "Whether there were more items." }
            },
            "required": ["items", "truncated"]
        }))
    }

    /// Whether the retained output is complete after this many bytes and records.
    pub(super) fn has_enough(&self, bytes: usize, records: usize) -> bool {
        match self.format {
            Format::Text | Format::Json { .. } => false,
            Format::Lines | Format::Fields { .. } if records > self.limit => true,
            _ => bytes > self.limit_bytes,
        }
    }

    /// Counts the records that end in these bytes. A separator split between two pieces may be missed once.
    pub(super) fn count_records(&self, bytes: &[u8]) -> usize {
        let last = self.record_separator.as_bytes().last().copied().unwrap_or(b'\n');
        bytes.split(|byte| *byte == last).count().saturating_sub(1)
    }

    /// The result for no output.
    pub(super) fn nothing(&self) -> Parsed {
        match &self.format {
            Format::Text => Parsed::Text(String::new()),
            Format::Json { empty } => Parsed::Value(empty.clone()),
            _ => Parsed::Value(json!({ "items": [], "truncated": false })),
        }
    }

    /// Parses the output.
    pub(super) fn parse(&self, printed: &Printed<'_>) -> Result<Parsed, ParseError> {
        let head = String::from_utf8_lossy(printed.head);
        let mut truncated = printed.is_truncated;
        let mut items: Vec<Value> = match &self.format {
            Format::Text => return Ok(Parsed::Text(printed.text.clone())),
            Format::Json { .. } if truncated => return Err(ParseError::TooLong),
            Format::Json { empty } if head.trim().is_empty() => return Ok(Parsed::Value(empty.clone())),
            Format::Json { .. } => {
                return serde_json::from_str(&head)
                    .map(Parsed::Value)
                    .map_err(|error| ParseError::Form(format!("it is not one JSON value: {error}")));
            }
            Format::JsonLines => {
                let mut values = Vec::new();
                for value in
                    serde_json::Deserializer::from_str(&head).into_iter::<Value>().take(self.limit + 1)
                {
                    match value {
                        Ok(value) => values.push(value),
                        // The last value is truncated.
                        Err(_) if truncated => break,
                        Err(error) => return Err(ParseError::Form(format!("it is not JSON: {error}"))),
                    }
                }
                values
            }
            Format::Lines => self.records(&head, truncated).map(Value::from).take(self.limit + 1).collect(),
            Format::Captures { pattern, columns } => {
                let records = self.records(&head, truncated);
                let found = records.filter_map(|record| pattern.captures(record)).take(self.limit + 1);
                found
                    .map(|found| columns.object(|_, name| found.name(name).map(|text| text.as_str())))
                    .collect::<Result<_, _>>()?
            }
            Format::Fields { separator, columns } => self
                .records(&head, truncated)
                .take(self.limit + 1)
                .map(|record| {
                    // The last column takes the rest.
                    let fields: Vec<&str> = record.splitn(columns.0.len(), separator.as_str()).collect();
                    columns.object(|index, _| fields.get(index).copied())
                })
                .collect::<Result<_, _>>()?,
            Format::Csv { columns, kinds } => {
                let mut rows = table::rows(&head);
                if truncated {
                    rows.pop();
                }
                let mut rows = rows.into_iter();
                let columns = match columns {
                    Some(columns) => columns.clone(),
                    None => Columns::of_header(rows.next().unwrap_or_default(), kinds),
                };
                rows.take(self.limit + 1)
                    .map(|row| columns.object(|index, _| row.get(index).map(String::as_str)))
                    .collect::<Result<_, _>>()?
            }
        };
        if self.single {
            return items.into_iter().next().map(Parsed::Value).ok_or(ParseError::Nothing);
        }
        if items.len() > self.limit {
            items.truncate(self.limit);
            truncated = true;
        }
        Ok(Parsed::Value(json!({ "items": items, "truncated": truncated })))
    }

    /// The part of a parsed output that a limit truncated.
    pub(super) fn truncation(&self, parsed: &Parsed, captured: &Captured) -> Option<Truncation> {
        match parsed {
            Parsed::Text(_) if captured.dropped > 0 => {
                let returned = (captured.head.len() + captured.tail.len()) as u64;
                Some(Truncation::bytes("", Some(returned + captured.dropped), returned))
            }
            Parsed::Value(value) if !matches!(self.format, Format::Json { .. }) && !self.single => {
                let is_truncated = value.get("truncated") == Some(&Value::Bool(true));
                let items = value.get("items").and_then(Value::as_array).map_or(0, Vec::len);
                is_truncated.then(|| Truncation::items("/items", items as u64))
            }
            _ => None,
        }
    }

    /// The complete records of a text.
    fn records<'t>(&'t self, text: &'t str, is_truncated: bool) -> impl Iterator<Item = &'t str> {
        let whole = match text.rfind(&self.record_separator) {
            Some(end) if is_truncated => &text[..end],
            _ => text,
        };
        let by_line = self.record_separator == "\n";
        whole
            .split(self.record_separator.as_str())
            .map(move |record| if by_line { record.strip_suffix('\r').unwrap_or(record) } else { record })
            .filter(|record| !record.is_empty())
    }
}

fn table_error(format: &str, key: &str, formats: &str) -> String {
    format!("`{key}` has no effect with the format `{format}`; it applies to {formats}")
}

fn separator(item: &Item<'_>) -> Result<String, DescriptionError> {
    match item.text()? {
        "" => Err(item.error("expected a separator, found an empty string")),
        text => Ok(text.to_owned()),
    }
}

/// Compiles a regular expression without look-around and back-references, so that matching takes linear time.
pub(super) fn pattern(item: &Item<'_>) -> Result<Regex, DescriptionError> {
    regex::RegexBuilder::new(item.text()?)
        .size_limit(MAX_PATTERN)
        .build()
        .map_err(|error| item.error(format!("the regular expression is invalid: {error}")))
}

fn kinds(types: Option<&Item<'_>>) -> Result<Vec<(String, Kind)>, DescriptionError> {
    let Some(types) = types else { return Ok(Vec::new()) };
    types.table()?.entries().into_iter().map(|(name, item)| Ok((name, item.one_of(&KINDS)?))).collect()
}

impl Columns {
    fn new(names: Vec<String>, types: Option<&Item<'_>>) -> Result<Self, DescriptionError> {
        let kinds = kinds(types)?;
        if let (Some(types), Some((name, _))) = (types, kinds.iter().find(|(name, _)| !names.contains(name)))
        {
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            let hint = super::reader::hint(name, &known);
            return Err(types.error(format!("expected one of {}, found `{name}`{hint}", known.join(", "))));
        }
        Ok(Self::typed(names, &kinds))
    }

    fn of_header(header: Vec<String>, kinds: &[(String, Kind)]) -> Self {
        Self::typed(header, kinds)
    }

    fn typed(names: Vec<String>, kinds: &[(String, Kind)]) -> Self {
        let kind =
            |name: &str| kinds.iter().find(|(known, _)| known == name).map_or(Kind::Text, |(_, kind)| *kind);
        Self(names.into_iter().map(|name| (name.clone(), kind(&name))).collect())
    }

    fn schema(&self) -> Value {
        let properties: Map<String, Value> = self
            .0
            .iter()
            .map(|(name, kind)| {
                let word = KINDS.iter().find(|(_, known)| known == kind).map_or("string", |(word, _)| word);
                (name.clone(), json!({ "type": word }))
            })
            .collect();
        json!({ "type": "object", "properties": properties })
    }

    /// An object with the columns that have a value.
    fn object<'t>(&self, text: impl Fn(usize, &str) -> Option<&'t str>) -> Result<Value, ParseError> {
        let mut object = Map::new();
        for (index, (name, kind)) in self.0.iter().enumerate() {
            let Some(text) = text(index, name) else { continue };
            if let Some(value) = kind.value(text).map_err(|expected| {
                let short: String = text.chars().take(40).collect();
                ParseError::Form(format!("`{name}`: expected {expected}, found {short:?}"))
            })? {
                object.insert(name.clone(), value);
            }
        }
        Ok(Value::Object(object))
    }
}

impl Kind {
    /// Parses a text; `None` for an empty text of a type other than string.
    fn value(self, text: &str) -> Result<Option<Value>, &'static str> {
        if self == Self::Text {
            return Ok(Some(text.into()));
        }
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let number = |expected: &'static str| {
            serde_json::from_str::<serde_json::Number>(text.trim_start_matches('+')).map_err(|_| expected)
        };
        let value = match self {
            Self::Integer => {
                let expected = "an integer";
                let value = number(expected)?;
                if value.is_f64() {
                    return Err(expected);
                }
                Value::Number(value)
            }
            Self::Number => Value::Number(number("a number")?),
            _ => Value::Bool(match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "1" => true,
                "false" | "no" | "0" => false,
                _ => return Err("true or false"),
            }),
        };
        Ok(Some(value))
    }
}

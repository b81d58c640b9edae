//! A document in YAML, JSON or TOML, with the position of each value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// The maximum size of a plan, in bytes.
pub(crate) const MAX_BYTES: usize = 4 << 20;
/// The maximum depth of a plan.
const MAX_DEPTH: usize = 40;
/// The maximum number of values of a plan, those of aliases included.
const MAX_NODES: usize = 2_000_000;

/// A line and a column, from 1; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// Members in their order.
    Map(Vec<(String, Position, Node)>),
}

/// The formats of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, of which JSON is a part.
    Yaml,
    /// TOML.
    Toml,
}

impl Format {
    /// The format of a file by its name: TOML for `.toml`, else YAML.
    pub fn of_path(path: &std::path::Path) -> Self {
        let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        if is_toml { Self::Toml } else { Self::Yaml }
    }
}

impl Node {
    /// Parses a text.
    ///
    /// # Errors
    /// The first defect, with its position.
    pub(crate) fn parse(text: &str, format: Format) -> Result<Self, (Position, String)> {
        if text.len() > MAX_BYTES {
            return Err((Position::default(), format!("a document has at most {MAX_BYTES} bytes")));
        }
        let node = match format {
            Format::Yaml => yaml(text)?,
            Format::Toml => toml(text)?,
        };
        match node.deeper_than(MAX_DEPTH) {
            Some(at) => Err((at, format!("a document has at most {MAX_DEPTH} levels"))),
            None => Ok(node),
        }
    }

    /// A value without positions.
    pub(crate) fn from_value(value: &Value) -> Self {
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(flag) => Content::Bool(*flag),
            Value::Number(number) => Content::Number(number.clone()),
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(items) => Content::List(items.iter().map(Self::from_value).collect()),
            Value::Object(members) => Content::Map(
                members
                    .iter()
                    .map(|(key, value)| (key.clone(), Position::default(), Self::from_value(value)))
                    .collect(),
            ),
        };
        Self { at: Position::default(), content }
    }

    /// The value without its positions.
    pub(crate) fn to_value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(flag) => Value::Bool(*flag),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Content::Map(members) => Value::Object(
                members.iter().map(|(key, _, node)| (key.clone(), node.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// The name for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.content {
            Content::Null => "nothing",
            Content::Bool(_) => "true or false",
            Content::Number(_) => "a number",
            Content::Text(_) => "a text",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }

    fn deeper_than(&self, levels: usize) -> Option<Position> {
        match &self.content {
            Content::List(_) | Content::Map(_) if levels == 0 => Some(self.at),
            Content::List(items) => items.iter().find_map(|item| item.deeper_than(levels - 1)),
            Content::Map(members) => members.iter().find_map(|(.., node)| node.deeper_than(levels - 1)),
            _ => None,
        }
    }
}

/// A member of a document, such as a key of an agent file.
#[derive(Clone, Debug)]
pub struct PlanMember {
    /// The key.
    pub key: String,
    /// The position of the value.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// Parses a YAML or JSON document of keys and values, by the rules of plans: `n` and `on` are texts, and so are
/// digits with a leading zero, such as `08`.
///
/// # Errors
/// The first defect, with its position.
pub fn parse_members(text: &str) -> Result<Vec<PlanMember>, (Position, String)> {
    let node = Node::parse(text, Format::Yaml)?;
    match node.content {
        Content::Map(members) => {
            let member = |(key, _, node): (String, Position, Node)| PlanMember {
                key,
                at: node.at,
                value: node.to_value(),
            };
            Ok(members.into_iter().map(member).collect())
        }
        _ => Err((node.at, format!("expected keys and values, found {}", node.kind()))),
    }
}

fn yaml(text: &str) -> Result<Node, (Position, String)> {
    // Otherwise `n` and `on` would be booleans.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: 4 * MAX_BYTES,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    let read: Result<Spanned<YamlContent>, _> = serde_saphyr::from_str_with_options(text, options);
    match read {
        Ok(read) => Ok(of_yaml(read, &text.lines().collect::<Vec<_>>())),
        Err(error) => {
            let at = error.location().map_or_else(Position::default, |at| Position {
                line: usize::try_from(at.line()).unwrap_or_default(),
                column: usize::try_from(at.column()).unwrap_or_default(),
            });
            let message = error.without_snippet().to_string();
            Err((at, message.lines().next().unwrap_or_default().to_owned()))
        }
    }
}

fn of_yaml(read: Spanned<YamlContent>, lines: &[&str]) -> Node {
    let at = place(&read);
    let content = match read.value {
        // YAML 1.2 has no integer such as `08` or `0777`, and a float loses its zero: modes, codes, days.
        YamlContent::Plain(Content::Number(number)) if number.is_f64() => match scalar(lines, at) {
            text if has_leading_zero(text) => Content::Text(text.to_owned()),
            _ => Content::Number(number),
        },
        YamlContent::Plain(content) => content,
        YamlContent::List(items) => {
            Content::List(items.into_iter().map(|item| of_yaml(item, lines)).collect())
        }
        YamlContent::Map(members) => Content::Map(
            members
                .into_iter()
                .map(|(key, value)| {
                    let at = place(&key);
                    (key.value, at, of_yaml(value, lines))
                })
                .collect(),
        ),
    };
    Node { at, content }
}

/// The plain scalar at a position.
fn scalar<'a>(lines: &[&'a str], at: Position) -> &'a str {
    let line = at.line.checked_sub(1).and_then(|line| lines.get(line).copied()).unwrap_or_default();
    let start = at.column.checked_sub(1).and_then(|column| line.char_indices().nth(column));
    let rest = start.and_then(|(start, _)| line.get(start..)).unwrap_or_default();
    rest.split([' ', '\t', ',', ']', '}', '#']).next().unwrap_or_default()
}

fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|digit| digit.is_ascii_digit())
}

fn place<T>(read: &Spanned<T>) -> Position {
    Position {
        line: usize::try_from(read.referenced.line()).unwrap_or_default(),
        column: usize::try_from(read.referenced.column()).unwrap_or_default(),
    }
}

/// Content whose parts have positions.
enum YamlContent {
    Plain(Content),
    List(Vec<Spanned<YamlContent>>),
    Map(Vec<(Spanned<String>, Spanned<YamlContent>)>),
}

impl<'de> Deserialize<'de> for YamlContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyContent)
    }
}

struct AnyContent;

impl<'de> Visitor<'de> for AnyContent {
    type Value = YamlContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Number(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Number(number.into())))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<YamlContent, E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("a number must be finite"))?;
        Ok(YamlContent::Plain(Content::Number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Text(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Null))
    }

    fn visit_none<E>(self) -> Result<YamlContent, E> {
        Ok(YamlContent::Plain(Content::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlContent, D::Error> {
        YamlContent::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlContent, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(YamlContent::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlContent, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(YamlContent::Map(members))
    }
}

fn toml(text: &str) -> Result<Node, (Position, String)> {
    let parsed = toml::de::DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or_else(Position::default, |span| position(text, span.start));
        (at, error.message().to_owned())
    })?;
    let at = position(text, parsed.span().start);
    Ok(Node { at, content: of_table(text, parsed.into_inner())? })
}

fn of_table(text: &str, table: toml::de::DeTable<'_>) -> Result<Content, (Position, String)> {
    let members = table.into_iter().map(|(key, value)| {
        let at = position(text, key.span().start);
        Ok((key.into_inner().into_owned(), at, of_toml(text, value)?))
    });
    Ok(Content::Map(members.collect::<Result<_, _>>()?))
}

fn of_toml(text: &str, value: toml::Spanned<toml::de::DeValue<'_>>) -> Result<Node, (Position, String)> {
    use toml::de::DeValue;
    let at = position(text, value.span().start);
    let number = |text: String| {
        let read = text.parse::<Number>();
        read.map(Content::Number).map_err(|_| (at, format!("`{text}` is not a number that JSON has")))
    };
    let content = match value.into_inner() {
        DeValue::String(text) => Content::Text(text.into_owned()),
        DeValue::Boolean(flag) => Content::Bool(flag),
        DeValue::Integer(integer) => {
            let read = i64::from_str_radix(integer.as_str(), integer.radix());
            Content::Number(read.map_err(|error| (at, error.to_string()))?.into())
        }
        DeValue::Float(float) => number(float.as_str().to_owned())?,
        DeValue::Datetime(time) => Content::Text(time.to_string()),
        DeValue::Array(items) => {
            Content::List(items.into_iter().map(|item| of_toml(text, item)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => of_table(text, table)?,
    };
    Ok(Node { at, content })
}

/// The position of a byte.
fn position(text: &str, byte: usize) -> Position {
    let before = text.get(..byte).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    Position {
        line: before.matches('\n').count() + 1,
        column: before.get(start..).unwrap_or_default().chars().count() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_format_gives_the_same_values_with_positions() {
        let expected = json!({"name": "x", "steps": [{"id": "a", "n": 3, "f": 1.5, "on": true}]});
        let yaml = "name: x\nsteps:\n  - id: a\n    n: 3\n    f: 1.5\n    on: true\n";
        let toml = "name = 'x'\n[[steps]]\nid = 'a'\nn = 3\nf = 1.5\non = true\n";
        for (text, format, line) in
            [(yaml, Format::Yaml, 4), (&expected.to_string(), Format::Yaml, 1), (toml, Format::Toml, 4)]
        {
            let node = Node::parse(text, format).unwrap();
            assert_eq!(node.to_value(), expected, "{text}");
            let Content::Map(members) = &node.content else { panic!() };
            let Content::List(items) = &members[1].2.content else { panic!() };
            let Content::Map(step) = &items[0].content else { panic!() };
            let n = step.iter().find(|(key, ..)| key == "n").unwrap();
            assert_eq!(n.1.line, line, "{text}");
        }
    }

    #[test]
    fn digits_with_a_leading_zero_are_text() {
        let yaml =
            "a: 08\nb: [0777, 01234, -07, 0, 0.5, 10]\nc: {d: 09, é: 007 }\ne: 00 # x\nf: 1e3\ng: '08'\n";
        let expected = json!({
            "a": "08", "b": ["0777", "01234", "-07", 0, 0.5, 10], "c": {"d": "09", "é": "007"}, "e": "00",
            "f": 1000.0, "g": "08",
        });
        assert_eq!(Node::parse(yaml, Format::Yaml).unwrap().to_value(), expected);
    }

    #[test]
    fn defects_have_positions() {
        for (text, format, line) in [
            ("a: 1\nb: [1,\n", Format::Yaml, 2),
            ("a: 1\na: 2\n", Format::Yaml, 2),
            ("a = 1\nb = \n", Format::Toml, 2),
        ] {
            let (at, message) = Node::parse(text, format).unwrap_err();
            assert!(at.line >= line, "{text}: {at} {message}");
        }
        let deep = format!("{}{}", "[".repeat(80), "]".repeat(80));
        assert!(Node::parse(&deep, Format::Yaml).unwrap_err().1.contains("depth"));
    }
}

//! Values with expressions: `${{ … }}`.
//!
//! An expression in Jinja's language (<https://jinja.palletsprojects.com>) reads the inputs and the results of steps. A
//! text that is one expression has the expression's JSON value; within a longer text, the value is written as text.
//! `$${{` is a literal `${{`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::WideJson;

use crate::code::Code;
use crate::language::{LANGUAGE, MAX_TEXT, Room, unknown_filter};
use crate::names::Names;

const OPEN: &str = "${{";
const CLOSE: &str = "}}";
/// The maximum size of an expression, in bytes.
const MAX_EXPRESSION: usize = 2_000;
/// A parsed expression.
#[derive(Clone)]
pub(crate) struct Expression {
    source: Arc<str>,
    form: Form,
    /// The names that it reads, such as `steps.load.output`.
    reads: Arc<BTreeSet<String>>,
}

#[derive(Clone)]
enum Form {
    /// A name with members: read without the language, so that numbers keep their digits.
    Path(Arc<[Member]>),
    Compiled(Arc<minijinja::Expression<'static, 'static>>),
}

/// A member of an object or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Member {
    Name(String),
    Index(usize),
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{OPEN} {} {CLOSE}", self.source)
    }
}

impl Expression {
    /// Parses the text between the braces.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let source = source.trim();
        if source.is_empty() {
            return Err("the expression is empty".to_owned());
        }
        // The parser and the compiler of the language recurse.
        if source.len() > MAX_EXPRESSION {
            return Err(format!("an expression has at most {MAX_EXPRESSION} bytes"));
        }
        let mut pipes = outside_strings(source).filter_map(|at| source.get(at..)?.strip_prefix('|'));
        if let Some(name) = pipes.find_map(unknown_filter) {
            return Err(format!("`{source}`: there is no filter `{name}`"));
        }
        let form = match path(source) {
            Some(members) => Form::Path(members.into()),
            None => Form::Compiled(Arc::new(
                LANGUAGE
                    .compile_expression_owned(source.to_owned())
                    .map_err(|error| explain(source, &error))?,
            )),
        };
        let reads = match &form {
            Form::Path(members) => BTreeSet::from([dotted(members)]),
            // The language does not report names within slices.
            Form::Compiled(expression) => {
                expression.undeclared_variables(true).into_iter().chain(named_steps(source)).collect()
            }
        };
        Ok(Self { source: source.into(), form, reads: Arc::new(reads) })
    }

    /// The names that it reads.
    pub(crate) fn reads(&self) -> &BTreeSet<String> {
        &self.reads
    }

    /// The names with their members in its text, such as `steps.load.output.rows`. Each ends before an index, a slice or a
    /// call, so that what it reads is beneath it.
    pub(crate) fn paths(&self) -> Vec<String> {
        let source = &*self.source;
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let (mut found, mut end) = (Vec::new(), 0);
        for at in outside_strings(source) {
            let (before, mut rest) = source.split_at(at);
            let is_inside = at < end || before.ends_with(is_part) || before.trim_end().ends_with('.');
            if is_inside || !rest.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
                continue;
            }
            let mut names = Vec::new();
            loop {
                let (name, after) = rest.split_at(rest.find(|letter| !is_part(letter)).unwrap_or(rest.len()));
                names.push(name);
                rest = after.trim_start();
                match rest.strip_prefix('.').map(str::trim_start).filter(|next| next.starts_with(is_part)) {
                    Some(next) => rest = next,
                    None => break,
                }
            }
            end = source.len() - rest.len();
            if rest.starts_with('(') {
                names.pop();
            }
            if !names.is_empty() {
                found.push(names.join("."));
            }
        }
        found
    }

    /// Its value.
    pub(crate) fn value(&self, names: &Names) -> Result<Value, String> {
        match &self.form {
            Form::Path(members) => {
                names.read(members).map_err(|reason| format!("`{}`: {reason}", self.source))
            }
            Form::Compiled(expression) => {
                let value = expression
                    .eval(minijinja::Value::from_object(names.clone()))
                    .map_err(|error| explain(&self.source, &error))?;
                Room::default().take(&value).map_err(|error| explain(&self.source, &error))?;
                serde_json::to_value(&value).map_err(|error| format!("`{}`: {error}", self.source))
            }
        }
    }

    /// Whether its value counts as true: not `false`, null, zero, or empty.
    pub(crate) fn is_true(&self, names: &Names) -> Result<bool, String> {
        self.value(names).map(|value| match value {
            Value::Null => false,
            Value::Bool(flag) => flag,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
        })
    }
}

/// The first line of an error of the language.
fn explain(source: &str, error: &minijinja::Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("`{source}`: {detail}")
}

/// Parses a name with members: `steps.load.output.rows[0]`.
fn path(source: &str) -> Option<Vec<Member>> {
    let mut members = Vec::new();
    let mut rest = source;
    loop {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || is_keyword(name) {
            return None;
        }
        members.push(Member::Name(name.to_owned()));
        rest = after;
        while let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']')?;
            members.push(Member::Index(index.parse().ok()?));
            rest = after;
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Some(members),
            None => return None,
        }
    }
}

/// The names `steps.ID` in the text of an expression, outside of its strings.
fn named_steps(source: &str) -> Vec<String> {
    const STEPS: &str = "steps";
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for at in outside_strings(source) {
        let before = source.get(..at).and_then(|text| text.chars().next_back());
        let rest = source.get(at..).and_then(|rest| rest.strip_prefix(STEPS));
        let begins = before.is_none_or(|before| !is_part(before) && before != '.');
        let Some(rest) = rest.filter(|rest| begins && !rest.starts_with(is_part)) else { continue };
        let id = rest.trim_start().strip_prefix('.').unwrap_or_default().trim_start();
        let end = id.find(|letter| !is_part(letter)).unwrap_or(id.len());
        let id = id.get(..end).unwrap_or_default();
        found.push(if id.is_empty() { STEPS.to_owned() } else { format!("{STEPS}.{id}") });
    }
    found
}

/// The places of a text that are not in a string of the language.
fn outside_strings(text: &str) -> impl Iterator<Item = usize> {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().filter_map(move |(at, letter)| {
        if let Some(mark) = quote {
            if !escaped && letter == mark {
                quote = None;
            }
            escaped = !escaped && letter == '\\';
            return None;
        }
        if letter == '"' || letter == '\'' {
            quote = Some(letter);
            return None;
        }
        Some(at)
    })
}

fn is_keyword(name: &str) -> bool {
    matches!(
        name,
        "true" | "false" | "none" | "True" | "False" | "None" | "not" | "and" | "or" | "in" | "is" | "if"
    )
}

fn dotted(members: &[Member]) -> String {
    let names = members.iter().map_while(|member| match member {
        Member::Name(name) => Some(name.as_str()),
        Member::Index(_) => None,
    });
    names.collect::<Vec<_>>().join(".")
}

/// A JSON value in which texts may be expressions.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    /// A value without expressions.
    Constant(Arc<Value>),
    /// One expression.
    Whole(Expression),
    /// A text with expressions.
    Text(Vec<Part>),
    List(Vec<Template>),
    Map(Vec<(String, Template)>),
    /// The code of a step.
    Code(Box<Code>),
}

/// A part of a text.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Literal(String),
    Expression(Expression),
}

impl Template {
    /// Parses a value. An error names the member beneath it.
    pub(crate) fn parse(value: &Value) -> Result<Self, (String, String)> {
        let beneath = |name: &str, (path, reason): (String, String)| {
            (if path.is_empty() { name.to_owned() } else { format!("{name}.{path}") }, reason)
        };
        let template = match value {
            Value::String(text) => return Self::text(text).map_err(|reason| (String::new(), reason)),
            Value::Array(items) => {
                let parse =
                    |(index, item)| Self::parse(item).map_err(|error| beneath(&format!("{index}"), error));
                Self::List(items.iter().enumerate().map(parse).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let parse = |(name, item): (&String, &Value)| {
                    let item = Self::parse(item).map_err(|error| beneath(name, error))?;
                    Ok::<_, (String, String)>((name.clone(), item))
                };
                return Self::map(members.iter().map(parse).collect::<Result<_, _>>()?)
                    .map_err(|reason| (String::new(), reason));
            }
            plain => return Ok(Self::Constant(Arc::new(plain.clone()))),
        };
        template.folded().map_err(|reason| (String::new(), reason))
    }

    /// An object.
    pub(crate) fn map(members: Vec<(String, Self)>) -> Result<Self, String> {
        Self::Map(members).folded()
    }

    /// A constant is stored once and shared by all uses.
    fn folded(self) -> Result<Self, String> {
        let is_constant = match &self {
            Self::List(items) => items.iter().all(Self::is_constant),
            Self::Map(members) => members.iter().all(|(_, item)| item.is_constant()),
            _ => false,
        };
        if !is_constant {
            return Ok(self);
        }
        self.value(&Names::none()).map(|value| Self::Constant(Arc::new(value)))
    }

    fn text(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(OPEN) {
            let (before, after) = rest.split_at(at);
            let after = &after[OPEN.len()..];
            if let Some(before) = before.strip_suffix('$') {
                literal.push_str(before);
                literal.push_str(OPEN);
                rest = after;
                continue;
            }
            literal.push_str(before);
            let end = end_of(after).ok_or_else(|| format!("an expression lacks its end `{CLOSE}`"))?;
            let expression = Expression::parse(&after[..end])?;
            rest = &after[end + CLOSE.len()..];
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::Expression(expression));
        }
        literal.push_str(rest);
        Ok(match parts.as_slice() {
            [] => Self::Constant(Arc::new(Value::String(literal))),
            [Part::Expression(expression)] if literal.is_empty() => Self::Whole(expression.clone()),
            _ => {
                if !literal.is_empty() {
                    parts.push(Part::Literal(literal));
                }
                Self::Text(parts)
            }
        })
    }

    fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_))
    }

    /// Whether its value may be this text.
    pub(crate) fn may_be(&self, text: &str) -> bool {
        match self {
            Self::Constant(value) => value.as_str() == Some(text),
            Self::Whole(_) => true,
            Self::Text(parts) => {
                let (mut rest, mut is_open) = (text, false);
                for part in parts {
                    let Part::Literal(literal) = part else {
                        is_open = true;
                        continue;
                    };
                    let found = if is_open { rest.find(literal.as_str()) } else { None };
                    let found = found.or_else(|| rest.starts_with(literal.as_str()).then_some(0));
                    let Some(at) = found else { return false };
                    rest = rest.get(at + literal.len()..).unwrap_or_default();
                    is_open = false;
                }
                let ends =
                    |part: Option<&Part>| matches!(part, Some(Part::Literal(end)) if text.ends_with(end));
                is_open || rest.is_empty() || ends(parts.last())
            }
            Self::List(_) | Self::Map(_) | Self::Code(_) => false,
        }
    }

    /// The value, with null in place of the texts that have expressions.
    pub(crate) fn constants(&self) -> Value {
        match self {
            Self::Constant(value) => Value::clone(value),
            Self::Whole(_) | Self::Text(_) | Self::Code(_) => Value::Null,
            Self::List(items) => items.iter().map(Self::constants).collect(),
            Self::Map(members) => {
                members.iter().map(|(name, item)| (name.clone(), item.constants())).collect()
            }
        }
    }

    /// All expressions in it.
    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Whole(expression) => vec![expression],
            Self::Text(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Expression(expression) => Some(expression),
                    Part::Literal(_) => None,
                })
                .collect(),
            Self::List(items) => items.iter().flat_map(Self::expressions).collect(),
            Self::Map(members) => members.iter().flat_map(|(_, item)| item.expressions()).collect(),
            Self::Code(code) => code.expressions(),
        }
    }

    /// Its value.
    pub(crate) fn value(&self, names: &Names) -> Result<Value, String> {
        Ok(match self {
            Self::Constant(value) => Value::clone(value),
            Self::Whole(expression) => expression.value(names)?,
            Self::Text(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        Part::Literal(literal) => text.push_str(literal),
                        Part::Expression(expression) => push_text(&mut text, &expression.value(names)?),
                    }
                    if text.len() > MAX_TEXT {
                        return Err(format!("a text has more than {MAX_TEXT} bytes"));
                    }
                }
                Value::String(text)
            }
            Self::List(items) => {
                Value::Array(items.iter().map(|item| item.value(names)).collect::<Result<_, _>>()?)
            }
            Self::Map(members) => {
                let values = members.iter().map(|(name, item)| Ok((name.clone(), item.value(names)?)));
                Value::Object(values.collect::<Result<Map<_, _>, String>>()?)
            }
            Self::Code(code) => code.text(names)?,
        })
    }

    /// Its value, shared if it is constant.
    pub(crate) fn shared(&self, names: &Names) -> Result<Arc<Value>, String> {
        match self {
            Self::Constant(value) => Ok(Arc::clone(value)),
            other => other.value(names).map(Arc::new),
        }
    }
}

/// The end of an expression: the first `}}` outside of the strings and objects of the language. Without one, an object may
/// lack its end: then the first `}}` outside of strings.
fn end_of(text: &str) -> Option<usize> {
    let is_close = |at: &usize| text.get(*at..).is_some_and(|rest| rest.starts_with(CLOSE));
    let mut depth = 0_usize;
    let outside_objects = outside_strings(text).find(|at| {
        match text.as_bytes().get(*at) {
            Some(b'{') => depth += 1,
            Some(b'}') if depth > 0 => depth -= 1,
            _ => return is_close(at),
        }
        false
    });
    outside_objects.or_else(|| outside_strings(text).find(is_close))
}

/// Writes a value into a text: texts as they are, others as JSON.
fn push_text(text: &mut String, value: &Value) {
    match value {
        Value::String(plain) => text.push_str(plain),
        Value::Null => {}
        other => text.push_str(&WideJson(other).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(template: &Value, input: Value) -> Result<Value, String> {
        let names = Names::of_input(Arc::new(input));
        Template::parse(template).map_err(|(path, reason)| format!("{path}: {reason}"))?.value(&names)
    }

    #[test]
    fn a_whole_expression_keeps_its_type_and_a_part_becomes_text() {
        let input = json!({
            "n": 3, "list": [1, 2, 3], "text": "a", "deep": {"x": [{"y": true}]}, "big": 12_345_678_901_234_567_890_u64,
        });
        for (template, expected) in [
            (json!("${{ input.n }}"), json!(3)),
            (json!("${{input.list}}"), json!([1, 2, 3])),
            (json!("${{ input.deep.x[0].y }}"), json!(true)),
            (json!("${{ input.big }}"), json!(12_345_678_901_234_567_890_u64)),
            (json!("n is ${{ input.n }} of ${{ input.list }}."), json!("n is 3 of [1,2,3].")),
            (json!("${{ input.n + 1 }}"), json!(4)),
            (json!("${{ input.list | length > 2 and input.text == 'a' }}"), json!(true)),
            (json!("${{ '}}' ~ input.text }}"), json!("}}a")),
            (json!("${{ input.missing | default('none') }}"), json!("none")),
            (json!("${{ {'a': {'b': 1}} }}"), json!({"a": {"b": 1}})),
            (json!("${{ {'a': {'b': {'}}': 2}}}}}"), json!({"a": {"b": {"}}": 2}}})),
            (json!("${{ [{}, {'a': {}}] }}, ${{ {} }}"), json!("[{},{\"a\":{}}], {}")),
            (json!("$${{ x }} {{ y }}"), json!("${{ x }} {{ y }}")),
            (json!({"a": ["${{ input.text }}", 1], "b": null}), json!({"a": ["a", 1], "b": null})),
        ] {
            assert_eq!(value(&template, input.clone()).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn texts_that_a_template_may_have_are_known() {
        for (template, texts, others) in [
            ("go", &["go"][..], &["", "goo", "Go"][..]),
            ("go ${{ input.n }}", &["go ", "go a", "go go "], &["go", "a go "]),
            ("${{ input.n }} go", &[" go", "a go", " go go"], &["go", "a go "]),
            (
                "a${{ input.n }}b${{ input.n }}c",
                &["abc", "axbyc", "abcc", "abbc"],
                &["ab", "acb", "bc", "abcd"],
            ),
            ("${{ input.n }}", &["", "x"], &[]),
        ] {
            let template = Template::parse(&json!(template)).unwrap();
            for text in texts {
                assert!(template.may_be(text), "{template:?} {text}");
            }
            for text in others {
                assert!(!template.may_be(text), "{template:?} {text}");
            }
        }
        assert!(!Template::parse(&json!(["a"])).unwrap().may_be("a"));
    }

    #[test]
    fn defects_name_the_expression_and_the_place() {
        for (template, expected) in [
            (json!({"a": ["${{ 1 + }}"]}), "a.0: `1 +`"),
            (json!("${{ }}"), "empty"),
            (json!("${{ input.n"), "lacks its end"),
            (json!("${{ input.missing }}"), "`input.missing`: there is no `missing`"),
            (json!("${{ input.missing.more }}"), "there is no `missing`"),
            (json!("${{ input.n[0] }}"), "is a number"),
            (json!("${{ range(1000000) | list }}"), "`range(1000000) | list`"),
        ] {
            let error = value(&template, json!({"n": 1})).unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn paths_end_before_indices_and_calls() {
        for (source, expected) in [
            ("steps.a.output.x[0].y", "steps.a.output.x"),
            ("steps . a\n.output['x']", "steps.a.output"),
            ("steps.a.output.items() | list", "steps.a.output list"),
            ("range(steps.a.output.n)", "steps.a.output.n"),
            ("'steps.a.output' ~ \"steps.b\"", ""),
            ("(steps.a).output + 1.5 + my_steps.b", "steps.a my_steps.b"),
            ("steps.a.output[steps.b.output.i:]", "steps.a.output steps.b.output.i"),
        ] {
            assert_eq!(Expression::parse(source).unwrap().paths().join(" "), expected, "{source}");
        }
    }

    #[test]
    fn the_names_that_an_expression_reads_are_known() {
        let reads = |source: &str| {
            Expression::parse(source).unwrap().reads().iter().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reads("steps.a.output.x[0].y"), "steps.a.output.x");
        assert_eq!(reads("x.steps.a and 'steps.b' and my_steps.c"), "my_steps.c x.steps.a");
        for sliced in ["steps.a.output[1:]", "[1][steps . a.output:]", "steps.a.output[::2] | length"] {
            assert!(reads(sliced).contains("steps.a"), "{sliced}");
        }
        assert!(reads("steps['a'][1:]").split(' ').any(|name| name == "steps"));
        assert_eq!(
            reads("steps.a.output > input.n and not item.done"),
            "input.n item.done steps.a steps.a.output"
        );
    }
}

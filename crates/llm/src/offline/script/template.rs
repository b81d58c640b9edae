//! Templates over tool results: `{{ last.structured.value | round(2) }}`.

use serde_json::{Map, Value};

use crate::ToolResult;

/// Maximum nesting of values with templates.
const MAX_DEPTH: usize = 64;

/// A parsed text with templates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Value(Expression),
}

#[derive(Clone, Debug, PartialEq)]
struct Expression {
    /// The source text, for errors.
    source: String,
    root: Root,
    steps: Vec<Step>,
    filters: Vec<Filter>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Root {
    Last,
    Result(usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    Index(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Filter {
    Round(u32),
    Json,
}

impl Template {
    /// Parses a text. The error names the unexpected part.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("{{") {
            let (before, after) = (&rest[..start], &rest[start + 2..]);
            let end = after.find("}}").ok_or_else(|| format!("`{{{{{after}`: expected `}}}}` after it"))?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Value(Expression::parse(after[..end].trim())?));
            rest = &after[end + 2..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// The text with the results inserted.
    pub(super) fn text(&self, results: &[&ToolResult]) -> Result<String, String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Value(expression) => match expression.value(results)? {
                    Value::String(value) => text.push_str(&value),
                    value => text.push_str(&value.to_string()),
                },
            }
        }
        Ok(text)
    }

    /// The value. A text that is exactly one template keeps the type of its value.
    fn value(&self, results: &[&ToolResult]) -> Result<Value, String> {
        match self.0.as_slice() {
            [Piece::Value(expression)] => expression.value(results),
            _ => self.text(results).map(Value::String),
        }
    }
}

/// Checks every template in a value, without results.
pub(super) fn check(value: &Value) -> Result<(), String> {
    walk(value, 0, &mut |text| Template::parse(text).map(|_| Value::Null)).map(|_| ())
}

/// The value with its templates replaced by results.
pub(super) fn fill(value: &Value, results: &[&ToolResult]) -> Result<Value, String> {
    walk(value, 0, &mut |text| Template::parse(text)?.value(results))
}

fn walk(
    value: &Value,
    depth: usize,
    text: &mut impl FnMut(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err(format!("the arguments are nested more than {MAX_DEPTH} deep"));
    }
    Ok(match value {
        Value::String(string) => text(string)?,
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| walk(value, depth + 1, text)).collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            let mut filled = Map::new();
            for (name, value) in members {
                filled.insert(name.clone(), walk(value, depth + 1, text)?);
            }
            Value::Object(filled)
        }
        other => other.clone(),
    })
}

impl Expression {
    fn parse(source: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("`{{{{ {source} }}}}`: {what}");
        let mut parts = source.split('|').map(str::trim);
        let (root, steps) = path(parts.next().unwrap_or_default()).map_err(&wrong)?;
        let filters = parts.map(filter).collect::<Result<_, _>>().map_err(&wrong)?;
        Ok(Self { source: source.to_owned(), root, steps, filters })
    }

    fn value(&self, results: &[&ToolResult]) -> Result<Value, String> {
        let wrong = |what: String| format!("`{{{{ {} }}}}`: {what}", self.source);
        let (result, name) = match self.root {
            Root::Last => (results.last(), "last".to_owned()),
            Root::Result(index) => (results.get(index), format!("results[{index}]")),
        };
        let result = result.ok_or_else(|| {
            wrong(format!("there is no {name}: the conversation has {} tool results", results.len()))
        })?;
        let mut value = &result_value(result);
        let mut at = name;
        for step in &self.steps {
            let (next, found) = match step {
                Step::Member(name) => (value.get(name), format!("{at}.{name}")),
                Step::Index(index) => (value.get(index), format!("{at}[{index}]")),
            };
            value =
                next.ok_or_else(|| wrong(format!("`{found}` is missing; `{at}` is {}", describe(value))))?;
            at = found;
        }
        self.filters.iter().try_fold(value.clone(), |value, filter| filter.apply(&value)).map_err(wrong)
    }
}

/// A result as scripts see it.
fn result_value(result: &ToolResult) -> Value {
    serde_json::json!({
        "text": result.joined_text(),
        "structured": result.structured,
        "is_error": result.is_error,
        "tool": result.name,
    })
}

fn describe(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let names: Vec<&str> = members.keys().take(20).map(String::as_str).collect();
            format!("an object with the members: {}", names.join(", "))
        }
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::String(_) => "a text".to_owned(),
        other => other.to_string(),
    }
}

fn path(text: &str) -> Result<(Root, Vec<Step>), String> {
    let name_end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let mut steps = steps(rest)?;
    let root = match name {
        "last" => Root::Last,
        "results" => match steps.first() {
            Some(Step::Index(index)) => {
                let index = *index;
                steps.remove(0);
                Root::Result(index)
            }
            _ => return Err("expected a number after `results`, such as `results[0].text`".to_owned()),
        },
        _ => return Err(format!("expected `last` or `results[i]`, found `{name}`")),
    };
    Ok((root, steps))
}

fn steps(mut rest: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (number, after) = after
                .split_once(']')
                .ok_or_else(|| "expected `]` after the number of an element".to_owned())?;
            let index = number.trim().parse().map_err(|_| {
                format!("expected the number of an element between `[` and `]`, found `{number}`")
            })?;
            steps.push(Step::Index(index));
            rest = after;
        } else {
            let after =
                rest.strip_prefix('.').ok_or_else(|| format!("expected `.` or `[`, found `{rest}`"))?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return Err("expected a member's name after `.`".to_owned());
            }
            steps.push(Step::Member(after[..end].to_owned()));
            rest = &after[end..];
        }
    }
    Ok(steps)
}

fn filter(text: &str) -> Result<Filter, String> {
    if text == "json" {
        return Ok(Filter::Json);
    }
    let digits = text.strip_prefix("round(").and_then(|rest| rest.strip_suffix(')'));
    if let Some(digits) = digits.and_then(|digits| digits.trim().parse().ok()).filter(|digits| *digits <= 15)
    {
        return Ok(Filter::Round(digits));
    }
    Err(format!("expected the filter `round(N)` with N up to 15, or `json`, found `{text}`"))
}

impl Filter {
    fn apply(self, value: &Value) -> Result<Value, String> {
        match self {
            Self::Json => Ok(Value::String(value.to_string())),
            Self::Round(digits) => {
                let number =
                    value.as_f64().ok_or_else(|| format!("round: expected a number, found {value}"))?;
                // The decimal text gives the shortest digits of the rounded number.
                let text = format!("{number:.*}", digits as usize);
                let rounded: Option<Value> = if digits == 0 {
                    text.parse::<i64>().ok().map(Value::from)
                } else {
                    text.parse::<f64>().ok().map(Value::from)
                };
                rounded.ok_or_else(|| format!("round: {number} is too large"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Vec<ToolResult> {
        let mut first = ToolResult::text("1", "read_file", "north,7\nsouth,3");
        let mut second = ToolResult::text("2", "run_code", "12.345");
        first.is_error = true;
        second.structured = Some(json!({"value": {"growth": 12.345, "rows": [{"n": "a b"}], "none": null}}));
        vec![first, second]
    }

    fn text(template: &str) -> Result<String, String> {
        let results = results();
        Template::parse(template)?.text(&results.iter().collect::<Vec<_>>())
    }

    #[test]
    fn paths_select_results() {
        assert_eq!(text("plain } { text").unwrap(), "plain } { text");
        assert_eq!(text("by {{ last.structured.value.growth }} %.").unwrap(), "by 12.345 %.");
        assert_eq!(text("{{last.structured.value.growth|round(1)}}").unwrap(), "12.3");
        assert_eq!(text("{{ last.structured.value.growth | round(0) }}").unwrap(), "12");
        assert_eq!(text("{{ results[0].text }}/{{ last.tool }}").unwrap(), "north,7\nsouth,3/run_code");
        assert_eq!(text("{{ results[0].is_error }}").unwrap(), "true");
        assert_eq!(text("{{ last.structured.value.rows[0].n }}").unwrap(), "a b");
        assert_eq!(text("{{ last.structured.value.rows | json }}").unwrap(), r#"[{"n":"a b"}]"#);
        assert_eq!(text("{{ last.structured.value.none }}").unwrap(), "null");
    }

    #[test]
    fn an_argument_keeps_its_type() {
        let results = results();
        let results: Vec<&ToolResult> = results.iter().collect();
        let value = json!({"n": "{{ last.structured.value.growth }}", "t": ["n: {{ last.text }}"], "k": 7});
        assert_eq!(fill(&value, &results).unwrap(), json!({"n": 12.345, "t": ["n: 12.345"], "k": 7}));
    }

    #[test]
    fn the_error_names_a_missing_member() {
        let error = text("{{ last.structured.value.grwth }}").unwrap_err();
        assert!(
            error.contains("`last.structured.value.grwth` is missing") && error.contains("growth"),
            "{error}"
        );
        assert!(text("{{ results[7].text }}").unwrap_err().contains("2 tool results"));
        assert!(text("{{ last.text | round(1) }}").unwrap_err().contains("expected a number"));
    }

    #[test]
    fn an_invalid_template_is_found_early() {
        for (wrong, expected) in [
            ("{{ last.text", "expected `}}`"),
            ("{{ lst.text }}", "expected `last` or `results[i]`"),
            ("{{ results.text }}", "expected a number after `results`"),
            ("{{ results[x] }}", "found `x`"),
            ("{{ last..a }}", "member's name"),
            ("{{ last.a | upper }}", "found `upper`"),
            ("{{ last.a | round(99) }}", "up to 15"),
        ] {
            let error = Template::parse(wrong).unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
            assert!(check(&json!([{"a": wrong}])).is_err());
        }
    }
}

//! `ParameterSchema` and its validation rules as JSON Schema.

use serde_json::{Map, Value, json};
use toolpost_core::{ParameterType, ToolError, object_schema};

use crate::fields::Fields;

/// A parameter with its JSON Schema.
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) schema: Value,
    pub(super) is_required: bool,
    pub(super) is_sensitive: bool,
}

/// Anchors a regular expression at the start of the text.
fn anchored(pattern: &str) -> String {
    if pattern.starts_with('^') && !pattern.contains('|') {
        pattern.to_owned()
    } else {
        format!("^(?:{pattern})")
    }
}

/// The two ends of a range such as `0-100` or `-5--1`.
fn range(text: &str) -> Option<(Value, Value)> {
    let text = text.trim();
    // The separator follows a digit; any other minus is a sign.
    let between = text.char_indices().find(|(index, letter)| {
        *letter == '-'
            && text
                .get(..*index)
                .is_some_and(|left| left.trim_end().ends_with(|end: char| end.is_ascii_digit()))
    });
    let (index, _) = between?;
    let number = |text: &str| -> Option<Value> {
        let text = text.trim();
        if let Ok(whole) = text.parse::<i64>() {
            return Some(whole.into());
        }
        text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from)
    };
    let (low, high) = (number(text.get(..index)?)?, number(text.get(index + 1..)?)?);
    (low.as_f64() <= high.as_f64()).then_some((low, high))
}

/// The keywords for the length of a value of this type.
fn length_keywords(kind: ParameterType) -> Option<[&'static str; 2]> {
    match kind {
        ParameterType::Array => Some(["minItems", "maxItems"]),
        ParameterType::Object => Some(["minProperties", "maxProperties"]),
        ParameterType::Integer
        | ParameterType::Number
        | ParameterType::Boolean
        | ParameterType::Null
        | ParameterType::Any => None,
        _ => Some(["minLength", "maxLength"]),
    }
}

fn is_text(kind: ParameterType) -> bool {
    length_keywords(kind).is_some_and(|[least, _]| least == "minLength")
}

fn is_number(kind: ParameterType) -> bool {
    matches!(kind, ParameterType::Integer | ParameterType::Number)
}

/// The schema and the message of one entry of `validation_rules`.
fn rule(value: &Value, place: String, kind: ParameterType) -> Result<(Value, String), ToolError> {
    let mut fields = Fields::new(value, place)?;
    let sort = fields.required_text("type")?;
    let constraint = fields.required_text("constraint")?;
    let message = fields.required_text("message")?.trim().to_owned();
    let misplaced = |fields: &Fields<'_>, what: &str| {
        Err(fields
            .wrong("type", format!("a rule `{sort}` applies to {what}; the parameter is `{}`", kind.name())))
    };
    let schema = match sort {
        "regex" if is_text(kind) => json!({ "pattern": anchored(constraint) }),
        "regex" => return misplaced(&fields, "strings"),
        "range" if is_number(kind) => match range(constraint) {
            Some((low, high)) => json!({ "minimum": low, "maximum": high }),
            None => {
                return Err(fields.wrong("constraint", "expected an ascending range, such as 0-100 or -5-10"));
            }
        },
        "range" => return misplaced(&fields, "numbers"),
        "length" => {
            let Some([least, most]) = length_keywords(kind) else {
                return misplaced(&fields, "strings, arrays and objects");
            };
            let (low, high) = constraint.split_once('-').unwrap_or((constraint, constraint));
            match (low.trim().parse::<u64>(), high.trim().parse::<u64>()) {
                (Ok(low), Ok(high)) if low <= high => json!({ least: low, most: high }),
                _ => {
                    return Err(fields
                        .wrong("constraint", "expected a length or an ascending range, such as 8 or 5-20"));
                }
            }
        }
        "custom" => {
            return Err(fields
                .wrong("type", "a custom rule refers to code, which cannot be imported")
                .suggest("Use a regex, a range or a length, or check the value in the tool."));
        }
        _ => {
            fields.choice("type", &["regex", "range", "length", "custom"], "regex")?;
            return Err(fields.wrong("type", "expected regex, range, length or custom"));
        }
    };
    fields.finish()?;
    Ok((schema, message))
}

impl Parameter {
    pub(super) fn read(value: &Value, place: String) -> Result<Self, ToolError> {
        let mut fields = Fields::new(value, place)?;
        let name = fields.required_text("name")?.to_owned();
        if name.trim().is_empty() {
            return Err(fields.wrong("name", "expected a name that is not empty"));
        }
        let kind: ParameterType = fields
            .required_text("type")?
            .parse()
            .map_err(|message: String| fields.wrong("type", message.trim()))?;
        let mut description = fields.required_text("description")?.trim().to_owned();
        let Value::Object(mut schema) = kind.schema() else {
            return Err(fields.wrong("type", "has no schema"));
        };
        for (name, keyword) in [("minimum", "minimum"), ("maximum", "maximum")] {
            let Some(limit) = fields.number(name)? else { continue };
            if !is_number(kind) && kind != ParameterType::Any {
                return Err(
                    fields.wrong(name, format!("applies to numbers; the parameter is `{}`", kind.name()))
                );
            }
            schema.insert(keyword.into(), limit.clone());
        }
        for (name, index) in [("min_length", 0), ("max_length", 1)] {
            let Some(length) = fields.whole(name)? else { continue };
            let Some(keywords) = length_keywords(kind) else {
                let message =
                    format!("applies to strings, arrays and objects; the parameter is `{}`", kind.name());
                return Err(fields.wrong(name, message));
            };
            schema.insert(keywords[index].into(), length.into());
        }
        if let Some(pattern) = fields.text("pattern")? {
            if !is_text(kind) {
                return Err(fields
                    .wrong("pattern", format!("applies to strings; the parameter is `{}`", kind.name())));
            }
            schema.insert("pattern".into(), anchored(pattern).into());
        }
        if let Some(format) = fields.text("format")? {
            let format = ParameterType::format_for(format);
            match schema.get("format").and_then(Value::as_str) {
                _ if !is_text(kind) => {
                    return Err(fields
                        .wrong("format", format!("applies to strings; the parameter is `{}`", kind.name())));
                }
                Some(own) if own != format => {
                    return Err(
                        fields.wrong("format", format!("the type `{}` has the format `{own}`", kind.name()))
                    );
                }
                _ => {
                    schema.insert("format".into(), format.into());
                }
            }
        }
        let choices = fields.list("enum")?;
        if !choices.is_empty() {
            schema.insert("enum".into(), choices.into());
        }
        let examples = fields.list("examples")?;
        if !examples.is_empty() {
            schema.insert("examples".into(), examples.into());
        }
        let mut rules = Vec::new();
        for (index, value) in fields.list("validation_rules")?.iter().enumerate() {
            let (schema, message) = rule(value, fields.place(&format!("validation_rules/{index}")), kind)?;
            rules.push(schema);
            if !message.is_empty() {
                description = format!("{description}\n{message}");
            }
        }
        if !rules.is_empty() {
            schema.insert("allOf".into(), rules.into());
        }
        let default = fields.any("default");
        if let Some(default) = default {
            schema.insert("default".into(), default.clone());
        }
        schema.insert("description".into(), description.into());
        // A default makes the parameter optional.
        let is_required = fields.flag("required", true)? && default.is_none();
        let is_sensitive = fields.flag("sensitive", false)?;
        fields.finish()?;
        Ok(Self { name, schema: schema.into(), is_required, is_sensitive })
    }
}

/// The schema of an object with these parameters.
pub(super) fn object_of(parameters: &[Parameter], is_closed: bool) -> Map<String, Value> {
    let parameters = parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), &parameter.schema, parameter.is_required));
    object_schema(parameters, is_closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_two_ends_of_any_sign() {
        for (text, expected) in [
            ("0-100", Some((json!(0), json!(100)))),
            ("-5-10", Some((json!(-5), json!(10)))),
            ("-5--1", Some((json!(-5), json!(-1)))),
            (" 0.5 - 1.5 ", Some((json!(0.5), json!(1.5)))),
            ("10-1", None),
            ("5", None),
            ("-5", None),
            ("a-b", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(range(text), expected, "{text}");
        }
    }

    #[test]
    fn patterns_match_from_the_start() {
        assert_eq!(anchored("^a$"), "^a$");
        assert_eq!(anchored("a"), "^(?:a)");
        assert_eq!(anchored("^a|b"), "^(?:^a|b)");
    }
}

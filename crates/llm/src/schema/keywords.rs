//! Which keywords each provider supports.

use serde_json::Value;

use super::SchemaTarget;

/// The lowering of a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// Send the keyword.
    Send,
    /// Drop the keyword, which constrains nothing.
    Drop,
    /// Move the keyword, which constrains nothing, into the description.
    Describe,
    /// Move the constraint into the description: the provider does not check it.
    Unchecked,
}

/// Keywords that neither constrain values nor inform a model.
const SILENT: &[&str] = &[
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "$vocabulary",
    "$dynamicAnchor",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "discriminator",
    "xml",
    "externalDocs",
];

/// The handling of a keyword in a schema of these types.
pub(super) fn handling(target: SchemaTarget, keyword: &str, value: &Value, types: &[&str]) -> Handling {
    match keyword {
        _ if SILENT.contains(&keyword) => Handling::Drop,
        "format" => format_handling(target, value, types),
        // Gemini's own keyword; JSON Schema has none of this name.
        "nullable" if target.is_strict() => Handling::Drop,
        "title" | "default" | "nullable" => Handling::Send,
        "examples" | "example" => Handling::Describe,
        "propertyOrdering" if !target.is_strict() => Handling::Send,
        "minItems" if target == SchemaTarget::AnthropicStrict => match value.as_u64() {
            Some(0 | 1) => Handling::Send,
            _ => Handling::Unchecked,
        },
        "pattern" if target == SchemaTarget::OpenAiStrict => {
            let text = value.as_str().unwrap_or_default();
            let has_lookaround = ["(?=", "(?!", "(?<"].iter().any(|start| text.contains(start));
            if has_lookaround { Handling::Unchecked } else { Handling::Send }
        }
        _ if supported(target).contains(&keyword) => Handling::Send,
        _ => Handling::Unchecked,
    }
}

/// The constraints that a provider accepts.
fn supported(target: SchemaTarget) -> &'static [&'static str] {
    match target {
        SchemaTarget::OpenAiStrict => &[
            "multipleOf",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "minItems",
            "maxItems",
        ],
        SchemaTarget::AnthropicStrict => &[],
        SchemaTarget::Gemini => &[
            "minItems",
            "maxItems",
            "uniqueItems",
            "minLength",
            "maxLength",
            "pattern",
            "minimum",
            "maximum",
        ],
    }
}

fn format_handling(target: SchemaTarget, value: &Value, types: &[&str]) -> Handling {
    // For plans, not for models, and also formats of lists.
    if matches!(value.as_str(), Some("program" | "argv" | "stdin")) {
        return Handling::Drop;
    }
    let is_numeric =
        !types.is_empty() && types.iter().all(|name| matches!(*name, "integer" | "number" | "null"));
    let of_texts: &[&str] = match target {
        SchemaTarget::Gemini => return Handling::Send,
        // OpenAI accepts any format of numbers and rejects unknown formats of texts.
        SchemaTarget::OpenAiStrict if is_numeric => return Handling::Send,
        // `minimum` and `maximum` say which numbers are allowed.
        SchemaTarget::AnthropicStrict if is_numeric => return Handling::Drop,
        SchemaTarget::OpenAiStrict => {
            &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
        }
        SchemaTarget::AnthropicStrict => {
            &["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"]
        }
    };
    let is_supported = of_texts.contains(&value.as_str().unwrap_or_default());
    if is_supported { Handling::Send } else { Handling::Unchecked }
}

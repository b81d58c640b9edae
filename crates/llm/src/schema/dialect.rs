//! Which keywords each provider knows.

use serde_json::Value;

use super::SchemaTarget;

/// What becomes of a keyword that the walk does not treat itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is sent.
    Keep,
    /// It is not sent, and nothing is lost: it constrains nothing.
    Drop,
    /// It constrains nothing, but tells the model something: it goes into the description.
    Tell,
    /// It goes into the description, and is no longer checked.
    Lose,
}

/// Keywords that constrain nothing and tell a model nothing.
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

/// What becomes of a keyword of a schema of these types.
pub(super) fn fate(target: SchemaTarget, keyword: &str, value: &Value, types: &[&str]) -> Fate {
    let is_numeric = types.iter().all(|name| matches!(*name, "integer" | "number" | "null"));
    match keyword {
        _ if SILENT.contains(&keyword) => Fate::Drop,
        "format" => format_fate(target, value, types, is_numeric),
        "title" if target == SchemaTarget::GeminiOpenApi => Fate::Drop,
        "default" if target == SchemaTarget::GeminiOpenApi => Fate::Tell,
        // A word of Gemini's own; to JSON Schema it means nothing.
        "nullable" if target.is_strict() => Fate::Drop,
        "title" | "default" | "nullable" => Fate::Keep,
        "examples" | "example" => Fate::Tell,
        "propertyOrdering" if !target.is_strict() => Fate::Keep,
        "minItems" if target == SchemaTarget::AnthropicStrict => {
            if matches!(value.as_u64(), Some(0 | 1)) {
                Fate::Keep
            } else {
                Fate::Lose
            }
        }
        "pattern" if target == SchemaTarget::OpenAiStrict => {
            let text = value.as_str().unwrap_or_default();
            let looks_around = ["(?=", "(?!", "(?<"].iter().any(|start| text.contains(start));
            if looks_around { Fate::Lose } else { Fate::Keep }
        }
        _ if known(target).contains(&keyword) => Fate::Keep,
        _ => Fate::Lose,
    }
}

/// The constraints that a provider checks or at least takes.
fn known(target: SchemaTarget) -> &'static [&'static str] {
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
        SchemaTarget::GeminiOpenApi => &[
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minLength",
            "maxLength",
            "pattern",
            "minimum",
            "maximum",
        ],
        SchemaTarget::GeminiJsonSchema => &[
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

fn format_fate(target: SchemaTarget, value: &Value, types: &[&str], is_numeric: bool) -> Fate {
    let name = value.as_str().unwrap_or_default();
    let of_texts: &[&str] = match target {
        SchemaTarget::GeminiJsonSchema => return Fate::Keep,
        SchemaTarget::GeminiOpenApi => &["date-time", "enum"],
        SchemaTarget::OpenAiStrict => {
            &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
        }
        SchemaTarget::AnthropicStrict => {
            &["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"]
        }
    };
    if is_numeric && !types.is_empty() {
        // The width of a number is the reader's matter: `minimum` and `maximum` say what is allowed.
        let fits = match (target, name) {
            // It takes any name here, and refuses unknown ones of texts.
            (SchemaTarget::OpenAiStrict, _) => true,
            (SchemaTarget::GeminiOpenApi, "float" | "double") => types.contains(&"number"),
            (SchemaTarget::GeminiOpenApi, "int32" | "int64") => types.contains(&"integer"),
            _ => false,
        };
        return if fits { Fate::Keep } else { Fate::Drop };
    }
    if of_texts.contains(&name) { Fate::Keep } else { Fate::Lose }
}

/// The types that a keyword is about; empty for those that are about every type.
pub(super) fn types_of_keyword(keyword: &str) -> &'static [&'static str] {
    match keyword {
        "properties"
        | "required"
        | "additionalProperties"
        | "minProperties"
        | "maxProperties"
        | "propertyOrdering" => &["object"],
        "items" | "prefixItems" | "minItems" | "maxItems" | "uniqueItems" => &["array"],
        "minLength" | "maxLength" | "pattern" => &["string"],
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
            &["integer", "number"]
        }
        _ => &[],
    }
}

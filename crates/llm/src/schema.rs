//! JSON Schemas as providers take them.
//!
//! A provider that keeps a model to a schema understands a part of JSON Schema only, and each another part.
//! [`lower`] makes a copy that the provider takes and says what it lost; the caller's schema stays as it is, and is
//! what answers are checked against. [`without_nulls`] takes back what a strict provider makes of parameters that
//! may be left out.

mod dialect;
mod limits;
mod merge;
mod nulls;
mod reference;
mod shape;
mod walk;

use serde_json::{Value, json};

pub use self::nulls::without_nulls;

/// What a schema is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SchemaTarget {
    /// Strict tools and answers of OpenAI and of who imitates it: every object is closed, every property is
    /// required, and what may be left out may be `null` instead.
    OpenAiStrict,
    /// Strict tools and answers of Anthropic: every object is closed, nothing refers to itself.
    AnthropicStrict,
    /// `parameters` and `responseSchema` of Gemini, a part of `OpenAPI`: no references, `nullable`, texts as the only
    /// listed values.
    GeminiOpenApi,
    /// `parametersJsonSchema` and `responseJsonSchema` of Gemini.
    GeminiJsonSchema,
}

impl SchemaTarget {
    /// Whether the provider then keeps the model to the schema, so that a schema it cannot keep to is not sent so.
    fn is_strict(self) -> bool {
        matches!(self, Self::OpenAiStrict | Self::AnthropicStrict)
    }
}

/// A schema as a provider takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The schema to send.
    pub schema: Value,
    /// What of the original the provider does not check, such as `` `minLength` at `/properties/name` ``; it stands
    /// in the descriptions instead, where the model reads it. At most 50 entries.
    pub lost: Vec<String>,
    /// Why the provider cannot keep to this schema, such as an object with any names. `schema` is then the original,
    /// for a request that is not strict. Always `None` for Gemini, which has no strict mode.
    pub obstacle: Option<String>,
    /// How many parameters may be left out. Anthropic sums them over a request: see [`StrictAllowance`].
    pub optional: usize,
    /// How many parameters have several types. Anthropic sums them over a request: see [`StrictAllowance`].
    pub unions: usize,
}

/// Makes a copy of a schema that a provider takes.
///
/// Constraints that the provider does not know move into the description; `allOf` and references with something
/// beside them are merged. Bounded: a schema of more than 50,000 values, or nested deeper than 64, is an obstacle, or
/// for Gemini becomes an object without details.
///
/// ```
/// use serde_json::json;
/// use toolpost_llm::schema::{SchemaTarget, lower};
///
/// let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
/// assert_eq!(
///     lower(&schema, SchemaTarget::OpenAiStrict).schema,
///     json!({
///         "type": "object",
///         "properties": {"city": {"type": ["string", "null"]}},
///         "required": ["city"],
///         "additionalProperties": false
///     })
/// );
/// ```
pub fn lower(schema: &Value, target: SchemaTarget) -> Lowered {
    let mut walk = walk::Walk::new(schema, target);
    match walk.document() {
        Ok(lowered) => Lowered {
            schema: lowered,
            lost: walk.lost.into_vec(),
            obstacle: None,
            optional: walk.counts.optional,
            unions: walk.counts.unions,
        },
        Err(reason) => {
            let (schema, lost, obstacle) = if target.is_strict() {
                (schema.clone(), Vec::new(), Some(reason))
            } else {
                (json!({"type": "object"}), vec![reason], None)
            };
            Lowered { schema, lost, obstacle, optional: 0, unions: 0 }
        }
    }
}

/// What Anthropic allows of strict schemas in one request, all tools and the answer's format together.
///
/// Ask for each schema in the order of the request; one that is no longer allowed can be sent without `strict`.
#[derive(Clone, Debug)]
pub struct StrictAllowance {
    tools: usize,
    optional: usize,
    unions: usize,
}

impl StrictAllowance {
    /// The allowance of a request: 20 strict tools, 24 parameters that may be left out, 16 of several types.
    pub fn anthropic() -> Self {
        Self {
            tools: limits::ANTHROPIC_STRICT_TOOLS,
            optional: limits::ANTHROPIC_OPTIONAL,
            unions: limits::ANTHROPIC_UNIONS,
        }
    }

    /// Takes a tool's schema off what is allowed. If it is too much, nothing is taken, and the error says why.
    pub fn take_tool(&mut self, lowered: &Lowered) -> Result<(), String> {
        if self.tools == 0 {
            return Err(format!(
                "the provider takes at most {} strict tools in a request",
                limits::ANTHROPIC_STRICT_TOOLS
            ));
        }
        self.take_answer(lowered)?;
        self.tools -= 1;
        Ok(())
    }

    /// Takes the schema of the answer's format off what is allowed. If it is too much, nothing is taken, and the
    /// error says why.
    pub fn take_answer(&mut self, lowered: &Lowered) -> Result<(), String> {
        if let Some(obstacle) = &lowered.obstacle {
            return Err(obstacle.clone());
        }
        for (need, left, most, what) in [
            (lowered.optional, self.optional, limits::ANTHROPIC_OPTIONAL, "that may be left out"),
            (lowered.unions, self.unions, limits::ANTHROPIC_UNIONS, "of several types"),
        ] {
            if need > left {
                return Err(format!(
                    "the strict schemas of a request may have {most} parameters {what}; {left} are left, {need} are \
                     needed"
                ));
            }
        }
        self.optional -= lowered.optional;
        self.unions -= lowered.unions;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

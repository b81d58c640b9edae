//! JSON Schemas in the dialects of the providers.
//!
//! A provider that enforces a schema supports its own subset of JSON Schema. [`lower`] copies a schema into that subset
//! and reports what the provider does not check. The caller's schema stays unchanged, and answers are validated against
//! it. [`without_nulls`] reverts what strict providers do to optional parameters.

mod keywords;
mod limits;
mod lower;
mod types;

use serde_json::{Value, json};

pub use toolpost_schema::without_nulls;

/// The schema dialect of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SchemaTarget {
    /// Strict tools and answers of OpenAI and compatible servers.
    ///
    /// Every object is closed, every property is required, and an optional property may be `null`.
    OpenAiStrict,
    /// Strict tools and answers of Anthropic: every object is closed, and no schema is recursive.
    AnthropicStrict,
    /// `parametersJsonSchema` and `responseJsonSchema` of Gemini.
    Gemini,
}

impl SchemaTarget {
    /// Whether the provider enforces the schema, so that an unsupported schema must not be sent as strict.
    fn is_strict(self) -> bool {
        self != Self::Gemini
    }
}

/// A schema in a provider's dialect.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The schema to send.
    pub schema: Value,
    /// Keywords that the provider does not check, such as `` `minLength` at `/properties/name` ``.
    ///
    /// Descriptions contain them instead, for the model. At most 50 entries.
    pub unchecked: Vec<String>,
    /// The reason why the provider cannot enforce this schema, such as an object with properties of any name.
    ///
    /// `schema` is then the original, for a request that is not strict. Always `None` for Gemini, which has no strict
    /// mode.
    pub unsupported: Option<String>,
    /// The number of optional parameters. Anthropic limits the sum over a request: see [`StrictBudget`].
    pub optional: usize,
    /// The number of parameters with several types. Anthropic limits the sum over a request: see [`StrictBudget`].
    pub unions: usize,
}

/// Copies a schema into the dialect of a provider.
///
/// Unsupported constraints move into the description. `allOf` and references with siblings are merged. A schema of more
/// than 50,000 values or 64 levels is unsupported; for Gemini it becomes an object without details.
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
    let mut lowering = lower::Lowering::new(schema, target);
    match lowering.document() {
        Ok(lowered) => Lowered {
            schema: lowered,
            unchecked: lowering.unchecked.into_vec(),
            unsupported: None,
            optional: lowering.counts.optional,
            unions: lowering.counts.unions,
        },
        Err(reason) => {
            let (schema, unchecked, unsupported) = if target.is_strict() {
                (schema.clone(), Vec::new(), Some(reason))
            } else {
                (json!({"type": "object"}), vec![reason], None)
            };
            Lowered { schema, unchecked, unsupported, optional: 0, unions: 0 }
        }
    }
}

/// Anthropic's limits on the strict schemas of one request.
///
/// Reserve each schema in the order of the request. A schema that exceeds the budget can be sent without `strict`.
#[derive(Clone, Debug)]
pub struct StrictBudget {
    tools: usize,
    optional: usize,
    unions: usize,
}

impl StrictBudget {
    /// The budget of one request: 20 strict tools, 24 optional parameters, 16 parameters with several types.
    pub fn anthropic() -> Self {
        Self {
            tools: limits::ANTHROPIC_MAX_STRICT_TOOLS,
            optional: limits::ANTHROPIC_MAX_OPTIONAL,
            unions: limits::ANTHROPIC_MAX_UNIONS,
        }
    }

    /// Reserves a tool's schema. The error says what exceeds the budget; then nothing is reserved.
    pub fn reserve_tool(&mut self, lowered: &Lowered) -> Result<(), String> {
        if self.tools == 0 {
            return Err(format!(
                "the provider accepts at most {} strict tools in a request",
                limits::ANTHROPIC_MAX_STRICT_TOOLS
            ));
        }
        self.reserve_answer(lowered)?;
        self.tools -= 1;
        Ok(())
    }

    /// Reserves the answer's schema. The error says what exceeds the budget; then nothing is reserved.
    pub fn reserve_answer(&mut self, lowered: &Lowered) -> Result<(), String> {
        if let Some(reason) = &lowered.unsupported {
            return Err(reason.clone());
        }
        for (needed, left, max, what) in [
            (lowered.optional, self.optional, limits::ANTHROPIC_MAX_OPTIONAL, "optional parameters"),
            (lowered.unions, self.unions, limits::ANTHROPIC_MAX_UNIONS, "parameters with several types"),
        ] {
            if needed > left {
                return Err(format!(
                    "the strict schemas of a request may have {max} {what}; {left} are left, {needed} are needed"
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

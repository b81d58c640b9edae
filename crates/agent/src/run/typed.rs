//! Typed answers: the answer matches a schema, or the model corrects it.

use serde::de::DeserializeOwned;
use toolpost_core::JsonSchema;
use toolpost_llm::{ErrorKind, Feature, ModelError, OutputFormat, Turn};

use super::{FROM_THE_PROGRAM, Interrupted, Run, RunError, Running, TypedOutput};
use crate::answer_schema::AnswerSchema;
use crate::{Agent, RunStopReason};

/// The provider option that requests structured output through a tool.
const STRUCTURED_OUTPUT: &str = "structured_output";

/// Characters of a schema violation that the model reads.
const MAX_PROBLEM_CHARS: usize = 2000;

impl Agent {
    /// Runs until an answer of this type.
    ///
    /// A model whose answer does not match corrects it, up to [`RunLimits::repairs`](crate::RunLimits::repairs) times.
    ///
    /// # Errors
    /// The run ended without such an answer: [`RunStopReason::AnswerSchema`] if no answer matched.
    pub async fn run_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<String>,
    ) -> Result<TypedOutput<T>, RunError> {
        self.run(prompt).finish_as().await
    }
}

impl Run {
    /// Runs until an answer of this type. See [`Agent::run_as`].
    ///
    /// # Errors
    /// The run ended without such an answer.
    pub async fn finish_as<T: DeserializeOwned + JsonSchema>(mut self) -> Result<TypedOutput<T>, RunError> {
        self.answer = Some(AnswerSchema::from_type::<T>());
        let output = self.finish().await;
        match output.value.as_ref().map(T::deserialize) {
            Some(Ok(value)) => Ok(TypedOutput { value, output }),
            _ => Err(RunError::new(output)),
        }
    }
}

impl Running<'_> {
    /// Requests the schema natively or through a tool; without support for either, through the system prompt.
    pub(super) fn request_schema(&mut self) -> Result<(), Interrupted> {
        let Some(answer) = &self.run.answer else { return Ok(self.model.check(&self.request)?) };
        self.request.settings.output = Some(OutputFormat::schema(answer.schema()));
        match self.model.check(&self.request) {
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.describe_schema("the provider does not support answer schemas");
                Ok(self.model.check(&self.request)?)
            }
            checked => Ok(checked?),
        }
    }

    /// Whether the provider may have rejected a request for its answer schema: support for schemas is unknown, or the
    /// error mentions the schema.
    pub(super) fn may_reject_schema(&self, error: &ModelError) -> bool {
        let knows = self.config.model.info().and_then(|info| info.has(Feature::StructuredOutput));
        error.kind == ErrorKind::InvalidRequest
            && self.request.settings.output.is_some()
            && (knows != Some(true) || mentions_schema(&error.to_string()))
    }

    /// Requests the answer through a tool that the model must call. Returns whether that is new and supported.
    pub(super) fn request_schema_by_tool(&mut self, reason: &str) -> bool {
        if self.request.provider_options.contains_key(STRUCTURED_OUTPUT) {
            return false;
        }
        self.request.provider_options.insert(STRUCTURED_OUTPUT.to_owned(), "tool".into());
        let can = self.model.check(&self.request).is_ok();
        if can {
            self.note(&format!("{reason}: the answer is requested through a tool instead"));
        } else {
            self.request.provider_options.remove(STRUCTURED_OUTPUT);
        }
        can
    }

    /// Describes the schema in the system prompt, instead of in a field of the request.
    pub(super) fn describe_schema(&mut self, reason: &str) {
        let Some(answer) = &self.run.answer else { return };
        let instruction = format!(
            "Your last answer must be one JSON value, without any other text, that matches this JSON Schema:\n{}",
            answer.schema()
        );
        self.request.settings.output = None;
        self.request.provider_options.remove(STRUCTURED_OUTPUT);
        self.request.system = Some(match self.request.system.take() {
            Some(system) => format!("{system}\n\n{instruction}"),
            None => instruction,
        });
        self.note(&format!("{reason}: the system prompt has the schema instead"));
    }

    /// Checks the last answer: why the run ends with it, or `None` if the model has to correct it.
    pub(super) async fn accept(
        &mut self,
        stop: RunStopReason,
    ) -> Result<Option<RunStopReason>, RunStopReason> {
        let (schema, validator) = (self.run.answer.clone(), self.config.validator.as_ref());
        if !stop.is_answer() || (schema.is_none() && validator.is_none()) {
            return Ok(Some(stop));
        }
        // The record has all parts of an answer with pauses, even if the last part is empty.
        let text = if self.has_text { self.record.response.as_str() } else { "" };
        let parsed = match &schema {
            Some(schema) => schema.parse(text),
            None => Ok(text.into()),
        };
        let checked = match (parsed, validator) {
            (Ok(value), Some(validator)) => {
                self.unless_over(validator(value, self.run.values.clone())).await?
            }
            (parsed, _) => parsed,
        };
        let problem: String = match checked {
            Ok(value) => {
                self.value = Some(value);
                return Ok(Some(stop));
            }
            Err(problem) => problem.chars().take(MAX_PROBLEM_CHARS).collect(),
        };
        let subject =
            if schema.is_some() { "the answer does not match its schema" } else { "the answer is invalid" };
        self.note(&format!("{subject}: {problem}"));
        if self.repairs >= self.config.limits.repairs {
            return Ok(Some(RunStopReason::AnswerSchema));
        }
        self.repairs += 1;
        let Some(schema) = schema else {
            self.request.turns.push(Turn::user(format!(
                "{FROM_THE_PROGRAM} The answer is invalid: {problem}. Answer again."
            )));
            return Ok(None);
        };
        // A provider that ignores schemas never showed it to the model.
        let knows =
            self.config.model.info().and_then(|info| info.has(Feature::StructuredOutput)) == Some(true);
        let knows_schema = knows || self.repairs > 1 || self.request.settings.output.is_none();
        let schema = if knows_schema { ".".to_owned() } else { format!(": {}", schema.schema()) };
        self.request.turns.push(Turn::user(format!(
            "{FROM_THE_PROGRAM} The answer does not match: {problem}. Answer again, with one JSON value that matches the schema and no other text{schema}"
        )));
        Ok(None)
    }
}

/// Whether an error of a provider mentions the answer schema, in the field names of its wire.
fn mentions_schema(error: &str) -> bool {
    [
        "response_format",
        "text.format",
        "output_config",
        "responseJsonSchema",
        "response_json_schema",
        "schema",
    ]
    .iter()
    .any(|word| error.contains(word))
}

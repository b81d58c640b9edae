//! Answers that are values: they fit a schema, or the model is told what is wrong and tries again.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolpost_core::{JsonSchema, Schema};
use toolpost_llm::schema::without_nulls;
use toolpost_llm::text::find_json;
use toolpost_llm::{ErrorKind, Feature, ModelError, OutputFormat, Turn};

use super::{FROM_THE_PROGRAM, Interrupted, Outcome, Run, Running};
use crate::{Agent, StopReason};

/// The provider option by which answers of a schema come by way of a tool.
const STRUCTURED_OUTPUT: &str = "structured_output";

/// How much of what is wrong with an answer its model is told, in characters.
const MAX_PROBLEM: usize = 2000;

/// Says what is wrong with a value that fits its schema.
type Fits = Arc<dyn Fn(&Value) -> Result<(), String> + Send + Sync>;

/// What an answer must be.
#[derive(Clone)]
pub(crate) struct AnswerForm {
    schema: Arc<Schema>,
    /// What the schema does not say.
    fits: Option<Fits>,
}

impl AnswerForm {
    pub(crate) fn new(schema: Value) -> Self {
        Self { schema: Arc::new(Schema::new(schema)), fits: None }
    }

    /// The value that a text is, if it fits.
    fn read(&self, text: &str) -> Result<Value, String> {
        // Providers that keep to a schema write `null` for what is not there.
        let value = without_nulls(json_in(text)?, self.schema.as_value());
        self.schema.check(&value).map_err(|error| error.message().to_owned())?;
        match &self.fits {
            Some(fits) => fits(&value).map(|()| value),
            None => Ok(value),
        }
    }
}

/// A typed answer, and the run that gave it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// The run.
    pub outcome: Outcome,
}

/// A run that was to give a typed answer and did not.
#[derive(Clone, Debug)]
pub struct NoAnswer {
    /// The run: its stop reason says why.
    pub outcome: Box<Outcome>,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run ended without an answer that fits ({})", self.outcome.stop)?;
        match &self.outcome.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NoAnswer {}

impl Agent {
    /// Runs with a prompt until there is an answer of this type. A model whose answer does not fit is told what is
    /// wrong, up to [`Limits::repairs`](crate::Limits::repairs) times.
    ///
    /// # Errors
    /// The run, when it ended without such an answer: [`StopReason::AnswerSchema`] when none of the answers fitted.
    pub async fn run_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<String>,
    ) -> Result<Answer<T>, NoAnswer> {
        Run::new(self, prompt).finish_as().await
    }
}

impl Run {
    /// Says what the answer must be, as a JSON Schema; the value is in [`Outcome::value`]. Default: the agent's own,
    /// else text.
    pub fn with_answer_schema(mut self, schema: Value) -> Self {
        self.answer = Some(AnswerForm::new(schema));
        self
    }

    /// Runs until there is an answer of this type. See [`Agent::run_as`].
    ///
    /// # Errors
    /// The run, when it ended without such an answer.
    pub async fn finish_as<T: DeserializeOwned + JsonSchema>(mut self) -> Result<Answer<T>, NoAnswer> {
        let read = |value: &Value| T::deserialize(value).map_err(|error| error.to_string());
        self.answer = Some(AnswerForm {
            schema: Arc::new(Schema::of::<T>()),
            fits: Some(Arc::new(move |value| read(value).map(drop))),
        });
        let outcome = self.finish().await;
        match outcome.value.as_ref().map(read) {
            Some(Ok(value)) => Ok(Answer { value, outcome }),
            _ => Err(NoAnswer { outcome: Box::new(outcome) }),
        }
    }
}

impl Running<'_> {
    /// Asks for the form as the wire has it, natively or by way of a tool; where it has neither, the instructions say it.
    pub(super) fn ask_for_form(&mut self) -> Result<(), Interrupted> {
        let Some(form) = &self.answer else { return Ok(self.model.check(&self.request)?) };
        self.request.settings.output = Some(OutputFormat::schema(form.schema.as_value()));
        match self.model.check(&self.request) {
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.say_form("the provider has no schemas for answers");
                Ok(self.model.check(&self.request)?)
            }
            checked => Ok(checked?),
        }
    }

    /// Whether a request was refused that might do without the provider's form: it was asked for one, and nothing is known
    /// of the model's schemas, or the provider speaks of this one.
    pub(super) fn may_be_refused_for_form(&self, error: &ModelError) -> bool {
        let knows = self.parts.model.info().and_then(|info| info.has(Feature::StructuredOutput));
        error.kind == ErrorKind::InvalidRequest
            && self.request.settings.output.is_some()
            && (knows != Some(true) || speaks_of_form(&error.to_string()))
    }

    /// Has the answer come by way of a tool that the model must call; whether that is new, and possible.
    pub(super) fn ask_by_tool(&mut self, reason: &str) -> bool {
        if self.request.provider_options.contains_key(STRUCTURED_OUTPUT) {
            return false;
        }
        self.request.provider_options.insert(STRUCTURED_OUTPUT.to_owned(), "tool".into());
        let can = self.model.check(&self.request).is_ok();
        if can {
            self.note(&format!("{reason}: it is asked by way of a tool instead"));
        } else {
            self.request.provider_options.remove(STRUCTURED_OUTPUT);
        }
        can
    }

    /// Has the instructions say what the answer must be, instead of the provider.
    pub(super) fn say_form(&mut self, reason: &str) {
        let Some(form) = &self.answer else { return };
        let instruction = format!(
            "Your last answer must be one JSON value, without any other text, that fits this JSON Schema:\n{}",
            form.schema.as_value()
        );
        self.request.settings.output = None;
        self.request.provider_options.remove(STRUCTURED_OUTPUT);
        self.request.system = Some(match self.request.system.take() {
            Some(system) => format!("{system}\n\n{instruction}"),
            None => instruction,
        });
        self.note(&format!("{reason}: the instructions say it instead"));
    }

    /// Looks at the last answer: why the run ends with it, or `None` if the model is to try again.
    pub(super) fn accept(&mut self, stop: StopReason) -> Option<StopReason> {
        let Some(form) = self.answer.as_ref().filter(|_| stop.is_answer()) else { return Some(stop) };
        // Of an answer that was made in several pieces the record has all, also if the last one says nothing.
        let whole = if self.has_said { self.record.response.as_str() } else { "" };
        let problem = match form.read(whole) {
            Ok(value) => {
                self.value = Some(value);
                return Some(stop);
            }
            Err(problem) => problem,
        };
        let schema = Arc::clone(&form.schema);
        let problem: String = problem.chars().take(MAX_PROBLEM).collect();
        self.note(&format!("the answer does not fit its schema: {problem}"));
        if self.repairs >= self.parts.limits.repairs {
            return Some(StopReason::AnswerSchema);
        }
        self.repairs += 1;
        // Where the provider may have passed the schema over, its model has never seen it.
        let knows =
            self.parts.model.info().and_then(|info| info.has(Feature::StructuredOutput)) == Some(true);
        let is_told = knows || self.repairs > 1 || self.request.settings.output.is_none();
        let told = if is_told { ".".to_owned() } else { format!(": {}", schema.as_value()) };
        self.request.turns.push(Turn::user(format!(
            "{FROM_THE_PROGRAM} The answer does not fit: {problem}. Answer again, with one JSON value that fits the schema and no other text{told}"
        )));
        None
    }
}

/// Whether a provider's refusal is about the form of the answer, in the words of its wire.
fn speaks_of_form(refusal: &str) -> bool {
    [
        "response_format",
        "text.format",
        "output_config",
        "responseJsonSchema",
        "response_json_schema",
        "schema",
    ]
    .iter()
    .any(|word| refusal.contains(word))
}

/// The JSON value that a text is, or that stands in it between other words.
fn json_in(text: &str) -> Result<Value, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let value = match find_json(text) {
        Some(found) => found.to_value(),
        None => serde_json::from_str(text),
    };
    value.map_err(|error| format!("it is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_in_what_models_write() {
        for (text, found) in [
            ("{\"a\": 1}", json!({"a": 1})),
            ("```json\n{\"a\": [1]}\n```", json!({"a": [1]})),
            ("Here it is: [1, 2]. Good luck.", json!([1, 2])),
            (" 7 ", json!(7)),
        ] {
            assert_eq!(json_in(text), Ok(found), "{text}");
        }
        for text in ["", "no", "{", "{\"a\": }", "} {"] {
            assert!(json_in(text).is_err(), "{text}");
        }
    }
}

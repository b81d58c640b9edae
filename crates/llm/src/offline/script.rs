//! A model that plays a script. Its tool calls are executed.

mod file;
mod template;

use std::fmt;
use std::path::Path;

use serde_json::Value;

use self::file::{Expectation, ScriptTurn};
use self::template::Template;
use crate::offline::events::stream_of;
use crate::offline::reply::ModelReply;
use crate::{
    ErrorKind, Model, ModelError, ModelId, ModelInfo, Request, Response, ResponseStream, StopReason,
    ToolResult, Turn,
};

/// The provider's name in the [`ModelId`] of a scripted model, and the model's name in its answers.
pub(crate) const PROVIDER: &str = "script";

/// A model that plays a script: its answers turn by turn, from a YAML file, from values or from a function.
///
/// The next turn follows from the number of scripted answers in the conversation. So one model serves several
/// conversations, and a stored conversation resumes at its turn.
pub struct ScriptModel {
    id: ModelId,
    info: ModelInfo,
    script: Script,
}

/// The source of the turns.
enum Script {
    Turns(Vec<ScriptTurn>),
    #[expect(clippy::type_complexity, reason = "the type is used once")]
    Function(Box<dyn Fn(&Request) -> Result<Value, ModelError> + Send + Sync>),
}

impl ScriptModel {
    /// Reads a script file of at most 1 MiB. The error names the file, the line and the expected value.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = crate::offline::files::read_text(path, file::MAX_FILE)?;
        Self::parse(path.display().to_string(), &text)
    }

    /// Parses a script file. `name` stands for the file in errors and in the model's id.
    pub fn parse(name: impl Into<String>, text: &str) -> Result<Self, ModelError> {
        let name = name.into();
        let turns = file::parse(text).map_err(|message| invalid(&name, &message))?;
        Ok(Self::with_script(name, Script::Turns(turns)))
    }

    /// A script of values: each turn is an object as in a script file, or a string for a turn of text.
    ///
    /// ```
    /// # use serde_json::json;
    /// # use toolpost_llm::ScriptModel;
    /// let call = json!({ "calls": [{ "tool": "add", "args": { "a": 1, "b": 2 } }] });
    /// let model = ScriptModel::from_turns("sum", [call, "The sum is {{ last.text }}.".into()])?;
    /// # Ok::<(), toolpost_llm::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// A turn is invalid, or there is none. The error names the turn and the expected value.
    pub fn from_turns(
        name: impl Into<String>,
        turns: impl IntoIterator<Item = Value>,
    ) -> Result<Self, ModelError> {
        let name = name.into();
        let turns = (1..).zip(turns).map(|(number, turn)| {
            file::turn_of(turn).map_err(|message| invalid(&name, &format!("turn {number}: {message}")))
        });
        let turns: Vec<_> = turns.collect::<Result<_, _>>()?;
        if turns.is_empty() {
            return Err(invalid(&name, "turns: expected at least one"));
        }
        Ok(Self::with_script(name, Script::Turns(turns)))
    }

    /// A script whose turns are the results of a function, in the form of [`from_turns`](Self::from_turns).
    pub fn from_fn(
        name: impl Into<String>,
        function: impl Fn(&Request) -> Result<Value, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self::with_script(name, Script::Function(Box::new(function)))
    }

    fn with_script(name: impl Into<String>, script: Script) -> Self {
        let id = ModelId::new(PROVIDER, name);
        Self { info: ModelInfo::free(&id), id, script }
    }

    fn answer(&self, request: &Request) -> Result<Response, ModelError> {
        let is_scripted =
            |turn: &&Turn| matches!(turn, Turn::Assistant(turn) if turn.origin.provider == PROVIDER);
        let number = request.turns.iter().filter(is_scripted).count();
        let failed = |kind: ErrorKind, message: String| {
            let message = format!("turn {}: {message}", number + 1);
            ModelError::new(kind, message).with_model(&self.id)
        };
        let computed;
        let turn = match &self.script {
            Script::Turns(turns) => turns.get(number).ok_or_else(|| {
                let message = format!("all {} turns of the script were played", turns.len());
                failed(ErrorKind::ScriptExhausted, message)
            })?,
            Script::Function(function) => {
                let turn = function(request).map_err(|error| error.with_model(&self.id))?;
                computed = file::turn_of(turn).map_err(|message| failed(ErrorKind::Script, message))?;
                &computed
            }
        };
        let results: Vec<&ToolResult> = request.tool_results().collect();
        if let Some(expectation) = &turn.expect {
            check(expectation, results.last().copied())
                .map_err(|message| failed(ErrorKind::ScriptExpectation, message))?;
        }
        self.reply(turn, number, &results).map_err(|message| failed(ErrorKind::ScriptExpectation, message))
    }

    fn reply(&self, turn: &ScriptTurn, number: usize, results: &[&ToolResult]) -> Result<Response, String> {
        let mut reply = match &turn.text {
            Some(text) => ModelReply::text(Template::parse(text)?.text(results)?),
            None => ModelReply::default(),
        };
        for call in &turn.calls {
            let arguments = template::fill(&Value::Object(call.args.clone()), results)?;
            reply = reply.and_call(&call.tool, arguments);
        }
        if let Some(reason) = &turn.stop {
            reply = reply.with_stop(StopReason::from(reason.as_str()));
        }
        Ok(reply.with_usage(turn.usage.input, turn.usage.output).into_answer(&self.id, number + 1))
    }
}

fn invalid(name: &str, message: &str) -> ModelError {
    ModelError::new(ErrorKind::Script, format!("{name}: {message}"))
}

/// Checks an expectation against the latest result.
fn check(expectation: &Expectation, last: Option<&ToolResult>) -> Result<(), String> {
    let last = last.ok_or("expected a tool result, but no tool was called yet")?;
    let text = last.joined_text();
    let shown = || {
        let short: String = text.chars().take(300).collect();
        format!("the result of `{}`: {short:?}{}", last.name, if short.len() < text.len() { "…" } else { "" })
    };
    if let Some(expected) = expectation.is_error.filter(|expected| *expected != last.is_error) {
        return Err(format!("is_error: expected {expected}, found {}, in {}", last.is_error, shown()));
    }
    if let Some(part) = expectation.result_contains.as_deref().filter(|part| !text.contains(part)) {
        return Err(format!("result_contains: expected {part:?} in {}", shown()));
    }
    match &expectation.result_equals {
        None => Ok(()),
        Some(Value::String(expected)) if *expected == text => Ok(()),
        Some(expected) if last.structured.as_ref() == Some(expected) => Ok(()),
        Some(expected) => {
            let structured = last.structured.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
            let structured: String = structured.chars().take(300).collect();
            Err(format!(
                "result_equals: expected {expected}, found {} with the structured value {structured}",
                shown()
            ))
        }
    }
}

impl fmt::Debug for ScriptModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptModel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Model for ScriptModel {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn info(&self) -> Option<&ModelInfo> {
        Some(&self.info)
    }

    fn check(&self, _request: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        stream_of(self.answer(request))
    }
}

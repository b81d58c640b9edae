//! A model that says what a file tells it to say. The tools really run.

mod file;
mod template;

use std::path::Path;

use futures_util::StreamExt as _;

use self::file::{Expectation, Script, ScriptTurn};
use self::template::Template;
use crate::offline::say::events_of;
use crate::{
    ErrorKind, Item, ItemView, Model, ModelError, ModelEvent, ModelId, ModelInfo, RawJson, Request, Response,
    ResponseStream, StopReason, ToolResult, Turn, Usage,
};

/// The provider's name in the [`ModelId`] of a scripted model, and the model's name in its answers.
pub(crate) const PROVIDER: &str = "script";

/// A model that plays a script: a YAML file with what it says turn by turn.
///
/// Which turn is next follows from the conversation: as many have been played as it has answers of scripted models.
/// So one model serves many conversations, and a saved conversation goes on where it was.
#[derive(Debug)]
pub struct ScriptModel {
    id: ModelId,
    info: ModelInfo,
    script: Script,
}

impl ScriptModel {
    /// Reads a script file of at most 1 MiB. The error names the file, the line and what was expected.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = crate::offline::files::read_text(path, file::LARGEST)?;
        Self::parse(path.display().to_string(), &text)
    }

    /// Reads a script's text. `name` stands for the file in errors and in the model's id.
    pub fn parse(name: impl Into<String>, text: &str) -> Result<Self, ModelError> {
        let id = ModelId::new(PROVIDER, name);
        let script = file::parse(text)
            .map_err(|message| ModelError::new(ErrorKind::Script, format!("{}: {message}", id.name)))?;
        Ok(Self { info: ModelInfo::free(&id), id, script })
    }

    fn answer(&self, request: &Request) -> Result<Response, ModelError> {
        let is_scripted =
            |turn: &&Turn| matches!(turn, Turn::Assistant(turn) if turn.origin.provider == PROVIDER);
        let number = request.turns.iter().filter(is_scripted).count();
        let failed = |kind: ErrorKind, message: String| {
            let message = format!("turn {}: {message}", number + 1);
            ModelError::new(kind, message).with_model(&self.id)
        };
        let Some(turn) = self.script.turns.get(number) else {
            let message = format!("the script has {} turns, and all were played", self.script.turns.len());
            return Err(failed(ErrorKind::ScriptExhausted, message));
        };
        let results: Vec<&ToolResult> = request.tool_results().collect();
        if let Some(expectation) = &turn.expect {
            check(expectation, results.last().copied())
                .map_err(|message| failed(ErrorKind::ScriptExpectation, message))?;
        }
        self.speak(turn, number, &results).map_err(|message| failed(ErrorKind::ScriptExpectation, message))
    }

    fn speak(&self, turn: &ScriptTurn, number: usize, results: &[&ToolResult]) -> Result<Response, String> {
        let mut items = Vec::new();
        if let Some(text) = &turn.text {
            let text = Template::parse(text)?.text(results)?;
            let raw = serde_json::json!({"type": "text", "text": text});
            items.push(Item::new(ItemView::Text { text, citations: Vec::new() }, (&raw).into()));
        }
        for (index, call) in turn.calls.iter().enumerate() {
            let id = format!("call_{}_{}", number + 1, index + 1);
            let arguments = template::fill(&serde_json::Value::Object(call.args.clone()), results)?;
            let raw =
                serde_json::json!({"type": "tool_call", "id": id, "name": call.tool, "arguments": arguments});
            let view = ItemView::ToolCall { id, name: call.tool.clone(), arguments: Ok((&arguments).into()) };
            items.push(Item::new(view, (&raw).into()));
        }
        let stop = match &turn.stop {
            Some(reason) => StopReason::from(reason.as_str()),
            None if turn.calls.is_empty() => StopReason::EndTurn,
            None => StopReason::ToolUse,
        };
        let content: Vec<&RawJson> = items.iter().map(Item::raw).collect();
        let raw = RawJson::of(&serde_json::json!({"content": content})).map_err(|error| error.to_string())?;
        Ok(Response {
            id: format!("script_{}", number + 1),
            model: PROVIDER.to_owned(),
            origin: self.id.clone(),
            items,
            stop,
            stop_detail: None,
            usage: Usage { input: turn.usage.input, output: turn.usage.output, ..Usage::default() },
            carry: serde_json::Map::new(),
            notices: Vec::new(),
            raw,
        })
    }
}

/// Holds an expectation against the latest result.
fn check(expectation: &Expectation, last: Option<&ToolResult>) -> Result<(), String> {
    let last = last.ok_or("a result was expected, and no tool has been called yet")?;
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
        Some(serde_json::Value::String(expected)) if *expected == text => Ok(()),
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
        let events: Vec<Result<ModelEvent, ModelError>> = match self.answer(request) {
            Ok(response) => events_of(response).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        futures_util::stream::iter(events).boxed()
    }
}

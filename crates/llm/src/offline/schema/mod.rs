//! A model that tries every tool with arguments that its schema allows.

mod generate;
mod pattern;

use std::collections::HashSet;

use futures_util::StreamExt as _;
use serde_json::Value;

use self::generate::generate;
use crate::offline::said::Said;
use crate::offline::say::events_of;
use crate::{
    ItemView, Model, ModelError, ModelEvent, ModelId, ModelInfo, OutputFormat, Request, ResponseStream,
    ToolChoice, Turn,
};

/// The provider's name in the [`ModelId`] of such a model.
pub(crate) const PROVIDER: &str = "schema";

/// How much of a schema a [`SchemaModel`] fills in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detail {
    /// Everything that is described, also what is optional.
    #[default]
    All,
    /// What must be there.
    Required,
}

impl Detail {
    /// Its name in a model's name: `schema:all`, `schema:required`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Required => "required",
        }
    }
}

/// A model that calls every tool that it is offered once, all of them at once, with arguments made from the tool's schema,
/// and then answers: with JSON made from the schema of the answer if there is one, else with a sentence that says what it
/// called. The same request gets the same answer. For tests of tools, without a provider and without a script.
///
/// What it makes fits schemas of types, `enum`, `const`, ranges, lengths, formats, simple patterns, lists, objects,
/// `allOf`, `anyOf`, `oneOf` and local references; conditions (`if`, `not`) are not looked at.
#[derive(Debug)]
pub struct SchemaModel {
    id: ModelId,
    info: ModelInfo,
    detail: Detail,
}

impl Default for SchemaModel {
    fn default() -> Self {
        Self::new(Detail::default())
    }
}

impl SchemaModel {
    /// A model that fills in so much of each schema.
    pub fn new(detail: Detail) -> Self {
        let id = ModelId::new(PROVIDER, detail.as_str());
        Self { info: ModelInfo::free(&id), id, detail }
    }

    fn say(&self, request: &Request) -> Said {
        let called: HashSet<&str> = calls(request).collect();
        let may_call = |name: &str| match &request.tool_choice {
            Some(ToolChoice::None) => false,
            Some(ToolChoice::Tool(only)) => only == name,
            _ => true,
        };
        let open =
            request.tools.iter().filter(|tool| may_call(&tool.name) && !called.contains(tool.name.as_str()));
        let said = open.fold(Said::default(), |said, tool| {
            let schema = tool.input_schema.to_value().unwrap_or_default();
            said.and_call(&tool.name, generate(&schema, self.detail))
        });
        if said != Said::default() {
            return said;
        }
        match &request.settings.output {
            Some(OutputFormat::Json) => Said::text("{}"),
            Some(OutputFormat::Schema { schema, .. }) => {
                Said::text(generate(&schema.to_value().unwrap_or_default(), self.detail).to_string())
            }
            None => Said::text(summary(request)),
        }
    }
}

/// The tools that the conversation has called.
fn calls(request: &Request) -> impl Iterator<Item = &str> {
    let items = request.turns.iter().flat_map(|turn| match turn {
        Turn::Assistant(turn) => turn.items.as_slice(),
        _ => &[],
    });
    items.filter_map(|item| match item.view() {
        ItemView::ToolCall { name, .. } => Some(name.as_str()),
        _ => None,
    })
}

/// What was called and how it went.
fn summary(request: &Request) -> String {
    let results: Vec<String> = request
        .tool_results()
        .map(|result| format!("{} ({})", result.name, if result.is_error { "failed" } else { "ok" }))
        .collect();
    match results.as_slice() {
        [] => "There was no tool to call.".to_owned(),
        results => format!("Called {}.", results.join(", ")),
    }
}

impl Model for SchemaModel {
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
        let response = self.say(request).into_response(&self.id, request);
        let events: Vec<Result<ModelEvent, ModelError>> = events_of(response).into_iter().map(Ok).collect();
        futures_util::stream::iter(events).boxed()
    }
}

/// A value that a schema allows, for who tests without a model.
pub fn example_of(schema: &Value, detail: Detail) -> Value {
    generate(schema, detail)
}

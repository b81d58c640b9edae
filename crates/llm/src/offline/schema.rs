//! A model that calls every tool with generated arguments.

use std::collections::HashSet;

use toolpost_schema::{SchemaDetail, generate};

use crate::offline::events::stream_of;
use crate::offline::reply::ModelReply;
use crate::{
    ItemView, Model, ModelError, ModelId, ModelInfo, OutputFormat, Request, ResponseStream, ToolChoice, Turn,
};

/// The provider's name in the [`ModelId`] of such a model.
pub(crate) const PROVIDER: &str = "schema";

/// A model that calls every tool once, in parallel, with arguments generated from the tool's schema.
///
/// Then it answers with JSON generated from the answer's schema, or with a sentence that lists the calls. The same
/// request gets the same answer. Generated values match types, `enum`, `const`, ranges, lengths, formats, simple
/// patterns, lists, objects, `allOf`, `anyOf`, `oneOf` and local references. Conditions (`if`, `not`) are ignored.
#[derive(Debug)]
pub(crate) struct SchemaModel {
    id: ModelId,
    info: ModelInfo,
    detail: SchemaDetail,
}

impl SchemaModel {
    pub(crate) fn new(detail: SchemaDetail) -> Self {
        let id = ModelId::new(PROVIDER, detail.as_str());
        Self { info: ModelInfo::free(&id), id, detail }
    }

    fn reply(&self, request: &Request) -> ModelReply {
        let called: HashSet<&str> = calls(request).collect();
        let may_call = |name: &str| match &request.tool_choice {
            Some(ToolChoice::None) => false,
            Some(ToolChoice::Tool(only)) => only == name,
            _ => true,
        };
        let open =
            request.tools.iter().filter(|tool| may_call(&tool.name) && !called.contains(tool.name.as_str()));
        let reply = open.fold(ModelReply::default(), |reply, tool| {
            let schema = tool.input_schema.to_value().unwrap_or_default();
            reply.and_call(&tool.name, generate(&schema, self.detail))
        });
        if reply != ModelReply::default() {
            return reply;
        }
        match &request.settings.output {
            Some(OutputFormat::Json) => ModelReply::text("{}"),
            Some(OutputFormat::Schema { schema, .. }) => {
                ModelReply::text(generate(&schema.to_value().unwrap_or_default(), self.detail).to_string())
            }
            None => ModelReply::text(summary(request)),
        }
    }
}

/// The tools that the conversation called.
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

/// A sentence that lists the calls and their outcomes.
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
        stream_of(Ok(self.reply(request).into_response(&self.id, request)))
    }
}

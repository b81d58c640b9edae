//! The reply of a model without a provider.

use serde_json::{Value, json};

use crate::{Item, ItemView, ModelId, RawJson, Request, Response, StopReason, TokenUsage, Turn};

/// The reply of a [`FunctionModel`](crate::FunctionModel) in one turn: text, tool calls, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelReply {
    text: String,
    calls: Vec<(String, Value)>,
    stop: Option<StopReason>,
    usage: TokenUsage,
}

impl ModelReply {
    /// A reply of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A reply of one tool call. [`and_call`](Self::and_call) adds parallel calls.
    pub fn call(tool: impl Into<String>, arguments: Value) -> Self {
        Self::default().and_call(tool, arguments)
    }

    /// Adds a tool call.
    #[must_use]
    pub fn and_call(mut self, tool: impl Into<String>, arguments: Value) -> Self {
        self.calls.push((tool.into(), arguments));
        self
    }

    /// Sets the stop reason. Default: tool use with calls, else the end of the turn.
    #[must_use]
    pub fn with_stop(mut self, stop: StopReason) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sets the input and output tokens. Default: none.
    #[must_use]
    pub fn with_usage(mut self, input: u64, output: u64) -> Self {
        self.usage = TokenUsage { input, output, ..TokenUsage::default() };
        self
    }

    /// The answer to a request. The ids of its calls are unique in the conversation.
    pub(crate) fn into_response(self, id: &ModelId, request: &Request) -> Response {
        let answers = request.turns.iter().filter(|turn| matches!(turn, Turn::Assistant(_))).count();
        self.into_answer(id, answers + 1)
    }

    /// The answer with this number in a conversation.
    pub(crate) fn into_answer(self, id: &ModelId, number: usize) -> Response {
        let mut items = Vec::with_capacity(self.calls.len() + 1);
        if !self.text.is_empty() {
            let raw = json!({ "type": "text", "text": self.text });
            items.push(Item::new(ItemView::Text { text: self.text, citations: Vec::new() }, (&raw).into()));
        }
        for (index, (name, arguments)) in self.calls.into_iter().enumerate() {
            let call = format!("call_{number}_{}", index + 1);
            let raw = json!({ "type": "tool_call", "id": call, "name": name, "arguments": arguments });
            let view = ItemView::ToolCall { id: call, name, arguments: Ok((&arguments).into()) };
            items.push(Item::new(view, (&raw).into()));
        }
        let has_calls = items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. }));
        let stop = self.stop.unwrap_or(if has_calls { StopReason::ToolUse } else { StopReason::EndTurn });
        let content: Vec<&RawJson> = items.iter().map(Item::raw).collect();
        Response {
            id: format!("{}_{number}", id.provider),
            model: id.provider.clone(),
            origin: id.clone(),
            stop,
            stop_detail: None,
            usage: self.usage,
            provider_state: serde_json::Map::new(),
            notices: Vec::new(),
            raw: (&json!({ "content": content })).into(),
            items,
        }
    }
}

//! What a model without a provider says, as an answer.

use serde_json::{Value, json};

use crate::{Item, ItemView, ModelId, RawJson, Request, Response, StopReason, Turn, Usage};

/// What a [`FunctionModel`](crate::FunctionModel) says in one turn: text, tool calls, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    text: String,
    calls: Vec<(String, Value)>,
    stop: Option<StopReason>,
    usage: Usage,
}

impl Said {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A call of a tool. Several are made at once, by [`and_call`](Self::and_call).
    pub fn call(tool: impl Into<String>, arguments: Value) -> Self {
        Self::default().and_call(tool, arguments)
    }

    /// The same with one more call.
    #[must_use]
    pub fn and_call(mut self, tool: impl Into<String>, arguments: Value) -> Self {
        self.calls.push((tool.into(), arguments));
        self
    }

    /// Says why it stops. Default: to wait for its calls, or because it is done.
    #[must_use]
    pub fn stopping(mut self, stop: StopReason) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Says how many tokens it read and wrote. Default: none.
    #[must_use]
    pub fn using(mut self, input: u64, output: u64) -> Self {
        self.usage = Usage { input, output, ..Usage::default() };
        self
    }

    /// The answer to a request. The ids of its calls are like no other's in the conversation.
    pub(crate) fn into_response(self, id: &ModelId, request: &Request) -> Response {
        let number = 1 + request.turns.iter().filter(|turn| matches!(turn, Turn::Assistant(_))).count();
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
        let waits = items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. }));
        let stop = self.stop.unwrap_or(if waits { StopReason::ToolUse } else { StopReason::EndTurn });
        let content: Vec<&RawJson> = items.iter().map(Item::raw).collect();
        Response {
            id: format!("{}_{number}", id.provider),
            model: id.provider.clone(),
            origin: id.clone(),
            stop,
            stop_detail: None,
            usage: self.usage,
            carry: serde_json::Map::new(),
            notices: Vec::new(),
            raw: (&json!({ "content": content })).into(),
            items,
        }
    }
}

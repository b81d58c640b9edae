//! Events of the provider's own tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Event, RunId};
use toolpost_llm::{HostedOutput, Item, ItemView, RawJson};

/// The events of the hosted tools of one answer.
#[derive(Default)]
pub(super) struct HostedEvents {
    /// The names of the called tools, by call id.
    tools: BTreeMap<String, String>,
    /// The number of early items that did not arrive in order yet.
    ahead: usize,
}

impl HostedEvents {
    /// The events of an item that arrives early.
    pub(super) fn early(&mut self, run: RunId, item: &Item) -> Vec<Event> {
        let events = self.events(run, item);
        self.ahead += usize::from(!events.is_empty());
        events
    }

    /// The events of an item that arrives in order; none if it arrived early before.
    pub(super) fn in_order(&mut self, run: RunId, item: &Item) -> Vec<Event> {
        let is_hosted =
            matches!(item.view(), ItemView::ServerToolCall { .. } | ItemView::ServerToolResult { .. });
        if is_hosted && self.ahead > 0 {
            self.ahead -= 1;
            return Vec::new();
        }
        self.events(run, item)
    }

    fn events(&mut self, run: RunId, item: &Item) -> Vec<Event> {
        let finished = |id: &str, tool: &str, output: &HostedOutput| Event::HostedFinished {
            run,
            id: id.to_owned(),
            tool: tool.to_owned(),
            output: Arc::new(json!(output)),
        };
        match item.view() {
            ItemView::ServerToolCall { id, name, input, output } => {
                self.tools.insert(id.clone(), name.clone());
                let started = Event::HostedStarted {
                    run,
                    id: id.clone(),
                    tool: name.clone(),
                    input: input.as_ref().map(value_of),
                };
                let finished = output.as_ref().map(|output| finished(id, name, output));
                std::iter::once(started).chain(finished).collect()
            }
            ItemView::ServerToolResult { call_id, kind, output } => {
                let tool = self.tools.get(call_id).map_or(kind.as_str(), String::as_str);
                vec![finished(call_id, tool, output)]
            }
            _ => Vec::new(),
        }
    }
}

/// The value of raw JSON; its text if the value cannot be represented.
fn value_of(raw: &RawJson) -> Arc<Value> {
    Arc::new(raw.to_value().unwrap_or_else(|_| raw.get().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(view: &Value) -> Item {
        serde_json::from_value(json!({"view": view, "raw": {}})).unwrap()
    }

    #[test]
    fn each_item_has_one_event_and_a_result_names_its_tool() {
        let run = RunId::new();
        let mut hosted = HostedEvents::default();
        let call = item(&json!({"server_tool_call": {"id": "c1", "name": "code", "input": {"code": "1"}}}));
        let result =
            json!({"server_tool_result": {"call_id": "c1", "kind": "code_result", "output": {"text": "1"}}});
        let result = item(&result);
        let shown = |events: Vec<Event>| -> Value {
            let event = |event: &Event| {
                let event = serde_json::to_value(event).unwrap();
                json!([event["type"], event["id"], event["tool"], event["input"], event["output"]["text"]])
            };
            events.iter().map(event).collect()
        };
        let started = json!([["hosted.started", "c1", "code", {"code": "1"}, null]]);
        let finished = json!([["hosted.finished", "c1", "code", null, "1"]]);
        assert_eq!(shown(hosted.early(run, &call)), started);
        assert_eq!(shown(hosted.early(run, &result)), finished);
        assert!(hosted.in_order(run, &item(&json!({"text": {"text": "x"}}))).is_empty());
        assert!(hosted.in_order(run, &call).is_empty() && hosted.in_order(run, &result).is_empty());
        // Later items arrive in order.
        assert_eq!(shown(hosted.in_order(run, &call)), started);
        assert_eq!(shown(hosted.in_order(run, &result)), finished);
        // A result within its call, and a result of an unknown call.
        let whole =
            item(&json!({"server_tool_call": {"id": "c2", "name": "search", "output": {"text": "2"}}}));
        let both = json!([
            ["hosted.started", "c2", "search", null, null],
            ["hosted.finished", "c2", "search", null, "2"],
        ]);
        assert_eq!(shown(hosted.in_order(run, &whole)), both);
        let unknown = json!([["hosted.finished", "c1", "code_result", null, "1"]]);
        assert_eq!(shown(HostedEvents::default().in_order(run, &result)), unknown);
    }
}

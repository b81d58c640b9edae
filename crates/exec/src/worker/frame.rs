//! Frames between a process and its workers: those of resident mode, with extensions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use toolpost_core::{Document, StateAddress, StateView};

use crate::protocol::frame::{CallFacts, CallerMessage, Frame, ToolMessage};

/// A frame to a worker.
pub(super) type OrderFrame = Frame<Order>;
/// A frame from a worker.
pub(super) type ReportFrame = Frame<Report>;

/// A message to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Order {
    /// Runs one attempt of a tool, without the call path around it.
    Attempt {
        /// Tool name.
        tool: String,
        /// Validated arguments.
        arguments: Value,
        /// Number of the attempt.
        attempt: u32,
        /// Views of its `#[state]` parameters.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        state: Vec<StatePart>,
        /// The facts of the call.
        #[serde(flatten)]
        facts: Box<CallFacts>,
    },
    /// A message of resident mode.
    #[serde(untagged)]
    Caller(CallerMessage),
}

/// A message from a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Report {
    /// Sets the new value of a `#[state]` parameter, committed when the attempt succeeds.
    SetState {
        /// Index of the parameter.
        index: usize,
        /// New value.
        value: Value,
    },
    /// The causes of the following error, outermost first.
    Causes {
        /// Messages of the causes.
        causes: Vec<String>,
    },
    /// A message of resident mode.
    #[serde(untagged)]
    Tool(Box<ToolMessage>),
}

/// The view of a `#[state]` parameter, without the rest of the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StatePart {
    document: String,
    pointer: String,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "double")]
    value: Option<Value>,
}

/// Distinguishes a null value from a missing one.
mod double {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    #[expect(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(super) fn serialize<S: Serializer>(value: &Option<Value>, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Value::deserialize(from).map(Some)
    }
}

impl From<&StateView> for StatePart {
    fn from(view: &StateView) -> Self {
        let StateAddress { document, pointer } = view.address().clone();
        Self { document, pointer, value: view.value().cloned() }
    }
}

impl StatePart {
    /// The view, of a document that contains only this part.
    pub(super) fn view(self) -> StateView {
        let names = self.pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~"));
        let names: Vec<String> = names.collect();
        let version = u64::from(self.value.is_some());
        let value = names.into_iter().rev().fold(self.value.unwrap_or_default(), |value, name| {
            Value::Object(Map::from_iter([(name, value)]))
        });
        let document = Document { id: self.document.clone(), version, value: Arc::new(value) };
        StateView::new(StateAddress { document: self.document, pointer: self.pointer }, &document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_part_of_a_document_travels_alone() {
        let document = Document {
            id: "d".into(),
            version: 7,
            value: Arc::new(json!({"a/b": {"~": [1, null], "other": "x"}, "secret": "y"})),
        };
        for (pointer, expected) in [
            ("", Some(json!({"a/b": {"~": [1, null], "other": "x"}, "secret": "y"}))),
            ("/a~1b", Some(json!({"~": [1, null], "other": "x"}))),
            ("/a~1b/~0", Some(json!([1, null]))),
            ("/a~1b/~0/1", Some(json!(null))),
            ("/nothing", None),
        ] {
            let address = StateAddress { document: "d".into(), pointer: pointer.into() };
            let seen = StatePart::from(&StateView::new(address, &document));
            let line = serde_json::to_string(&seen).unwrap();
            assert_eq!(line.contains("secret"), pointer.is_empty(), "{line}");
            let again: StatePart = serde_json::from_str(&line).unwrap();
            assert_eq!(again.view().value(), expected.as_ref(), "{pointer}");
        }
    }

    #[test]
    fn orders_and_reports_round_trip() {
        let seen = StatePart { document: "d".into(), pointer: "/x".into(), value: Some(Value::Null) };
        let facts = Box::new(CallFacts { deadline_ms: Some(5), ..CallFacts::default() });
        let arguments = json!({"a": [1.5, "x"]});
        let orders = [
            Order::Attempt { tool: "t".into(), arguments, attempt: 2, state: vec![seen], facts },
            Order::Caller(CallerMessage::Cancel),
        ];
        for order in orders {
            let line = OrderFrame::new(3, order).to_line().unwrap();
            assert_eq!(OrderFrame::read(&line).unwrap().to_line().unwrap(), line);
        }
        let reports = [
            Report::SetState { index: 1, value: json!({"n": 1}) },
            Report::Causes { causes: vec!["because".into()] },
            Report::Tool(Box::new(ToolMessage::Nested {
                request: 1,
                tool: "t".into(),
                arguments: json!({}),
            })),
        ];
        for report in reports {
            let line = ReportFrame::new(3, report).to_line().unwrap();
            assert_eq!(ReportFrame::read(&line).unwrap().to_line().unwrap(), line);
        }
    }
}

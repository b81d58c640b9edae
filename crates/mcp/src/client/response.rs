//! Messages of servers that deviate from JSON-RPC, and results as JSON.
//!
//! rmcp tries the type of each method on a result and drops the members that its types do not have. The results of calls
//! and lists therefore stay JSON, and [`crate::convert::inward`] converts them part by part.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, ErrorCode, ErrorData,
    JsonRpcMessage, ListToolsResult, MetaObject, NumberOrString, RequestId, ServerJsonRpcMessage,
    ServerResult, Tool,
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::json::Parsed;
use crate::convert::inward::{Notes, initialized, shortened};
use crate::convert::whole;

/// The most pending requests whose method is known. The oldest is forgotten first.
const MAX_PENDING: usize = 4_096;
/// The member that holds a result as JSON, and the one with the losses of its text.
const RESULT: &str = "toolpost/result";
const LOSSES: &str = "toolpost/losses";
/// The longest quote of a message, in characters.
const MAX_QUOTE: usize = 500;

/// The pending requests of a connection, by id.
type Requests = VecDeque<(RequestId, Reading)>;

/// The reader of a request's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// By rmcp.
    Typed,
    /// As JSON.
    Json,
    /// As JSON, beside the tools that rmcp reads: over HTTP it sends the parameters that their schemas mark as headers.
    Tools,
    /// The result of `initialize`.
    Initialize,
}

impl Reading {
    fn new(request: &ClientRequest, is_http: bool) -> Self {
        match request {
            ClientRequest::ListToolsRequest(_) if is_http => Self::Tools,
            ClientRequest::InitializeRequest(_) => Self::Initialize,
            ClientRequest::CallToolRequest(_)
            | ClientRequest::ReadResourceRequest(_)
            | ClientRequest::GetPromptRequest(_)
            | ClientRequest::GetTaskRequest(_)
            | ClientRequest::ListToolsRequest(_)
            | ClientRequest::ListResourcesRequest(_)
            | ClientRequest::ListResourceTemplatesRequest(_)
            | ClientRequest::ListPromptsRequest(_) => Self::Json,
            _ => Self::Typed,
        }
    }
}

/// The pending requests of a connection. Cheap to clone; all clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    requests: Arc<Mutex<Requests>>,
    is_http: bool,
}

impl Pending {
    pub(super) fn of_http() -> Self {
        Self { requests: Arc::default(), is_http: true }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        // The queue is whole after any panic.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request before it is sent, and forgets a request that is cancelled.
    pub(super) fn register(&self, message: &ClientJsonRpcMessage) {
        match message {
            JsonRpcMessage::Request(request) => {
                let mut pending = self.lock();
                if pending.len() == MAX_PENDING {
                    pending.pop_front();
                }
                pending.push_back((request.id.clone(), Reading::new(&request.request, self.is_http)));
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.forget(id);
                }
            }
            _ => {}
        }
    }

    pub(super) fn forget(&self, id: &RequestId) {
        self.lock().retain(|(known, _)| known != id);
    }

    /// The only pending request.
    pub(super) fn only(&self) -> Option<RequestId> {
        let pending = self.lock();
        pending.front().filter(|_| pending.len() == 1).map(|(id, _)| id.clone())
    }

    /// The pending request with an id, also if the server changed the type of the id.
    fn request(&self, id: &Value) -> Option<(RequestId, Reading)> {
        let id = request_id(id)?;
        let pending = self.lock();
        let is = |wanted: &RequestId| pending.iter().find(|(known, _)| known == wanted).cloned();
        is(&id).or_else(|| match &id {
            NumberOrString::String(text) => is(&NumberOrString::Number(text.trim().parse().ok()?)),
            NumberOrString::Number(_) => None,
        })
    }

    /// Converts a message. A response without an id answers `only`. Returns `None` if the value is not a message.
    pub(super) fn message(&self, parsed: Parsed, only: Option<&RequestId>) -> Option<ServerJsonRpcMessage> {
        let Parsed { value, losses } = parsed;
        let Value::Object(mut fields) = value else { return None };
        if fields.contains_key("method") {
            // Some serializers write null for an absent member.
            fields.retain(|_, value| !value.is_null());
            fields.insert("jsonrpc".to_owned(), "2.0".into());
            return serde_json::from_value(Value::Object(fields)).ok();
        }
        let error = fields.shift_remove("error").filter(|error| !error.is_null());
        let result = fields.shift_remove("result");
        if error.is_none() && result.is_none() {
            return None;
        }
        let id = fields.shift_remove("id").unwrap_or_default();
        let known = match (&id, only) {
            (Value::Null, Some(only)) => self.request(&json!(only)).or(Some((only.clone(), Reading::Typed))),
            _ => self.request(&id),
        };
        let Some((id, reading)) = known else {
            let shown = shortened(&id.to_string(), 80);
            match id {
                Value::Null => tracing::warn!("a server answered one of several requests without its id"),
                // The request may have been cancelled.
                _ => tracing::debug!("a server answered a request that is not pending, with the id {shown}"),
            }
            let id = request_id(&id)?;
            return Some(JsonRpcMessage::error(error_data(error.unwrap_or_default()), Some(id)));
        };
        self.forget(&id);
        // A server may send both members, one of them empty.
        let is_empty =
            |error: &Value| matches!(error, Value::Bool(false)) || *error == json!("") || *error == json!({});
        match (error.filter(|error| !(is_empty(error) && result.is_some())), result) {
            (Some(error), result) => {
                let mut error = error_data(error);
                if let Some(result) = result.filter(|result| !result.is_null()) {
                    let quote = shortened(&result.to_string(), MAX_QUOTE);
                    error.message = format!("{}; it came with the result {quote}", error.message).into();
                }
                Some(JsonRpcMessage::error(error, Some(id)))
            }
            (None, result) => Some(response(id, reading, result.unwrap_or_default(), losses)),
        }
    }
}

/// The response with a result, read as its request requires.
fn response(id: RequestId, reading: Reading, result: Value, losses: Vec<String>) -> ServerJsonRpcMessage {
    let typed = |result: Value| serde_json::from_value(result).unwrap_or(ServerResult::empty(()));
    let result = match reading {
        Reading::Json => {
            ServerResult::CustomResult(CustomResult(json!({ (RESULT): result, (LOSSES): losses })))
        }
        Reading::Tools => ServerResult::ListToolsResult(listed(result, &losses)),
        Reading::Typed => typed(result),
        Reading::Initialize => {
            let mut notes = Notes::from(losses);
            let initialized = initialized(result, &mut notes);
            notes.log("the result of `initialize`");
            match initialized {
                Ok(result) => typed(result),
                Err(why) => return super::message::bad(id, &why, false),
            }
        }
    };
    JsonRpcMessage::response(result, id)
}

/// The tools that rmcp can read, with the whole list in the meta.
fn listed(result: Value, losses: &[String]) -> ListToolsResult {
    let tools = result.get("tools").and_then(Value::as_array).into_iter().flatten();
    let known = tools.filter_map(|tool| Tool::deserialize(tool).ok()).collect();
    let mut list = ListToolsResult::with_all_items(known);
    list.meta =
        Some(MetaObject(Map::from_iter([(RESULT.to_owned(), result), (LOSSES.to_owned(), json!(losses))])));
    list
}

/// The whole list, without the tools that rmcp rejected.
fn unlisted(list: ListToolsResult) -> Option<Value> {
    let mut fields = list.meta?.0;
    let mut result = fields.shift_remove(RESULT)?;
    if let Some(tools) = result.get_mut("tools").and_then(Value::as_array_mut) {
        let is_known = |tool: &Value| {
            Tool::deserialize(tool).map_or(true, |tool| list.tools.iter().any(|kept| kept.name == tool.name))
        };
        tools.retain(is_known);
    }
    Some(json!({ (RESULT): result, (LOSSES): fields.shift_remove(LOSSES) }))
}

/// A result as JSON, and what its text lost.
pub(super) fn json_of(result: ServerResult) -> (Value, Notes) {
    let result = match result {
        ServerResult::ListToolsResult(list) => match unlisted(list.clone()) {
            Some(whole) => ServerResult::CustomResult(CustomResult(whole)),
            None => ServerResult::ListToolsResult(list),
        },
        result => result,
    };
    let value = match result {
        ServerResult::CustomResult(CustomResult(Value::Object(mut fields)))
            if fields.contains_key(RESULT) =>
        {
            let losses = fields.shift_remove(LOSSES).unwrap_or_default();
            let losses: Vec<String> = serde_json::from_value(losses).unwrap_or_default();
            return (fields.shift_remove(RESULT).unwrap_or_default(), Notes::from(losses));
        }
        result => serde_json::to_value(result).unwrap_or_default(),
    };
    (value, Notes::default())
}

/// The id in a message. Some servers write whole numbers as floats.
fn request_id(id: &Value) -> Option<RequestId> {
    match id {
        Value::String(text) => Some(NumberOrString::String(text.as_str().into())),
        Value::Number(number) => whole(number).map(NumberOrString::Number),
        _ => None,
    }
}

/// An error of any shape. The message holds the words of the server.
pub(super) fn error_data(error: Value) -> ErrorData {
    let internal = |message: String, data| ErrorData::new(ErrorCode::INTERNAL_ERROR, message, data);
    let mut fields = match error {
        Value::String(text) => return internal(text, None),
        Value::Object(fields) => fields,
        Value::Null => return internal("an empty error".to_owned(), None),
        other => return internal(other.to_string(), None),
    };
    let code = match fields.get("code") {
        Some(Value::Number(code)) => whole(code).and_then(|code| i32::try_from(code).ok()),
        Some(Value::String(code)) => code.trim().parse().ok(),
        _ => None,
    };
    let whole_error = Value::Object(fields.clone());
    let is_exact = code.is_some() && fields.keys().all(|key| ["code", "message", "data"].contains(&&**key));
    let message = match fields.shift_remove("message") {
        Some(Value::String(text)) if !text.trim().is_empty() => text,
        _ => whole_error.to_string(),
    };
    let data = match fields.shift_remove("data") {
        data if is_exact => data.filter(|data| !data.is_null()),
        _ => Some(whole_error),
    };
    ErrorData::new(code.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode), message, data)
}

/// The words of a body that is not a message: its error or its message, else all of it.
pub(super) fn words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let parsed = super::json::parse(body).ok().map(|parsed| parsed.value);
    let said = parsed.as_ref().and_then(Value::as_object).and_then(said);
    shortened(said.unwrap_or_else(|| text.into_owned()).trim(), MAX_QUOTE)
}

fn said(fields: &Map<String, Value>) -> Option<String> {
    if let Some(error) = fields.get("error").filter(|error| error.is_object()) {
        return Some(error_data(error.clone()).message.into_owned());
    }
    // Other members may hold the reason.
    let only = if fields.len() == 1 { fields.values().next() } else { None };
    only.and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::{CallToolRequest, CallToolRequestParams, PingRequest};

    fn pending(ids: &[i64]) -> Pending {
        let pending = Pending::default();
        for id in ids {
            let call = CallToolRequest::new(CallToolRequestParams::new("a"));
            let request = ClientRequest::CallToolRequest(call);
            pending.register(&JsonRpcMessage::request(request, NumberOrString::Number(*id)));
        }
        pending
    }

    /// The id and the content of a message for two pending calls, or for one if the row says so.
    fn read(ids: &[i64], value: Value) -> Option<(Value, String)> {
        let pending = pending(ids);
        let only = pending.only();
        match pending.message(value.into(), only.as_ref())? {
            JsonRpcMessage::Response(response) => {
                Some((json!(response.id), json_of(response.result).0.to_string()))
            }
            JsonRpcMessage::Error(error) => {
                Some((json!(error.id), format!("{} {}", error.error.code.0, error.error.message)))
            }
            _ => Some((Value::Null, "message".to_owned())),
        }
    }

    #[test]
    fn a_response_of_any_form_answers_its_request() {
        for (ids, value, id, content) in [
            (&[7, 8][..], json!({ "jsonrpc": "2.0", "id": 7, "result": { "a": 1 } }), 7, r#"{"a":1}"#),
            (&[7, 8], json!({ "id": 7, "result": "x" }), 7, r#""x""#),
            (&[7, 8], json!({ "jsonrpc": "1.0", "id": 8.0, "result": [1], "error": null }), 8, "[1]"),
            (&[7, 8], json!({ "id": "7", "result": null }), 7, "null"),
            (&[7, 8], json!({ "id": 7, "result": {}, "error": {} }), 7, "{}"),
            (&[7], json!({ "id": null, "result": 5 }), 7, "5"),
            (&[7], json!({ "result": {} }), 7, "{}"),
            (&[7], json!({ "id": null, "error": { "code": -32000, "message": "no" } }), 7, "-32000 no"),
            (&[7, 8], json!({ "id": 7, "error": "no" }), 7, "-32603 no"),
            (&[7, 8], json!({ "id": 7, "error": { "message": "no" } }), 7, "-32603 no"),
            (&[7, 8], json!({ "id": 7, "error": { "code": "-32602", "message": "no" } }), 7, "-32602 no"),
            (&[7, 8], json!({ "id": 7, "error": { "code": -32602.0, "message": "no" } }), 7, "-32602 no"),
            (&[7, 8], json!({ "id": 7, "error": { "detail": "no" } }), 7, r#"-32603 {"detail":"no"}"#),
            (&[7, 8], json!({ "id": 7, "error": ["no"] }), 7, r#"-32603 ["no"]"#),
            (
                &[7, 8],
                json!({ "id": 7, "error": "no", "result": { "a": 1 } }),
                7,
                r#"-32603 no; it came with the result {"a":1}"#,
            ),
            (&[7, 8], json!({ "id": 9, "error": { "code": 1, "message": "no" } }), 9, "1 no"),
        ] {
            let shown = value.to_string();
            assert_eq!(read(ids, value), Some((json!(id), content.to_owned())), "{shown}");
        }
        for (ids, value) in [
            (&[7][..], json!([1])),
            (&[7], json!({})),
            (&[7], json!({ "id": 7 })),
            (&[7, 8], json!({ "id": null, "result": 5 })),
            (&[7, 8], json!({ "id": [7], "error": "no" })),
        ] {
            let shown = value.to_string();
            assert_eq!(read(ids, value), None, "{shown}");
        }
        let notified = json!({ "method": "notifications/tools/list_changed", "id": null, "params": null });
        assert_eq!(read(&[7], notified).unwrap().1, "message");
    }

    #[test]
    fn only_results_of_calls_and_lists_stay_json() {
        let pending = Pending::default();
        let ping = ClientRequest::PingRequest(PingRequest::default());
        pending.register(&JsonRpcMessage::request(ping, NumberOrString::Number(1)));
        let answer = pending.message(json!({ "id": 1, "result": {} }).into(), None).unwrap();
        let JsonRpcMessage::Response(response) = answer else { panic!("{answer:?}") };
        assert!(matches!(response.result, ServerResult::EmptyResult(_)), "{response:?}");
        // The wrapped form survives the parser of rmcp, which reads the events of HTTP.
        let wrapped = super::response(
            NumberOrString::Number(2),
            Reading::Json,
            json!({ "content": [], "supportedVersions": [], "resultType": "complete" }),
            vec!["lost".to_owned()],
        );
        let text = serde_json::to_string(&wrapped).unwrap();
        let JsonRpcMessage::Response(parsed) = serde_json::from_str::<ServerJsonRpcMessage>(&text).unwrap()
        else {
            panic!("{text}")
        };
        let (value, notes) = json_of(parsed.result);
        assert_eq!(value["resultType"], "complete");
        assert_eq!(notes, Notes::from(vec!["lost".to_owned()]));
    }

    #[test]
    fn the_words_of_a_body_are_its_error() {
        for (body, expected) in [
            ("  no such session ", "no such session"),
            (r#"{"error":"gone"}"#, "gone"),
            (r#"{"error":{"code":1,"message":"gone"},"id":"server-error"}"#, "gone"),
            (r#"{"error":"gone","hint":"log in"}"#, r#"{"error":"gone","hint":"log in"}"#),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            ("", ""),
        ] {
            assert_eq!(words(body.as_bytes()), expected, "{body}");
        }
        assert!(words("x".repeat(10_000).as_bytes()).len() < 600);
    }
}

//! The events that Claude Code writes, one per line. Unknown events stay JSON.

use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::Usage;

/// Items that are read of one list.
const MAX_ITEMS: usize = 1024;

/// A line of the program's output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    System(System),
    /// Blocks of a message of the model. Sub-agents have a parent, the use of a tool.
    Assistant {
        message: Message<Block>,
        parent_tool_use_id: Option<String>,
        error: Option<String>,
    },
    /// Results of tools.
    User {
        message: Message<ToolResult>,
    },
    /// A part of an unfinished message.
    #[serde(rename = "stream_event")]
    Partial {
        event: StreamEvent,
        parent_tool_use_id: Option<String>,
    },
    /// The end of a turn.
    Result(Box<Ended>),
    /// A request of the program to this host.
    ControlRequest {
        request_id: String,
        request: ControlRequest,
    },
    /// The response of the program to a request of this host.
    ControlResponse {
        response: Response,
    },
    #[serde(skip)]
    Unknown(Value),
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(super) enum System {
    /// The start of a turn.
    Init {
        #[serde(default)]
        session_id: String,
        #[serde(default)]
        model: String,
        #[serde(default, deserialize_with = "list")]
        mcp_servers: Vec<ServerStatus>,
    },
    /// The program denied the use of a tool.
    PermissionDenied {
        tool_name: String,
        #[serde(default)]
        message: String,
    },
    /// A request to the provider failed and is retried.
    ApiRetry {
        #[serde(default)]
        attempt: u64,
        error_status: Option<u64>,
        #[serde(default)]
        error: String,
    },
}

/// The connection of the program to a tool server. Other fields may have credentials.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ServerStatus {
    pub(super) name: String,
    #[serde(default)]
    pub(super) status: String,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub(super) struct Message<T> {
    #[serde(default)]
    pub(super) id: String,
    #[serde(deserialize_with = "blocks")]
    pub(super) content: Vec<T>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename = "tool_result")]
pub(super) struct ToolResult {
    pub(super) tool_use_id: String,
    #[serde(default)]
    pub(super) is_error: bool,
    #[serde(default)]
    content: Value,
}

impl ToolResult {
    /// The text of the result.
    pub(super) fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                let texts = parts.iter().take(MAX_ITEMS).filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct StreamEvent {
    pub(super) delta: Delta,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Delta {
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
}

/// The end of a turn. A field of a wrong type counts as missing, so that a turn always ends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Ended {
    #[serde(deserialize_with = "lenient")]
    pub(super) subtype: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) is_error: bool,
    #[serde(deserialize_with = "lenient")]
    pub(super) result: Option<String>,
    #[serde(deserialize_with = "list")]
    pub(super) errors: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) stop_reason: Option<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) api_error_status: Option<u64>,
    /// Since the start of the process, in US dollars.
    #[serde(deserialize_with = "lenient")]
    pub(super) total_cost_usd: Option<f64>,
    /// Of this turn alone.
    #[serde(deserialize_with = "lenient")]
    pub(super) usage: ProgramUsage,
    #[serde(deserialize_with = "list")]
    pub(super) permission_denials: Vec<Denial>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ProgramUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    output_tokens_details: OutputTokens,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct OutputTokens {
    thinking_tokens: Option<u64>,
}

impl From<ProgramUsage> for Usage {
    fn from(tokens: ProgramUsage) -> Self {
        let (read, written) = (tokens.cache_read_input_tokens, tokens.cache_creation_input_tokens);
        Self {
            input_tokens: tokens.input_tokens.saturating_add(read).saturating_add(written),
            output_tokens: tokens.output_tokens,
            cache_read_tokens: read,
            cache_write_tokens: written,
            reasoning_tokens: tokens.output_tokens_details.thinking_tokens,
            ..Self::default()
        }
    }
}

/// A denied use of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Denial {
    pub(super) tool_name: String,
    #[serde(default)]
    pub(super) tool_use_id: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(super) enum ControlRequest {
    /// Asks for permission to use a tool.
    CanUseTool {
        tool_name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(super) enum Response {
    Success {
        request_id: String,
        #[serde(default)]
        response: Value,
    },
    Error {
        request_id: String,
        #[serde(default)]
        error: String,
    },
}

impl Event {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a JSON object.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if !value.is_object() {
            return Err("expected an object".to_owned());
        }
        match Self::deserialize(&value) {
            Ok(Self::User { message }) if message.content.is_empty() => Ok(Self::Unknown(value)),
            Ok(event) => Ok(event),
            Err(_) => Ok(Self::Unknown(value)),
        }
    }
}

/// The valid items of an array.
fn blocks<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let items = Vec::<Value>::deserialize(deserializer)?.into_iter().take(MAX_ITEMS);
    Ok(items.filter_map(|item| serde_json::from_value(item).ok()).collect())
}

/// The valid items of an array; none of another value.
fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(blocks(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// The value, or the default for a value of a wrong type.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Event {
        Event::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn messages_have_the_valid_blocks() {
        let event = parse(&json!({
            "type": "assistant", "parent_tool_use_id": "toolu_1",
            "message": { "id": "m", "content": [
                { "type": "text", "text": "a" },
                { "type": "thinking", "thinking": "b", "signature": "s" },
                { "type": "tool_use", "id": "t", "name": "mcp__calc__add", "input": { "a": 1 } },
                { "type": "tool_use", "id": 7 },
                { "type": "picture" },
                5,
            ] },
        }));
        let content = vec![
            Block::Text { text: "a".into() },
            Block::ToolUse { id: "t".into(), name: "mcp__calc__add".into(), input: json!({ "a": 1 }) },
        ];
        let message = Message { id: "m".into(), content };
        assert_eq!(
            event,
            Event::Assistant { message, parent_tool_use_id: Some("toolu_1".into()), error: None }
        );
        let Event::User { message } = parse(&json!({
            "type": "user", "parent_tool_use_id": null,
            "message": { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": "3" },
                { "type": "tool_result", "tool_use_id": "u", "is_error": true,
                  "content": [{ "type": "text", "text": "it" }, { "type": "text", "text": "broke" }] },
            ] },
        })) else {
            panic!("no results")
        };
        let results = message.content.iter().map(|one| (one.tool_use_id.as_str(), one.is_error, one.text()));
        assert_eq!(
            results.collect::<Vec<_>>(),
            [("t", false, "3".to_owned()), ("u", true, "it\nbroke".to_owned())]
        );
    }

    #[test]
    fn the_end_of_a_turn_has_cost_usage_and_denials() {
        let Event::Result(ended) = parse(&json!({
            "type": "result", "subtype": "success", "is_error": false, "result": "42", "errors": 7,
            "total_cost_usd": 0.25, "stop_reason": "end_turn", "api_error_status": "none",
            "usage": { "input_tokens": 10, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
                       "output_tokens": 5, "output_tokens_details": { "thinking_tokens": 1 } },
            "permission_denials": [{ "tool_name": "Bash", "tool_use_id": "t", "tool_input": {} }, 5],
        })) else {
            panic!("not the end")
        };
        let usage = Usage {
            input_tokens: 15,
            output_tokens: 5,
            cache_read_tokens: 3,
            cache_write_tokens: 2,
            reasoning_tokens: Some(1),
            ..Usage::default()
        };
        assert_eq!(Usage::from(ended.usage), usage);
        let expected = Ended {
            subtype: "success".into(),
            result: Some("42".into()),
            stop_reason: Some("end_turn".into()),
            total_cost_usd: Some(0.25),
            usage: ended.usage,
            permission_denials: vec![Denial { tool_name: "Bash".into(), tool_use_id: "t".into() }],
            ..Ended::default()
        };
        assert_eq!(*ended, expected);
    }

    #[test]
    fn known_lines_are_events_and_others_stay_json() {
        let init = json!({ "type": "system", "subtype": "init", "session_id": "s", "model": "m", "mcp_servers": [
            { "name": "calc", "status": "connected", "config": { "headers": { "Authorization": "Bearer x" } } } ] });
        let server = ServerStatus { name: "calc".into(), status: "connected".into(), error: None };
        let request =
            |request: Value| json!({ "type": "control_request", "request_id": "r", "request": request });
        let asked = |request| Event::ControlRequest { request_id: "r".into(), request };
        for (line, event) in [
            (
                init,
                Event::System(System::Init {
                    session_id: "s".into(),
                    model: "m".into(),
                    mcp_servers: vec![server],
                }),
            ),
            (
                request(json!({ "subtype": "can_use_tool", "tool_name": "Bash", "input": 1 })),
                asked(ControlRequest::CanUseTool { tool_name: "Bash".into(), input: json!(1) }),
            ),
            (request(json!({ "subtype": "dance" })), asked(ControlRequest::Unknown)),
        ] {
            assert_eq!(parse(&line), event);
        }
        for unknown in [
            json!({ "type": "tomorrow", "x": [1] }),
            json!({ "type": "system", "subtype": "ui_invalidate" }),
            json!({ "type": 7 }),
            json!({}),
            json!({ "type": "assistant", "message": { "content": "text" } }),
            json!({ "type": "user", "message": { "content": [] } }),
            request(json!({ "subtype": "can_use_tool" })),
        ] {
            assert_eq!(parse(&unknown), Event::Unknown(unknown.clone()));
        }
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        for bad in ["", "[]", "7", "{", "Segmentation fault", &deep] {
            assert!(Event::parse(bad.as_bytes()).is_err(), "{bad:.20}");
        }
    }
}

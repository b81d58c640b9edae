//! What Claude Code writes, line by line. What is not known is kept as it came.

use serde_json::Value;
use toolpost_core::Usage;

/// The most blocks of one message that are looked at.
const MAX_BLOCKS: usize = 1024;

/// A line of the program's output.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// A turn begins; what there is.
    Init { session: String, model: String, servers: Vec<ServerStatus> },
    /// The model has written blocks of a message.
    Assistant { id: String, parent: Option<String>, blocks: Vec<Block>, error: Option<String> },
    /// Results of tools.
    Results { parent: Option<String>, results: Vec<ToolResult> },
    /// A piece of text or of reasoning, while it is written.
    Delta { parent: Option<String>, piece: Piece },
    /// A tool was not allowed.
    Denied { tool: String, message: String },
    /// The provider failed, and is asked again.
    Retry { attempt: u64, status: Option<u64>, error: String },
    /// A sub-agent has begun, goes on, or has ended.
    Task { stage: String, id: String, call: Option<String>, description: String, status: Option<String> },
    /// The turn is over.
    Ended(Box<Ended>),
    /// The program asks us something.
    Request { id: String, request: Request },
    /// The program answers what we asked.
    Answer { id: String, result: Result<Value, String> },
    /// Something else, which is kept as it came.
    Unknown(Value),
}

/// How the program is connected to a tool server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerStatus {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) error: Option<String>,
}

/// A block of a message of the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Block {
    Text(String),
    Thinking(String),
    ToolUse { id: String, name: String, input: Value },
    Other,
}

/// What came of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolResult {
    pub(super) id: String,
    pub(super) is_error: bool,
    pub(super) text: String,
}

/// A piece of what is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Thinking(String),
}

/// How a turn ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ended {
    pub(super) subtype: String,
    pub(super) is_error: bool,
    pub(super) result: Option<String>,
    pub(super) errors: Vec<String>,
    pub(super) terminal: Option<String>,
    pub(super) stop_reason: Option<String>,
    pub(super) api_status: Option<u64>,
    /// Since the process began, in US dollars.
    pub(super) total_cost: Option<f64>,
    /// Of this turn alone.
    pub(super) usage: Usage,
    pub(super) denials: Vec<Denial>,
}

/// A use of a tool that was not allowed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Denial {
    pub(super) tool: String,
    pub(super) id: String,
}

/// What the program asks of us.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Whether a tool may be used.
    Permission { tool: String, input: Value },
    /// A hook that was registered.
    Hook { callback: String, input: Value },
    /// Something that we do not know.
    Other(String),
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).map(str::to_owned)
}

fn word(value: &Value, field: &str) -> String {
    text(value, field).unwrap_or_default()
}

fn parent(value: &Value) -> Option<String> {
    text(value, "parent_tool_use_id")
}

impl Event {
    /// Reads a line.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if !value.is_object() {
            return Err("it is no object".to_owned());
        }
        Ok(Self::of(&value).unwrap_or(Self::Unknown(value)))
    }

    fn of(value: &Value) -> Option<Self> {
        match value.get("type")?.as_str()? {
            "system" => Self::system(value),
            "assistant" => {
                let blocks = value.pointer("/message/content")?.as_array()?;
                Some(Self::Assistant {
                    id: value.pointer("/message/id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    parent: parent(value),
                    blocks: blocks.iter().take(MAX_BLOCKS).map(Block::of).collect(),
                    error: text(value, "error"),
                })
            }
            "user" => {
                let blocks = value.pointer("/message/content")?.as_array()?;
                let results: Vec<ToolResult> =
                    blocks.iter().take(MAX_BLOCKS).filter_map(ToolResult::of).collect();
                (!results.is_empty()).then(|| Self::Results { parent: parent(value), results })
            }
            "stream_event" => {
                let delta = value.pointer("/event/delta")?;
                let piece = match delta.get("type")?.as_str()? {
                    "text_delta" => Piece::Text(text(delta, "text")?),
                    "thinking_delta" => Piece::Thinking(text(delta, "thinking")?),
                    _ => return None,
                };
                Some(Self::Delta { parent: parent(value), piece })
            }
            "result" => Some(Self::Ended(Box::new(Ended::of(value)))),
            "control_request" => {
                let request = value.get("request")?;
                let asked = match request.get("subtype")?.as_str()? {
                    "can_use_tool" => Request::Permission {
                        tool: text(request, "tool_name")?,
                        input: request.get("input").cloned().unwrap_or_default(),
                    },
                    "hook_callback" => Request::Hook {
                        callback: text(request, "callback_id")?,
                        input: request.get("input").cloned().unwrap_or_default(),
                    },
                    other => Request::Other(other.to_owned()),
                };
                Some(Self::Request { id: text(value, "request_id")?, request: asked })
            }
            "control_response" => {
                let response = value.get("response")?;
                let result = match response.get("subtype")?.as_str()? {
                    "success" => Ok(response.get("response").cloned().unwrap_or_default()),
                    _ => Err(word(response, "error")),
                };
                Some(Self::Answer { id: text(response, "request_id")?, result })
            }
            _ => None,
        }
    }

    fn system(value: &Value) -> Option<Self> {
        let subtype = value.get("subtype")?.as_str()?;
        match subtype {
            "init" => Some(Self::Init {
                session: word(value, "session_id"),
                model: word(value, "model"),
                servers: ServerStatus::all(value.get("mcp_servers")),
            }),
            "permission_denied" => {
                Some(Self::Denied { tool: text(value, "tool_name")?, message: word(value, "message") })
            }
            "api_retry" => Some(Self::Retry {
                attempt: value.get("attempt").and_then(Value::as_u64).unwrap_or(0),
                status: value.get("error_status").and_then(Value::as_u64),
                error: word(value, "error"),
            }),
            "task_started" | "task_progress" | "task_updated" | "task_notification" => Some(Self::Task {
                stage: subtype.trim_start_matches("task_").to_owned(),
                id: text(value, "task_id")?,
                call: text(value, "tool_use_id"),
                description: text(value, "description")
                    .or_else(|| text(value, "summary"))
                    .unwrap_or_default(),
                status: text(value, "status"),
            }),
            _ => None,
        }
    }
}

impl ServerStatus {
    /// The servers of a list. Only these fields: a server's settings may hold its token.
    pub(super) fn all(list: Option<&Value>) -> Vec<Self> {
        let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .take(MAX_BLOCKS)
            .map(|server| Self {
                name: word(server, "name"),
                status: word(server, "status"),
                error: text(server, "error"),
            })
            .collect()
    }
}

impl Block {
    fn of(value: &Value) -> Self {
        let block =
            match value.get("type").and_then(Value::as_str) {
                Some("text") => text(value, "text").map(Self::Text),
                Some("thinking") => text(value, "thinking").map(Self::Thinking),
                Some("tool_use") => text(value, "id").zip(text(value, "name")).map(|(id, name)| {
                    Self::ToolUse { id, name, input: value.get("input").cloned().unwrap_or_default() }
                }),
                _ => None,
            };
        block.unwrap_or(Self::Other)
    }
}

impl ToolResult {
    fn of(value: &Value) -> Option<Self> {
        if value.get("type")?.as_str()? != "tool_result" {
            return None;
        }
        let text_of = |content: &Value| match content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                let texts = parts.iter().take(MAX_BLOCKS).filter_map(|part| text(part, "text"));
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        };
        Some(Self {
            id: text(value, "tool_use_id")?,
            is_error: value.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            text: value.get("content").map(text_of).unwrap_or_default(),
        })
    }
}

impl Ended {
    fn of(value: &Value) -> Self {
        let list = |field: &str| value.get(field).and_then(Value::as_array).map(Vec::as_slice);
        let tokens =
            |field: &str| value.pointer(&format!("/usage/{field}")).and_then(Value::as_u64).unwrap_or(0);
        let (read, written) = (tokens("cache_read_input_tokens"), tokens("cache_creation_input_tokens"));
        Self {
            subtype: word(value, "subtype"),
            is_error: value.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            result: text(value, "result"),
            errors: list("errors")
                .unwrap_or_default()
                .iter()
                .take(MAX_BLOCKS)
                .filter_map(|error| error.as_str().map(str::to_owned))
                .collect(),
            terminal: text(value, "terminal_reason"),
            stop_reason: text(value, "stop_reason"),
            api_status: value.get("api_error_status").and_then(Value::as_u64),
            total_cost: value.get("total_cost_usd").and_then(Value::as_f64),
            usage: Usage {
                input_tokens: tokens("input_tokens").saturating_add(read).saturating_add(written),
                output_tokens: tokens("output_tokens"),
                cache_read_tokens: read,
                cache_write_tokens: written,
                reasoning_tokens: value
                    .pointer("/usage/output_tokens_details/thinking_tokens")
                    .and_then(Value::as_u64),
                ..Usage::default()
            },
            denials: list("permission_denials")
                .unwrap_or_default()
                .iter()
                .take(MAX_BLOCKS)
                .map(|denial| Denial { tool: word(denial, "tool_name"), id: word(denial, "tool_use_id") })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Event {
        Event::read(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_beginning_of_a_turn_says_which_servers_are_there() {
        let event = read(&json!({
            "type": "system", "subtype": "init", "session_id": "s", "model": "m", "tools": ["mcp__calc__add"],
            "mcp_servers": [
                { "name": "calc", "status": "connected", "config": { "headers": { "Authorization": "Bearer x" } } },
                { "name": "gone", "status": "failed", "error": "refused" },
            ],
        }));
        let server = |name: &str, status: &str, error: Option<&str>| ServerStatus {
            name: name.into(),
            status: status.into(),
            error: error.map(str::to_owned),
        };
        assert_eq!(
            event,
            Event::Init {
                session: "s".into(),
                model: "m".into(),
                servers: vec![server("calc", "connected", None), server("gone", "failed", Some("refused"))],
            }
        );
        assert!(!format!("{event:?}").contains("Bearer"));
    }

    #[test]
    fn messages_are_blocks_and_say_whose_they_are() {
        let event = read(&json!({
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
        assert_eq!(
            event,
            Event::Assistant {
                id: "m".into(),
                parent: Some("toolu_1".into()),
                blocks: vec![
                    Block::Text("a".into()),
                    Block::Thinking("b".into()),
                    Block::ToolUse {
                        id: "t".into(),
                        name: "mcp__calc__add".into(),
                        input: json!({ "a": 1 })
                    },
                    Block::Other,
                    Block::Other,
                    Block::Other,
                ],
                error: None,
            }
        );
        let event = read(&json!({
            "type": "user", "parent_tool_use_id": null,
            "message": { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": "3" },
                { "type": "tool_result", "tool_use_id": "u", "is_error": true,
                  "content": [{ "type": "text", "text": "it" }, { "type": "text", "text": "broke" }] },
            ] },
        }));
        let result =
            |id: &str, is_error: bool, text: &str| ToolResult { id: id.into(), is_error, text: text.into() };
        let results = vec![result("t", false, "3"), result("u", true, "it\nbroke")];
        assert_eq!(event, Event::Results { parent: None, results });
    }

    #[test]
    fn the_end_of_a_turn_has_cost_usage_and_denials() {
        let Event::Ended(ended) = read(&json!({
            "type": "result", "subtype": "success", "is_error": false, "result": "42",
            "total_cost_usd": 0.25, "stop_reason": "end_turn", "terminal_reason": "completed",
            "usage": { "input_tokens": 10, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
                       "output_tokens": 5, "output_tokens_details": { "thinking_tokens": 1 } },
            "permission_denials": [{ "tool_name": "Bash", "tool_use_id": "t", "tool_input": {} }],
        })) else {
            panic!("not the end")
        };
        assert_eq!(
            *ended,
            Ended {
                subtype: "success".into(),
                result: Some("42".into()),
                terminal: Some("completed".into()),
                stop_reason: Some("end_turn".into()),
                total_cost: Some(0.25),
                usage: Usage {
                    input_tokens: 15,
                    output_tokens: 5,
                    cache_read_tokens: 3,
                    cache_write_tokens: 2,
                    reasoning_tokens: Some(1),
                    ..Usage::default()
                },
                denials: vec![Denial { tool: "Bash".into(), id: "t".into() }],
                ..Ended::default()
            }
        );
    }

    #[test]
    fn what_the_program_asks_is_told_apart() {
        let asked = |request: Value| match read(
            &json!({ "type": "control_request", "request_id": "r", "request": request }),
        ) {
            Event::Request { id, request } => {
                assert_eq!(id, "r");
                request
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            asked(json!({ "subtype": "can_use_tool", "tool_name": "Bash", "input": { "command": "ls" } })),
            Request::Permission { tool: "Bash".into(), input: json!({ "command": "ls" }) }
        );
        assert_eq!(
            asked(json!({ "subtype": "hook_callback", "callback_id": "h", "input": 1 })),
            Request::Hook { callback: "h".into(), input: json!(1) }
        );
        assert_eq!(asked(json!({ "subtype": "dance" })), Request::Other("dance".into()));
    }

    #[test]
    fn what_is_not_known_is_kept_and_what_is_no_object_is_an_error() {
        for unknown in [
            json!({ "type": "tomorrow", "x": [1] }),
            json!({ "type": "system", "subtype": "ui_invalidate" }),
            json!({ "type": 7 }),
            json!({}),
            json!({ "type": "assistant", "message": { "content": "text" } }),
            json!({ "type": "control_request", "request": { "subtype": "can_use_tool" } }),
        ] {
            assert_eq!(read(&unknown), Event::Unknown(unknown.clone()));
        }
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        for bad in ["", "[]", "7", "{", "Segmentation fault", &deep] {
            assert!(Event::read(bad.as_bytes()).is_err(), "{bad:.20}");
        }
    }
}

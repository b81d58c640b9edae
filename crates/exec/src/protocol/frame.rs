//! Resident mode: many calls over one process.
//!
//! Each side writes JSON objects, one per line, with the version `v`, the `id` of the call or request, and a `type`. The
//! caller chooses unique ids for its requests. A tool's question has the id of its call and its own number, `request`,
//! which the answer repeats.
//!
//! ```text
//! caller  {"v":1,"id":7,"type":"call","tool":"add","arguments":{"a":1,"b":2}}
//! tool    {"v":1,"id":7,"type":"progress","message":"adding","attempt":1}
//! tool    {"v":1,"id":7,"type":"ask","request":1,"question":{"message":"Sure?","kind":"input"}}
//! caller  {"v":1,"id":7,"type":"answer","request":1,"ok":{"answer":"given","value":"yes"}}
//! tool    {"v":1,"id":7,"type":"result","ok":{"structured":3}}
//! ```
//!
//! The tool's first line is `hello`. At the end of the caller's input, the process cancels all calls and exits. Worker
//! processes use the same frames.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{Call, Code, Commit, LogLine, Priority, Progress, Question, SampleRequest, ToolError};

use super::dialect::Discovery;
use super::is_default;
use super::outcome::{Answered, ArtifactFrame, OutputFrame, write_error};

/// Version of the frames.
pub const VERSION: u32 = 1;

/// One line: a version, an id and a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame<Message> {
    /// Version of the frame: [`VERSION`].
    pub v: u32,
    /// Id of the call or request; 0 for the whole process.
    pub id: u64,
    /// The message.
    #[serde(flatten)]
    pub message: Message,
}

/// A line of the caller.
pub type CallerFrame = Frame<CallerMessage>;
/// A line of the tool program.
pub type ToolFrame = Frame<ToolMessage>;

/// The caller of a call, in a frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerName {
    /// The front, such as `cli` or `agent`.
    pub front: String,
    /// User name or client id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// The scope of a call, in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopeName {
    /// Scope id.
    pub id: String,
    /// Owner.
    pub owner: String,
}

/// A capability of the caller during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Accepts files.
    Artifact,
    /// Answers questions.
    Ask,
    /// Samples its model.
    Sample,
    /// Calls other tools.
    Nested,
    /// Has a document store.
    State,
}

/// The facts of a call besides tool and arguments. All are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallFacts {
    /// Call id; a new one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// Id of the parent call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Number of ancestors.
    #[serde(skip_serializing_if = "is_default")]
    pub depth: u8,
    /// The caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerName>,
    /// The run or conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeName>,
    /// Time to the deadline, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Calls with the same key have one external effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Order among queued calls.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Timeout of one attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Maximum number of retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Neither reads nor writes the cache.
    #[serde(skip_serializing_if = "is_default")]
    pub no_cache: bool,
    /// Validates everything and runs nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// Validates the arguments and runs nothing, not even a tool's own dry run.
    #[serde(skip_serializing_if = "is_default")]
    pub validate: bool,
    /// Answers from examples or the output schema.
    #[serde(skip_serializing_if = "is_default")]
    pub mock: bool,
    /// Asks tools for detailed output.
    #[serde(skip_serializing_if = "is_default")]
    pub verbose: bool,
    /// Sandbox level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Facts that the record stores unchanged.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Values injected by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
    /// The caller's capabilities. A tool that needs another one fails immediately.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub serves: Vec<Verb>,
    /// Whether the result includes the record.
    #[serde(skip_serializing_if = "is_default")]
    pub record: bool,
}

impl CallFacts {
    /// The facts that every connection sends: caller, scope and options. The connection adds the timeout and the caller's
    /// capabilities.
    pub fn from_call(call: &Call) -> Self {
        Self {
            call: Some(call.id.to_string()),
            parent: call.parent.map(|parent| parent.to_string()),
            depth: call.depth,
            caller: Some(CallerName {
                front: call.caller.front.to_string(),
                identity: call.caller.identity.as_ref().map(ToString::to_string),
            }),
            scope: call
                .scope
                .as_ref()
                .map(|scope| ScopeName { id: scope.id().to_string(), owner: scope.owner().to_owned() }),
            idempotency_key: call.idempotency_key.clone(),
            priority: call.priority,
            dry_run: call.options.dry_run,
            verbose: call.options.verbose,
            metadata: call.options.metadata.clone(),
            ..Self::default()
        }
    }
}

/// A message of the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CallerMessage {
    /// Runs a tool. The answer is any number of notices and questions, and one `result`.
    Call {
        /// Tool name.
        tool: String,
        /// Arguments, an object.
        #[serde(default)]
        arguments: Value,
        /// The facts of the call.
        #[serde(flatten)]
        facts: Box<CallFacts>,
    },
    /// Lists tools, resources and prompts. The answer is `listed`.
    List,
    /// Reads a resource. The answer is `value`.
    Read {
        /// URI.
        uri: String,
    },
    /// Renders a prompt. The answer is `value`.
    Render {
        /// Prompt name.
        prompt: String,
        /// Arguments, an object.
        #[serde(default)]
        arguments: Value,
    },
    /// Cancels the request with this id, which still answers. Ids of ended requests are ignored.
    Cancel,
    /// The answer to a question of the tool.
    Answer {
        /// Number of the question.
        request: u64,
        /// The answer.
        #[serde(flatten)]
        answer: Answered<Value>,
    },
}

/// A message of the tool program.
#[expect(clippy::large_enum_variant, reason = "one message exists at a time")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolMessage {
    /// The first line, with id 0: the program is ready.
    Hello {
        /// Program name.
        name: String,
        /// Program version.
        version: String,
        /// Protocol, see [`PROTOCOL`](super::dialect::PROTOCOL).
        protocol: String,
    },
    /// Progress of a call.
    Progress(Progress),
    /// A log line.
    Log(LogLine),
    /// A file; the answer is `null` when the caller accepted it.
    Artifact {
        /// Number that the answer repeats.
        request: u64,
        /// The file.
        artifact: ArtifactFrame,
    },
    /// A question; the answer is an [`Answer`](toolpost_core::Answer).
    Ask {
        /// Number that the answer repeats.
        request: u64,
        /// The question.
        question: Question,
    },
    /// A prompt for the caller's model; the answer is a [`Sample`](toolpost_core::Sample).
    Sample {
        /// Number that the answer repeats.
        request: u64,
        /// The prompt.
        prompt: SampleRequest,
    },
    /// A call of a tool that this program lacks; the answer is an [`OutputFrame`].
    Nested {
        /// Number that the answer repeats.
        request: u64,
        /// The tool.
        tool: String,
        /// The arguments.
        arguments: Value,
    },
    /// A request to the caller's document store; see [`StateRequest`] for the answers.
    State {
        /// Number that the answer repeats.
        request: u64,
        /// The request.
        state: StateRequest,
    },
    /// The end of a call.
    Result {
        /// The outcome.
        #[serde(flatten)]
        outcome: Answered<OutputFrame>,
        /// The record, if the caller requested it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Value>,
    },
    /// The answer to `list`.
    Listed {
        /// Tools, resources and prompts.
        #[serde(flatten)]
        answer: Answered<Discovery>,
    },
    /// The answer to `read` and `render`.
    Value {
        /// The value of the resource or prompt.
        #[serde(flatten)]
        answer: Answered<Value>,
    },
    /// The error of a line without a known request. The id is 0.
    Problem {
        /// The error.
        #[serde(serialize_with = "write_error")]
        error: ToolError,
    },
}

/// A request to the caller's [`DocStore`](toolpost_core::DocStore).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum StateRequest {
    /// The latest version; the answer is a [`Document`](toolpost_core::Document).
    Load {
        /// Document id.
        document: String,
    },
    /// Commits changes; the answer is [`Committed`](toolpost_core::Committed).
    Commit(Commit),
    /// The document at a version; the answer is a [`Document`](toolpost_core::Document).
    At {
        /// Document id.
        document: String,
        /// Version.
        version: u64,
    },
    /// The changes after a version; the answer is a list of [`Change`](toolpost_core::Change)s.
    Log {
        /// Document id.
        document: String,
        /// The version before the first change.
        after: u64,
        /// Maximum number of changes.
        limit: usize,
    },
    /// Ids and versions of documents; the answer is a list of pairs.
    List {
        /// Prefix of the ids.
        prefix: String,
        /// The id before the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Maximum number of documents.
        limit: usize,
    },
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq)]
pub struct BadFrame {
    /// The id in the line, if readable: only that request fails.
    pub id: Option<u64>,
    /// The error.
    pub error: ToolError,
}

impl<Message> Frame<Message> {
    /// A frame of the current version.
    pub fn new(id: u64, message: Message) -> Self {
        Self { v: VERSION, id, message }
    }
}

impl<Message: Serialize> Frame<Message> {
    /// Formats the frame as a line with its line end.
    ///
    /// # Errors
    /// `INTERNAL` if JSON cannot represent a value, such as a map with keys other than strings.
    pub fn to_line(&self) -> Result<Vec<u8>, ToolError> {
        let mut line = serde_json::to_vec(self)
            .map_err(|error| ToolError::internal(format!("JSON cannot represent a frame: {error}")))?;
        line.push(b'\n');
        Ok(line)
    }
}

impl<'de, Message: Deserialize<'de>> Frame<Message> {
    /// Parses a line.
    ///
    /// # Errors
    /// The error, with the line's id if readable.
    pub fn read(line: &'de [u8]) -> Result<Self, BadFrame> {
        let invalid = |id, message: String| {
            let error = ToolError::new(Code::InvalidInput, message)
                .suggest("Write one JSON object per line, with `v`, `id` and `type`.");
            BadFrame { id, error }
        };
        match serde_json::from_slice::<Self>(line) {
            Ok(frame) if frame.v == VERSION => Ok(frame),
            Ok(Self { v, id, .. }) => {
                Err(invalid(Some(id), format!("unknown frame version {v}; expected version {VERSION}")))
            }
            Err(error) => {
                // A line with an unknown type may still have a valid id.
                let head = serde_json::from_slice::<Head>(line).unwrap_or_default();
                match head.v {
                    Some(v) if v != VERSION => Err(invalid(
                        head.id,
                        format!("unknown frame version {v}; expected version {VERSION}"),
                    )),
                    _ => Err(invalid(head.id, format!("the line is not a frame: {error}"))),
                }
            }
        }
    }
}

/// The fields that every frame has.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    v: Option<u32>,
    #[serde(default)]
    id: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use serde_json::json;
    use toolpost_core::RetryAdvice;

    #[test]
    fn an_error_has_its_wait_in_milliseconds_and_is_read_in_both_forms() {
        let advice = RetryAdvice::After(Duration::from_millis(250));
        let outcome = Answered::Error(ToolError::dependency("busy").retry(advice));
        let frame = ToolFrame::new(1, ToolMessage::Result { outcome, record: None });
        let line = String::from_utf8(frame.to_line().unwrap()).unwrap();
        assert!(line.contains(r#""retry":{"after_ms":250}"#), "{line}");
        let before = line.replace(r#""after_ms":250"#, r#""after":{"secs":0,"nanos":250000000}"#);
        for line in [line, before] {
            assert_eq!(ToolFrame::read(line.as_bytes()).unwrap(), frame, "{line}");
        }
    }

    #[test]
    fn a_frame_round_trips() {
        let facts = CallFacts { dry_run: true, serves: vec![Verb::Ask, Verb::State], ..CallFacts::default() };
        let frames = [
            CallerFrame::new(1, CallerMessage::List),
            CallerFrame::new(2, CallerMessage::Cancel),
            CallerFrame::new(
                3,
                CallerMessage::Call {
                    tool: "add".into(),
                    arguments: json!({"a": 1, "b": [null]}),
                    facts: Box::new(facts),
                },
            ),
            CallerFrame::new(
                3,
                CallerMessage::Answer { request: 1, answer: Answered::Ok(json!({"answer": "declined"})) },
            ),
            CallerFrame::new(
                3,
                CallerMessage::Answer {
                    request: 2,
                    answer: Answered::Error(ToolError::precondition("no model")),
                },
            ),
        ];
        for frame in frames {
            let line = frame.to_line().unwrap();
            assert_eq!(CallerFrame::read(line.trim_ascii_end()).unwrap(), frame);
        }
    }

    #[test]
    fn results_and_questions_round_trip() {
        let output = OutputFrame { structured: Some(json!(3)), ..OutputFrame::default() };
        let commit = Commit { event: Some(json!("why")), ..Commit::default() };
        let messages = [
            ToolMessage::Result { outcome: Answered::Ok(output), record: None },
            ToolMessage::Result {
                outcome: Answered::Error(ToolError::limit("too much")),
                record: Some(json!({})),
            },
            ToolMessage::Listed { answer: Answered::Ok(Discovery::default()) },
            ToolMessage::Value { answer: Answered::Ok(Value::Null) },
            ToolMessage::Ask { request: 4, question: Question::text("Sure?") },
            ToolMessage::State { request: 5, state: StateRequest::Load { document: "counter".into() } },
            ToolMessage::State { request: 6, state: StateRequest::Commit(commit) },
            ToolMessage::Progress(Progress { message: "half".into(), percent: Some(50.0), attempt: 1 }),
        ];
        for message in messages {
            let text = serde_json::to_string(&ToolFrame::new(9, message)).unwrap();
            let again = ToolFrame::read(text.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), text);
        }
    }

    #[test]
    fn an_invalid_line_reports_its_id_if_readable() {
        let id = |line: &str| CallerFrame::read(line.as_bytes()).unwrap_err().id;
        assert_eq!(id("garbage"), None);
        assert_eq!(id(r#"{"v":1,"id":7,"type":"dance"}"#), Some(7));
        assert_eq!(id(r#"{"v":2,"id":7,"type":"list"}"#), Some(7));
        assert_eq!(id(r#"{"v":1,"id":"x","type":"list"}"#), None);
        assert_eq!(id(r#"{"v":1,"id":8,"type":"call"}"#), Some(8));
        assert_eq!(id(&"[".repeat(100_000)), None);
    }
}

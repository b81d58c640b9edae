//! Resident mode: many calls over one process.
//!
//! Each side writes JSON objects, one a line, with the version `v`, the `id` of the call or request that they belong to,
//! and a `type`. The caller chooses the ids of its requests and uses none twice; a tool's questions back bear the id of
//! their call and a number of their own, `request`, which the answer repeats.
//!
//! ```text
//! caller  {"v":1,"id":7,"type":"call","tool":"add","arguments":{"a":1,"b":2}}
//! tool    {"v":1,"id":7,"type":"progress","message":"adding","attempt":1}
//! tool    {"v":1,"id":7,"type":"ask","request":1,"question":{"message":"Sure?","kind":"input"}}
//! caller  {"v":1,"id":7,"type":"answer","request":1,"ok":{"answer":"given","value":"yes"}}
//! tool    {"v":1,"id":7,"type":"result","ok":{"structured":3}}
//! ```
//!
//! The tool's first line is `hello`. When the caller's lines end, what runs is cancelled and the process ends. The same
//! frames carry worker processes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    Answer, Call, Change, Code, Commit, Committed, Document, LogLine, Priority, Progress, Question, Sample,
    SampleRequest, ToolError,
};

use super::dialect::Discovery;
use super::outcome::{Answered, ArtifactFrame, OutputFrame};

/// The version of the frames.
pub const VERSION: u32 = 1;

/// A line of one side: the version, what it belongs to, and what it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame<Message> {
    /// The version of the frame: [`VERSION`].
    pub v: u32,
    /// The call or request that it belongs to; 0 for the process as a whole.
    pub id: u64,
    /// What it says.
    #[serde(flatten)]
    pub message: Message,
}

/// A line of the caller.
pub type CallerFrame = Frame<CallerMessage>;
/// A line of the tool program.
pub type ToolFrame = Frame<ToolMessage>;

/// Who calls, as a frame tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerName {
    /// Such as `cli` or `agent`.
    pub front: String,
    /// A user name or a client id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// The run or conversation that a call belongs to, as a frame tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopeName {
    /// Its id, as text.
    pub id: String,
    /// Whose it is.
    pub owner: String,
}

/// What the caller can do while the call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Take files.
    Artifact,
    /// Answer questions.
    Ask,
    /// Complete prompts.
    Sample,
    /// Call other tools.
    Nested,
    /// Keep documents.
    State,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_normal(priority: &Priority) -> bool {
    *priority == Priority::Normal
}

/// What travels with a call besides its arguments. Everything may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallFacts {
    /// The call's id, as text; a new one if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The call that it was made from, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How many calls stand above it.
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: u8,
    /// Who calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerName>,
    /// The run or conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeName>,
    /// How much time is left for all of it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Two calls with the same key are one to the outside world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Which of the waiting calls goes first.
    #[serde(skip_serializing_if = "is_normal")]
    pub priority: Priority,
    /// How long one attempt may run, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many further attempts at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Neither read from the cache nor write to it.
    #[serde(skip_serializing_if = "is_false")]
    pub no_cache: bool,
    /// Check everything, run nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Check the arguments, run nothing, not even a tool that has a dry run of its own.
    #[serde(skip_serializing_if = "is_false")]
    pub validate: bool,
    /// Answer from examples or the output schema.
    #[serde(skip_serializing_if = "is_false")]
    pub mock: bool,
    /// Tools may tell more of what they do.
    #[serde(skip_serializing_if = "is_false")]
    pub verbose: bool,
    /// The sandbox level, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The folder to work in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Facts that are written to the record.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Values that are injected by their names.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
    /// What the caller can do while the call runs. What is not here the tool is told at once that it cannot have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub serves: Vec<Verb>,
    /// Whether the caller wants the record of the call with the result.
    #[serde(skip_serializing_if = "is_false")]
    pub record: bool,
}

impl CallFacts {
    /// What every way to another process tells of a call: who calls, from where, and how it is to be treated. How long
    /// it may take, and what its caller serves, is for each of them to say.
    pub fn of(call: &Call) -> Self {
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

/// What a caller says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CallerMessage {
    /// Run a tool. Answered by any number of notices and questions and one `result`.
    Call {
        /// The tool.
        tool: String,
        /// The arguments, an object.
        #[serde(default)]
        arguments: Value,
        /// What travels with it.
        #[serde(flatten)]
        facts: Box<CallFacts>,
    },
    /// List tools, resources and prompts. Answered by `listed`.
    List,
    /// Read a resource. Answered by `value`.
    Read {
        /// Its address.
        uri: String,
    },
    /// Render a prompt. Answered by `value`.
    Render {
        /// Its name.
        prompt: String,
        /// Its arguments, an object.
        #[serde(default)]
        arguments: Value,
    },
    /// Stop the request of this id. Its answer still comes; the id of one that has ended is ignored.
    Cancel,
    /// The answer to a question of the tool.
    Answer {
        /// The question's number.
        request: u64,
        /// What it came to.
        #[serde(flatten)]
        answer: Answered<Value>,
    },
}

/// What a tool program says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolMessage {
    /// The first line, with id 0: the program is ready.
    Hello {
        /// The program's name.
        name: String,
        /// The program's version.
        version: String,
        /// See [`PROTOCOL`](super::dialect::PROTOCOL).
        protocol: String,
    },
    /// How far a call has come.
    Progress(Progress),
    /// A line for the log.
    Log(LogLine),
    /// A file; answered with `null` when it is taken.
    Artifact {
        /// The number that the answer repeats.
        request: u64,
        /// The file.
        artifact: ArtifactFrame,
    },
    /// A question; answered with an [`Answer`].
    Ask {
        /// The number that the answer repeats.
        request: u64,
        /// The question.
        question: Question,
    },
    /// A prompt for the caller's model; answered with a [`Sample`].
    Sample {
        /// The number that the answer repeats.
        request: u64,
        /// The prompt.
        prompt: SampleRequest,
    },
    /// A call of another tool, which this program does not have; answered with an [`OutputFrame`].
    Nested {
        /// The number that the answer repeats.
        request: u64,
        /// The tool.
        tool: String,
        /// The arguments.
        arguments: Value,
    },
    /// A request to the caller's documents; see [`StateRequest`] for the answers.
    State {
        /// The number that the answer repeats.
        request: u64,
        /// What is asked.
        state: StateRequest,
    },
    /// The end of a call.
    Result {
        /// What it came to.
        #[serde(flatten)]
        outcome: Answered<OutputFrame>,
        /// The record of the call, if the caller asked for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Value>,
    },
    /// The answer to `list`.
    Listed {
        /// What there is.
        #[serde(flatten)]
        answer: Answered<Discovery>,
    },
    /// The answer to `read` and `render`.
    Value {
        /// What the resource or the prompt gave.
        #[serde(flatten)]
        answer: Answered<Value>,
    },
    /// What was wrong with a line of the caller, when nobody can tell which request it belonged to. The id is 0.
    Problem {
        /// What is wrong.
        error: ToolError,
    },
}

/// What a tool asks of the caller's documents. The verbs are those of [`DocStore`](toolpost_core::DocStore).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum StateRequest {
    /// The newest version; answered with a [`Document`].
    Load {
        /// The document.
        document: String,
    },
    /// Store changes; answered with [`Committed`].
    Commit(Commit),
    /// The document as it was at a version; answered with a [`Document`].
    At {
        /// The document.
        document: String,
        /// The version.
        version: u64,
    },
    /// The changes after a version; answered with a list of [`Change`]s.
    Log {
        /// The document.
        document: String,
        /// After which version.
        after: u64,
        /// How many at most.
        limit: usize,
    },
    /// Names and versions; answered with a list of pairs.
    List {
        /// What the names begin with.
        prefix: String,
        /// After which name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// How many at most.
        limit: usize,
    },
}

/// The types of the answers to a tool's questions, so that neither side has to guess: [`Answered`] of each is what an
/// `answer` frame holds.
pub mod answers {
    use super::{Answer, Change, Committed, Document, OutputFrame, Sample};

    /// To `artifact`.
    pub type Artifact = ();
    /// To `ask`.
    pub type Ask = Answer;
    /// To `sample`.
    pub type Sampled = Sample;
    /// To `nested`.
    pub type Nested = OutputFrame;
    /// To `state` with `load` and `at`.
    pub type Loaded = Document;
    /// To `state` with `commit`.
    pub type CommitDone = Committed;
    /// To `state` with `log`.
    pub type Changes = Vec<Change>;
    /// To `state` with `list`.
    pub type Names = Vec<(String, u64)>;
}

/// A line that is no frame.
#[derive(Clone, Debug, PartialEq)]
pub struct BadFrame {
    /// The request that it claims to belong to, as far as that can be read: only that one fails.
    pub id: Option<u64>,
    /// What is wrong with it.
    pub error: ToolError,
}

impl<Message> Frame<Message> {
    /// A frame of the current version.
    pub fn new(id: u64, message: Message) -> Self {
        Self { v: VERSION, id, message }
    }
}

impl<Message: Serialize> Frame<Message> {
    /// The line, with its end.
    ///
    /// # Errors
    /// `INTERNAL` when something inside has no JSON form, such as a map with keys that are no texts.
    pub fn to_line(&self) -> Result<Vec<u8>, ToolError> {
        let mut line = serde_json::to_vec(self)
            .map_err(|error| ToolError::internal(format!("a frame has no JSON form: {error}")))?;
        line.push(b'\n');
        Ok(line)
    }
}

impl<'de, Message: Deserialize<'de>> Frame<Message> {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, and as far as it can be told, whose it is.
    pub fn read(line: &'de [u8]) -> Result<Self, BadFrame> {
        let wrong = |id, message: String| {
            let error = ToolError::new(Code::InvalidInput, message)
                .suggest("Write one JSON object a line, with `v`, `id` and `type`.");
            BadFrame { id, error }
        };
        match serde_json::from_slice::<Self>(line) {
            Ok(frame) if frame.v == VERSION => Ok(frame),
            Ok(Self { v, id, .. }) => Err(wrong(
                Some(id),
                format!("frames of version {v} are not known: expected version {VERSION}"),
            )),
            Err(error) => {
                // A wrong type or an unknown kind still tells whose it is.
                let head = serde_json::from_slice::<Head>(line).unwrap_or_default();
                match head.v {
                    Some(v) if v != VERSION => Err(wrong(
                        head.id,
                        format!("frames of version {v} are not known: expected version {VERSION}"),
                    )),
                    _ => Err(wrong(head.id, format!("the line is no frame: {error}"))),
                }
            }
        }
    }
}

/// What every frame has.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    v: Option<u32>,
    #[serde(default)]
    id: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_frame_reads_back_as_written() {
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
    fn results_and_questions_read_back_as_written() {
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
    fn a_bad_line_says_whose_it_is_if_it_can() {
        let id = |line: &str| CallerFrame::read(line.as_bytes()).unwrap_err().id;
        assert_eq!(id("garbage"), None);
        assert_eq!(id(r#"{"v":1,"id":7,"type":"dance"}"#), Some(7));
        assert_eq!(id(r#"{"v":2,"id":7,"type":"list"}"#), Some(7));
        assert_eq!(id(r#"{"v":1,"id":"x","type":"list"}"#), None);
        assert_eq!(id(r#"{"v":1,"id":8,"type":"call"}"#), Some(8));
        assert_eq!(id(&"[".repeat(100_000)), None);
    }
}

//! Dialect 0.1: what any tool program speaks, in whatever language it is written.
//!
//! Optional keys that the first implementation does not have are our additions; a program without them is complete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    Annotations, Artifact, ArtifactData, Example, LogLevel, LogLine, Mode, Policy, Progress, PromptSpec,
    ResourceSpec, Sample, SampleRequest, ToolSpec,
};

/// What our programs write as `protocol` in `--discover`: dialect 0.1, the additions of this crate, and resident mode.
pub const PROTOCOL: &str = "0.1+toolpost.1";

/// The arguments by which a tool may ask for how it is run; they act when the tool declares them.
pub const RESERVED: [&str; 4] = ["working_dir", "timeout", "dry_run", "verbose"];

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_plain(annotations: &Annotations) -> bool {
    *annotations == Annotations::default()
}

/// The answer to `--discover`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Discovery {
    /// The program's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// Ours: which additions the program speaks; see [`PROTOCOL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Ours: whether `--resident` serves many calls over one process.
    #[serde(skip_serializing_if = "is_false")]
    pub resident: bool,
    /// Its tools.
    pub tools: Vec<ToolEntry>,
    /// Its resources.
    pub resources: Vec<ResourceEntry>,
    /// Its prompts.
    pub prompts: Vec<PromptEntry>,
}

/// One tool in a [`Discovery`]. `--tools` gives the name and the summary alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolEntry {
    /// Its name.
    pub name: String,
    /// One line.
    pub summary: String,
    /// Whether it is called with `--stream`.
    pub streaming: bool,
    /// Whether it is called with `--session`.
    pub session_mode: bool,
    /// Ours: everything about it, if it is more than one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Ours: its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Ours: the JSON Schema of the arguments. Where it is absent, `TOOL --manifest` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Ours: the JSON Schema of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Ours: arguments as the author would give them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Value>,
    /// Ours: words to find it by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Ours: such as `file_system`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Ours: dotted, such as `crm.contacts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Ours: hints about its effects.
    #[serde(skip_serializing_if = "is_plain")]
    pub annotations: Annotations,
    /// Ours: what it asks of the call path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Ours: names of arguments that records mask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sensitive: Vec<String>,
    /// Ours: changes with everything that a caller relies on; see [`ToolSpec::digest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl ToolEntry {
    /// Everything that a program says of a tool.
    pub fn of(spec: &ToolSpec) -> Self {
        let summary = spec.summary();
        Self {
            name: spec.name.clone(),
            summary: summary.to_owned(),
            streaming: spec.mode == Mode::Streaming,
            session_mode: spec.mode == Mode::Session,
            description: (spec.description != summary).then(|| spec.description.clone()),
            title: spec.title.clone(),
            schema: Some(spec.input_schema.as_value().clone()),
            output_schema: spec.output_schema.as_ref().map(|schema| schema.as_value().clone()),
            examples: spec.examples.iter().map(|example| example.args.clone()).collect(),
            tags: spec.tags.clone(),
            category: spec.category.clone(),
            group: spec.group.clone(),
            annotations: spec.annotations,
            policy: (spec.policy != Policy::default()).then(|| spec.policy.clone()),
            sensitive: spec.sensitive.clone(),
            digest: Some(spec.digest()),
        }
    }

    /// How it is called.
    pub fn mode(&self) -> Mode {
        match (self.session_mode, self.streaming) {
            (true, _) => Mode::Session,
            (false, true) => Mode::Streaming,
            (false, false) => Mode::Unary,
        }
    }

    /// The spec that the entry tells of. Nothing is checked, and what the program does not say is the default: without a
    /// schema any object is taken.
    pub fn to_spec(&self) -> ToolSpec {
        let description = self.description.as_deref().unwrap_or(&self.summary);
        let mut spec = ToolSpec::new(self.name.clone(), description);
        spec = spec.input(self.schema.clone().unwrap_or_else(|| serde_json::json!({ "type": "object" })));
        if let Some(schema) = &self.output_schema {
            spec = spec.output(schema.clone());
        }
        spec.mode = self.mode();
        spec.title.clone_from(&self.title);
        spec.examples =
            self.examples.iter().map(|args| Example { args: args.clone(), output: None }).collect();
        spec.tags.clone_from(&self.tags);
        spec.category.clone_from(&self.category);
        spec.group.clone_from(&self.group);
        spec.annotations = self.annotations;
        spec.policy = self.policy.clone().unwrap_or_default();
        spec.sensitive.clone_from(&self.sensitive);
        spec
    }
}

/// One resource in a [`Discovery`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceEntry {
    /// Its address; `{name}` stands for one part of it.
    pub uri_pattern: String,
    /// One line.
    pub summary: String,
    /// Such as `text/plain`.
    pub mime_types: Vec<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
}

/// One prompt in a [`Discovery`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptEntry {
    /// Its name.
    pub name: String,
    /// One line.
    pub summary: String,
    /// What each argument means.
    pub arguments: BTreeMap<String, String>,
    /// Words to find it by.
    pub tags: Vec<String>,
}

impl ResourceEntry {
    /// What a program says of a resource.
    pub fn of(spec: &ResourceSpec) -> Self {
        Self {
            uri_pattern: spec.uri_pattern.as_str().to_owned(),
            summary: spec.summary.clone(),
            mime_types: spec.mime_types.clone(),
            tags: spec.tags.clone(),
        }
    }
}

impl PromptEntry {
    /// What a program says of a prompt.
    pub fn of(spec: &PromptSpec) -> Self {
        let arguments = spec.arguments.iter();
        Self {
            name: spec.name.clone(),
            summary: spec.summary.clone(),
            arguments: arguments
                .map(|argument| (argument.name.clone(), argument.description.clone()))
                .collect(),
            tags: spec.tags.clone(),
        }
    }
}

/// The answer to `TOOL --manifest`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Its name.
    pub name: String,
    /// One line.
    pub summary: String,
    /// Everything about it.
    pub description: String,
    /// Whether it is called with `--stream`.
    pub streaming: bool,
    /// Whether it is called with `--session`.
    pub session_mode: bool,
    /// The JSON Schema of the arguments.
    pub schema: Value,
    /// Arguments as the author would give them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Value>,
    /// Words to find it by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Ours: the JSON Schema of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Ours: changes with everything that a caller relies on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Manifest {
    /// Of a tool.
    pub fn of(spec: &ToolSpec) -> Self {
        let entry = ToolEntry::of(spec);
        Self {
            name: entry.name,
            summary: entry.summary,
            description: spec.description.clone(),
            streaming: entry.streaming,
            session_mode: entry.session_mode,
            schema: entry.schema.unwrap_or_default(),
            examples: entry.examples,
            tags: entry.tags,
            output_schema: entry.output_schema,
            digest: entry.digest,
        }
    }
}

/// The name of a level as dialect 0.1 has it.
pub fn level_name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Trace | LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warning",
        LogLevel::Error => "error",
    }
}

/// The level that a program means, whatever it calls it.
pub fn level_of(name: &str) -> LogLevel {
    match name.to_ascii_lowercase().as_str() {
        "trace" => LogLevel::Trace,
        "debug" => LogLevel::Debug,
        "warn" | "warning" => LogLevel::Warn,
        "error" | "critical" | "fatal" => LogLevel::Error,
        _ => LogLevel::Info,
    }
}

/// What a tool tells while it runs: a line of a stream, and with `kind` instead of `type` a notification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Notice {
    /// How far it has come.
    Progress {
        /// What is being done.
        message: String,
        /// From 0 to 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
    },
    /// A line for the log.
    Log {
        /// See [`level_name`].
        #[serde(default = "info")]
        level: String,
        /// What happened.
        message: String,
    },
    /// A file that was made.
    Artifact {
        /// Its name.
        name: String,
        /// Where it lies, or its bytes as a `data:` address.
        uri: String,
    },
}

fn info() -> String {
    level_name(LogLevel::Info).to_owned()
}

impl Notice {
    /// The event as a stream line has it: `{"type":"progress",…}`.
    pub fn to_stream_line(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The event as standard error has it: `{"type":"notification","kind":"progress",…}`.
    pub fn to_notification(&self) -> Value {
        let mut line = Map::from_iter([("type".to_owned(), Value::from("notification"))]);
        if let Value::Object(fields) = self.to_stream_line() {
            for (key, value) in fields {
                line.insert(if key == "type" { "kind".to_owned() } else { key }, value);
            }
        }
        Value::Object(line)
    }

    /// The event of a notification line; `None` if the line is none.
    pub fn from_notification(line: &Value) -> Option<Self> {
        let mut fields = line.as_object()?.clone();
        if fields.get("type")?.as_str()? != "notification" {
            return None;
        }
        let kind = fields.remove("kind")?;
        fields.insert("type".to_owned(), kind);
        Self::deserialize(Value::Object(fields)).ok()
    }
}

impl From<&Progress> for Notice {
    fn from(progress: &Progress) -> Self {
        Self::Progress { message: progress.message.clone(), percent: progress.percent }
    }
}

impl From<&LogLine> for Notice {
    fn from(line: &LogLine) -> Self {
        Self::Log { level: level_name(line.level).to_owned(), message: line.message.clone() }
    }
}

impl From<&Artifact> for Notice {
    fn from(artifact: &Artifact) -> Self {
        use base64::Engine as _;
        let uri = match &artifact.data {
            ArtifactData::Path(path) => format!("file://{}", path.display()),
            ArtifactData::Bytes(bytes) => format!(
                "data:{};base64,{}",
                artifact.media_type,
                base64::engine::general_purpose::STANDARD.encode(bytes)
            ),
            ArtifactData::Absent => String::new(),
        };
        Self::Artifact { name: artifact.name.clone(), uri }
    }
}

/// A request for a completion. It goes to standard output, or to an address with `--sample-via http://…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// Always `sample_request`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Eight hexadecimal digits; the answer bears the same.
    pub id: String,
    /// What is asked for.
    #[serde(flatten)]
    pub request: SampleRequest,
}

impl SampleLine {
    /// The value of `type`.
    pub const TYPE: &str = "sample_request";

    /// A request of this id.
    pub fn new(id: impl Into<String>, request: SampleRequest) -> Self {
        Self { kind: Self::TYPE.to_owned(), id: id.into(), request }
    }
}

/// The answer to a [`SampleLine`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleAnswer {
    /// Always `sample_response`. Over HTTP it may be absent.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// That of the request. Over HTTP it may be absent.
    #[serde(default)]
    pub id: String,
    /// The completion.
    #[serde(flatten)]
    pub sample: Sample,
}

impl SampleAnswer {
    /// The value of `type`.
    pub const TYPE: &str = "sample_response";

    /// The answer to a request.
    pub fn new(id: impl Into<String>, sample: Sample) -> Self {
        Self { kind: Self::TYPE.to_owned(), id: id.into(), sample }
    }
}

/// What the lines of a tool's standard output are, told apart by their `type` and `status`.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolLine {
    /// Progress, a log line or an artefact of a stream.
    Notice(Notice),
    /// `session_start`, `awaiting_input`, `session_end`, or whatever else a session tells.
    Session(SessionLine),
    /// The tool asks for a completion.
    Sample(SampleLine),
    /// The last line: an envelope, alone or with `"type":"result"`.
    Envelope(Value),
    /// A JSON value that the dialect gives no meaning.
    Other(Value),
}

/// A line of a session, from the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionLine {
    /// The session has begun and waits for a line.
    SessionStart {
        /// What the session is.
        message: String,
        /// What stands before the caller's input.
        #[serde(default = "prompt")]
        prompt: String,
        /// Whatever else the tool tells, such as the `schema` of the answer.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// The tool waits for a line.
    AwaitingInput {
        /// What stands before the caller's input.
        #[serde(default = "prompt")]
        prompt: String,
        /// The question and whatever else the tool tells.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// The session is over; an envelope follows.
    SessionEnd {
        /// Usually `success`.
        #[serde(default = "success")]
        status: String,
    },
}

/// What stands before input when nothing else is said.
pub const SESSION_PROMPT: &str = "> ";

fn prompt() -> String {
    SESSION_PROMPT.to_owned()
}

fn success() -> String {
    "success".to_owned()
}

impl ToolLine {
    /// Reads one line of standard output; `None` if it is no JSON object.
    pub fn read(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let kind = value.as_object()?.get("type").and_then(Value::as_str).unwrap_or_default();
        let read = match kind {
            "progress" | "log" | "artifact" => Notice::deserialize(&value).ok().map(Self::Notice),
            "session_start" | "awaiting_input" | "session_end" => {
                SessionLine::deserialize(&value).ok().map(Self::Session)
            }
            SampleLine::TYPE => SampleLine::deserialize(&value).ok().map(Self::Sample),
            _ => None,
        };
        let is_last = matches!(kind, "" | "result") && crate::protocol::outcome::is_envelope(&value);
        Some(read.unwrap_or(if is_last { Self::Envelope(value) } else { Self::Other(value) }))
    }
}

/// Gives an envelope the `type` that ends a stream: the envelope's keys stand beside it.
pub fn result_line(envelope: &Value) -> Value {
    let mut line = Map::from_iter([("type".to_owned(), Value::from("result"))]);
    line.extend(envelope.as_object().cloned().unwrap_or_default());
    Value::Object(line)
}

//! Dialect 0.1, which any tool program can speak, in any language.
//!
//! Optional keys that the first implementation lacks are our extensions; a program works without them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    Annotations, Artifact, ArtifactData, Example, LogLevel, LogLine, Mode, Policy, Progress, PromptSpec,
    ResourceSpec, Sample, SampleRequest, ToolSpec,
};

use super::is_default;

/// The `protocol` that our programs report in `--discover`: dialect 0.1, our extensions, and resident mode.
pub const PROTOCOL: &str = "0.1+toolpost.1";

/// Reserved arguments that control how a tool runs, if the tool declares them.
pub const RESERVED: [&str; 4] = ["working_dir", "timeout", "dry_run", "verbose"];

/// The answer to `--discover`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Discovery {
    /// Program name.
    pub name: String,
    /// Program version.
    pub version: String,
    /// Extension: the extensions that the program speaks; see [`PROTOCOL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Extension: whether `--resident` serves many calls over one process.
    #[serde(skip_serializing_if = "is_default")]
    pub resident: bool,
    /// Its tools.
    pub tools: Vec<ToolEntry>,
    /// Its resources.
    pub resources: Vec<ResourceEntry>,
    /// Its prompts.
    pub prompts: Vec<PromptEntry>,
}

/// One tool in a [`Discovery`]. `--tools` prints only the name and the summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolEntry {
    /// Tool name.
    pub name: String,
    /// One-line summary.
    pub summary: String,
    /// Whether a call needs `--stream`.
    pub streaming: bool,
    /// Whether a call needs `--session`.
    pub session_mode: bool,
    /// Extension: the full description, if it differs from the summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Extension: display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Extension: JSON Schema of the arguments. If absent, `TOOL --manifest` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Extension: JSON Schema of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Extension: example arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Value>,
    /// Extension: search tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Extension: category, such as `file_system`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Extension: dotted group, such as `crm.contacts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Extension: hints about effects.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: Annotations,
    /// Extension: the tool's policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Extension: names of arguments that records mask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sensitive: Vec<String>,
    /// Extension: digest of the definition; see [`ToolSpec::digest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl ToolEntry {
    /// The entry of a tool.
    pub fn from_spec(spec: &ToolSpec) -> Self {
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

    /// The interaction mode.
    pub fn mode(&self) -> Mode {
        match (self.session_mode, self.streaming) {
            (true, _) => Mode::Session,
            (false, true) => Mode::Streaming,
            (false, false) => Mode::Unary,
        }
    }

    /// Converts the entry into a spec without validation. Missing parts are defaults; a missing schema accepts any object.
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
    /// URI pattern; `{name}` matches one path segment.
    pub uri_pattern: String,
    /// Extension: name for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// One-line summary.
    pub summary: String,
    /// Media types, such as `text/plain`.
    pub mime_types: Vec<String>,
    /// Search tags.
    pub tags: Vec<String>,
}

/// One prompt in a [`Discovery`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptEntry {
    /// Prompt name.
    pub name: String,
    /// One-line summary.
    pub summary: String,
    /// Argument names and descriptions.
    pub arguments: BTreeMap<String, String>,
    /// Search tags.
    pub tags: Vec<String>,
}

impl ResourceEntry {
    /// The entry of a resource.
    pub fn from_spec(spec: &ResourceSpec) -> Self {
        Self {
            uri_pattern: spec.uri_pattern.as_str().to_owned(),
            name: spec.name.clone(),
            summary: spec.summary.clone(),
            mime_types: spec.mime_types.clone(),
            tags: spec.tags.clone(),
        }
    }
}

impl PromptEntry {
    /// The entry of a prompt.
    pub fn from_spec(spec: &PromptSpec) -> Self {
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
    /// Tool name.
    pub name: String,
    /// One-line summary.
    pub summary: String,
    /// Full description.
    pub description: String,
    /// Whether a call needs `--stream`.
    pub streaming: bool,
    /// Whether a call needs `--session`.
    pub session_mode: bool,
    /// JSON Schema of the arguments.
    pub schema: Value,
    /// Example arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Value>,
    /// Search tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Extension: JSON Schema of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Extension: digest of the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Manifest {
    /// The manifest of a tool.
    pub fn from_spec(spec: &ToolSpec) -> Self {
        let entry = ToolEntry::from_spec(spec);
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

/// The name of a log level in dialect 0.1.
pub fn level_name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Trace | LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warning",
        LogLevel::Error => "error",
    }
}

/// The log level for a name, including common alternatives.
pub fn level_of(name: &str) -> LogLevel {
    LogLevel::from_name(name).unwrap_or(LogLevel::Info)
}

/// A notice of a running tool: a line of a stream, or with `kind` instead of `type` a notification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Notice {
    /// Progress.
    Progress {
        /// The current step.
        message: String,
        /// From 0 to 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
    },
    /// A log line.
    Log {
        /// The level, see [`level_name`].
        #[serde(default = "info")]
        level: String,
        /// The message.
        message: String,
    },
    /// A file.
    Artifact {
        /// File name.
        name: String,
        /// Its path, or its bytes as a `data:` URI.
        uri: String,
    },
}

fn info() -> String {
    level_name(LogLevel::Info).to_owned()
}

impl Notice {
    /// The notice as a line of a stream: `{"type":"progress",…}`.
    pub fn to_stream_line(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The notice as a line of stderr: `{"type":"notification","kind":"progress",…}`.
    pub fn to_notification(&self) -> Value {
        let mut line = Map::from_iter([("type".to_owned(), Value::from("notification"))]);
        if let Value::Object(fields) = self.to_stream_line() {
            for (key, value) in fields {
                line.insert(if key == "type" { "kind".to_owned() } else { key }, value);
            }
        }
        Value::Object(line)
    }

    /// Parses a notification; `None` for any other line.
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

/// A request for a completion, on standard output or to the URL of `--sample-via http://…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// Always `sample_request`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Eight hexadecimal digits, repeated by the answer.
    pub id: String,
    /// The prompt and its options.
    #[serde(flatten)]
    pub request: SampleRequest,
}

impl SampleLine {
    /// The value of `type`.
    pub const TYPE: &str = "sample_request";

    /// Creates a request.
    pub fn new(id: impl Into<String>, request: SampleRequest) -> Self {
        Self { kind: Self::TYPE.to_owned(), id: id.into(), request }
    }
}

/// The answer to a [`SampleLine`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleAnswer {
    /// Always `sample_response`; optional over HTTP.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The request's id; optional over HTTP.
    #[serde(default)]
    pub id: String,
    /// The completion.
    #[serde(flatten)]
    pub sample: Sample,
}

impl SampleAnswer {
    /// The value of `type`.
    pub const TYPE: &str = "sample_response";

    /// Creates an answer.
    pub fn new(id: impl Into<String>, sample: Sample) -> Self {
        Self { kind: Self::TYPE.to_owned(), id: id.into(), sample }
    }
}

/// A line of a tool's standard output, by its `type` and `status`.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolLine {
    /// Progress, a log line or an artifact of a stream.
    Notice(Notice),
    /// A session line: `session_start`, `awaiting_input` or `session_end`.
    Session(SessionLine),
    /// A request for a completion.
    Sample(SampleLine),
    /// The last line: an envelope, alone or with `"type":"result"`.
    Envelope(Value),
    /// A JSON value without a meaning in the dialect.
    Other(Value),
}

/// A session line of the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionLine {
    /// The session started and waits for a line.
    SessionStart {
        /// Description of the session.
        message: String,
        /// Prompt for the caller's input.
        #[serde(default = "prompt")]
        prompt: String,
        /// Further fields, such as the `schema` of the answer.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// The session waits for a line.
    AwaitingInput {
        /// Prompt for the caller's input.
        #[serde(default = "prompt")]
        prompt: String,
        /// Further fields, such as the question.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// The session ended; an envelope follows.
    SessionEnd {
        /// Usually `success`.
        #[serde(default = "success")]
        status: String,
    },
}

/// The default prompt for input.
pub const SESSION_PROMPT: &str = "> ";

fn prompt() -> String {
    SESSION_PROMPT.to_owned()
}

fn success() -> String {
    "success".to_owned()
}

impl ToolLine {
    /// Parses a line of standard output; `None` if it is not a JSON object.
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

/// Adds the `type` that ends a stream to an envelope.
pub fn result_line(envelope: &Value) -> Value {
    let mut line = Map::from_iter([("type".to_owned(), Value::from("result"))]);
    line.extend(envelope.as_object().cloned().unwrap_or_default());
    Value::Object(line)
}

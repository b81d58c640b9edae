//! Status of tool sources.

use std::time::Duration;

use serde::Serialize;

use crate::{RetryAdvice, ToolError};

/// When a call of a source without a list may be retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Status of a tool source, as far as it is known without a request.
///
/// It is for operators: it contains no secret, but it may name tools that are hidden from a caller; see
/// [`brief`](Self::brief).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The source's name.
    pub name: String,
    /// Can serve calls.
    pub state: SourceState,
    /// The reason why the source is unavailable, or why its list is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of connections or starts.
    pub connections: u64,
    /// Number of failed connections or starts in a row.
    pub failures: u32,
    /// Number of tools in its latest list.
    pub tools: usize,
    /// Definitions that need an operator's review. They are listed without their text and cannot be used. A prompt is
    /// `prompt:NAME`, a resource `resource:URI`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<HiddenDefinition>,
    /// Tools that are not listed: their name is taken, or their definition is invalid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<HiddenDefinition>,
    /// Warnings about its definitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Availability of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SourceState {
    /// Not started: no call needed it yet.
    NotStarted,
    /// Connecting or starting for the first time.
    Starting,
    /// Available.
    Ready,
    /// Reconnecting or restarting after a loss.
    Reconnecting,
    /// The connection, the start or the listing failed. A retry is possible.
    Failed,
}

/// A quarantined or omitted definition of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HiddenDefinition {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// The fix for an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl HiddenDefinition {
    /// A definition hidden for a reason.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into(), remedy: None }
    }

    /// Sets what an operator can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl SourceStatus {
    /// The status of a source in a state, without details.
    pub fn new(name: impl Into<String>, state: SourceState) -> Self {
        Self {
            name: name.into(),
            state,
            reason: None,
            connections: 0,
            failures: 0,
            tools: 0,
            quarantined: Vec::new(),
            omitted: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// The status without reasons and definition names, for a caller who may not see all of the source.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { connections: self.connections, failures: self.failures, ..Self::new(self.name, self.state) }
    }
}

impl SourceState {
    /// A phrase for a sentence such as "the upstream `calc` is …".
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotStarted => "not started yet",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Reconnecting => "unavailable and reconnecting",
            Self::Failed => "unavailable",
        }
    }
}

/// The error of an unknown tool that a source without a list may have: one whose name begins the name of the tool, or
/// one that is starting. It has no reason, so that any caller may get it.
pub fn unlisted_tool(tool: &str, sources: impl IntoIterator<Item = SourceStatus>) -> Option<ToolError> {
    let is_unlisted = |status: &SourceStatus| {
        status.connections == 0 && matches!(status.state, SourceState::Starting | SourceState::Failed)
    };
    let unlisted: Vec<SourceStatus> = sources.into_iter().filter(is_unlisted).collect();
    let is_own =
        |status: &&SourceStatus| tool.strip_prefix(&*status.name).is_some_and(|rest| rest.starts_with("__"));
    let is_starting = |status: &&SourceStatus| status.state == SourceState::Starting;
    let status = unlisted.iter().find(is_own).or_else(|| unlisted.iter().find(is_starting))?;
    let tool: String = tool.chars().take(80).flat_map(char::escape_debug).collect();
    let message = format!("unknown tool `{tool}`; `{}` is {}", status.name, status.state.words());
    let error = ToolError::dependency(message).retry(RetryAdvice::NotStarted(RETRY_AFTER));
    Some(error.suggest("Its tools are not known yet; try again later."))
}

//! How sources are.

use serde::Serialize;

/// How a source of tools is, as far as is known without asking it. For operators: it names nothing that was secret when
/// the source was set up, but it names tools that may be closed to a caller; see [`brief`](Self::brief).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SourceStatus {
    /// Its name.
    pub name: String,
    /// Whether it can serve calls.
    pub state: SourceState,
    /// Why it cannot, or why its list could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How often it has been connected or started.
    pub connections: u64,
    /// How often in a row it could not be.
    pub failures: u32,
    /// How many tools it had when it was last listed.
    pub tools: usize,
    /// What is listed without its words, and neither run nor read nor rendered, until a person has looked at it. A prompt
    /// is named `prompt:NAME`, a resource `resource:ADDRESS`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Withheld>,
    /// Tools that are not listed at all: another source has the name, or the definition contradicts itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Withheld>,
    /// What is remarkable in its definitions, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Whether a source can serve calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SourceState {
    /// Nobody has needed it yet.
    NotStarted,
    /// It is being started or connected for the first time.
    Starting,
    /// It can.
    Well,
    /// It was there, is gone, and is being connected again.
    Reviving,
    /// It could not be started or connected, or not be listed. It may be tried again.
    Failed,
}

/// Something that a source has and that is withheld.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Withheld {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
    /// What a person can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Withheld {
    /// Something that is withheld for a reason.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into(), remedy: None }
    }

    /// Says what a person can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl SourceStatus {
    /// A source in a state, of which no more is known.
    pub fn new(name: impl Into<String>, state: SourceState) -> Self {
        Self {
            name: name.into(),
            state,
            reason: None,
            connections: 0,
            failures: 0,
            tools: 0,
            quarantined: Vec::new(),
            left_out: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// The same without reasons and without the names of anything that it has: what a caller may read to whom a part of
    /// the source is closed.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { connections: self.connections, failures: self.failures, ..Self::new(self.name, self.state) }
    }
}

impl SourceState {
    /// In words, for a sentence such as "the upstream `calc` is …".
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotStarted => "not started yet",
            Self::Starting => "starting",
            Self::Well => "well",
            Self::Reviving => "away, and is connected again",
            Self::Failed => "away",
        }
    }
}

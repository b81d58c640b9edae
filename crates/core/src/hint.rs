//! Suggestions, and fixes of errors as values.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A fix that each front renders in its own terms, such as an option of a command or an argument of a function.
///
/// Its text is for models and records, and names no front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Hint {
    /// Approve a tool.
    Approve {
        /// The tool.
        tool: String,
    },
    /// Name a model for the completions of a tool.
    NameModel,
    /// Set the working directory of a call.
    SetWorkingDirectory,
    /// Allow connections to a host.
    AllowHost {
        /// The host; any one if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// Allow connections to an address of this machine or of a private network.
    AllowAddress {
        /// The address with its port.
        address: String,
    },
    /// Let this client connect to a host with a private address.
    AllowPrivateHost {
        /// The host.
        host: String,
    },
    /// Set the id of a client that is registered by hand.
    SetClientId,
    /// Set the authorization server of the client.
    SetIssuer,
    /// Configure a search engine.
    ConfigureSearch,
    /// Record the next run.
    RecordRun,
    /// List the runs of workflows.
    ListFlowRuns,
    /// Show a run of a workflow.
    ShowFlowRun {
        /// The run.
        run: String,
    },
    /// Answer an approval of a workflow.
    AnswerApproval {
        /// The run.
        run: String,
        /// The step.
        step: String,
    },
    /// Start a worker of the cluster.
    StartFlowWorker,
}

impl Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Approve { tool } => write!(f, "The operator can approve `{tool}`."),
            Self::NameModel => f.write_str("Name a model for the completions of the tool."),
            Self::SetWorkingDirectory => f.write_str("Set a working directory for the call or its scope."),
            Self::AllowHost { host: Some(host) } => write!(f, "The operator can allow the host `{host}`."),
            Self::AllowHost { host: None } => f.write_str("Allow a host in the grants of the tool."),
            Self::AllowAddress { address } => write!(f, "The operator can allow the address `{address}`."),
            Self::AllowPrivateHost { host } => write!(f, "If you trust it, allow the host `{host}`."),
            Self::SetClientId => f.write_str("Register a client there by hand and set its id."),
            Self::SetIssuer => f.write_str("If you trust it, set the authorization server of the client."),
            Self::ConfigureSearch => f.write_str("Configure an engine: SearXNG or Brave."),
            Self::RecordRun => f.write_str("Run it again with a recording."),
            Self::ListFlowRuns => f.write_str("List the runs for their ids."),
            Self::ShowFlowRun { run } => write!(f, "Show the run `{run}`."),
            Self::AnswerApproval { run, step } => write!(f, "Answer the step `{step}` of the run `{run}`."),
            Self::StartFlowWorker => f.write_str("Start a worker that registers with the cluster."),
        }
    }
}

/// A suggestion: one sentence on what to do next, with a hint where a front has better terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub(crate) text: String,
    pub(crate) hint: Option<Value>,
}

impl Suggestion {
    /// A sentence of an author with a hint beside it.
    pub fn with_hint(text: impl Into<String>, hint: &impl Serialize) -> Self {
        Self { text: text.into(), hint: serde_json::to_value(hint).ok() }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The hint if it has this type, such as [`Hint`].
    pub fn hint<T: DeserializeOwned>(&self) -> Option<T> {
        T::deserialize(self.hint.as_ref()?).ok()
    }

    /// The text of a hint with the hint.
    pub fn new(hint: &(impl Display + Serialize)) -> Self {
        Self::with_hint(hint.to_string(), hint)
    }
}

impl From<Hint> for Suggestion {
    fn from(hint: Hint) -> Self {
        Self::new(&hint)
    }
}

impl From<String> for Suggestion {
    fn from(text: String) -> Self {
        Self { text, hint: None }
    }
}

impl From<&str> for Suggestion {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Suggestion {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

impl From<Cow<'_, str>> for Suggestion {
    fn from(text: Cow<'_, str>) -> Self {
        text.into_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolError;

    #[test]
    fn a_hint_survives_a_wire_beside_its_text() {
        let hint = Hint::Approve { tool: "rm".into() };
        let error = ToolError::permission("denied").suggest(hint.clone());
        let json = serde_json::to_value(&error).unwrap();
        assert_eq!(json["suggestion"], "The operator can approve `rm`.");
        assert_eq!(json["hint"], serde_json::json!({ "kind": "approve", "tool": "rm" }));
        let read: ToolError = serde_json::from_value(json).unwrap();
        assert_eq!((read.hint::<Hint>(), &read), (Some(hint), &error));
        // A plain text replaces both.
        let plain = read.suggest("Ask.");
        assert_eq!((plain.suggestion(), plain.hint::<Hint>()), (Some("Ask."), None));
    }

    #[test]
    fn an_unknown_hint_leaves_its_text() {
        let json = serde_json::json!({
            "code": "LIMIT", "message": "full", "suggestion": "Wait.", "hint": { "kind": "of_a_later_version" }
        });
        let error: ToolError = serde_json::from_value(json).unwrap();
        assert_eq!((error.suggestion(), error.hint::<Hint>()), (Some("Wait."), None));
    }

    #[test]
    fn hints_obey_the_limits_of_texts() {
        let error = ToolError::permission("denied").suggest(Hint::Approve { tool: "secret".into() });
        let masked = error.clone().map_text(|text| text.replace("secret", "***"), 100);
        assert_eq!(masked.hint::<Hint>(), Some(Hint::Approve { tool: "***".into() }));
        assert_eq!(error.map_text(str::to_owned, 10).hint::<Hint>(), None);
    }
}

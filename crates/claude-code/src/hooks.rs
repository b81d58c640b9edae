//! What an application can say while Claude Code works.

use serde_json::Value;
use toolpost_core::BoxFuture;

/// A use of a tool, ours or one of Claude Code's own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolUse {
    /// The provider's name of the use, such as `toolu_01`.
    pub id: String,
    /// The tool, such as `mcp__calc__add` or `Bash`.
    pub tool: String,
    /// Its arguments.
    pub input: Value,
    /// The kind of the sub-agent that uses it; none is Claude Code itself.
    pub agent: Option<String>,
}

impl ToolUse {
    /// Of the input of a hook.
    pub(super) fn of(input: &Value) -> Self {
        let text = |field: &str| input.get(field).and_then(Value::as_str).map(str::to_owned);
        Self {
            id: text("tool_use_id").unwrap_or_default(),
            tool: text("tool_name").unwrap_or_default(),
            input: input.get("tool_input").cloned().unwrap_or_default(),
            agent: text("agent_type"),
        }
    }
}

/// What becomes of a use of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookDecision {
    /// As if nobody had been asked: the permissions decide.
    #[default]
    Continue,
    /// It is used, whatever the permissions say. What the toolbox's operator denies stays denied.
    Allow,
    /// It is not used; the model is told why. It counts as a denied permission.
    Deny(String),
}

/// Is told of every use of a tool before and after, and may refuse it. A hook that takes longer than a minute counts as
/// one that refuses, and holds up no other session.
pub trait Hooks: Send + Sync {
    /// A tool is about to be used. Default: [`HookDecision::Continue`].
    fn before_tool<'a>(&'a self, used: &'a ToolUse) -> BoxFuture<'a, HookDecision> {
        let _ = used;
        Box::pin(async { HookDecision::Continue })
    }

    /// A tool was used and gave this. Default: nothing.
    fn after_tool<'a>(&'a self, used: &'a ToolUse, result: &'a Value) -> BoxFuture<'a, ()> {
        let _ = (used, result);
        Box::pin(async {})
    }
}

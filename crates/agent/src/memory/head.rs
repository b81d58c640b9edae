//! The head of a stored conversation: its title, its figures and what the next run inherits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{Clock, Code, Document, RunId, ScopeId, SystemClock, Timestamp, ToolError, Usage};
use toolpost_llm::CodeExecutionMeter;

use crate::spend::Spent;

/// The version of the format of a head.
pub(super) const VERSION: u8 = 1;
/// Characters of a title.
const MAX_TITLE_CHARS: usize = 80;

/// The origin of a forked conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The original conversation.
    pub from: ScopeId,
    /// The number of copied prompts.
    pub prompts: usize,
}

/// A summary of a stored conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConversationSummary {
    /// The id.
    pub id: ScopeId,
    /// The title.
    pub title: String,
    /// The directory, project or other place it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The model of the latest answer; empty before the first answer.
    pub model: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// The number of turns.
    pub turns: usize,
    /// The number of prompts.
    pub prompts: usize,
    /// Tokens used.
    pub usage: Usage,
    /// The cost in US dollars; absent if the cost of any run is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The origin, if it is a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Forked>,
}

impl ConversationSummary {
    pub(super) fn of(id: ScopeId, head: &Head) -> Self {
        Self {
            id,
            title: head.title.clone(),
            folder: head.folder.clone(),
            model: head.model.clone(),
            created: head.created,
            updated: head.updated,
            turns: head.turns,
            prompts: head.prompts,
            usage: head.usage.clone(),
            cost_usd: (!head.cost_unknown).then_some(head.cost_usd),
            forked_from: head.forked_from.clone(),
        }
    }
}

/// The stored head of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) v: u8,
    pub(super) title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) folder: Option<String>,
    pub(super) model: String,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    pub(super) turns: usize,
    pub(super) prompts: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_run: Option<RunId>,
    pub(super) usage: Usage,
    pub(super) cost_usd: f64,
    /// Whether the cost of any run is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) cost_unknown: bool,
    /// The figures before the last run, if that run paused: its own figures are counted again when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_waiting: Option<Box<Before>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forked_from: Option<Forked>,
    /// Provider state beyond the turns, by provider name, such as the id of a code container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) carry: BTreeMap<String, Map<String, Value>>,
    /// The loaded tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tool_session: Option<Value>,
    /// Billed code execution time, so that a reused container is not billed again.
    #[serde(default, skip_serializing_if = "CodeExecutionMeter::is_empty")]
    pub(super) code_meter: CodeExecutionMeter,
    pub(super) bytes: u64,
}

fn count(usage: &mut Usage, (cost_usd, is_unknown): (&mut f64, &mut bool), spent: &Spent) {
    usage.add(&spent.usage);
    match spent.cost_usd {
        Some(cost) => *cost_usd += cost,
        None => *is_unknown = true,
    }
}

/// The figures of a conversation before a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Before {
    run: RunId,
    usage: Usage,
    cost_usd: f64,
    cost_unknown: bool,
}

impl Head {
    /// Counts spending outside of runs.
    pub(super) fn spend(&mut self, spent: &Spent) {
        if let Some(before) = &mut self.before_waiting {
            count(&mut before.usage, (&mut before.cost_usd, &mut before.cost_unknown), spent);
        }
        count(&mut self.usage, (&mut self.cost_usd, &mut self.cost_unknown), spent);
    }

    /// Counts the spending of a run, replacing what the run had spent when it paused.
    pub(super) fn spend_for_run(&mut self, run: RunId, spent: &Spent, is_paused: bool) {
        match self.before_waiting.take() {
            Some(before) if before.run == run => {
                self.usage = before.usage;
                (self.cost_usd, self.cost_unknown) = (before.cost_usd, before.cost_unknown);
            }
            _ => {}
        }
        if is_paused {
            let (usage, cost_usd, cost_unknown) = (self.usage.clone(), self.cost_usd, self.cost_unknown);
            self.before_waiting = Some(Box::new(Before { run, usage, cost_usd, cost_unknown }));
        }
        count(&mut self.usage, (&mut self.cost_usd, &mut self.cost_unknown), spent);
    }

    pub(super) fn new(title: Option<&str>, folder: Option<String>) -> Self {
        let now = SystemClock.timestamp();
        Self {
            v: VERSION,
            title: title.map(shortened).unwrap_or_default(),
            folder,
            model: String::new(),
            created: now,
            updated: now,
            turns: 0,
            prompts: 0,
            last_run: None,
            usage: Usage::default(),
            cost_usd: 0.0,
            cost_unknown: false,
            before_waiting: None,
            forked_from: None,
            carry: BTreeMap::new(),
            tool_session: None,
            code_meter: CodeExecutionMeter::new(),
            bytes: 0,
        }
    }

    /// Parses the head of a conversation.
    pub(super) fn read(document: &Document) -> Result<Self, ToolError> {
        let head = Self::deserialize(&*document.value).map_err(|error| error.to_string());
        match head {
            Ok(head) if head.v == VERSION => Ok(head),
            Ok(head) => Err(format!("v: expected {VERSION}, found {}", head.v)),
            Err(error) => Err(error),
        }
        .map_err(|what| {
            ToolError::new(Code::Dependency, format!("`{}` is no valid conversation: {what}", document.id))
                .suggest("Delete it, or use the newer program that wrote it.")
        })
    }
}

/// One line of bounded length, without control characters.
pub(super) fn shortened(text: &str) -> String {
    let words = text.split_whitespace().take(MAX_TITLE_CHARS).collect::<Vec<_>>().join(" ");
    let visible = words.chars().filter(|character| !character.is_control());
    let mut title: String = visible.clone().take(MAX_TITLE_CHARS).collect();
    if visible.count() > MAX_TITLE_CHARS {
        title.pop();
        title.push('…');
    }
    title
}

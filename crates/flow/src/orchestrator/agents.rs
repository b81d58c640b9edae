//! Agents: their limits, their load, and the figures of what they did.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_core::{Timestamp, ToolError, ToolSpec};

use crate::outcome::StepStatus;

/// The default number of tasks of an agent at once.
const CONCURRENT: usize = 3;
/// The category of tools that have none.
const NO_CATEGORY: &str = "custom";

/// An agent: tools, and how many tasks it runs at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskAgent {
    /// Its name, which is its id. No other agent has it.
    pub name: String,
    /// The names of its tools.
    pub capabilities: Vec<String>,
    /// The number of tasks that it runs at once. Default: 3.
    pub max_concurrent_tasks: usize,
}

impl TaskAgent {
    /// An agent with tools.
    pub fn new<T: Into<String>>(name: impl Into<String>, tools: impl IntoIterator<Item = T>) -> Self {
        let capabilities = tools.into_iter().map(Into::into).collect();
        Self { name: name.into(), capabilities, max_concurrent_tasks: CONCURRENT }
    }

    /// Sets the number of tasks that it runs at once.
    #[must_use]
    pub fn max_concurrent_tasks(mut self, tasks: usize) -> Self {
        self.max_concurrent_tasks = tasks.max(1);
        self
    }

    /// One agent for each category of tools, in the order of the first tool: `CATEGORY_agent`.
    pub(super) fn of_categories<'a>(specs: impl Iterator<Item = &'a ToolSpec>) -> Vec<Self> {
        let mut agents: Vec<Self> = Vec::new();
        for spec in specs {
            let name = format!("{}_agent", spec.category.as_deref().unwrap_or(NO_CATEGORY));
            match agents.iter_mut().find(|agent| agent.name == name) {
                Some(agent) => agent.capabilities.push(spec.name.clone()),
                None => agents.push(Self::new(name, [spec.name.as_str()])),
            }
        }
        agents
    }
}

/// The state of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// It has had no task.
    #[default]
    Idle,
    /// It runs a task.
    Running,
    /// Its tasks wait: for others, for a retry, or for a slot.
    Waiting,
    /// It has no task, and the last one succeeded or was skipped.
    Completed,
    /// It has no task, and the last one failed or was blocked by a failure.
    Failed,
    /// It has no task, and the last one was cancelled.
    Cancelled,
}

impl AgentState {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The status of an agent.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AgentStatus {
    /// The id, which is the name.
    pub id: String,
    /// The name.
    pub name: String,
    /// The state.
    pub state: AgentState,
    /// The share of its slots that tasks need, waiting ones included: above 1 tasks wait.
    pub load: f64,
    /// The tasks that run, those in the queue of their tool included.
    pub current_tasks: usize,
    /// The tasks that have not begun, or wait for a slot or a retry.
    pub waiting_tasks: usize,
    /// The number of tasks that it runs at once.
    pub max_concurrent_tasks: usize,
    /// The tasks that succeeded.
    pub completed_tasks: u64,
    /// The tasks that failed.
    pub failed_tasks: u64,
    /// The share of succeeded tasks among those that succeeded or failed; 0 before the first one.
    pub success_rate: f64,
    /// The time of its calls without the queue, in seconds.
    pub total_execution_time: f64,
    /// When a task last began or ended.
    pub last_activity: Option<Timestamp>,
    /// The names of its tools.
    pub capabilities: Vec<String>,
}

/// The figures of an orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SystemStats {
    /// The tasks that succeeded.
    pub tasks_completed: u64,
    /// The tasks that failed, without those that were blocked, skipped or cancelled.
    pub tasks_failed: u64,
    /// The time of all calls without the queue, in seconds.
    pub total_execution_time: f64,
    /// The agents that were added.
    pub agents_created: usize,
    /// The workflows that began.
    pub workflows_executed: u64,
    /// The number of agents.
    pub total_agents: usize,
    /// The agents that run a task.
    pub active_agents: usize,
    /// The tasks that run.
    pub current_tasks: usize,
    /// The share of succeeded tasks among those that succeeded or failed; 0 before the first one.
    pub success_rate: f64,
    /// The time of a task that succeeded or failed, in seconds; 0 before the first one.
    pub average_execution_time: f64,
}

/// An agent and what it does.
#[derive(Debug)]
struct AgentEntry {
    agent: TaskAgent,
    /// Its tasks that have not ended.
    open: usize,
    /// Its calls that have not ended.
    calls: usize,
    completed: u64,
    failed: u64,
    time: Duration,
    last_activity: Option<Timestamp>,
    /// The state without tasks.
    rest: AgentState,
}

impl AgentEntry {
    /// The calls beyond the limit wait in the queue of the toolbox.
    fn running(&self) -> usize {
        self.calls.min(self.agent.max_concurrent_tasks)
    }

    fn state(&self) -> AgentState {
        match (self.calls, self.open) {
            (0, 0) => self.rest,
            (0, _) => AgentState::Waiting,
            _ => AgentState::Running,
        }
    }
}

/// All agents.
#[derive(Debug, Default)]
pub(super) struct Agents {
    all: Vec<AgentEntry>,
    pub(super) workflows: u64,
}

impl Agents {
    /// Adds an agent.
    ///
    /// # Errors
    /// Another agent has its name.
    pub(super) fn add(&mut self, agent: TaskAgent) -> Result<(), ToolError> {
        if self.all.iter().any(|entry| entry.agent.name == agent.name) {
            return Err(ToolError::conflict(format!("there is an agent `{}` already", agent.name)));
        }
        self.all.push(AgentEntry {
            agent,
            open: 0,
            calls: 0,
            completed: 0,
            failed: 0,
            time: Duration::ZERO,
            last_activity: None,
            rest: AgentState::Idle,
        });
        Ok(())
    }

    /// Gives a task to the agent with the tool and the least load, the first of several. The agent's slots are limits of
    /// the toolbox, so that a task waits for one there.
    pub(super) fn route(&mut self, task: &str, tool: &str) -> Result<usize, ToolError> {
        let able = self
            .all
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.agent.capabilities.iter().any(|capability| capability == tool));
        // Fractions are compared by their cross products.
        let least = able.min_by(|(_, one), (_, other)| {
            let one_load = one.open.saturating_mul(other.agent.max_concurrent_tasks);
            one_load.cmp(&other.open.saturating_mul(one.agent.max_concurrent_tasks))
        });
        let Some((place, _)) = least else {
            return Err(ToolError::precondition(format!(
                "no agent has the tool `{tool}` of the task `{task}`"
            ))
            .suggest("Add an agent with this capability."));
        };
        if let Some(entry) = self.all.get_mut(place) {
            entry.open += 1;
        }
        Ok(place)
    }

    /// Takes a task back that was routed and never began.
    pub(super) fn unroute(&mut self, place: usize) {
        if let Some(entry) = self.all.get_mut(place) {
            entry.open = entry.open.saturating_sub(1);
        }
    }

    /// The name and the limit of an agent.
    pub(super) fn limit(&self, place: usize) -> Option<(&str, usize)> {
        self.all.get(place).map(|entry| (entry.agent.name.as_str(), entry.agent.max_concurrent_tasks))
    }

    pub(super) fn call_began(&mut self, place: usize, now: Timestamp) {
        if let Some(entry) = self.all.get_mut(place) {
            entry.calls += 1;
            entry.last_activity = Some(now);
        }
    }

    pub(super) fn call_ended(&mut self, place: usize, time: Duration) {
        if let Some(entry) = self.all.get_mut(place) {
            entry.calls = entry.calls.saturating_sub(1);
            entry.time += time;
        }
    }

    pub(super) fn task_ended(&mut self, place: usize, status: StepStatus, now: Timestamp) {
        let Some(entry) = self.all.get_mut(place) else { return };
        entry.open = entry.open.saturating_sub(1);
        entry.last_activity = Some(now);
        match status {
            StepStatus::Succeeded => entry.completed += 1,
            StepStatus::Failed => entry.failed += 1,
            StepStatus::Skipped | StepStatus::Blocked | StepStatus::Cancelled => {}
        }
        entry.rest = match status {
            StepStatus::Succeeded | StepStatus::Skipped => AgentState::Completed,
            StepStatus::Failed | StepStatus::Blocked => AgentState::Failed,
            StepStatus::Cancelled => AgentState::Cancelled,
        };
    }

    pub(super) fn status(&self) -> Vec<AgentStatus> {
        let status = |entry: &AgentEntry| {
            let limit = entry.agent.max_concurrent_tasks;
            AgentStatus {
                id: entry.agent.name.clone(),
                name: entry.agent.name.clone(),
                state: entry.state(),
                load: entry.open as f64 / limit as f64,
                current_tasks: entry.running(),
                waiting_tasks: entry.open.saturating_sub(entry.running()),
                max_concurrent_tasks: limit,
                completed_tasks: entry.completed,
                failed_tasks: entry.failed,
                success_rate: share(entry.completed, entry.completed + entry.failed),
                total_execution_time: entry.time.as_secs_f64(),
                last_activity: entry.last_activity,
                capabilities: entry.agent.capabilities.clone(),
            }
        };
        self.all.iter().map(status).collect()
    }

    pub(super) fn stats(&self) -> SystemStats {
        let completed = self.all.iter().map(|entry| entry.completed).sum();
        let failed = self.all.iter().map(|entry| entry.failed).sum();
        let time = self.all.iter().map(|entry| entry.time).sum::<Duration>().as_secs_f64();
        let ended = completed + failed;
        SystemStats {
            tasks_completed: completed,
            tasks_failed: failed,
            total_execution_time: time,
            agents_created: self.all.len(),
            workflows_executed: self.workflows,
            total_agents: self.all.len(),
            active_agents: self.all.iter().filter(|entry| entry.state() == AgentState::Running).count(),
            current_tasks: self.all.iter().map(AgentEntry::running).sum(),
            success_rate: share(completed, ended),
            average_execution_time: if ended == 0 { 0.0 } else { time / ended as f64 },
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

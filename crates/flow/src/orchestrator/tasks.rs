//! Tasks and workflows as data.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolpost_core::Priority;

/// The default number of attempts of a task after the first one.
const RETRIES: u32 = 3;

/// One call of a tool.
///
/// ```
/// use serde_json::json;
/// use toolpost_core::Priority;
/// use toolpost_flow::AgentTask;
///
/// let load = AgentTask::new("load", "read_file").parameters(json!({ "path": "data.txt" })).priority(Priority::High);
/// let sum = AgentTask::new("sum", "add_up")
///     .parameters(json!({ "lines": "${{ steps.load.output }}" }))
///     .dependencies(["load"]);
/// assert_eq!((load.id(), sum.retry_count), ("load".to_owned(), 3));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AgentTask {
    /// Its name, of which [`id`](Self::id) is made. No other task of the execution has it.
    pub name: String,
    /// The description.
    pub description: String,
    /// The tool, by its name or an alias.
    pub tool_name: String,
    /// The arguments. A text may hold expressions, as in a plan: a text from elsewhere belongs into
    /// [`Execution::input`](crate::Execution::input).
    pub parameters: Value,
    /// Its order among queued calls. Default: normal.
    pub priority: Priority,
    /// The limit of one attempt; the tool's own applies if it is shorter.
    pub timeout: Option<Duration>,
    /// The number of attempts after the first one. Default: 3. Only errors that may pass are tried again, unless its
    /// step has [`retry_on_failure`](WorkflowStep::retry_on_failure).
    pub retry_count: u32,
    /// The names or ids of the tasks that must succeed first, besides those that the parameters read.
    pub dependencies: Vec<String>,
}

impl AgentTask {
    /// A call of a tool without arguments.
    pub fn new(name: impl Into<String>, tool_name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            tool_name: tool_name.into(),
            parameters: json!({}),
            priority: Priority::default(),
            timeout: None,
            retry_count: RETRIES,
            dependencies: Vec::new(),
        }
    }

    /// The name in expressions: letters, digits and `_`, and `_` for each other character.
    pub fn id(&self) -> String {
        id_of(&self.name)
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Sets the arguments.
    #[must_use]
    pub fn parameters(mut self, parameters: impl Into<Value>) -> Self {
        self.parameters = parameters.into();
        self
    }

    /// Sets the order among queued calls.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the limit of one attempt.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the number of attempts after the first one.
    #[must_use]
    pub fn retry_count(mut self, count: u32) -> Self {
        self.retry_count = count;
        self
    }

    /// Sets the tasks that must succeed first.
    #[must_use]
    pub fn dependencies<T: Into<String>>(mut self, tasks: impl IntoIterator<Item = T>) -> Self {
        self.dependencies = tasks.into_iter().map(Into::into).collect();
        self
    }
}

/// The order of a step's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionMode {
    /// At once, as far as their dependencies allow.
    #[default]
    Parallel,
    /// One after another.
    Sequential,
    /// One after another; the parameters of each read the output before it as `previous`.
    Pipeline,
    /// At once if the condition is true, which the step must have.
    Conditional,
}

/// Tasks of a workflow that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkflowStep {
    /// Its name, of which [`id`](Self::id) is made. No other step of the workflow has it.
    pub name: String,
    /// Its tasks, at least one.
    pub tasks: Vec<AgentTask>,
    /// The order.
    pub mode: ExecutionMode,
    /// An expression of the plan's language, such as `steps.check.output.count.value > 0`. If it is false the tasks are
    /// skipped; if it fails the step fails.
    pub condition: Option<String>,
    /// The names or ids of the steps that must succeed first, besides those that the step reads.
    pub depends_on: Vec<String>,
    /// The limit of the whole step, with the queue and the retries of its tasks.
    pub timeout: Option<Duration>,
    /// Whether tasks are tried again after each error, not only after one that may pass.
    pub retry_on_failure: bool,
    /// Whether other tasks of the step, and the steps that depend on it, run after a failure.
    pub continue_on_failure: bool,
}

impl WorkflowStep {
    /// Tasks that run at once.
    pub fn new(name: impl Into<String>, tasks: impl IntoIterator<Item = AgentTask>) -> Self {
        Self { name: name.into(), tasks: tasks.into_iter().collect(), ..Self::default() }
    }

    /// The name in expressions, as for [`AgentTask::id`].
    pub fn id(&self) -> String {
        id_of(&self.name)
    }

    /// Sets how the tasks follow each other.
    #[must_use]
    pub fn mode(mut self, mode: ExecutionMode) -> Self {
        self.mode = mode;
        self
    }

    /// Skips the step if an expression is false.
    #[must_use]
    pub fn condition(mut self, condition: impl Into<String>) -> Self {
        self.condition = Some(condition.into());
        self
    }

    /// Sets the steps that must succeed first.
    #[must_use]
    pub fn depends_on<T: Into<String>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
        self.depends_on = steps.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the limit of the whole step.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tries tasks again after each error.
    #[must_use]
    pub fn retry_on_failure(mut self) -> Self {
        self.retry_on_failure = true;
        self
    }

    /// Lets the other tasks and steps run after a failure.
    #[must_use]
    pub fn continue_on_failure(mut self) -> Self {
        self.continue_on_failure = true;
        self
    }
}

/// Steps with their order.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Workflow {
    /// The name of the plan.
    pub name: String,
    /// The description.
    pub description: String,
    /// The steps, at least one.
    pub steps: Vec<WorkflowStep>,
    /// The limit of the whole workflow.
    pub timeout: Option<Duration>,
}

impl Workflow {
    /// Steps with their order.
    pub fn new(name: impl Into<String>, steps: impl IntoIterator<Item = WorkflowStep>) -> Self {
        Self { name: name.into(), steps: steps.into_iter().collect(), ..Self::default() }
    }

    /// Batches of tasks, each after the one before: the steps `batch1`, `batch2` and so on. A failed task does not end
    /// the later batches.
    pub fn batches(name: impl Into<String>, tasks: impl IntoIterator<Item = AgentTask>, size: usize) -> Self {
        let tasks: Vec<AgentTask> = tasks.into_iter().collect();
        let steps = tasks.chunks(size.max(1)).enumerate().map(|(before, batch)| {
            let step = WorkflowStep::new(format!("batch{}", before + 1), batch.iter().cloned());
            let depends_on = (before > 0).then(|| format!("batch{before}"));
            step.continue_on_failure().depends_on(depends_on)
        });
        Self::new(name, steps)
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Sets the limit of the whole workflow.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// An identifier of the expression language.
fn id_of(name: &str) -> String {
    let id: String =
        name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    if id.starts_with(|first: char| first.is_ascii_digit()) { format!("_{id}") } else { id }
}

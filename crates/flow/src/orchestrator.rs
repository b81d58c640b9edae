//! Tasks for agents, and workflows of tasks: a layer on plans and their runs.
//!
//! An execution is a plan that [`Flows`] runs. Order, retries, limits and priorities are those of plans and of the
//! toolbox; only the choice of an agent, and the figures, are here. Read `compile` for what becomes of a task.

mod agents;
mod compile;
mod tasks;

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::{BoxFuture, Cancellation, Clock, DocStore, RunId, Scope, SystemClock, ToolError};
use toolpost_toolbox::Toolbox;

use self::agents::Agents;
pub use self::agents::{AgentState, AgentStatus, SystemStats, TaskAgent};
use self::compile::{Compiler, Routed};
pub use self::tasks::{AgentTask, ExecutionMode, Workflow, WorkflowStep};
use crate::outcome::{RunStatus, StepStatus};
use crate::plan::Plan;
use crate::run::{FlowProgress, Flows};

/// The default delay before the second attempt of a task.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The default number of calls of an execution at once: less than the queue of a toolbox has by default.
const PARALLEL: usize = 512;

/// Runs tasks and workflows with the tools of a toolbox. Clones share their agents and figures.
///
/// An agent is a set of tools with a number of slots. A task goes to the agent that has its tool and the least load; if
/// all slots are taken it waits in the queue of the toolbox, in the order of priorities.
///
/// ```
/// # use serde_json::json;
/// # use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
/// # use toolpost_toolbox::Toolbox;
/// use toolpost_flow::{AgentOrchestrator, AgentTask};
///
/// # let spec = ToolSpec::new("shout", "Write a text in capitals.").parameter("text", ParameterType::String, "The text.");
/// # let shout = tool_fn(spec, async |args, _ctx| Ok(Output::text(args.decode::<String>("text")?.to_uppercase())));
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let toolbox = Toolbox::builder().tool(shout).build().unwrap();
/// let orchestrator = AgentOrchestrator::new(toolbox);
/// let outcome = orchestrator
///     .execute_tasks([
///         AgentTask::new("hello", "shout").parameters(json!({ "text": "hello" })),
///         AgentTask::new("again", "shout").parameters(json!({ "text": "${{ steps.hello.output }}!" })),
///     ])
///     .await?;
/// assert_eq!(*outcome.results[1].result, json!("HELLO!"));
/// assert_eq!(orchestrator.stats().tasks_completed, 2);
/// # Ok::<(), toolpost_core::ToolError>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct AgentOrchestrator {
    toolbox: Toolbox,
    flows: Flows,
    agents: Arc<Mutex<Agents>>,
    retry_delay: Duration,
    cancellation: Cancellation,
}

/// The result of a task.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AgentResult {
    /// The name of the task.
    pub name: String,
    /// The id of the task.
    pub task_id: String,
    /// The agent that had it.
    pub agent_id: String,
    /// The end.
    pub status: StepStatus,
    /// Succeeded.
    pub success: bool,
    /// The output; null unless it succeeded.
    pub result: Arc<Value>,
    /// The reason of the failure.
    pub error: Option<ToolError>,
    /// The time of its calls without the queue, in seconds.
    pub execution_time: f64,
    /// The number of attempts after the first one.
    pub retries_used: u32,
}

/// The end of an execution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecutionOutcome {
    /// The run. With a store, `toolpost flow show` and [`Flows::load`] know it.
    pub run: RunId,
    /// The end.
    pub status: RunStatus,
    /// The reason of the failure or the cancellation.
    pub error: Option<ToolError>,
    /// The results of all tasks, in the order in which they were given.
    pub results: Vec<AgentResult>,
    /// The time of the run.
    pub duration: Duration,
}

impl ExecutionOutcome {
    /// The result of a task, by its name or id.
    pub fn result(&self, task: &str) -> Option<&AgentResult> {
        self.results.iter().find(|result| result.name == task || result.task_id == task)
    }
}

impl AgentOrchestrator {
    /// An orchestrator with one agent for each category of the toolbox's tools, as they are now: `CATEGORY_agent`, and
    /// `custom_agent` for tools without a category. Each has three slots.
    pub fn new(toolbox: Toolbox) -> Self {
        let specs = toolbox.specs();
        let mut agents = Agents::default();
        for agent in TaskAgent::of_categories(specs.iter().map(|spec| &**spec)) {
            // Categories have different names.
            let _ = agents.add(agent);
        }
        Self::from_agents(toolbox, agents)
    }

    /// An orchestrator with these agents alone.
    ///
    /// # Errors
    /// As for [`add_agent`](Self::add_agent).
    pub fn with_agents(
        toolbox: Toolbox,
        agents: impl IntoIterator<Item = TaskAgent>,
    ) -> Result<Self, ToolError> {
        let orchestrator = Self::from_agents(toolbox, Agents::default());
        agents.into_iter().try_for_each(|agent| orchestrator.add_agent(agent))?;
        Ok(orchestrator)
    }

    fn from_agents(toolbox: Toolbox, agents: Agents) -> Self {
        Self {
            flows: Flows::new(toolbox.clone()),
            toolbox,
            agents: Arc::new(Mutex::new(agents)),
            retry_delay: RETRY_DELAY,
            cancellation: Cancellation::new(),
        }
    }

    /// Stores the runs: [`Flows::resume`] continues one whose process ended.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn DocStore>) -> Self {
        self.flows = self.flows.store(store);
        self
    }

    /// Sets the delay before the second attempt of a task. It doubles with each attempt, up to a minute. Default: 500 ms.
    #[must_use]
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Adds an agent.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown tool, `CONFLICT` if another agent has its name.
    pub fn add_agent(&self, mut agent: TaskAgent) -> Result<(), ToolError> {
        for tool in &mut agent.capabilities {
            let spec = self.toolbox.spec(tool).ok_or_else(|| {
                ToolError::not_found(format!("the agent `{}` has the unknown tool `{tool}`", agent.name))
            })?;
            tool.clone_from(&spec.name);
        }
        self.lock().add(agent)
    }

    /// Runs a task. Await it.
    pub fn execute_task(&self, task: AgentTask) -> Execution {
        self.execute_tasks([task])
    }

    /// Runs tasks at once, as far as their dependencies and the agents allow. Await it.
    ///
    /// A failed task blocks those that depend on it; the others run.
    pub fn execute_tasks(&self, tasks: impl IntoIterator<Item = AgentTask>) -> Execution {
        Execution::new(self, Work::Tasks(tasks.into_iter().collect()))
    }

    /// Runs a workflow. Await it.
    pub fn execute_workflow(&self, workflow: Workflow) -> Execution {
        Execution::new(self, Work::Workflow(workflow))
    }

    /// Cancels all executions, and those that begin later.
    pub fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// The figures: `get_system_stats` of the original vocabulary.
    pub fn stats(&self) -> SystemStats {
        self.lock().stats()
    }

    /// The status of all agents: `get_agent_status` of the original vocabulary.
    pub fn agents(&self) -> Vec<AgentStatus> {
        self.lock().status()
    }

    /// The status of an agent.
    pub fn agent(&self, name: &str) -> Option<AgentStatus> {
        self.agents().into_iter().find(|agent| agent.name == name)
    }

    fn lock(&self) -> MutexGuard<'_, Agents> {
        lock(&self.agents)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Debug)]
enum Work {
    Tasks(Vec<AgentTask>),
    Workflow(Workflow),
}

/// An execution that has not begun. Await it.
///
/// # Errors
/// `INVALID_INPUT` for tasks that cannot run: two with one name, an unknown dependency, tasks that wait for each other,
/// arguments that do not match the tool; `NOT_FOUND` for an unknown tool; `PRECONDITION` if no agent has the tool. Then
/// no task runs. Errors of tasks are in the outcome.
#[derive(Debug)]
#[must_use = "an execution begins when it is awaited"]
pub struct Execution {
    orchestrator: AgentOrchestrator,
    work: Work,
    input: Value,
    max_concurrent: usize,
    cancellation: Cancellation,
    scope: Option<Scope>,
}

impl Execution {
    fn new(orchestrator: &AgentOrchestrator, work: Work) -> Self {
        Self {
            cancellation: Cancellation::never(),
            orchestrator: orchestrator.clone(),
            work,
            input: json!({}),
            max_concurrent: PARALLEL,
            scope: None,
        }
    }

    /// Sets the object that parameters and conditions read as `input`.
    pub fn input(mut self, input: Value) -> Self {
        self.input = input;
        self
    }

    /// Sets the number of calls at once. Default: 512.
    pub fn max_concurrent(mut self, calls: usize) -> Self {
        self.max_concurrent = calls;
        self
    }

    /// Ends the execution when the token is cancelled.
    pub fn cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Sets the scope of the calls, with the working directory.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// The plan that [`Flows`] would run, such as for [`Plan::to_yaml`].
    ///
    /// # Errors
    /// Errors of the execution.
    pub fn plan(&self) -> Result<Plan, ToolError> {
        self.compile().map(|(plan, _)| plan)
    }

    fn compile(&self) -> Result<(Plan, Tracker), ToolError> {
        let orchestrator = &self.orchestrator;
        let mut routed = Vec::new();
        let mut agents = orchestrator.lock();
        let mut compiler = Compiler {
            toolbox: &orchestrator.toolbox,
            agents: &mut agents,
            retry_delay: orchestrator.retry_delay,
            routed: &mut routed,
        };
        let plan = match &self.work {
            Work::Tasks(tasks) => compiler.tasks(tasks),
            Work::Workflow(workflow) => compiler.workflow(workflow),
        };
        drop(agents);
        // Also if the plan is none: its drop takes the tasks back.
        let tracker = Tracker::new(Arc::clone(&orchestrator.agents), routed);
        Ok((plan?, tracker))
    }
}

impl IntoFuture for Execution {
    type Output = Result<ExecutionOutcome, ToolError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (plan, tracker) = self.compile()?;
            if matches!(self.work, Work::Workflow(_)) {
                self.orchestrator.lock().workflows += 1;
            }
            let tracker = Arc::new(tracker);
            let sink = Arc::clone(&tracker);
            let token = self.orchestrator.cancellation.child();
            let mut run = self
                .orchestrator
                .flows
                .run(plan, self.input)
                .max_parallel(self.max_concurrent)
                .cancellation(token.clone())
                .on_progress(move |progress| sink.take(progress));
            if let Some(scope) = self.scope {
                run = run.scope(scope);
            }
            let mut run = run.into_future();
            let outcome = tokio::select! {
                outcome = &mut run => outcome?,
                () = self.cancellation.cancelled() => {
                    token.cancel();
                    run.await?
                }
            };
            Ok(ExecutionOutcome {
                run: outcome.id,
                status: outcome.status,
                error: outcome.error,
                results: tracker.results(),
                duration: outcome.duration,
            })
        })
    }
}

/// The known tasks of an execution. Its drop ends those that have not ended.
struct Tracker {
    agents: Arc<Mutex<Agents>>,
    tasks: Vec<Routed>,
    /// The places of the tasks by the paths of their steps.
    places: HashMap<String, usize>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    tasks: Vec<TaskProgress>,
    /// The ends of the workflow steps.
    steps: HashMap<Arc<str>, (StepStatus, Option<ToolError>)>,
    has_begun: bool,
}

#[derive(Default)]
struct TaskProgress {
    attempts: u32,
    is_calling: bool,
    time: Duration,
    end: Option<(StepStatus, Arc<Value>, Option<ToolError>)>,
}

impl Tracker {
    fn new(agents: Arc<Mutex<Agents>>, tasks: Vec<Routed>) -> Self {
        let places = tasks.iter().enumerate().map(|(place, task)| (task.path(), place)).collect();
        let progress = Progress {
            tasks: tasks.iter().map(|_| TaskProgress::default()).collect(),
            ..Progress::default()
        };
        Self { agents, tasks, places, progress: Mutex::new(progress) }
    }

    /// Takes the progress of the run.
    fn take(&self, progress: &FlowProgress) {
        let (FlowProgress::Started { step, .. }
        | FlowProgress::Called { step, .. }
        | FlowProgress::Ended { step, .. }) = progress
        else {
            return;
        };
        let mut own = lock(&self.progress);
        own.has_begun = true;
        let Some((place, agent)) =
            self.places.get(&**step).and_then(|place| Some((*place, self.tasks.get(*place)?.agent)))
        else {
            if let FlowProgress::Ended { step, status, error, .. } = progress {
                own.steps.insert(Arc::clone(step), (*status, error.clone()));
            }
            return;
        };
        let Some(task) = own.tasks.get_mut(place) else { return };
        let mut agents = lock(&self.agents);
        match progress {
            FlowProgress::Started { attempt, .. } => {
                (task.attempts, task.is_calling) = (*attempt, true);
                agents.call_began(agent, SystemClock.timestamp());
            }
            FlowProgress::Called { record, .. } => {
                let time = record.duration.saturating_sub(record.queue_wait);
                task.is_calling = false;
                task.time += time;
                agents.call_ended(agent, time);
            }
            FlowProgress::Ended { status, output, error, .. } => {
                task.end = Some((*status, Arc::clone(output), error.clone()));
                agents.task_ended(agent, *status, SystemClock.timestamp());
            }
            _ => {}
        }
    }

    /// The results, after the run.
    fn results(&self) -> Vec<AgentResult> {
        let mut progress = lock(&self.progress);
        let mut agents = lock(&self.agents);
        let Progress { tasks, steps, .. } = &mut *progress;
        let results = self.tasks.iter().zip(tasks).map(|(task, progress)| {
            let (status, result, error) = progress.end.get_or_insert_with(|| {
                // Its step never began.
                let step = task.step.as_deref().and_then(|step| steps.get(step));
                let (status, error) = match step {
                    Some((status @ (StepStatus::Skipped | StepStatus::Blocked), _)) => (*status, None),
                    Some((StepStatus::Failed, error)) => (StepStatus::Blocked, error.clone()),
                    _ => (StepStatus::Cancelled, None),
                };
                agents.task_ended(task.agent, status, SystemClock.timestamp());
                (status, Arc::default(), error)
            });
            AgentResult {
                name: task.name.clone(),
                task_id: task.id.clone(),
                agent_id: agents.limit(task.agent).map(|(name, _)| name.to_owned()).unwrap_or_default(),
                status: *status,
                success: *status == StepStatus::Succeeded,
                result: Arc::clone(result),
                error: error.clone(),
                execution_time: progress.time.as_secs_f64(),
                retries_used: progress.attempts.saturating_sub(1),
            }
        });
        results.collect()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let progress = lock(&self.progress);
        let mut agents = lock(&self.agents);
        for (task, own) in self.tasks.iter().zip(&progress.tasks).filter(|(_, own)| own.end.is_none()) {
            if own.is_calling {
                agents.call_ended(task.agent, Duration::ZERO);
            }
            if progress.has_begun {
                agents.task_ended(task.agent, StepStatus::Cancelled, SystemClock.timestamp());
            } else {
                agents.unroute(task.agent);
            }
        }
    }
}

//! Makes plans of tasks and workflows.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, Priority, ToolError, did_you_mean, exact_duration};
use toolpost_toolbox::Toolbox;

use super::agents::Agents;
use super::tasks::{AgentTask, ExecutionMode, Workflow, WorkflowStep};
use crate::plan::{Plan, PlanBuilder, StepBuilder};

/// The errors after which a task of a step with `retry_on_failure` is tried again: all but the cancellation.
const EACH_ERROR: [Code; 12] = [
    Code::InvalidInput,
    Code::MissingParam,
    Code::InvalidPath,
    Code::NotFound,
    Code::Conflict,
    Code::Precondition,
    Code::Timeout,
    Code::Permission,
    Code::Internal,
    Code::Dependency,
    Code::Overloaded,
    Code::Limit,
];

/// A task of an execution.
#[derive(Debug)]
pub(super) struct Routed {
    pub(super) name: String,
    pub(super) id: String,
    /// The workflow step around it.
    pub(super) step: Option<String>,
    /// The number of its agent.
    pub(super) agent: usize,
}

impl Routed {
    /// The path of its step in the plan.
    pub(super) fn path(&self) -> String {
        self.step.as_ref().map_or_else(|| self.id.clone(), |step| format!("{step}.{}", self.id))
    }
}

/// Names and ids of tasks or steps, and what they are.
struct Names {
    what: &'static str,
    /// The place of each name and id.
    places: HashMap<String, usize>,
    ids: Vec<String>,
}

impl Names {
    /// # Errors
    /// Two have the same name, or names that differ only in characters that ids do not have.
    fn new<'a>(what: &'static str, all: impl Iterator<Item = (&'a str, String)>) -> Result<Self, ToolError> {
        let mut names = Self { what, places: HashMap::new(), ids: Vec::new() };
        for (place, (name, id)) in all.enumerate() {
            let own = [name, id.as_str()];
            if own.iter().any(|own| names.places.contains_key(*own)) {
                let message = format!("two {what}s have the name `{name}`, or names with the id `{id}`");
                return Err(ToolError::invalid_input(message).suggest(format!("Rename one of the {what}s.")));
            }
            names.places.extend(own.map(|own| (own.to_owned(), place)));
            names.ids.push(id);
        }
        Ok(names)
    }

    /// The place of what `by` depends on.
    fn find(&self, name: &str, by: &str) -> Result<usize, ToolError> {
        self.places.get(name).copied().ok_or_else(|| {
            let mut message = format!("the {} `{by}` depends on `{name}`, which does not exist", self.what);
            if let Some(hint) = did_you_mean(name, self.places.keys().map(String::as_str)) {
                // Writing to a string cannot fail.
                let _ = write!(message, " ({hint})");
            }
            ToolError::invalid_input(message)
        })
    }

    fn id(&self, place: usize) -> String {
        self.ids.get(place).cloned().unwrap_or_default()
    }
}

/// The files that the compilation reads and changes.
pub(super) struct Compiler<'a> {
    pub(super) toolbox: &'a Toolbox,
    pub(super) agents: &'a mut Agents,
    pub(super) retry_delay: Duration,
    pub(super) routed: &'a mut Vec<Routed>,
}

impl Compiler<'_> {
    /// A plan of tasks, of which a failed one ends only those that depend on it.
    pub(super) fn tasks(&mut self, tasks: &[AgentTask]) -> Result<Plan, ToolError> {
        let names = Names::new("task", tasks.iter().map(|task| (task.name.as_str(), task.id())))?;
        let mut plan = Plan::builder("tasks").failure("continue");
        for task in tasks {
            let needs = needs_of(task, &names, |place| Some(names.id(place)))?;
            plan = plan.step(self.task(task, None, needs, false)?);
        }
        self.check(plan)
    }

    /// A plan of a workflow: a block for each step.
    pub(super) fn workflow(&mut self, workflow: &Workflow) -> Result<Plan, ToolError> {
        let steps = &workflow.steps;
        let names = Names::new("step", steps.iter().map(|step| (step.name.as_str(), step.id())))?;
        let tasks = steps
            .iter()
            .enumerate()
            .flat_map(|(place, step)| step.tasks.iter().map(move |task| (place, task)));
        // The step of each task.
        let (homes, all): (Vec<usize>, Vec<&AgentTask>) = tasks.unzip();
        let task_names = Names::new("task", all.iter().map(|task| (task.name.as_str(), task.id())))?;
        let mut plan = Plan::builder(&workflow.name);
        if !workflow.description.is_empty() {
            plan = plan.description(&workflow.description);
        }
        if let Some(timeout) = workflow.timeout {
            plan = plan.timeout(timeout);
        }
        for (place, step) in steps.iter().enumerate() {
            let mut needs = Vec::new();
            for name in &step.depends_on {
                needs.push(names.id(names.find(name, &step.name)?));
            }
            let mut block = Vec::new();
            for task in &step.tasks {
                let within = needs_of(task, &task_names, |other| {
                    let home = homes.get(other).copied().unwrap_or_default();
                    if home == place {
                        return Some(task_names.id(other));
                    }
                    // A task of another step has ended when its step has.
                    needs.push(names.id(home));
                    None
                })?;
                block.push(self.task(task, Some(step), within, step.retry_on_failure)?);
            }
            needs.sort_unstable();
            needs.dedup();
            plan = plan.step(block_of(step, needs, block)?);
        }
        self.check(plan)
    }

    fn task(
        &mut self,
        task: &AgentTask,
        step: Option<&WorkflowStep>,
        needs: Vec<String>,
        is_each_error: bool,
    ) -> Result<StepBuilder, ToolError> {
        let spec = self.toolbox.spec(&task.tool_name).ok_or_else(|| {
            let specs = self.toolbox.specs();
            let hint = did_you_mean(&task.tool_name, specs.iter().map(|spec| spec.name.as_str()));
            let hint = hint.unwrap_or_else(|| "Add the tool to the toolbox.".to_owned());
            ToolError::not_found(format!(
                "the task `{}` has the unknown tool `{}`",
                task.name, task.tool_name
            ))
            .suggest(hint)
        })?;
        let alias = spec.aliases.iter().find(|alias| alias.name == task.tool_name);
        let parameters = match alias {
            Some(alias) => alias.rewrite(&task.parameters)?,
            None => task.parameters.clone(),
        };
        let agent = self.agents.route(&task.name, &spec.name)?;
        let id = task.id();
        let mut built = Plan::step(&id).tool(&spec.name);
        if let Some((agent, slots)) = self.agents.limit(agent) {
            built = built.limit(json!({ "key": format!("agent {agent}"), "concurrency": slots }));
        }
        if parameters != json!({}) {
            built = built.with(parameters);
        }
        if task.priority != Priority::default() {
            built = built.priority(task.priority);
        }
        let description = if task.description.is_empty() { &task.name } else { &task.description };
        if *description != id {
            built = built.description(description);
        }
        if !needs.is_empty() {
            built = built.needs(needs);
        }
        if let Some(timeout) = task.timeout {
            built = built.timeout(timeout);
        }
        if task.retry_count > 0 {
            let mut retry = json!({ "max": task.retry_count, "initial": exact_duration(self.retry_delay) });
            if is_each_error {
                retry["on"] = EACH_ERROR.iter().map(|code| Value::from(code.as_str())).collect();
            }
            built = built.retry(retry);
        }
        let is_sequence =
            step.is_some_and(|step| step.mode == ExecutionMode::Sequential && step.continue_on_failure);
        if is_sequence {
            built = built.continue_on_error();
        }
        self.routed.push(Routed { name: task.name.clone(), id, step: step.map(WorkflowStep::id), agent });
        Ok(built)
    }

    /// Checks a plan, also against the tools.
    fn check(&self, plan: PlanBuilder) -> Result<Plan, ToolError> {
        let plan = plan.build().map_err(|error| ToolError::invalid_input(error.to_string()))?;
        let problems = plan.check(&self.toolbox.specs());
        match problems.into_iter().find(|problem| !problem.is_warning) {
            Some(problem) => Err(ToolError::invalid_input(problem.to_string())),
            None => Ok(plan),
        }
    }
}

/// The tasks of the same block that a task needs.
fn needs_of(
    task: &AgentTask,
    names: &Names,
    mut within: impl FnMut(usize) -> Option<String>,
) -> Result<Vec<String>, ToolError> {
    let mut needs = Vec::new();
    for name in &task.dependencies {
        needs.extend(within(names.find(name, &task.name)?));
    }
    Ok(needs)
}

/// The block of a workflow step.
fn block_of(
    step: &WorkflowStep,
    needs: Vec<String>,
    tasks: Vec<StepBuilder>,
) -> Result<StepBuilder, ToolError> {
    let id = step.id();
    let mut block = Plan::step(&id);
    if step.name != id {
        block = block.description(&step.name);
    }
    if !needs.is_empty() {
        block = block.needs(needs);
    }
    if let Some(condition) = &step.condition {
        block = block.when(condition.as_str());
    }
    if let Some(timeout) = step.timeout {
        block = block.timeout(timeout);
    }
    if step.continue_on_failure {
        block = block.failure("continue").continue_on_error();
    }
    Ok(match step.mode {
        ExecutionMode::Conditional if step.condition.is_none() => {
            let message = format!("the step `{}` is conditional and has no condition", step.name);
            return Err(ToolError::invalid_input(message));
        }
        ExecutionMode::Parallel | ExecutionMode::Conditional => block.parallel(tasks),
        ExecutionMode::Sequential => block.sequential(tasks),
        ExecutionMode::Pipeline => block.pipeline(tasks),
    })
}

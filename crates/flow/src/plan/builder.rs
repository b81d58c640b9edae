//! Plans in Rust: the same data as in a file, with the same checks.

use std::time::Duration;

use serde_json::{Map, Value};
use toolpost_core::{Priority, exact_duration};

use super::types::{Plan, PlanError};

/// Builds a plan. It holds the data of the plan's file, and [`build`](Self::build) checks them as if they were read.
///
/// ```
/// use serde_json::json;
/// use toolpost_flow::Plan;
///
/// let plan = Plan::builder("report")
///     .input("topic", json!({ "type": "string" }))
///     .step(Plan::step("load").tool("search").with(json!({ "query": "${{ input.topic }}" })))
///     .step(
///         Plan::step("each")
///             .map("${{ steps.load.output }}")
///             .max_parallel(4)
///             .steps([Plan::step("read").tool("read_file").with(json!({ "path": "${{ item }}" })).retry(2)]),
///     )
///     .build()?;
/// assert_eq!(plan.step_count(), 3);
/// assert!(plan.to_yaml().starts_with("kind: flow\nname: report\n"));
/// # Ok::<(), toolpost_flow::PlanError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PlanBuilder(Map<String, Value>);

/// Builds a step of a plan. Each method sets a member of the step; [`PlanBuilder::build`] checks them.
///
/// The default step has no id; its place gives it one.
#[derive(Clone, Debug, Default)]
#[must_use = "a step does nothing outside a plan"]
pub struct StepBuilder(Map<String, Value>);

impl Plan {
    /// Builds a plan in Rust.
    pub fn builder(name: impl Into<String>) -> PlanBuilder {
        PlanBuilder(Map::new()).member("kind", "flow").member("name", name.into())
    }

    /// Builds a step for [`PlanBuilder::step`] or a block.
    pub fn step(id: impl Into<String>) -> StepBuilder {
        StepBuilder::default().member("id", id.into())
    }
}

impl PlanBuilder {
    /// Sets a member by its name in files.
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the description.
    pub fn description(self, text: impl Into<String>) -> Self {
        self.member("description", text.into())
    }

    /// Adds an input with its JSON Schema. It is required unless the schema has a default.
    pub fn input(mut self, name: impl Into<String>, schema: impl Into<Value>) -> Self {
        insert(&mut self.0, "input", name.into(), schema.into());
        self
    }

    /// Sets the targets of the tools, such as `builtin` or a path.
    pub fn tools<T: Into<String>>(self, targets: impl IntoIterator<Item = T>) -> Self {
        let targets = targets.into_iter().map(|target| Value::String(target.into()));
        self.member("tools", targets.collect::<Vec<_>>())
    }

    /// Sets the limit of the whole run.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.member("timeout", exact_duration(timeout))
    }

    /// Sets the failure policy: `fail_fast`, `continue` or `{ "quorum": 2 }`.
    pub fn failure(self, policy: impl Into<Value>) -> Self {
        self.member("failure", policy)
    }

    /// Sets how many steps run at once.
    pub fn max_parallel(self, steps: usize) -> Self {
        self.member("max_parallel", steps)
    }

    /// Sets the output. Default: the output of the last step.
    pub fn output(self, output: impl Into<Value>) -> Self {
        self.member("output", output)
    }

    /// Adds a step.
    pub fn step(self, step: StepBuilder) -> Self {
        self.steps([step])
    }

    /// Adds steps.
    pub fn steps(mut self, steps: impl IntoIterator<Item = StepBuilder>) -> Self {
        let list = self.0.entry("steps").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.extend(steps.into_iter().map(Value::from));
        }
        self
    }

    /// Checks the plan.
    ///
    /// # Errors
    /// All defects, as for a file, without lines and columns.
    pub fn build(self) -> Result<Plan, PlanError> {
        Plan::from_value(&Value::Object(self.0))
    }
}

impl StepBuilder {
    /// Sets a member by its name in files.
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the description.
    pub fn description(self, text: impl Into<String>) -> Self {
        self.member("description", text.into())
    }

    /// Calls a tool.
    pub fn tool(self, name: impl Into<String>) -> Self {
        self.member("tool", name.into())
    }

    /// Sets the arguments of a call, or the inputs of a sub-flow.
    pub fn with(self, arguments: impl Into<Value>) -> Self {
        self.member("with", arguments)
    }

    /// Runs code in the sandbox.
    pub fn code(self, code: impl Into<String>) -> Self {
        self.member("code", code.into())
    }

    /// Sets the language of the code. Default: `python`.
    pub fn language(self, language: impl Into<String>) -> Self {
        self.member("language", language.into())
    }

    /// Adds a variable of the code.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        insert(&mut self.0, "variables", name.into(), value.into());
        self
    }

    /// Runs a program with its arguments, without a shell.
    pub fn command(self, command: impl Into<Value>) -> Self {
        self.member("command", command)
    }

    /// Lets values of steps and inputs run as code.
    pub fn evaluate(self) -> Self {
        self.member("evaluate", true)
    }

    /// Waits for a duration such as `5m`, or until a time such as `2030-01-31T08:00:00Z`.
    pub fn wait(self, time: impl Into<Value>) -> Self {
        self.member("wait", time)
    }

    /// Waits for a signal, whose value is the output.
    pub fn signal(self, name: impl Into<String>) -> Self {
        self.member("signal", name.into())
    }

    /// Asks a person.
    pub fn approve(self, question: impl Into<String>) -> Self {
        self.member("approve", question.into())
    }

    /// Runs steps at once.
    pub fn parallel(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("parallel", steps)
    }

    /// Runs steps one after another.
    pub fn sequential(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("sequential", steps)
    }

    /// Runs steps one after another; each reads the output before it as `previous`.
    pub fn pipeline(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("pipeline", steps)
    }

    /// Runs steps at once until one succeeds.
    pub fn race(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("race", steps)
    }

    /// Runs [`steps`](Self::steps) for each item of a list.
    pub fn map(self, list: impl Into<Value>) -> Self {
        self.member("map", list)
    }

    /// Sets the name of the item in the steps of a map. Default: `item`.
    pub fn item(self, name: impl Into<String>) -> Self {
        self.member("as", name.into())
    }

    /// Repeats [`steps`](Self::steps) until an expression is true.
    pub fn until(mut self, condition: impl Into<String>) -> Self {
        insert(&mut self.0, "loop", "until".to_owned(), condition.into().into());
        self
    }

    /// Repeats [`steps`](Self::steps) at most so many times.
    pub fn max_iterations(mut self, count: u32) -> Self {
        insert(&mut self.0, "loop", "max".to_owned(), count.into());
        self
    }

    /// Sets the steps of a map or a loop.
    pub fn steps(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("steps", steps)
    }

    /// Runs another plan: a [`PlanBuilder`], or a `&Plan`.
    pub fn flow(self, plan: impl Into<Value>) -> Self {
        self.member("flow", plan)
    }

    /// Sets the steps that end first, besides those that it reads: an id, or a list of ids.
    pub fn needs(self, steps: impl Into<Value>) -> Self {
        self.member("needs", steps)
    }

    /// Skips the step if an expression is false.
    pub fn when(self, condition: impl Into<Value>) -> Self {
        self.member("when", condition)
    }

    /// Sets the number of attempts after the first one, or an object with `max`, `initial`, `maximum` and `on`.
    pub fn retry(self, retry: impl Into<Value>) -> Self {
        self.member("retry", retry)
    }

    /// Sets the limit of one attempt of a call, of a block or a sub-flow, or of a wait for a person or a signal.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.member("timeout", exact_duration(timeout))
    }

    /// Sets the order among queued calls.
    pub fn priority(self, priority: Priority) -> Self {
        self.member("priority", serde_json::json!(priority))
    }

    /// Sets the workers of a cluster that make the call.
    pub fn pool(self, name: impl Into<String>) -> Self {
        self.member("pool", name.into())
    }

    /// Sets a limit that calls with one key share: an object with `key`, `concurrency` and `rate`.
    pub fn limit(self, limit: impl Into<Value>) -> Self {
        self.member("limit", limit)
    }

    /// Sets the longest time of a call without progress.
    pub fn heartbeat(self, time: Duration) -> Self {
        self.member("heartbeat", exact_duration(time))
    }

    /// Keeps the output for the same call later: a duration, or an object with `ttl` and `files`.
    pub fn cache(self, cache: impl Into<Value>) -> Self {
        self.member("cache", cache)
    }

    /// Sets the failure policy of a map or a block: `fail_fast`, `continue` or `{ "quorum": 2 }`.
    pub fn failure(self, policy: impl Into<Value>) -> Self {
        self.member("failure", policy)
    }

    /// Sets how many items of a map, or steps of a block, run at once.
    pub fn max_parallel(self, count: usize) -> Self {
        self.member("max_parallel", count)
    }

    /// Sets the output of a block. Default: that of its last step.
    pub fn output(self, output: impl Into<Value>) -> Self {
        self.member("output", output)
    }

    /// Runs the steps that need this one even if it fails.
    pub fn continue_on_error(self) -> Self {
        self.member("on_error", "continue")
    }

    /// Sets the steps that run if this one fails. They read `error`, and their output is that of the step.
    pub fn on_error(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("on_error", steps)
    }

    /// Sets the steps that undo this one if the run fails later. They read `output`.
    pub fn compensate(self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.block("compensate", steps)
    }

    fn block(self, name: &str, steps: impl IntoIterator<Item = Self>) -> Self {
        self.member(name, steps.into_iter().collect::<Vec<_>>())
    }
}

/// Sets a member of a member that is an object.
fn insert(members: &mut Map<String, Value>, name: &str, key: String, value: Value) {
    let inner = members.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(inner) = inner {
        inner.insert(key, value);
    }
}

impl From<StepBuilder> for Value {
    fn from(step: StepBuilder) -> Self {
        Self::Object(step.0)
    }
}

impl From<PlanBuilder> for Value {
    fn from(plan: PlanBuilder) -> Self {
        Self::Object(plan.0)
    }
}

impl From<&Plan> for Value {
    fn from(plan: &Plan) -> Self {
        plan.source.clone()
    }
}

//! Plans: workflows as data.

mod actions;
mod builder;
mod calls;
pub(crate) mod check;
mod files;
pub(crate) mod node;
mod read;
mod svg;
mod text;
pub(crate) mod uses;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use toolpost_core::{Code, Priority, Schema, ToolError, ToolSpec, hex};

pub use self::builder::{PlanBuilder, StepBuilder};
pub(crate) use self::calls::{CacheSettings, CallSettings, LimitSettings};
pub use self::node::{Format, PlanMember, Position, parse_members};
use crate::evaluation::ValuePlace;
use crate::template::{Expression, Template};

/// A workflow: checked steps, the schema of its inputs, and its output.
///
/// ```
/// use toolpost_flow::{Format, Plan};
///
/// let plan = Plan::parse(
///     "kind: flow
/// name: greeting
/// input: { who: { type: string } }
/// steps:
///   - { id: hello, tool: shout, with: { text: 'hello ${{ input.who }}' } }
/// ",
///     Format::Yaml,
/// )?;
/// assert_eq!(plan.name(), "greeting");
/// # Ok::<(), toolpost_flow::PlanError>(())
/// ```
#[derive(Debug)]
pub struct Plan {
    pub(crate) name: String,
    pub(crate) description: String,
    /// The schema of the inputs, an object.
    pub(crate) input: Schema,
    /// The sources of its tools, for the front that opens them.
    pub(crate) tools: Vec<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) body: Arc<Block>,
    /// The plan as data, with the plans of its sub-flows.
    pub(crate) source: Value,
    pub(crate) hash: String,
}

/// Steps with their order, and what they give together.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) steps: Vec<Step>,
    pub(crate) places: HashMap<Arc<str>, usize>,
    pub(crate) is_pipeline: bool,
    pub(crate) failure: FailurePolicy,
    pub(crate) max_parallel: usize,
    pub(crate) output: BlockOutput,
}

impl Block {
    /// The place of a step.
    pub(crate) fn position(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied()
    }
}

/// The output of a block.
#[derive(Debug, Default)]
pub(crate) enum BlockOutput {
    /// The output of its last step.
    #[default]
    Last,
    /// The outputs of its steps by their ids.
    All,
    /// The output of the first step that succeeded.
    First,
    Template(Template),
}

/// The effect of a step's failure on its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FailurePolicy {
    /// The first failure ends the block and stops its other steps.
    #[default]
    FailFast,
    /// The other steps run; then the block fails.
    Continue,
    /// The block succeeds as soon as so many steps have succeeded, and stops the others.
    Quorum(usize),
}

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: Arc<str>,
    pub(crate) description: Option<String>,
    pub(crate) at: Position,
    /// The steps of the same block that must end first.
    pub(crate) needs: Vec<usize>,
    /// The steps of the same block that wait for this one.
    pub(crate) needed_by: Vec<usize>,
    pub(crate) when: Option<Expression>,
    pub(crate) action: Action,
    /// Whether its values may run as code.
    pub(crate) evaluate: bool,
    pub(crate) retry: Retry,
    /// The limit of one attempt, of a wait, or of a block.
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
    /// JSON pointers of the parts of its output that the plan uses as data; the empty one is all of it.
    pub(crate) uses: Arc<[String]>,
    /// Its call; none for the usual one.
    pub(crate) call: Option<Box<CallSettings>>,
    pub(crate) on_error: OnError,
    /// The compensation of the step if the run fails later.
    pub(crate) undo: Option<Arc<Block>>,
}

/// The action of a step.
#[derive(Debug)]
pub(crate) enum Action {
    Tool {
        tool: Arc<str>,
        arguments: Template,
        /// The arguments that come from expressions.
        values: Arc<[ValuePlace]>,
        /// Runs a program, whose failure is that of the step.
        is_program: bool,
    },
    /// Waits for a time.
    Wait(Template),
    /// Waits for a value from outside.
    Signal(Template),
    /// Waits for a person's approval.
    Approve(Template),
    Group(Arc<Block>),
    Map {
        list: Template,
        item: Arc<str>,
        max_parallel: usize,
        body: Arc<Block>,
        failure: FailurePolicy,
    },
    Loop {
        until: Option<Expression>,
        max: u32,
        body: Arc<Block>,
    },
    Flow {
        plan: Arc<Plan>,
        input: Template,
    },
}

/// The action after the last failed attempt of a step.
#[derive(Debug)]
pub(crate) enum OnError {
    /// The step fails.
    Fail,
    /// The step fails, and the steps that need it run all the same.
    Continue,
    /// These steps run, and their output is that of the step.
    Handle(Arc<Block>),
}

/// The attempts of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// The number of attempts after the first one.
    pub(crate) max: u32,
    pub(crate) initial: Duration,
    pub(crate) maximum: Duration,
    pub(crate) on: Vec<Code>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 0,
            initial: Duration::from_secs(1),
            maximum: Duration::from_mins(1),
            on: vec![Code::Dependency, Code::Timeout, Code::Overloaded],
        }
    }
}

impl Retry {
    /// The delay after so many failed attempts; none if the error is final.
    ///
    /// The delay doubles from `initial` to `maximum`, with a jitter that `key` decides, so that a resumed run makes the
    /// same decision.
    pub(crate) fn delay(&self, error: &ToolError, failed: u32, key: &str) -> Option<Duration> {
        use toolpost_core::RetryAdvice;
        let asked = match error.retry_advice() {
            _ if failed > self.max => return None,
            Some(RetryAdvice::Never) => return None,
            Some(RetryAdvice::After(wait) | RetryAdvice::NotStarted(wait)) => wait,
            _ if self.on.contains(&error.code()) => Duration::ZERO,
            _ => return None,
        };
        let doubled = self.initial.saturating_mul(1 << failed.saturating_sub(1).min(20)).min(self.maximum);
        let digest = Sha256::digest(format!("{key} {failed}"));
        let jitter = u32::from(digest.first().copied().unwrap_or_default());
        Some((doubled / 2 + doubled / 512 * jitter).max(asked))
    }
}

/// A defect of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanProblem {
    /// Where it is.
    pub at: Position,
    /// The step, or the empty text.
    pub step: String,
    /// The defect.
    pub message: String,
    /// The fix.
    pub hint: Option<String>,
    /// Whether the plan runs all the same.
    pub is_warning: bool,
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != Position::default() {
            write!(f, "{}: ", self.at)?;
        }
        if !self.step.is_empty() {
            write!(f, "step `{}`: ", self.step)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// The defects of a plan, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError(pub Vec<PlanProblem>);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Parses a plan without sub-flows in other files.
    ///
    /// # Errors
    /// All defects that the plan alone shows.
    pub fn parse(text: &str, format: Format) -> Result<Self, PlanError> {
        read::plan(text, format, None)
    }

    /// Reads the file of a plan. Sub-flows are read relative to their own file.
    ///
    /// # Errors
    /// All defects that the plan alone shows, or why a file cannot be read.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        Self::read_with(path, &|path| files::text_of(path).map_err(|error| error.to_string()))
    }

    /// A variant with the texts that `text` gives for paths, for a caller that reads only files it trusts.
    ///
    /// # Errors
    /// As for [`Plan::read`]; an error of `text` is a defect of the plan.
    pub fn read_with(path: &Path, text: &dyn Fn(&Path) -> Result<String, String>) -> Result<Self, PlanError> {
        read::file(path, text)
    }

    /// A plan from its data, such as [`Plan::source`].
    ///
    /// # Errors
    /// As for [`Plan::parse`].
    pub fn from_value(value: &Value) -> Result<Self, PlanError> {
        read::value(value)
    }

    /// The plan of a run that has begun, from its data. It may be of an earlier version: a step whose value would run as
    /// code is not a defect here, and fails when it runs.
    ///
    /// # Errors
    /// As for [`Plan::parse`].
    pub fn of_run(value: &Value) -> Result<Self, PlanError> {
        read::run(value)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description, possibly empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The schema of its inputs.
    pub fn input(&self) -> &Schema {
        &self.input
    }

    /// The targets of its tools, such as `builtin` or a path.
    pub fn tools(&self) -> &[String] {
        &self.tools
    }

    /// The plan as data. Sub-flows are inside.
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// The SHA-256 of its data, in hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The steps that say `evaluate: true`, each with its path in the plan, such as `each.run`, and the tool, `code` or
    /// `command`.
    pub fn evaluated_steps(&self) -> Vec<(String, String)> {
        evaluated(&self.source)
    }

    /// The number of steps, those in blocks included.
    pub fn step_count(&self) -> usize {
        fn count(block: &Block) -> usize {
            block.steps.iter().map(|step| 1 + step.blocks().map(|block| count(block)).sum::<usize>()).sum()
        }
        count(&self.body)
    }

    /// The pools of its steps, sorted, those in blocks included.
    pub fn pools(&self) -> BTreeSet<&str> {
        fn add<'a>(block: &'a Block, found: &mut BTreeSet<&'a str>) {
            for step in &block.steps {
                found.extend(step.call.iter().filter_map(|call| call.pool.as_deref()));
                step.blocks().for_each(|block| add(block, found));
            }
        }
        let mut found = BTreeSet::new();
        add(&self.body, &mut found);
        found
    }

    /// Whether a step may wait for a signal with this name.
    pub(crate) fn may_await(&self, name: &str) -> bool {
        self.max_signals(name) > 0
    }

    /// The maximum number of signals with this name that steps wait for; in maps and loops without a limit. A driver rejects
    /// more, since no step would take them.
    pub fn max_signals(&self, name: &str) -> usize {
        fn count(block: &Block, name: &str, each: usize) -> usize {
            block.steps.iter().fold(0, |all: usize, step| {
                let is_own = matches!(&step.action, Action::Signal(template) if template.may_be(name));
                let is_repeated = matches!(step.action, Action::Map { .. } | Action::Loop { .. });
                let each_inside = if is_repeated { usize::MAX } else { each };
                let inside = step.blocks().map(|inner| count(inner, name, each_inside));
                inside.fold(all.saturating_add(if is_own { each } else { 0 }), usize::saturating_add)
            })
        }
        count(&self.body, name, 1)
    }

    /// The step of a path such as `each[3].size` or `load:error.note`, whatever the numbers of its instances.
    pub(crate) fn step_at(&self, path: &str) -> Option<&Step> {
        let (mut block, mut found) = (Some(&self.body), None);
        for part in path.split('.') {
            let (id, instance) = part.split_at(part.find(['[', ':']).unwrap_or(part.len()));
            let around = block?;
            let step = around.steps.get(around.position(id)?)?;
            (block, found) = match instance.rsplit_once(':') {
                Some((_, "error")) => (step.handler(), None),
                Some((_, "undo")) => (step.undo.as_ref(), None),
                Some(_) => return None,
                None => (step.body(), Some(step).filter(|_| instance.is_empty())),
            };
        }
        found
    }

    /// Checks the calls of tools against their definitions: unknown tools, arguments of a wrong type, and values that
    /// would run as code.
    pub fn check(&self, tools: &[Arc<ToolSpec>]) -> Vec<PlanProblem> {
        check::tools(self, tools)
    }

    /// The plan as a Mermaid flowchart.
    pub fn to_mermaid(&self) -> String {
        text::mermaid(self)
    }

    /// The plan as an SVG drawing: boxes in layers, and a frame around each block.
    ///
    /// A line that follows from other lines is omitted. Texts are escaped and truncated.
    ///
    /// # Errors
    /// `LIMIT` for a plan with more than 2,000 steps, or with more than 50,000 lines in a block.
    pub fn to_svg(&self) -> Result<String, ToolError> {
        svg::draw(self)
    }

    /// The plan as a YAML file, with its sub-flows inside. Reading it gives the same plan.
    pub fn to_yaml(&self) -> String {
        text::yaml(self)
    }

    /// The plan as an indented list, one line per step.
    pub fn to_text(&self) -> String {
        text::outline(self, &|_| None)
    }

    /// This list with the notes that `note` gives for the paths of steps, such as `each.size`.
    pub fn to_text_with(&self, note: &dyn Fn(&str) -> Option<String>) -> String {
        text::outline(self, note)
    }

    /// Checks inputs, with the defaults of the missing ones.
    ///
    /// # Errors
    /// `INVALID_INPUT` for inputs that do not match the schema.
    pub fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        self.complete(input.clone()).map(drop)
    }

    /// The inputs with the defaults of the missing ones.
    ///
    /// # Errors
    /// `INVALID_INPUT` for inputs that do not match the schema.
    pub fn complete(&self, input: Value) -> Result<Value, ToolError> {
        let mut input = if input.is_null() { Value::Object(Map::new()) } else { input };
        if let (Some(given), Some(known)) =
            (input.as_object_mut(), self.input.as_value().get("properties").and_then(Value::as_object))
        {
            for (name, schema) in known {
                if let (false, Some(default)) = (given.contains_key(name), schema.get("default")) {
                    given.insert(name.clone(), default.clone());
                }
            }
        }
        self.input.check(&input)?;
        Ok(input)
    }
}

impl Step {
    /// The time limit of a block: its own, or that of the sub-flow.
    pub(crate) fn block_limit(&self) -> Option<Duration> {
        match &self.action {
            Action::Flow { plan, .. } => self.timeout.into_iter().chain(plan.timeout).min(),
            Action::Group(_) | Action::Map { .. } | Action::Loop { .. } => self.timeout,
            _ => None,
        }
    }

    /// The steps that it runs, of a block, a map, a loop or a sub-flow.
    pub(crate) fn body(&self) -> Option<&Arc<Block>> {
        match &self.action {
            Action::Group(body) | Action::Map { body, .. } | Action::Loop { body, .. } => Some(body),
            Action::Flow { plan, .. } => Some(&plan.body),
            _ => None,
        }
    }

    /// The steps that run after its failure.
    pub(crate) fn handler(&self) -> Option<&Arc<Block>> {
        if let OnError::Handle(handler) = &self.on_error { Some(handler) } else { None }
    }

    /// The blocks within it.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.body().into_iter().chain(self.handler()).chain(&self.undo)
    }

    /// The expressions of the step itself, not those of its blocks.
    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        let mut all: Vec<&Expression> = self.when.iter().collect();
        all.extend(self.call.iter().flat_map(|call| call.expressions()));
        match &self.action {
            Action::Tool { arguments: template, .. }
            | Action::Wait(template)
            | Action::Signal(template)
            | Action::Approve(template)
            | Action::Map { list: template, .. }
            | Action::Flow { input: template, .. } => all.extend(template.expressions()),
            Action::Loop { .. } | Action::Group(_) => {}
        }
        all
    }
}

/// The steps with `evaluate: true` of the text of a plan, as [`Plan::evaluated_steps`] gives them; without those of
/// sub-flows in other files. An invalid text has none.
pub fn evaluated_steps(text: &str, format: Format) -> Vec<(String, String)> {
    node::Node::parse(text, format).map(|node| evaluated(&node.to_value())).unwrap_or_default()
}

fn evaluated(plan: &Value) -> Vec<(String, String)> {
    fn add(node: &Value, path: &str, found: &mut Vec<(String, String)>) {
        for (key, member) in node.as_object().into_iter().flatten() {
            let inner = match key.as_str() {
                "on_error" => format!("{path}:error"),
                "compensate" => format!("{path}:undo"),
                _ => path.to_owned(),
            };
            match member {
                Value::Array(steps) if read::LISTS.contains(&key.as_str()) => {
                    for (index, step) in steps.iter().enumerate() {
                        let id = step.get("id").and_then(Value::as_str);
                        let id = id.map_or_else(|| read::default_id(index), str::to_owned);
                        let path = if inner.is_empty() { id } else { format!("{inner}.{id}") };
                        if step.get("evaluate") == Some(&Value::Bool(true)) {
                            let tool = step.get("tool").and_then(Value::as_str);
                            let kind = ["code", "command"].iter().find(|kind| step.get(**kind).is_some());
                            let what = tool.or(kind.copied()).unwrap_or_default();
                            found.push((path.clone(), what.to_owned()));
                        }
                        add(step, &path, found);
                    }
                }
                Value::Object(_) if key == "flow" => add(member, path, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    add(plan, "", &mut found);
    found
}

/// The paths of the sub-flows in other files that a plan as data names directly.
pub fn sub_flows(plan: &Value) -> Vec<String> {
    let Value::Object(members) = plan else { return Vec::new() };
    let mut found = Vec::new();
    for (key, member) in members {
        match member {
            Value::Array(steps) if read::LISTS.contains(&key.as_str()) => {
                found.extend(steps.iter().flat_map(sub_flows));
            }
            Value::String(path) if key == "flow" => found.push(path.clone()),
            _ => {}
        }
    }
    found
}

/// The SHA-256 of a value, whatever the order of its members.
pub(crate) fn hash(value: &Value) -> String {
    fn write(value: &Value, text: &mut String) {
        match value {
            Value::Object(members) => {
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_by_key(|(name, _)| *name);
                text.push('{');
                for (name, member) in sorted {
                    text.push_str(&Value::from(name.as_str()).to_string());
                    text.push(':');
                    write(member, text);
                    text.push(',');
                }
                text.push('}');
            }
            Value::Array(items) => {
                text.push('[');
                for item in items {
                    write(item, text);
                    text.push(',');
                }
                text.push(']');
            }
            plain => text.push_str(&plain.to_string()),
        }
    }
    let mut text = String::new();
    write(value, &mut text);
    hex(Sha256::digest(text))
}

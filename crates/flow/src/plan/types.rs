//! The parts of a plan as data: its steps, their actions, and its problems.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use toolpost_core::{Code, Priority, Rate, Schema, ToolError, hex};

use super::node::Position;
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

/// The call of a step.
#[derive(Debug, Default)]
pub(crate) struct CallSettings {
    /// The workers that make it, in a cluster.
    pub(crate) pool: Option<Arc<str>>,
    pub(crate) limit: Option<LimitSettings>,
    /// The longest time without progress.
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) cache: Option<CacheSettings>,
}

impl CallSettings {
    pub(crate) fn is_empty(&self) -> bool {
        self.pool.is_none() && self.limit.is_none() && self.heartbeat.is_none() && self.cache.is_none()
    }

    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let key = self.limit.iter().flat_map(|limit| limit.key.iter().flat_map(Template::expressions));
        key.chain(self.cache.iter().flat_map(|cache| cache.files.expressions()))
    }
}

/// A limit that the calls with the same key share.
#[derive(Debug)]
pub(crate) struct LimitSettings {
    /// The path of the step in the plan: the key if there is no other one.
    pub(crate) step: Arc<str>,
    pub(crate) key: Option<Template>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) rate: Option<Rate>,
}

/// When an earlier output stands for a call.
#[derive(Debug)]
pub(crate) struct CacheSettings {
    pub(crate) ttl: Duration,
    /// The files that the output depends on, a list.
    pub(crate) files: Template,
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

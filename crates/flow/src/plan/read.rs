//! Reads a plan: members, blocks, and the order that references give.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, Priority, Schema, did_you_mean, parse_duration};

use super::files::{Files, only};
use super::node::{Content, Format, Node, Position};
use super::types::{
    Action, Block, BlockOutput, FailurePolicy, OnError, Plan, PlanError, PlanProblem, Retry, Step, hash,
};
use super::uses;
use crate::evaluation;
use crate::template::{Expression, Template};

/// The maximum number of steps of a plan, those in blocks included.
pub(super) const MAX_STEPS: usize = 1_000_000;
/// The members that hold a list of steps.
pub(super) const LISTS: [&str; 7] =
    ["steps", "parallel", "sequential", "pipeline", "race", "on_error", "compensate"];
/// Functions of the expression language.
const FUNCTIONS: [&str; 4] = ["range", "dict", "namespace", "lipsum"];

pub(super) fn plan(text: &str, format: Format, directory: Option<&Path>) -> Result<Plan, PlanError> {
    let mut node = Node::parse(text, format).map_err(|(at, message)| only(at, message))?;
    Files { text: &|_| Err("a plan without a file has no other files".to_owned()), open: Vec::new() }
        .expand(&mut node, directory)?;
    of_node(&node)
}

pub(super) fn value(value: &Value) -> Result<Plan, PlanError> {
    of_node(&Node::from_value(value))
}

/// The default id of the step at a place.
pub(super) fn default_id(index: usize) -> String {
    format!("step{}", index + 1)
}

/// The plan of a run, which may be of an earlier version.
pub(super) fn run(value: &Value) -> Result<Plan, PlanError> {
    Reader { has_begun: true, ..Reader::default() }.all(&Node::from_value(value))
}

pub(super) fn file(path: &Path, text: &dyn Fn(&Path) -> Result<String, String>) -> Result<Plan, PlanError> {
    of_node(&Files { text, open: Vec::new() }.node(path)?)
}

fn of_node(node: &Node) -> Result<Plan, PlanError> {
    Reader::default().all(node)
}

/// The members of a mapping that were not read yet.
pub(super) struct Members<'a> {
    pub(super) at: Position,
    pub(super) rest: Vec<(&'a str, Position, &'a Node)>,
    known: Vec<&'static str>,
}

impl<'a> Members<'a> {
    pub(super) fn take(&mut self, name: &'static str) -> Option<(Position, &'a Node)> {
        self.known.push(name);
        let place = self.rest.iter().position(|(key, ..)| *key == name)?;
        let (_, at, node) = self.rest.remove(place);
        Some((at, node))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.rest.iter().any(|(key, ..)| *key == name)
    }
}

/// A reference to a step that the block did not have.
pub(super) struct Reference {
    pub(super) id: String,
    pub(super) at: Position,
    /// The step that refers to it.
    pub(super) by: String,
}

/// A block and the references that it leaves to the blocks around it.
pub(super) struct Read {
    pub(super) block: Block,
    pub(super) outward: Vec<Reference>,
}

#[derive(Default)]
pub(super) struct Reader {
    problems: Vec<PlanProblem>,
    steps: usize,
    /// Whether the plan is that of a run, whose driver checks the values of each call.
    has_begun: bool,
}

/// The names that expressions of a block may read, besides steps.
pub(super) type Variables = BTreeSet<String>;

/// The order of a block's steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    References,
    Listed,
    Pipeline,
}

/// The settings of a block that its step has.
pub(super) struct BlockSettings {
    pub(super) order: Order,
    pub(super) failure: FailurePolicy,
    pub(super) max_parallel: usize,
    pub(super) output: BlockOutput,
}

impl Default for BlockSettings {
    fn default() -> Self {
        Self {
            order: Order::References,
            failure: FailurePolicy::default(),
            max_parallel: usize::MAX,
            output: BlockOutput::Last,
        }
    }
}

impl Reader {
    fn all(mut self, node: &Node) -> Result<Plan, PlanError> {
        match self.plan(node, "") {
            Some(mut plan) if self.problems.is_empty() => {
                uses::mark(&mut plan.body);
                Ok(plan)
            }
            _ => Err(PlanError(self.problems)),
        }
    }

    pub(super) fn problem(&mut self, at: Position, step: &str, message: impl Into<String>) {
        self.hinted(at, step, message, None);
    }

    fn hinted(&mut self, at: Position, step: &str, message: impl Into<String>, hint: Option<String>) {
        /// More would not be read.
        const MAX: usize = 50;
        if self.problems.len() < MAX {
            let (step, message) = (step.to_owned(), message.into());
            self.problems.push(PlanProblem { at, step, message, hint, is_warning: false });
        }
    }

    pub(super) fn members<'a>(&mut self, node: &'a Node, step: &str, what: &str) -> Option<Members<'a>> {
        let Content::Map(members) = &node.content else {
            self.problem(node.at, step, format!("{what} is a mapping, not {}", node.kind()));
            return None;
        };
        let rest = members.iter().map(|(key, at, node)| (key.as_str(), *at, node)).collect();
        Some(Members { at: node.at, rest, known: Vec::new() })
    }

    /// Reports the unknown members.
    pub(super) fn finish(&mut self, members: Members<'_>, step: &str, what: &str) {
        for (key, at, _) in members.rest {
            let hint = did_you_mean(key, members.known.iter().copied());
            let hint = hint.or_else(|| Some(format!("known are {}", members.known.join(", "))));
            self.hinted(at, step, format!("{what} has no field `{key}`"), hint);
        }
    }

    pub(super) fn text(&mut self, node: &Node, step: &str, what: &str) -> Option<String> {
        match &node.content {
            Content::Text(text) => Some(text.clone()),
            _ => {
                self.problem(node.at, step, format!("`{what}` is a text, not {}", node.kind()));
                None
            }
        }
    }

    fn flag(&mut self, node: &Node, step: &str, what: &str) -> Option<bool> {
        match node.content {
            Content::Bool(flag) => Some(flag),
            _ => {
                self.problem(node.at, step, format!("`{what}` is true or false, not {}", node.kind()));
                None
            }
        }
    }

    /// A text that names something, and is not an expression.
    pub(super) fn name(&mut self, node: &Node, step: &str, what: &str) -> Option<String> {
        let text = self.text(node, step, what)?;
        if text.contains("${{") {
            self.problem(node.at, step, format!("`{what}` is a name, not an expression"));
            return None;
        }
        Some(text)
    }

    pub(super) fn duration(&mut self, node: &Node, step: &str, what: &str) -> Option<Duration> {
        let text = match &node.content {
            Content::Text(text) => text.clone(),
            Content::Number(number) => format!("{number}s"),
            _ => String::new(),
        };
        let read = parse_duration(&text).ok();
        if read.is_none() {
            self.problem(node.at, step, format!("`{what}` is a duration such as `30s` or `5m`"));
        }
        read
    }

    pub(super) fn count(&mut self, node: &Node, step: &str, what: &str, max: usize) -> Option<usize> {
        let read = match &node.content {
            Content::Number(number) => number.as_u64().and_then(|number| usize::try_from(number).ok()),
            _ => None,
        };
        let read = read.filter(|number| (1..=max).contains(number));
        if read.is_none() {
            self.problem(node.at, step, format!("`{what}` is a whole number from 1 to {max}"));
        }
        read
    }

    pub(super) fn template(&mut self, node: &Node, step: &str, what: &str) -> Option<Template> {
        match Template::parse(&node.to_value()) {
            Ok(template) => Some(template),
            Err((path, reason)) => {
                let place = if path.is_empty() { what.to_owned() } else { format!("{what}.{path}") };
                self.problem(node.at, step, format!("`{place}`: {reason}"));
                None
            }
        }
    }

    /// A condition: an expression with or without its braces, or true or false.
    pub(super) fn expression(&mut self, node: &Node, step: &str, what: &str) -> Option<Expression> {
        let text = match &node.content {
            Content::Text(text) => text.trim().to_owned(),
            Content::Bool(flag) => flag.to_string(),
            _ => {
                self.problem(node.at, step, format!("`{what}` is an expression, not {}", node.kind()));
                return None;
            }
        };
        let inner = text.strip_prefix("${{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(&text);
        match Expression::parse(inner) {
            Ok(expression) => Some(expression),
            Err(reason) => {
                self.problem(node.at, step, format!("`{what}`: {reason}"));
                None
            }
        }
    }

    pub(super) fn plan(&mut self, node: &Node, path: &str) -> Option<Plan> {
        let mut members = self.members(node, path, "a plan")?;
        if let Some((at, kind)) = members.take("kind")
            && !matches!(&kind.content, Content::Text(text) if text == "flow")
        {
            self.problem(at, path, "the `kind` of a plan is `flow`");
        }
        // Editors find the schema by it.
        members.take("$schema");
        let name = members.take("name").and_then(|(_, node)| self.text(node, path, "name"));
        let description =
            members.take("description").and_then(|(_, node)| self.text(node, path, "description"));
        let input = members.take("input").map(|(_, node)| self.input(node, path));
        let tools = members.take("tools").map(|(_, node)| self.texts(node, path, "tools"));
        let timeout = members.take("timeout").and_then(|(_, node)| self.duration(node, path, "timeout"));
        let mut settings = self.settings(&mut members, path);
        let variables: Variables = ["input", "run"].map(str::to_owned).into();
        if let Some((_, node)) = members.take("output") {
            settings.output =
                self.template(node, path, "output").map_or(BlockOutput::Last, BlockOutput::Template);
        }
        let steps = members.take("steps");
        let at = members.at;
        self.finish(members, path, "a plan");
        let Some((_, steps)) = steps else {
            self.problem(at, path, "a plan has `steps`");
            return None;
        };
        let Read { block, outward } = self.block(steps, path, settings, &variables)?;
        for reference in outward {
            let known = block.places.keys().map(|id| &**id);
            let hint = did_you_mean(&reference.id, known);
            self.hinted(reference.at, &reference.by, format!("there is no step `{}`", reference.id), hint);
        }
        let source = node.to_value();
        Some(Plan {
            name: name.unwrap_or_else(|| "flow".to_owned()),
            description: description.unwrap_or_default(),
            input: input.unwrap_or_else(|| Schema::new(json!({ "type": "object" }))),
            tools: tools.unwrap_or_default(),
            timeout,
            body: Arc::new(block),
            hash: hash(&source),
            source,
        })
    }

    /// The schema of the inputs: a whole schema of an object, or its properties, which are required without a default.
    fn input(&mut self, node: &Node, path: &str) -> Schema {
        let value = node.to_value();
        let Value::Object(members) = value else {
            self.problem(node.at, path, format!("`input` is a mapping, not {}", node.kind()));
            return Schema::new(json!({}));
        };
        let is_schema = members.get("type").is_some_and(Value::is_string) || members.contains_key("$ref");
        let schema = if is_schema {
            Value::Object(members)
        } else {
            let is_required = |schema: &Value| schema.get("default").is_none();
            let required: Vec<&String> =
                members.iter().filter(|(_, schema)| is_required(schema)).map(|(name, _)| name).collect();
            json!({
                "type": "object", "required": required, "properties": members, "additionalProperties": false,
            })
        };
        let schema = Schema::new(schema);
        if let Some(defect) = schema.defect() {
            self.problem(node.at, path, format!("`input` is not a schema: {defect}"));
        }
        schema
    }

    fn texts(&mut self, node: &Node, path: &str, what: &str) -> Vec<String> {
        let Content::List(items) = &node.content else {
            self.problem(node.at, path, format!("`{what}` is a list of texts, not {}", node.kind()));
            return Vec::new();
        };
        items.iter().filter_map(|item| self.text(item, path, what)).collect()
    }

    /// The settings of a block beside its steps: failure policy and parallelism.
    pub(super) fn settings(&mut self, members: &mut Members<'_>, path: &str) -> BlockSettings {
        let failure = members.take("failure").and_then(|(_, node)| self.failure(node, path));
        let max_parallel = members
            .take("max_parallel")
            .and_then(|(_, node)| self.count(node, path, "max_parallel", MAX_STEPS));
        BlockSettings {
            failure: failure.unwrap_or_default(),
            max_parallel: max_parallel.unwrap_or(usize::MAX),
            ..BlockSettings::default()
        }
    }

    fn failure(&mut self, node: &Node, path: &str) -> Option<FailurePolicy> {
        match &node.content {
            Content::Text(text) if text == "fail_fast" => return Some(FailurePolicy::FailFast),
            Content::Text(text) if text == "continue" => return Some(FailurePolicy::Continue),
            Content::Map(members) => {
                if let [(key, _, count)] = members.as_slice()
                    && key == "quorum"
                {
                    return self.count(count, path, "quorum", MAX_STEPS).map(FailurePolicy::Quorum);
                }
            }
            _ => {}
        }
        self.problem(node.at, path, "`failure` is `fail_fast`, `continue` or `{ quorum: NUMBER }`");
        None
    }

    /// Reads the steps of a block, and the order that they have.
    pub(super) fn block(
        &mut self,
        node: &Node,
        path: &str,
        settings: BlockSettings,
        variables: &Variables,
    ) -> Option<Read> {
        let Content::List(items) = &node.content else {
            self.problem(node.at, path, format!("steps are a list, not {}", node.kind()));
            return None;
        };
        if items.is_empty() {
            self.problem(node.at, path, "a block has at least one step");
            return None;
        }
        self.steps += items.len();
        if self.steps > MAX_STEPS {
            self.problem(node.at, path, format!("a plan has at most {MAX_STEPS} steps"));
            return None;
        }
        let outer = variables;
        let mut variables = outer.clone();
        if settings.order == Order::Pipeline {
            variables.insert("previous".to_owned());
        }
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        let mut steps = Vec::with_capacity(items.len());
        let mut references = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let (step, found) = self.step(item, path, index, &variables)?;
            if places.insert(Arc::clone(&step.id), index).is_some() {
                self.problem(item.at, path, format!("two steps have the id `{}`", step.id));
            }
            steps.push(step);
            references.push(found);
        }
        let mut outward = Vec::new();
        for (index, found) in references.into_iter().enumerate() {
            let mut needs = BTreeSet::new();
            if settings.order != Order::References && index > 0 {
                needs.insert(index - 1);
            }
            for reference in found {
                match places.get(reference.id.as_str()) {
                    Some(place) if *place == index => {
                        let message = format!(
                            "it refers to the result of `{}`, which is the step itself",
                            reference.id
                        );
                        self.problem(reference.at, &reference.by, message);
                    }
                    Some(place) => {
                        needs.insert(*place);
                    }
                    None => outward.push(reference),
                }
            }
            if let Some(step) = steps.get_mut(index) {
                step.needs = needs.into_iter().collect();
            }
        }
        if let BlockOutput::Template(template) = &settings.output {
            outward.extend(
                self.reads(template.expressions(), node.at, path, outer)
                    .into_iter()
                    .filter(|reference| !places.contains_key(reference.id.as_str())),
            );
        }
        if let FailurePolicy::Quorum(count) = settings.failure
            && count > steps.len()
        {
            self.problem(
                node.at,
                path,
                format!("the quorum is {count}, but the block has {} steps", steps.len()),
            );
        }
        self.link(&mut steps, path);
        let block = Block {
            steps,
            places,
            is_pipeline: settings.order == Order::Pipeline,
            failure: settings.failure,
            max_parallel: settings.max_parallel,
            output: settings.output,
        };
        Some(Read { block, outward })
    }

    /// Notes which steps wait for which, and reports cycles.
    fn link(&mut self, steps: &mut [Step], path: &str) {
        let mut missing: Vec<usize> = steps.iter().map(|step| step.needs.len()).collect();
        for index in 0..steps.len() {
            let needs = steps.get(index).map(|step| step.needs.clone()).unwrap_or_default();
            for need in needs {
                if let Some(step) = steps.get_mut(need) {
                    step.needed_by.push(index);
                }
            }
        }
        let mut ready: Vec<usize> = missing
            .iter()
            .enumerate()
            .filter(|(_, missing)| **missing == 0)
            .map(|(index, _)| index)
            .collect();
        let mut ordered = 0;
        while let Some(index) = ready.pop() {
            ordered += 1;
            for next in steps.get(index).map(|step| step.needed_by.clone()).unwrap_or_default() {
                if let Some(count) = missing.get_mut(next) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(next);
                    }
                }
            }
        }
        if ordered < steps.len()
            && let Some(cycle) = cycle(steps, &missing)
        {
            let first = cycle.first().and_then(|index| steps.get(*index));
            let names: Vec<&str> =
                cycle.iter().chain(cycle.first()).filter_map(|index| Some(&*steps.get(*index)?.id)).collect();
            let message = format!("these steps wait for each other: {}", names.join(" → "));
            let at = first.map_or_else(Position::default, |step| step.at);
            self.problem(at, path, message);
        }
    }

    /// The references to steps in expressions; reports unknown names.
    pub(super) fn reads(
        &mut self,
        expressions: Vec<&Expression>,
        at: Position,
        by: &str,
        variables: &Variables,
    ) -> Vec<Reference> {
        let mut references = Vec::new();
        for name in expressions.into_iter().flat_map(Expression::reads) {
            let mut parts = name.split('.');
            match (parts.next().unwrap_or_default(), parts.next()) {
                ("steps", Some(id)) => {
                    references.push(Reference { id: id.to_owned(), at, by: by.to_owned() });
                }
                ("steps", None) => {
                    self.problem(at, by, "name the step in an expression, such as `steps.load.output`");
                }
                (name, _) if variables.contains(name) || FUNCTIONS.contains(&name) => {}
                (name, _) => {
                    let known = variables.iter().map(String::as_str).chain(["steps"]);
                    let hint = did_you_mean(name, known.clone())
                        .unwrap_or_else(|| format!("known are {}", known.collect::<Vec<_>>().join(", ")));
                    self.hinted(at, by, format!("there is no `{name}` here"), Some(hint));
                }
            }
        }
        references
    }

    /// Reads a step. The references are those to steps of its block and of the blocks around it.
    fn step(
        &mut self,
        node: &Node,
        outer: &str,
        index: usize,
        variables: &Variables,
    ) -> Option<(Step, Vec<Reference>)> {
        let mut members = self.members(node, outer, "a step")?;
        let id = match members.take("id") {
            Some((at, node)) => {
                let id = self.text(node, outer, "id")?;
                if !is_id(&id) {
                    let message = format!("the id `{id}` has other characters than letters, digits and `_`");
                    self.problem(at, outer, message);
                    return None;
                }
                id
            }
            None => default_id(index),
        };
        let path = if outer.is_empty() { id.clone() } else { format!("{outer}.{id}") };
        let description =
            members.take("description").and_then(|(_, node)| self.text(node, &path, "description"));
        let mut references = Vec::new();
        if let Some((at, node)) = members.take("needs") {
            let needs = match &node.content {
                Content::Text(id) => vec![id.clone()],
                _ => self.texts(node, &path, "needs"),
            };
            references.extend(needs.into_iter().map(|id| Reference { id, at, by: path.clone() }));
        }
        let when = members.take("when").and_then(|(_, node)| self.expression(node, &path, "when"));
        let timeout = members.take("timeout").and_then(|(_, node)| self.duration(node, &path, "timeout"));
        let retry = members.take("retry").map(|(_, node)| self.retry(node, &path)).unwrap_or_default();
        let priority = members.take("priority").and_then(|(at, node)| {
            let text = self.text(node, &path, "priority")?;
            text.parse::<Priority>().map_err(|message| self.problem(at, &path, message)).ok()
        });
        let call = self.call_settings(&mut members, &path);
        let evaluate = members.take("evaluate").and_then(|(_, node)| self.flag(node, &path, "evaluate"));
        let evaluate = evaluate.unwrap_or_default();
        let on_error = members.take("on_error");
        let undo = members.take("compensate");
        self.check_limits(&members, &path, timeout.is_some(), retry.max > 0, evaluate);
        let action = self.action(&mut members, &path, variables, &mut references);
        if let Some(Action::Tool { arguments, values, is_program: true, .. }) = &action
            && !evaluate
            && !self.has_begun
            && let Some(found) = evaluation::of_program(&arguments.constants(), values)
        {
            self.hinted(node.at, &path, found.to_string(), Some(evaluation::HINT.to_owned()));
        }
        self.finish(members, &path, "this step");
        let on_error = match on_error {
            None => OnError::Fail,
            Some((at, node)) => match &node.content {
                Content::Text(text) if text == "fail" => OnError::Fail,
                Content::Text(text) if text == "continue" => OnError::Continue,
                Content::List(_) => {
                    let path = format!("{path}:error");
                    let read = self.inner(node, &path, BlockSettings::default(), variables, &["error"])?;
                    references.extend(read.outward);
                    OnError::Handle(Arc::new(read.block))
                }
                _ => {
                    self.problem(at, &path, "`on_error` is `fail`, `continue` or a list of steps");
                    OnError::Fail
                }
            },
        };
        let undo = match undo {
            None => None,
            Some((_, node)) => {
                let path = format!("{path}:undo");
                let read = self.inner(node, &path, BlockSettings::default(), variables, &["output"])?;
                references.extend(read.outward);
                Some(Arc::new(read.block))
            }
        };
        let step = Step {
            id: id.into(),
            description,
            at: node.at,
            needs: Vec::new(),
            needed_by: Vec::new(),
            when,
            action: action?,
            evaluate,
            // All of it, until the whole plan is known.
            uses: Arc::new([String::new()]),
            retry,
            timeout,
            priority: priority.unwrap_or_default(),
            call: (!call.is_empty()).then(|| Box::new(call)),
            on_error,
            undo,
        };
        references.extend(self.reads(step.expressions(), node.at, &path, variables));
        Some((step, references))
    }

    /// Rejects settings of steps that cannot have them.
    fn check_limits(
        &mut self,
        members: &Members<'_>,
        path: &str,
        has_timeout: bool,
        has_retry: bool,
        evaluate: bool,
    ) {
        let is_call = ["tool", "code", "command"].iter().any(|action| members.has(action));
        if evaluate && !is_call {
            self.problem(members.at, path, "`evaluate` is for calls: give it to the steps within");
        }
        if has_retry && !is_call {
            self.problem(members.at, path, "`retry` is for calls: give it to the steps within");
        }
        if has_timeout && members.has("wait") {
            self.problem(members.at, path, "a `wait` has no `timeout`: it is its own");
        }
    }

    /// A block within a step, with more variables.
    pub(super) fn inner(
        &mut self,
        node: &Node,
        path: &str,
        settings: BlockSettings,
        variables: &Variables,
        more: &[&str],
    ) -> Option<Read> {
        let mut variables = variables.clone();
        variables.extend(more.iter().map(|name| (*name).to_owned()));
        self.block(node, path, settings, &variables)
    }

    fn retry(&mut self, node: &Node, path: &str) -> Retry {
        let mut retry = Retry::default();
        if let Content::Number(_) = node.content {
            retry.max = self.count(node, path, "retry", 1_000).unwrap_or_default() as u32;
            return retry;
        }
        let Some(mut members) = self.members(node, path, "`retry`") else { return retry };
        if let Some((_, node)) = members.take("max") {
            retry.max = self.count(node, path, "max", 1_000).unwrap_or_default() as u32;
        } else {
            self.problem(node.at, path, "`retry` has `max`, the number of attempts after the first");
        }
        if let Some((_, node)) = members.take("initial") {
            retry.initial = self.duration(node, path, "initial").unwrap_or_default();
        }
        if let Some((_, node)) = members.take("maximum") {
            retry.maximum = self.duration(node, path, "maximum").unwrap_or_default();
        }
        if let Some((at, node)) = members.take("on") {
            let codes = self.texts(node, path, "on");
            let read = codes.iter().map(|code| serde_json::from_value::<Code>(json!(code)));
            match read.collect::<Result<Vec<_>, _>>() {
                Ok(codes) => retry.on = codes,
                Err(error) => self.problem(at, path, format!("`on` has codes such as `DEPENDENCY`: {error}")),
            }
        }
        self.finish(members, path, "`retry`");
        retry
    }
}

/// Whether a text is an identifier of the expression language.
pub(super) fn is_id(text: &str) -> bool {
    text.len() <= 100
        && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Steps that wait for each other, in the order in which they do.
fn cycle(steps: &[Step], missing: &[usize]) -> Option<Vec<usize>> {
    let stuck = |index: usize| missing.get(index).is_some_and(|missing| *missing > 0);
    let mut index = (0..steps.len()).find(|index| stuck(*index))?;
    let mut seen = Vec::new();
    loop {
        if let Some(start) = seen.iter().position(|seen| *seen == index) {
            let mut cycle: Vec<usize> = seen.get(start..)?.to_vec();
            cycle.reverse();
            return Some(cycle);
        }
        seen.push(index);
        index = *steps.get(index)?.needs.iter().find(|need| stuck(**need))?;
    }
}

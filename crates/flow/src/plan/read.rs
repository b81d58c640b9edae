//! Reads a plan: members, blocks, and the order that references give.

use std::collections::{BTreeSet, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost_core::{Code, Priority, Schema, did_you_mean, parse_duration};

use super::node::{Content, Format, MAX_BYTES, Node, Position};
use super::{
    Action, Block, BlockOutput, FailurePolicy, OnError, Plan, PlanError, Problem, Retry, Step, hash,
};
use crate::template::{Expression, Template};

/// The maximum number of steps of a plan, those in blocks included.
const MAX_STEPS: usize = 1_000_000;
/// The maximum number of sub-flows within each other.
const MAX_FLOWS: usize = 8;
/// The default number of instances of a map at once.
const PARALLEL: usize = 16;
/// The default and the maximum number of iterations of a loop.
const ITERATIONS: u32 = 100;
const MAX_ITERATIONS: u32 = 100_000;
/// The members that hold a list of steps.
pub(super) const LISTS: [&str; 7] =
    ["steps", "parallel", "sequential", "pipeline", "race", "on_error", "compensate"];
/// The members that say what a step does.
const ACTIONS: [&str; 12] = [
    "tool",
    "code",
    "command",
    "wait",
    "signal",
    "approve",
    "parallel",
    "sequential",
    "pipeline",
    "race",
    "map",
    "loop",
];
/// Functions of the expression language.
const FUNCTIONS: [&str; 4] = ["range", "dict", "namespace", "lipsum"];

pub(super) fn plan(text: &str, format: Format, directory: Option<&Path>) -> Result<Plan, PlanError> {
    let mut node = Node::parse(text, format).map_err(|(at, message)| only(at, message))?;
    Files { text: &|_| Err("a plan without a file has no other files".to_owned()), open: Vec::new() }
        .expand(&mut node, directory)?;
    of_node(&node)
}

pub(super) fn value(value: &Value) -> Result<Plan, PlanError> {
    of_node(&Node::of(value))
}

pub(super) fn file(path: &Path, text: &dyn Fn(&Path) -> Result<String, String>) -> Result<Plan, PlanError> {
    of_node(&Files { text, open: Vec::new() }.node(path)?)
}

/// The text of a file of at most [`MAX_BYTES`].
pub(super) fn text_of(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn only(at: Position, message: impl Into<String>) -> PlanError {
    PlanError(vec![Problem {
        at,
        step: String::new(),
        message: message.into(),
        hint: None,
        is_warning: false,
    }])
}

/// The files of a plan.
struct Files<'a> {
    text: &'a dyn Fn(&Path) -> Result<String, String>,
    /// Those that are being read, outermost first.
    open: Vec<PathBuf>,
}

impl Files<'_> {
    /// The document of a file with the documents of its sub-flows.
    fn node(&mut self, path: &Path) -> Result<Node, PlanError> {
        let fail =
            |reason: String| only(Position::default(), format!("cannot read `{}`: {reason}", path.display()));
        let real = path.canonicalize().map_err(|error| fail(error.to_string()))?;
        if self.open.contains(&real) {
            return Err(only(
                Position::default(),
                format!("the flow `{}` is a part of itself", path.display()),
            ));
        }
        if self.open.len() >= MAX_FLOWS {
            return Err(only(Position::default(), format!("flows are nested more than {MAX_FLOWS} times")));
        }
        let text = (self.text)(&real).map_err(fail)?;
        let mut node =
            Node::parse(&text, Format::of_path(&real)).map_err(|(at, message)| only(at, message))?;
        self.open.push(real.clone());
        self.expand(&mut node, real.parent())?;
        self.open.pop();
        Ok(node)
    }

    /// Replaces the paths of sub-flows by their documents.
    fn expand(&mut self, node: &mut Node, directory: Option<&Path>) -> Result<(), PlanError> {
        let Content::Map(members) = &mut node.content else { return Ok(()) };
        for (key, at, member) in members {
            match (&mut member.content, LISTS.contains(&key.as_str())) {
                (Content::List(steps), true) => {
                    steps.iter_mut().try_for_each(|step| self.expand(step, directory))?;
                }
                (Content::Text(path), false) if key == "flow" => {
                    let Some(directory) = directory else {
                        return Err(only(
                            *at,
                            "a plan without a file has its sub-flows inside, not in other files",
                        ));
                    };
                    let path = directory.join(&*path);
                    let read = self.node(&path).map_err(|mut error| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                        for problem in &mut error.0 {
                            problem.message = format!("{name}:{}: {}", problem.at, problem.message);
                            problem.at = *at;
                        }
                        error
                    })?;
                    *member = Node { at: member.at, ..read };
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn of_node(node: &Node) -> Result<Plan, PlanError> {
    let mut reader = Reader::default();
    let plan = reader.plan(node, "");
    match plan {
        Some(plan) if reader.problems.is_empty() => Ok(plan),
        _ => Err(PlanError(reader.problems)),
    }
}

/// The members of a mapping that were not read yet.
struct Members<'a> {
    at: Position,
    rest: Vec<(&'a str, Position, &'a Node)>,
    known: Vec<&'static str>,
}

impl<'a> Members<'a> {
    fn take(&mut self, name: &'static str) -> Option<(Position, &'a Node)> {
        self.known.push(name);
        let place = self.rest.iter().position(|(key, ..)| *key == name)?;
        let (_, at, node) = self.rest.remove(place);
        Some((at, node))
    }

    fn has(&self, name: &str) -> bool {
        self.rest.iter().any(|(key, ..)| *key == name)
    }
}

/// A reference to a step that the block did not have.
struct Reference {
    id: String,
    at: Position,
    /// The step that refers to it.
    by: String,
}

/// A block and the references that it leaves to the blocks around it.
struct Read {
    block: Block,
    outward: Vec<Reference>,
}

#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
    steps: usize,
}

/// The names that expressions of a block may read, besides steps.
type Variables = BTreeSet<String>;

/// How the steps of a block follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    References,
    Listed,
    Pipeline,
}

/// The settings of a block that its step has.
struct BlockSettings {
    order: Order,
    failure: FailurePolicy,
    max_parallel: usize,
    output: BlockOutput,
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
    fn problem(&mut self, at: Position, step: &str, message: impl Into<String>) {
        self.hinted(at, step, message, None);
    }

    fn hinted(&mut self, at: Position, step: &str, message: impl Into<String>, hint: Option<String>) {
        /// More would not be read.
        const MAX: usize = 50;
        if self.problems.len() < MAX {
            let (step, message) = (step.to_owned(), message.into());
            self.problems.push(Problem { at, step, message, hint, is_warning: false });
        }
    }

    fn members<'a>(&mut self, node: &'a Node, step: &str, what: &str) -> Option<Members<'a>> {
        let Content::Map(members) = &node.content else {
            self.problem(node.at, step, format!("{what} is a mapping, not {}", node.kind()));
            return None;
        };
        let rest = members.iter().map(|(key, at, node)| (key.as_str(), *at, node)).collect();
        Some(Members { at: node.at, rest, known: Vec::new() })
    }

    /// Reports the members that nobody read.
    fn finish(&mut self, members: Members<'_>, step: &str, what: &str) {
        for (key, at, _) in members.rest {
            let hint = did_you_mean(key, members.known.iter().copied());
            let hint = hint.or_else(|| Some(format!("known are {}", members.known.join(", "))));
            self.hinted(at, step, format!("{what} has no member `{key}`"), hint);
        }
    }

    fn text(&mut self, node: &Node, step: &str, what: &str) -> Option<String> {
        match &node.content {
            Content::Text(text) => Some(text.clone()),
            _ => {
                self.problem(node.at, step, format!("`{what}` is a text, not {}", node.kind()));
                None
            }
        }
    }

    fn duration(&mut self, node: &Node, step: &str, what: &str) -> Option<Duration> {
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

    fn count(&mut self, node: &Node, step: &str, what: &str, max: usize) -> Option<usize> {
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

    fn template(&mut self, node: &Node, step: &str, what: &str) -> Option<Template> {
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
    fn expression(&mut self, node: &Node, step: &str, what: &str) -> Option<Expression> {
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

    fn plan(&mut self, node: &Node, path: &str) -> Option<Plan> {
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
            self.problem(node.at, path, format!("`input` is no schema: {defect}"));
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
    fn settings(&mut self, members: &mut Members<'_>, path: &str) -> BlockSettings {
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
    fn block(
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
        let mut variables = variables.clone();
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
                self.reads(template.expressions(), node.at, path, &variables)
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
    fn reads(
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
            None => format!("step{}", index + 1),
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
        let on_error = members.take("on_error");
        let undo = members.take("compensate");
        self.check_limits(&members, &path, timeout.is_some(), retry.max > 0);
        let action = self.action(&mut members, &path, variables, &mut references);
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
            retry,
            timeout,
            priority: priority.unwrap_or_default(),
            on_error,
            undo,
        };
        references.extend(self.reads(step.expressions(), node.at, &path, variables));
        Some((step, references))
    }

    /// Rejects limits of steps that cannot have them.
    fn check_limits(&mut self, members: &Members<'_>, path: &str, has_timeout: bool, has_retry: bool) {
        let is_call = ["tool", "code", "command"].iter().any(|action| members.has(action));
        let can_wait = ["signal", "approve"].iter().any(|action| members.has(action));
        if has_retry && !is_call {
            self.problem(members.at, path, "`retry` is for calls: give it to the steps within");
        }
        if has_timeout && !is_call && !can_wait {
            self.problem(members.at, path, "`timeout` is for calls and for waits for a person or a signal");
        }
    }

    /// A block within a step, with more variables.
    fn inner(
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

    fn action(
        &mut self,
        members: &mut Members<'_>,
        path: &str,
        variables: &Variables,
        references: &mut Vec<Reference>,
    ) -> Option<Action> {
        let named: Vec<&str> =
            ACTIONS.iter().chain(&["flow"]).copied().filter(|action| members.has(action)).collect();
        let [action] = named[..] else {
            let known = format!("{} or flow", ACTIONS.join(", "));
            let message = match named[..] {
                [] => format!("a step has one of {known}"),
                _ => format!("a step does one thing, not {}", named.join(" and ")),
            };
            self.problem(members.at, path, message);
            // The other members belong to the action.
            members.rest.clear();
            return None;
        };
        match action {
            "tool" => {
                let tool = members.take("tool").and_then(|(_, node)| self.text(node, path, "tool"));
                let arguments = self.arguments(members, path);
                Some(Action::Tool { tool: tool?.into(), arguments: arguments? })
            }
            "code" => {
                let mut arguments = Map::new();
                let language =
                    members.take("language").and_then(|(_, node)| self.text(node, path, "language"));
                arguments
                    .insert("language".to_owned(), language.unwrap_or_else(|| "python".to_owned()).into());
                self.tool_call("run_code", ("code", "code"), arguments, members, path)
            }
            "command" => self.tool_call("run_command", ("command", "argv"), Map::new(), members, path),
            "wait" => {
                let (at, node) = members.take("wait")?;
                let template = self.template(node, path, "wait")?;
                if let Template::Constant(value) = &template
                    && super::super::machine::wait_time(value, 0).is_err()
                {
                    self.problem(
                        at,
                        path,
                        "`wait` is a duration such as `5m`, or a time such as `2030-01-31T08:00:00Z`",
                    );
                    return None;
                }
                Some(Action::Wait(template))
            }
            "signal" => {
                let (_, node) = members.take("signal")?;
                self.template(node, path, "signal").map(Action::Signal)
            }
            "approve" => {
                let (_, node) = members.take("approve")?;
                self.template(node, path, "approve").map(Action::Approve)
            }
            "parallel" | "sequential" | "pipeline" | "race" => {
                self.group(action, members, path, variables, references)
            }
            "map" => self.map(members, path, variables, references),
            "loop" => self.repeat(members, path, variables, references),
            _ => self.flow(members, path),
        }
    }

    fn arguments(&mut self, members: &mut Members<'_>, path: &str) -> Option<Template> {
        match members.take("with") {
            None => Some(Template::Constant(Arc::new(json!({})))),
            Some((_, node)) => {
                if !matches!(node.content, Content::Map(_) | Content::Text(_)) {
                    self.problem(node.at, path, format!("`with` is a mapping, not {}", node.kind()));
                    return None;
                }
                self.template(node, path, "with")
            }
        }
    }

    /// A step that is a call of a built-in tool under a name of its own. `with` has the tool's other arguments.
    fn tool_call(
        &mut self,
        tool: &str,
        (member, argument): (&'static str, &str),
        mut arguments: Map<String, Value>,
        members: &mut Members<'_>,
        path: &str,
    ) -> Option<Action> {
        let (_, node) = members.take(member)?;
        arguments.insert(argument.to_owned(), node.to_value());
        if let Some((at, with)) = members.take("with") {
            match with.to_value() {
                Value::Object(more) => arguments.extend(more),
                _ => self.problem(at, path, "`with` is a mapping"),
            }
        }
        match Template::parse(&Value::Object(arguments)) {
            Ok(arguments) => Some(Action::Tool { tool: tool.into(), arguments }),
            Err((place, reason)) => {
                self.problem(node.at, path, format!("`{place}`: {reason}"));
                None
            }
        }
    }

    fn group(
        &mut self,
        action: &str,
        members: &mut Members<'_>,
        path: &str,
        variables: &Variables,
        references: &mut Vec<Reference>,
    ) -> Option<Action> {
        let mut settings = self.settings(members, path);
        settings.output = BlockOutput::Last;
        let name = match action {
            "parallel" => {
                settings.output = BlockOutput::All;
                "parallel"
            }
            "sequential" => {
                settings.order = Order::Listed;
                "sequential"
            }
            "pipeline" => {
                settings.order = Order::Pipeline;
                "pipeline"
            }
            _ => {
                settings.output = BlockOutput::First;
                settings.failure = FailurePolicy::Quorum(1);
                "race"
            }
        };
        self.own_output(members, path, &mut settings);
        let (_, node) = members.take(name)?;
        let read = self.block(node, path, settings, variables)?;
        references.extend(read.outward);
        Some(Action::Group(Arc::new(read.block)))
    }

    fn own_output(&mut self, members: &mut Members<'_>, path: &str, settings: &mut BlockSettings) {
        if let Some((_, node)) = members.take("output")
            && let Some(template) = self.template(node, path, "output")
        {
            settings.output = BlockOutput::Template(template);
        }
    }

    fn map(
        &mut self,
        members: &mut Members<'_>,
        path: &str,
        variables: &Variables,
        references: &mut Vec<Reference>,
    ) -> Option<Action> {
        let (_, list) = members.take("map")?;
        let list = self.template(list, path, "map");
        let item = members.take("as").and_then(|(at, node)| {
            let name = self.text(node, path, "as")?;
            let is_free = is_id(&name) && !["steps", "input", "run", "index"].contains(&name.as_str());
            if !is_free {
                self.problem(at, path, format!("`{name}` cannot be the name of an item"));
            }
            is_free.then_some(name)
        });
        let item = item.unwrap_or_else(|| "item".to_owned());
        let of_items = self.settings(members, path);
        let mut settings = BlockSettings::default();
        self.own_output(members, path, &mut settings);
        let body = members.take("steps");
        let Some((_, body)) = body else {
            self.problem(members.at, path, "a map has `steps`, which run for each item");
            return None;
        };
        let read = self.inner(body, path, settings, variables, &[&item, "index"])?;
        references.extend(read.outward);
        Some(Action::Map {
            list: list?,
            item: item.into(),
            max_parallel: if of_items.max_parallel == usize::MAX { PARALLEL } else { of_items.max_parallel },
            body: Arc::new(read.block),
            failure: of_items.failure,
        })
    }

    fn repeat(
        &mut self,
        members: &mut Members<'_>,
        path: &str,
        variables: &Variables,
        references: &mut Vec<Reference>,
    ) -> Option<Action> {
        let (_, node) = members.take("loop")?;
        let mut own = self.members(node, path, "`loop`")?;
        let max = own.take("max").map(|(_, node)| self.count(node, path, "max", MAX_ITERATIONS as usize));
        let until = own.take("until").map(|(at, node)| (at, self.expression(node, path, "until")));
        if max.is_none() && until.is_none() {
            self.problem(own.at, path, "a loop has `until`, `max` or both");
        }
        self.finish(own, path, "`loop`");
        let mut settings = BlockSettings::default();
        self.own_output(members, path, &mut settings);
        let body = members.take("steps");
        let Some((_, body)) = body else {
            self.problem(members.at, path, "a loop has `steps`, which it repeats");
            return None;
        };
        let more = ["index", "previous"];
        let read = self.inner(body, path, settings, variables, &more)?;
        let mut inner = variables.clone();
        inner.extend(more.map(str::to_owned));
        if let Some((at, Some(until))) = &until {
            let found = self.reads(vec![until], *at, path, &inner);
            let is_outward = |reference: &Reference| !read.block.places.contains_key(reference.id.as_str());
            references.extend(found.into_iter().filter(is_outward));
        }
        references.extend(read.outward);
        let max = max.flatten().and_then(|max| u32::try_from(max).ok()).unwrap_or(ITERATIONS);
        Some(Action::Loop { until: until.and_then(|(_, until)| until), max, body: Arc::new(read.block) })
    }

    fn flow(&mut self, members: &mut Members<'_>, path: &str) -> Option<Action> {
        let (_, node) = members.take("flow")?;
        let input = self.arguments(members, path);
        let plan = self.plan(node, path)?;
        if !plan.tools.is_empty() {
            tracing::debug!(flow = path, "the tools of a sub-flow are those of the outer plan");
        }
        Some(Action::Flow { plan: Arc::new(plan), input: input? })
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
fn is_id(text: &str) -> bool {
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

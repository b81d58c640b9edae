//! Plans: workflows as data.

mod actions;
mod builder;
mod call_settings;
pub(crate) mod check;
mod files;
pub(crate) mod node;
mod read;
mod svg;
mod text;
pub(crate) mod types;
pub(crate) mod uses;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{Schema, ToolError, ToolSpec};

pub use self::builder::{PlanBuilder, StepBuilder};
pub use self::node::{Format, PlanMember, Position, parse_members};
use self::types::{Action, Block, Step};
pub use self::types::{Plan, PlanError, PlanProblem};

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

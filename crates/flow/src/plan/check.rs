//! Checks the calls of a plan against the definitions of the tools.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolpost_core::{Alias, Schema, ToolSpec, did_you_mean};

use super::types::{Action, Block, BlockOutput, OnError, Plan, PlanProblem, Step};
use crate::evaluation::{self, ValuePlace};
use crate::template::{Expression, Template};

/// The problems of the calls, and warnings about what nothing reads.
pub(super) fn tools(plan: &Plan, specs: &[Arc<ToolSpec>]) -> Vec<PlanProblem> {
    let mut known = HashMap::new();
    for spec in specs {
        known.insert(spec.name.as_str(), (&**spec, None));
        known.extend(spec.aliases.iter().map(|alias| (alias.name.as_str(), (&**spec, Some(alias)))));
    }
    let mut check = Check { known, problems: Vec::new() };
    check.block(&plan.body, "");
    check.unread(plan);
    check.problems
}

struct Check<'a> {
    /// The tools by their names and aliases.
    known: HashMap<&'a str, (&'a ToolSpec, Option<&'a Alias>)>,
    problems: Vec<PlanProblem>,
}

impl Check<'_> {
    fn block(&mut self, block: &Block, path: &str) {
        for step in &block.steps {
            let path = if path.is_empty() { step.id.to_string() } else { format!("{path}.{}", step.id) };
            self.step(step, &path);
            for inner in step.blocks() {
                self.block(inner, &path);
            }
        }
    }

    fn problem(&mut self, step: &Step, path: &str, message: String, hint: Option<String>) {
        self.add(step, path, message, hint, false);
    }

    fn add(&mut self, step: &Step, path: &str, message: String, hint: Option<String>, is_warning: bool) {
        self.problems.push(PlanProblem { at: step.at, step: path.to_owned(), message, hint, is_warning });
    }

    fn step(&mut self, step: &Step, path: &str) {
        if let Some(when) = &step.when
            && format!("{when:?}") == "${{ false }}"
        {
            self.add(step, path, "it never runs: `when` is false".to_owned(), None, true);
        }
        let Action::Tool { tool, arguments, values, .. } = &step.action else { return };
        let Some((spec, alias)) = self.known.get(&**tool).copied() else {
            let hint = did_you_mean(tool, self.known.values().map(|(spec, _)| spec.name.as_str()))
                .or_else(|| Some("name its target in `tools`".to_owned()));
            return self.problem(step, path, format!("there is no tool `{tool}`"), hint);
        };
        self.values(step, path, (spec, alias), arguments, values);
        match arguments {
            Template::Constant(value) => {
                let rewritten = alias.map(|alias| alias.rewrite(value)).transpose();
                let checked = rewritten
                    .and_then(|rewritten| spec.input_schema.check(rewritten.as_ref().unwrap_or(value)));
                if let Err(error) = checked {
                    self.problem(step, path, format!("the arguments of `{tool}`: {}", error.message()), None);
                }
            }
            Template::Map(members) => match alias {
                Some(alias) => self.members(step, path, spec, &rewritten(alias, members)),
                None => self.members(step, path, spec, members),
            },
            // Known only when the step runs.
            Template::Whole(_) | Template::Text(_) | Template::List(_) | Template::Code(_) => {}
        }
    }

    /// Rejects values that would run as code, and an `evaluate: true` without any.
    fn values(
        &mut self,
        step: &Step,
        path: &str,
        (spec, alias): (&ToolSpec, Option<&Alias>),
        arguments: &Template,
        values: &[ValuePlace],
    ) {
        let is_program = matches!(step.action, Action::Tool { is_program: true, .. });
        let constants = arguments.constants();
        let found = evaluation::of_call(spec, alias, &constants, values)
            .or_else(|| is_program.then(|| evaluation::of_program(&constants, values)).flatten());
        match found {
            Some(found) if !step.evaluate => {
                self.problem(step, path, found.to_string(), Some(evaluation::HINT.to_owned()));
            }
            None if step.evaluate => {
                let message = "`evaluate` has no effect: no value runs as code".to_owned();
                self.add(step, path, message, None, true);
            }
            _ => {}
        }
    }

    /// Checks arguments of which some are expressions: their names, and the values of the others.
    fn members(&mut self, step: &Step, path: &str, spec: &ToolSpec, members: &[(String, Template)]) {
        let schema = spec.input_schema.as_value();
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        let given: BTreeSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        for required in spec.input_schema.required().filter(|name| !given.contains(name)) {
            self.problem(step, path, format!("`{}` needs the argument `{required}`", spec.name), None);
        }
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (name, template) in members {
            let Some(property) = properties.get(name) else {
                if is_closed {
                    let hint = did_you_mean(name, properties.keys().map(String::as_str));
                    self.problem(step, path, format!("`{}` has no argument `{name}`", spec.name), hint);
                }
                continue;
            };
            let problem = match template {
                Template::Constant(value) => mismatch(schema, property, value),
                Template::Text(_) | Template::Code(_) => is_never(schema, property, "string"),
                Template::List(_) => is_never(schema, property, "array"),
                Template::Map(_) => is_never(schema, property, "object"),
                Template::Whole(_) => None,
            };
            if let Some(reason) = problem {
                self.problem(step, path, format!("the argument `{name}` of `{}`: {reason}", spec.name), None);
            }
        }
    }

    /// Warns about inputs that no expression reads.
    fn unread(&mut self, plan: &Plan) {
        let Some(properties) = plan.input.as_value().get("properties").and_then(Value::as_object) else {
            return;
        };
        let mut read = BTreeSet::new();
        collect(&plan.body, &mut read);
        if read.contains("input") {
            return;
        }
        for name in properties.keys().filter(|name| !read.contains(&format!("input.{name}"))) {
            let message = format!("nothing reads the input `{name}`");
            self.problems.push(PlanProblem {
                at: super::Position::default(),
                step: String::new(),
                message,
                hint: None,
                is_warning: true,
            });
        }
    }
}

/// The arguments of a call by an alias, as the tool gets them.
fn rewritten(alias: &Alias, members: &[(String, Template)]) -> Vec<(String, Template)> {
    let renamed = members
        .iter()
        .map(|(name, template)| (alias.parameters.get(name).unwrap_or(name).clone(), template.clone()));
    let set = alias
        .arguments
        .iter()
        .map(|(name, value)| (name.clone(), Template::Constant(Arc::new(value.clone()))));
    renamed.chain(set).collect()
}

/// The inputs that a block reads: `input`, or `input.NAME`.
fn collect(block: &Block, read: &mut BTreeSet<String>) {
    let mut add = |expression: &Expression| {
        for name in expression.reads() {
            let mut parts = name.split('.');
            if parts.next() == Some("input") {
                read.insert(parts.next().map_or_else(|| "input".to_owned(), |name| format!("input.{name}")));
            }
        }
    };
    if let BlockOutput::Template(template) = &block.output {
        template.expressions().into_iter().for_each(&mut add);
    }
    for step in &block.steps {
        step.expressions().into_iter().for_each(&mut add);
        if let Action::Loop { until: Some(until), .. } = &step.action {
            add(until);
        }
    }
    for step in &block.steps {
        let inner = match &step.action {
            Action::Group(body) | Action::Map { body, .. } | Action::Loop { body, .. } => Some(body),
            // A sub-flow has inputs of its own.
            _ => None,
        };
        if let Some(body) = inner {
            collect(body, read);
        }
        if let OnError::Handle(handler) = &step.on_error {
            collect(handler, read);
        }
        step.undo.iter().for_each(|undo| collect(undo, read));
    }
}

/// A property's schema that can resolve the references of its root.
fn within(root: &Value, property: &Value) -> Schema {
    let mut schema = property.clone();
    if let Value::Object(members) = &mut schema {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                members.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    Schema::new(schema)
}

fn mismatch(root: &Value, property: &Value, value: &Value) -> Option<String> {
    within(root, property).check(value).err().map(|error| error.message().to_owned())
}

/// The reason why a value of a type is never valid: only if the schema has a type, and not this one.
fn is_never(root: &Value, property: &Value, kind: &str) -> Option<String> {
    let types = toolpost_schema::Types::new(property, root);
    let probe = match kind {
        "string" => json!("x"),
        "array" => json!([]),
        _ => Value::Object(Map::new()),
    };
    let own = property.get("type").and_then(Value::as_str)?;
    let fits = types.is_unknown()
        || own == kind
        || within(root, &json!({ "type": own })).is_valid(&probe).unwrap_or(true);
    (!fits).then(|| format!("expected {own}, found {kind}"))
}

//! Reads what a step does.

use std::sync::Arc;

use serde_json::{Value, json};

use super::node::{Content, Node};
use super::read::{BlockSettings, Members, Order, Reader, Reference, Variables, is_id};
use super::types::{Action, BlockOutput, FailurePolicy};
use crate::code::Code;
use crate::evaluation::ValuePlace;
use crate::template::Template;

/// The default number of instances of a map at once.
const PARALLEL: usize = 16;
/// The default and the maximum number of iterations of a loop.
const ITERATIONS: u32 = 100;
const MAX_ITERATIONS: u32 = 100_000;
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
impl Reader {
    pub(super) fn action(
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
                let tool = members.take("tool").and_then(|(_, node)| self.name(node, path, "tool"));
                let arguments = self.arguments(members, path);
                Some(call(&tool?, arguments?, false))
            }
            "code" => self.code(members, path),
            "command" => self.command(members, path),
            "wait" => {
                let (at, node) = members.take("wait")?;
                let template = self.template(node, path, "wait")?;
                if let Template::Constant(value) = &template
                    && crate::machine::wait_time(value, 0).is_err()
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

    /// A program and its arguments, for `run_command`.
    fn command(&mut self, members: &mut Members<'_>, path: &str) -> Option<Action> {
        let (_, node) = members.take("command")?;
        let argv = self.template(node, path, "command");
        self.program("run_command", vec![("argv".to_owned(), argv?)], members, path)
    }

    /// Code with its variables, for `run_code`.
    fn code(&mut self, members: &mut Members<'_>, path: &str) -> Option<Action> {
        let (at, node) = members.take("code")?;
        let language = members.take("language").and_then(|(_, node)| self.name(node, path, "language"));
        let language = Value::from(language.unwrap_or_else(|| "python".to_owned()));
        let mut variables = Vec::new();
        if let Some((_, node)) = members.take("variables") {
            let Content::Map(given) = &node.content else {
                self.problem(node.at, path, format!("`variables` is a mapping, not {}", node.kind()));
                return None;
            };
            for (name, at, node) in given {
                if !is_id(name) {
                    self.problem(*at, path, format!("`{name}` is not the name of a variable"));
                }
                variables.push((name.clone(), self.template(node, path, name)?));
            }
        }
        match Code::template(&language, &node.to_value(), variables) {
            Ok(code) => {
                let arguments = vec![
                    ("language".to_owned(), Template::Constant(Arc::new(language))),
                    ("code".to_owned(), code),
                ];
                self.program("run_code", arguments, members, path)
            }
            Err(reason) => {
                self.problem(at, path, format!("`code`: {reason}"));
                None
            }
        }
    }

    /// A call of a built-in tool that runs a program. `with` has the tool's other arguments.
    fn program(
        &mut self,
        tool: &str,
        mut arguments: Vec<(String, Template)>,
        members: &mut Members<'_>,
        path: &str,
    ) -> Option<Action> {
        if let Some((at, node)) = members.take("with") {
            let Content::Map(more) = &node.content else {
                self.problem(at, path, format!("`with` is a mapping, not {}", node.kind()));
                return None;
            };
            for (name, at, node) in more {
                if arguments.iter().any(|(known, _)| known == name) {
                    self.problem(*at, path, format!("`{name}` is given twice"));
                }
                arguments.push((name.clone(), self.template(node, path, name)?));
            }
        }
        // Constants only, which have a value.
        let arguments = Template::map(arguments).ok()?;
        Some(call(tool, arguments, true))
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

    /// The steps of a map or a loop.
    fn body<'a>(&mut self, members: &mut Members<'a>, path: &str) -> Option<&'a Node> {
        let body = members.take("steps").map(|(_, node)| node);
        if body.is_none() {
            self.problem(members.at, path, "a map or a loop has `steps`");
        }
        body
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
            let is_free =
                is_id(&name) && !["steps", "input", "run", "index", "previous"].contains(&name.as_str());
            if !is_free {
                self.problem(at, path, format!("`{name}` cannot be the name of an item"));
            }
            is_free.then_some(name)
        });
        let item = item.unwrap_or_else(|| "item".to_owned());
        let of_items = self.settings(members, path);
        let mut settings = BlockSettings::default();
        self.own_output(members, path, &mut settings);
        let body = self.body(members, path)?;
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
        let body = self.body(members, path)?;
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
}

fn call(tool: &str, arguments: Template, is_program: bool) -> Action {
    let values = ValuePlace::all(&arguments).into();
    Action::Tool { tool: tool.into(), arguments, values, is_program }
}

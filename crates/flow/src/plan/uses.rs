//! The parts of the outputs of steps that a plan uses as data.
//!
//! Expressions use what they read, and a block gives the outputs of its steps to what uses its own. The output of the plan
//! itself is for its caller, which gets its truncated parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::types::{Action, Block, BlockOutput, OnError, Step};
use crate::template::Expression;

/// JSON pointers in an output; the empty one is all of it.
type Uses = BTreeSet<String>;

/// Sets what the plan uses of the output of each step.
pub(super) fn mark(body: &mut Arc<Block>) {
    mark_shared(body, &Uses::new(), Vec::new());
}

/// A block that nothing else has yet.
fn mark_shared(block: &mut Arc<Block>, used: &Uses, paths: Vec<String>) {
    if let Some(block) = Arc::get_mut(block) {
        mark_block(block, used, paths);
    }
}

/// `used` is what is used of the output of the block, and `paths` are what else is read of its steps.
fn mark_block(block: &mut Block, used: &Uses, mut paths: Vec<String>) {
    add_paths(block, &mut paths);
    let last = block.steps.len().saturating_sub(1);
    let mut all: Vec<Uses> = block
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| match &block.output {
            BlockOutput::Last if index != last => Uses::new(),
            BlockOutput::Last | BlockOutput::First => used.clone(),
            BlockOutput::All => beneath(used, &step.id),
            BlockOutput::Template(_) => Uses::new(),
        })
        .collect();
    for path in &paths {
        if let Some((id, pointer)) = of_step(path)
            && let Some(uses) = block.position(id).and_then(|step| all.get_mut(step))
        {
            uses.extend(pointer);
        }
    }
    if block.is_pipeline {
        for (step, uses) in block.steps.iter().skip(1).zip(&mut all) {
            uses.extend(of_variable(step, "previous"));
        }
    }
    for (step, uses) in block.steps.iter_mut().zip(all) {
        mark_step(step, uses);
    }
}

fn mark_step(step: &mut Step, mut uses: Uses) {
    if let Some(undo) = &step.undo {
        let mut paths = Vec::new();
        add_paths(undo, &mut paths);
        uses.extend(paths.iter().filter_map(|path| of_name(path, "output")));
    }
    if uses.contains("") {
        uses = Uses::from([String::new()]);
    }
    // A list of outputs, one of which an expression cannot name.
    let of_item = if uses.is_empty() { Uses::new() } else { Uses::from([String::new()]) };
    match &mut step.action {
        Action::Group(body) => mark_shared(body, &uses, Vec::new()),
        Action::Map { body, .. } => mark_shared(body, &of_item, Vec::new()),
        Action::Loop { until, body, .. } => {
            let of_until: Vec<String> = until.iter().flat_map(Expression::paths).collect();
            let mut paths = of_until.clone();
            add_paths(body, &mut paths);
            let previous = paths.iter().filter_map(|path| of_name(path, "previous"));
            let of_iteration = previous.chain(uses.iter().cloned()).collect();
            mark_shared(body, &of_iteration, of_until);
        }
        Action::Flow { plan, .. } => {
            if let Some(plan) = Arc::get_mut(plan) {
                mark_shared(&mut plan.body, &uses, Vec::new());
            }
        }
        Action::Tool { .. } | Action::Wait(_) | Action::Signal(_) | Action::Approve(_) => {}
    }
    if let OnError::Handle(handler) = &mut step.on_error {
        mark_shared(handler, &uses, Vec::new());
    }
    if let Some(undo) = &mut step.undo {
        mark_shared(undo, &Uses::new(), Vec::new());
    }
    step.uses = uses.into_iter().collect();
}

/// The used part of the output of a step of a block whose outputs are those of its steps by their ids.
fn beneath(used: &Uses, id: &str) -> Uses {
    let own = |pointer: &String| {
        let rest = if pointer.is_empty() { "" } else { pointer.strip_prefix('/')?.strip_prefix(id)? };
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    };
    used.iter().filter_map(own).collect()
}

/// The use of a variable by a step and the blocks within it.
fn of_variable(step: &Step, name: &str) -> Uses {
    let mut paths = Vec::new();
    add_step(step, &mut paths);
    paths.iter().filter_map(|path| of_name(path, name)).collect()
}

/// The pointer of a path such as `previous.rows`, if it begins with a name.
fn of_name(path: &str, name: &str) -> Option<String> {
    let rest = path.strip_prefix(name)?;
    (rest.is_empty() || rest.starts_with('.')).then(|| rest.replace('.', "/"))
}

/// The step of a path such as `steps.load.output.rows`, and the pointer of the part of its output.
fn of_step(path: &str) -> Option<(&str, Option<String>)> {
    let rest = path.strip_prefix("steps.")?;
    let (id, member) = rest.split_once('.').unwrap_or((rest, ""));
    Some((id, if member.is_empty() { Some(String::new()) } else { of_name(member, "output") }))
}

/// The paths that a block and those within it read. Those of a sub-flow are its own.
fn add_paths(block: &Block, paths: &mut Vec<String>) {
    block.steps.iter().for_each(|step| add_step(step, paths));
    if let BlockOutput::Template(template) = &block.output {
        paths.extend(template.expressions().into_iter().flat_map(Expression::paths));
    }
}

fn add_step(step: &Step, paths: &mut Vec<String>) {
    paths.extend(step.expressions().into_iter().flat_map(Expression::paths));
    if let Action::Loop { until: Some(until), .. } = &step.action {
        paths.extend(until.paths());
    }
    let is_own = !matches!(step.action, Action::Flow { .. });
    let body = step.body().filter(|_| is_own);
    body.into_iter().chain(step.handler()).chain(&step.undo).for_each(|block| add_paths(block, paths));
}

/// Whether the output of a step is, or is a part of, the output of the plan: by its path, such as `each[3].size`.
pub(crate) fn is_given(body: &Block, path: &str) -> bool {
    let mut block = body;
    for part in path.split('.') {
        let (id, instance) = part.split_at(part.find(['[', ':']).unwrap_or(part.len()));
        let Some(place) = block.position(id) else { return false };
        let is_given = match &block.output {
            BlockOutput::Last => place + 1 == block.steps.len(),
            BlockOutput::All | BlockOutput::First => true,
            BlockOutput::Template(_) => false,
        };
        let Some(step) = block.steps.get(place).filter(|_| is_given) else { return false };
        let inner = match instance.rsplit_once(':') {
            Some((_, "error")) => step.handler(),
            Some(_) => return false,
            None => step.body(),
        };
        match inner {
            Some(inner) => block = inner,
            None => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Format, Plan};

    /// The uses of each step of a plan, by its path.
    fn uses(steps: &str) -> Vec<String> {
        fn add(block: &Block, path: &str, all: &mut Vec<String>) {
            for step in &block.steps {
                let path = format!("{path}{}", step.id);
                if step.body().is_none() {
                    let used: Vec<String> = step.uses.iter().map(|used| format!("`{used}`")).collect();
                    all.push(format!("{path} {}", used.join(" ")).trim_end().to_owned());
                }
                step.body().into_iter().for_each(|body| add(body, &format!("{path}."), all));
                step.handler().into_iter().for_each(|body| add(body, &format!("{path}:error."), all));
                step.undo.iter().for_each(|body| add(body, &format!("{path}:undo."), all));
            }
        }
        let plan = Plan::parse(steps, Format::Yaml).unwrap();
        let mut all = Vec::new();
        add(&plan.body, "", &mut all);
        all
    }

    #[test]
    fn what_expressions_and_blocks_read_is_used() {
        for (plan, expected) in [
            ("steps: [{ id: a, tool: x }, { id: b, needs: a, tool: x }]", &["a", "b"][..]),
            (
                "steps: [{ id: a, tool: x }, { id: b, when: \"${{ steps.a.status == 'failed' or steps.a.error.code == 'LIMIT' }}\", tool: x }]",
                &["a", "b"],
            ),
            (
                "steps: [{ id: a, tool: x }, { id: b, when: '${{ steps.a.output.exit_code > 0 }}', tool: x }]",
                &["a `/exit_code`", "b"],
            ),
            (
                "steps: [{ id: a, tool: x }, { id: b, tool: x, with: { v: 'n ${{ steps.a.output.rows[0].n }}' } }]",
                &["a `/rows`", "b"],
            ),
            (
                "steps: [{ id: a, tool: x }, { id: b, tool: x, with: { v: '${{ steps.a.output.value.items() | list }}' } }]",
                &["a `/value`", "b"],
            ),
            (
                "steps: [{ id: a, tool: x }, { id: b, tool: x, with: { v: '${{ steps.a | length + steps.a.output.n }}' } }]",
                &["a ``", "b"],
            ),
            ("steps: [{ id: a, tool: x }]\noutput: '${{ steps.a.output }}'", &["a ``"]),
            // Blocks give their outputs to what uses the block.
            (
                "steps: [{ id: p, parallel: [{ id: a, tool: x }, { id: b, tool: x }] }]\noutput: '${{ steps.p.output.b.n }}'",
                &["p.a", "p.b `/n`"],
            ),
            (
                "steps: [{ id: p, sequential: [{ id: a, tool: x }, { id: b, tool: x }] }]\noutput: '${{ steps.p.output.n }}'",
                &["p.a", "p.b `/n`"],
            ),
            (
                "steps: [{ id: p, race: [{ id: a, tool: x }, { id: b, tool: x }] }]\noutput: '${{ steps.p.output }}'",
                &["p.a ``", "p.b ``"],
            ),
            (
                "steps: [{ id: p, pipeline: [{ id: a, tool: x }, { id: b, tool: x, with: { v: '${{ previous.n }}' } }] }]",
                &["p.a `/n`", "p.b"],
            ),
            (
                "steps: [{ id: m, map: [1], steps: [{ id: a, tool: x }] }]\noutput: '${{ steps.m.output[0].n }}'",
                &["m.a ``"],
            ),
            ("steps: [{ id: m, map: [1], steps: [{ id: a, tool: x }] }]", &["m.a"]),
            (
                "steps: [{ id: l, loop: { max: 2 }, steps: [{ id: a, tool: x, with: { v: '${{ previous }}' } }] }]",
                &["l.a ``"],
            ),
            (
                "steps: [{ id: l, loop: { until: '${{ steps.a.output.done }}' }, steps: [{ id: a, tool: x }, { id: b, needs: a, tool: x }] }]",
                &["l.a `/done`", "l.b"],
            ),
            (
                "steps: [{ id: f, flow: { steps: [{ id: a, tool: x }] } }]\noutput: '${{ steps.f.output.n }}'",
                &["f.a `/n`"],
            ),
            ("steps: [{ id: f, flow: { steps: [{ id: a, tool: x }] } }]", &["f.a"]),
            (
                "steps: [{ id: a, tool: x, compensate: [{ id: u, tool: x, with: { v: '${{ output.id }}' } }] }]",
                &["a `/id`", "a:undo.u"],
            ),
            (
                "steps: [{ id: a, tool: x, on_error: [{ id: h, tool: x }] }]\noutput: '${{ steps.a.output.n }}'",
                &["a `/n`", "a:error.h `/n`"],
            ),
            // A block within reads the result of a step around it.
            (
                "steps: [{ id: a, tool: x }, { id: m, map: [1], steps: [{ id: b, tool: x, with: { v: '${{ steps.a.output.t }}' } }] }]",
                &["a `/t`", "m.b"],
            ),
        ] {
            assert_eq!(uses(plan), expected, "{plan}");
        }
    }

    #[test]
    fn the_output_of_a_plan_has_parts_of_steps() {
        let plan = "steps:
  - { id: a, tool: x }
  - id: p
    parallel:
      - { id: b, tool: x }
      - { id: m, map: [1, 2], steps: [{ id: c, tool: x }, { id: d, needs: c, tool: x }] }
      - { id: t, sequential: [{ id: e, tool: x }], output: 1 }
";
        let plan = Plan::parse(plan, Format::Yaml).unwrap();
        for (path, expected) in [
            ("a", false),
            ("p.b", true),
            ("p.m[1].c", false),
            ("p.m[1].d", true),
            ("p.t.e", false),
            ("p.b:undo.x", false),
            ("other", false),
        ] {
            assert_eq!(is_given(&plan.body, path), expected, "{path}");
        }
    }
}

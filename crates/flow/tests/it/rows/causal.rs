//! Rules for the order of events, from the plan alone: a second opinion beside the lists of the rows.

use std::collections::BTreeSet;

use serde_json::Value;
use toolpost_flow::RunStatus;

use super::Row;
use super::trace::{Entry, is_end};

/// The default number of instances of a map at once.
const PARALLEL: u64 = 16;

/// A step of the plan with the block around it.
struct Found<'a> {
    step: &'a Value,
    siblings: &'a [Value],
    /// Whether the steps of the block run one after another.
    is_listed: bool,
    /// The path of the block's instance, with a dot at its end; empty for the plan.
    prefix: String,
}

/// A step by its path.
pub(super) fn step_of<'a>(plan: &'a Value, path: &str) -> Option<&'a Value> {
    find(plan, path).map(|found| found.step)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn find<'a>(plan: &'a Value, path: &str) -> Option<Found<'a>> {
    let mut block = (list(&plan["steps"]), false);
    let mut prefix = String::new();
    let mut parts = path.split('.').peekable();
    loop {
        let part = parts.next()?;
        let id = part.split(['[', ':']).next()?;
        let step = block.0.iter().find(|step| step["id"] == id)?;
        if parts.peek().is_none() {
            let (siblings, is_listed) = block;
            return Some(Found { step, siblings, is_listed, prefix });
        }
        let inner = |name: &str| list(&step[name]);
        block = if part.ends_with(":error") {
            (inner("on_error"), false)
        } else if part.ends_with(":undo") {
            (inner("compensate"), false)
        } else if step["flow"].is_object() {
            (list(&step["flow"]["steps"]), false)
        } else {
            let group = ["sequential", "pipeline", "parallel", "race", "steps"]
                .iter()
                .find(|name| step[**name].is_array())?;
            let is_listed = matches!(*group, "sequential" | "pipeline");
            (inner(group), is_listed)
        };
        prefix = format!("{prefix}{part}.");
    }
}

/// The ids of the siblings that a step needs: `needs`, what it reads, and in a sequence the step before.
fn needs(found: &Found<'_>) -> BTreeSet<String> {
    let mut needs: BTreeSet<String> = match &found.step["needs"] {
        Value::String(id) => BTreeSet::from([id.clone()]),
        ids => list(ids).iter().filter_map(|id| id.as_str().map(str::to_owned)).collect(),
    };
    let mut read = found.step.clone();
    if let Some(members) = read.as_object_mut() {
        // A sub-flow reads its own steps, and a compensation runs later.
        for name in ["flow", "compensate", "needs"] {
            members.remove(name);
        }
    }
    let text = read.to_string();
    for rest in text.split("steps.").skip(1) {
        let id =
            rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
        needs.insert(id.to_owned());
    }
    let place = found.siblings.iter().position(|step| step == found.step).unwrap_or_default();
    if let Some(before) = found.siblings.get(place.wrapping_sub(1)).filter(|_| found.is_listed) {
        needs.extend(before["id"].as_str().map(str::to_owned));
    }
    let is_sibling = |id: &String| found.siblings.iter().any(|step| step["id"] == id.as_str());
    needs.retain(|id| found.step["id"] != id.as_str() && is_sibling(id));
    needs
}

/// Whether a path is within a step: in its blocks, not in its compensation.
fn is_within(path: &str, step: &str) -> bool {
    let Some(rest) = path.strip_prefix(step) else { return false };
    (rest.starts_with(['.', '[']) || rest.starts_with(":error")) && !rest.contains(":undo")
}

/// The first and the last event of a step, with those of its blocks.
fn span(trace: &[Entry], step: &str) -> Option<(usize, usize)> {
    let mut own = trace
        .iter()
        .enumerate()
        .filter(|(_, (path, _))| path == step || is_within(path, step))
        .map(|(at, _)| at);
    let first = own.next()?;
    Some((first, own.next_back().unwrap_or(first)))
}

/// Entries that a trace may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Nothing,
    /// The run was resumed, and the attempts in flight were repeated.
    Attempts,
    /// The run was resumed with durability `normal`: its last ends were not stored.
    Ends,
}

/// Checks the order.
pub(super) fn check(row: &Row, trace: &[Entry], repeats: Repeats) -> Result<(), String> {
    let paths: BTreeSet<&str> = trace.iter().map(|(path, _)| path.as_str()).collect();
    for path in &paths {
        let found = find(&row.plan, path).ok_or_else(|| format!("{path} is not a step of the plan"))?;
        check_needs(trace, path, &found)?;
        if repeats != Repeats::Ends {
            check_step(trace, path, &found, u64::from(repeats == Repeats::Attempts))?;
        }
    }
    if repeats == Repeats::Ends {
        return Ok(());
    }
    for path in &paths {
        // A block has no event of its own before its end: its path is in those of its steps.
        for (at, _) in path.match_indices(['.', '[']) {
            check_limits(row, trace, path.get(..at).unwrap_or_default())?;
        }
    }
    check_limits(row, trace, "")?;
    check_compensation(row, trace)
}

/// A step begins after the ends of all steps that it needs, and not at all if one of them failed.
fn check_needs(trace: &[Entry], path: &str, found: &Found<'_>) -> Result<(), String> {
    for need in needs(found) {
        let needed = format!("{}{need}", found.prefix);
        let is_tolerated =
            found.siblings.iter().any(|step| step["id"] == need.as_str() && step["on_error"] == "continue");
        for (at, (other, word)) in trace.iter().enumerate() {
            if (other != path && !is_within(other, path))
                || (other == path && matches!(word.as_str(), "blocked" | "cancelled"))
            {
                continue;
            }
            let end = trace.iter().take(at).rfind(|(other, word)| *other == needed && is_end(word));
            match end.map(|(_, word)| word.as_str()) {
                None => return Err(format!("{other} has `{word}` before {needed} ended")),
                Some("blocked") => return Err(format!("{other} has `{word}`, but {needed} was blocked")),
                Some("failed") if !is_tolerated => {
                    return Err(format!("{other} has `{word}`, but {needed} failed"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// A step ends once and last; its handler runs after its failure; iterations follow each other.
fn check_step(trace: &[Entry], path: &str, found: &Found<'_>, repeated: u64) -> Result<(), String> {
    let ends: Vec<usize> = trace
        .iter()
        .enumerate()
        .filter(|(_, (own, word))| own == path && is_end(word))
        .map(|(at, _)| at)
        .collect();
    let [end] = ends[..] else { return Err(format!("{path} ended {} times", ends.len())) };
    if span(trace, path).is_some_and(|(_, last)| last > end) {
        return Err(format!("{path} ended before its own events"));
    }
    let starts = trace.iter().filter(|(own, word)| own == path && word == "start").count() as u64;
    let failed = trace
        .iter()
        .rposition(|(own, word)| own == path && word != "start" && word != "wait" && !is_end(word));
    let errors =
        trace.iter().filter(|(own, word)| own == path && word.chars().all(char::is_uppercase)).count() as u64;
    let retries = found.step["retry"].as_u64().or(found.step["retry"]["max"].as_u64()).unwrap_or_default();
    if errors > retries + 1 + repeated || errors > starts {
        return Err(format!("{path} has {starts} starts and {errors} failures of {} attempts", retries + 1));
    }
    let handler = trace.iter().position(|(own, _)| own.starts_with(&format!("{path}:error.")));
    if let (Some(handler), Some(failed)) = (handler, failed)
        && handler < failed
    {
        return Err(format!("the handler of {path} runs before the last attempt failed"));
    }
    if found.step["loop"].is_object() {
        for index in 1.. {
            let Some((first, _)) = span(trace, &format!("{path}[{index}]")) else { break };
            if span(trace, &format!("{path}[{}]", index - 1)).is_none_or(|(_, last)| last > first) {
                return Err(format!("{path}[{index}] began before the iteration before it ended"));
            }
        }
    }
    Ok(())
}

/// No more steps or items at once than a block, a map or the plan allows.
fn check_limits(row: &Row, trace: &[Entry], block: &str) -> Result<(), String> {
    let (limit, separator) = if block.is_empty() {
        (row.plan["max_parallel"].as_u64(), "")
    } else {
        let Some(step) = step_of(&row.plan, block) else { return Ok(()) };
        if step["map"] == Value::Null {
            (step["max_parallel"].as_u64(), ".")
        } else {
            (Some(step["max_parallel"].as_u64().unwrap_or(PARALLEL)), "[")
        }
    };
    let Some(limit) = limit else { return Ok(()) };
    let start = format!("{block}{separator}");
    let members: BTreeSet<&str> = trace
        .iter()
        // What was blocked or never began used no place.
        .filter(|(_, word)| !matches!(word.as_str(), "blocked" | "skipped" | "cancelled"))
        .filter_map(|(path, _)| {
            let rest = path.strip_prefix(&start)?;
            let length = if separator == "[" {
                rest.find(']')? + 1
            } else {
                rest.find(['.', '[', ':']).unwrap_or(rest.len())
            };
            path.get(..start.len() + length)
        })
        .collect();
    let spans: Vec<(usize, usize)> = members.iter().filter_map(|path| span(trace, path)).collect();
    for (first, _) in &spans {
        let open = spans.iter().filter(|(begin, end)| begin <= first && first <= end).count() as u64;
        if open > limit {
            return Err(format!("`{block}` has {open} steps or items at once, of {limit}"));
        }
    }
    Ok(())
}

/// After a failure, each step that succeeded and can be undone is undone once, the last one first, after all else.
fn check_compensation(row: &Row, trace: &[Entry]) -> Result<(), String> {
    let is_undoing = |path: &str| path.contains(":undo.");
    let mut undone: Vec<&str> = Vec::new();
    for (path, word) in trace.iter().rev() {
        let has_undo = step_of(&row.plan, path).is_some_and(|step| step["compensate"].is_array());
        if word == "succeeded" && has_undo && !is_undoing(path) {
            undone.push(path);
        }
    }
    if row.status == RunStatus::Succeeded {
        undone.clear();
    }
    let first = trace.iter().position(|(path, _)| is_undoing(path)).unwrap_or(trace.len());
    if let Some((path, word)) = trace.iter().skip(first).find(|(path, _)| !is_undoing(path)) {
        return Err(format!("{path} has `{word}` while the run undoes what it did"));
    }
    let mut found: Vec<&str> =
        trace.iter().filter_map(|(path, _)| path.split_once(":undo.").map(|(step, _)| step)).collect();
    found.dedup();
    if found != undone {
        return Err(format!("undone in the order {found:?}, not {undone:?}"));
    }
    Ok(())
}

//! Lines of calls: parallel calls have names, nested calls are indented.

use serde_json::Value;
use toolpost_core::{CallId, CallRecord, ToolError};

use super::lines::{NAME, again, finished, scrubbed_line, started};

/// The maximum depth of indentation.
const MAX_DEPTH: usize = 8;

/// The running calls.
#[derive(Debug, Default)]
pub(crate) struct Calls(Vec<Open>);

#[derive(Debug)]
struct Open {
    id: CallId,
    tool: String,
    /// The number of this call among those of its tool, from 1.
    number: usize,
    depth: usize,
}

impl Open {
    fn label(&self) -> String {
        match self.number {
            1 => scrubbed_line(&self.tool, NAME),
            number => format!("{} #{number}", scrubbed_line(&self.tool, NAME)),
        }
    }
}

impl Calls {
    fn find(&self, id: CallId) -> Option<&Open> {
        self.0.iter().find(|open| open.id == id)
    }

    fn below(&self, parent: Option<CallId>) -> usize {
        parent.and_then(|id| self.find(id)).map_or(0, |parent| parent.depth + 1).min(MAX_DEPTH)
    }

    /// The line of a started call.
    pub(crate) fn started(
        &mut self,
        id: CallId,
        parent: Option<CallId>,
        tool: &str,
        arguments: &Value,
    ) -> String {
        let same = self.0.iter().filter(|open| open.tool == tool);
        let number = same.map(|open| open.number).max().unwrap_or_default() + 1;
        let open = Open { id, tool: tool.to_owned(), number, depth: self.below(parent) };
        let line = format!("{}{}", indent(open.depth), started(&open.label(), arguments));
        self.0.push(open);
        line
    }

    /// The line of a running call; with its name if another call runs.
    pub(crate) fn within(&self, id: CallId, sign: &str, text: &str) -> String {
        let Some(open) = self.find(id) else { return format!("  {sign} {text}") };
        let name = if self.0.len() > 1 { format!("{}: ", open.label()) } else { String::new() };
        format!("{}  {sign} {name}{text}", indent(open.depth))
    }

    /// The line of a retried call.
    pub(crate) fn again(&self, id: CallId, attempt: u32, error: &ToolError, wait_ms: u64) -> String {
        let open = self.find(id);
        let name = open.filter(|_| self.0.len() > 1).map(|open| format!("{}: ", open.label()));
        let depth = open.map_or(0, |open| open.depth);
        format!("{}{}", indent(depth), again(&name.unwrap_or_default(), attempt, error, wait_ms))
    }

    /// The line of a finished call.
    pub(crate) fn finished(&mut self, record: &CallRecord) -> String {
        let at = self.0.iter().position(|open| open.id == record.id);
        let open = at.map(|at| self.0.remove(at));
        let depth = open.as_ref().map_or_else(|| self.below(record.parent), |open| open.depth);
        let name = open.map_or_else(|| scrubbed_line(&record.tool, NAME), |open| open.label());
        format!("{}{}", indent(depth), finished(&name, record))
    }
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use serde_json::json;

    use super::*;

    #[test]
    fn parallel_calls_have_names_and_nested_ones_are_indented() {
        let mut calls = Calls::default();
        let plain = |line: String| strip_str(&line).to_string();
        let (one, two, inner) = (CallId::new(), CallId::new(), CallId::new());
        assert_eq!(plain(calls.started(one, None, "fetch", &json!({ "n": 1 }))), "→ fetch n=1");
        assert_eq!(plain(calls.within(one, "…", "half")), "  … half");
        assert_eq!(plain(calls.started(two, None, "fetch", &json!({ "n": 2 }))), "→ fetch #2 n=2");
        assert_eq!(plain(calls.within(one, "…", "half")), "  … fetch: half");
        assert_eq!(plain(calls.within(two, "│", "a line")), "  │ fetch #2: a line");
        assert_eq!(plain(calls.started(inner, Some(two), "read", &json!({}))), "  → read");
        assert_eq!(plain(calls.within(inner, "…", "deep")), "    … read: deep");
        let error = ToolError::timeout("slow");
        assert_eq!(
            plain(calls.again(inner, 1, &error, 5)),
            "    read: attempt 1 failed (slow); retry in 5 ms"
        );
    }
}

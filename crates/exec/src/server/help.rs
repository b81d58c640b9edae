//! Help texts.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{Mode, ToolSpec};
use toolpost_schema::Types;

use super::{Program, status};

/// Maximum width of a list's first column.
const MAX_COLUMN: usize = 28;
/// Maximum width of a line.
const MAX_WIDTH: usize = 100;
/// Maximum number of choices shown.
const MAX_CHOICES: usize = 12;

/// A row of a list: a term and its wrapped description.
fn row(text: &mut String, left: &str, right: &str, column: usize) {
    let indent = column + 4;
    let mut line = format!("  {left:<column$}  ");
    if left.chars().count() > column {
        line = format!("  {left}\n{:indent$}", "");
    }
    let mut width = indent;
    for (index, word) in right.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && width + 1 + length > MAX_WIDTH {
            // Writing to a string cannot fail.
            let _ = write!(line, "\n{:indent$}", "");
            width = indent;
        } else if index > 0 {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn rows(text: &mut String, title: &str, list: &[(String, String)]) {
    if list.is_empty() {
        return;
    }
    let widest = list.iter().map(|(left, _)| left.chars().count()).filter(|width| *width <= MAX_COLUMN).max();
    let _ = writeln!(text, "\n{title}:");
    for (left, right) in list {
        row(text, left, right, widest.unwrap_or(MAX_COLUMN));
    }
}

fn exit_statuses(text: &mut String) {
    let list: Vec<(String, String)> =
        status::TABLE.iter().map(|(status, meaning)| (status.to_string(), (*meaning).to_owned())).collect();
    rows(text, "Exit code", &list);
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect()
}

/// `--help`.
pub(super) fn program(program: &Program, specs: &[Arc<ToolSpec>]) -> String {
    let name = &program.name;
    let mut text = match &program.about {
        Some(about) => format!("{}\n\n", about.trim()),
        None => String::new(),
    };
    let _ = writeln!(text, "Usage: {name} TOOL [--FLAG VALUE]… | '{{JSON}}' | @FILE | -");
    let _ = writeln!(text, "       {name} TOOL --help");
    let tools: Vec<(String, String)> =
        specs.iter().map(|spec| (spec.name.clone(), spec.summary().to_owned())).collect();
    rows(&mut text, "Tools", &tools);
    let mut commands = vec![
        ("--discover", "print tools, resources and prompts as JSON"),
        ("--tools", "list the tools as JSON"),
        ("--resources", "list the resources as JSON"),
        ("--prompts", "list the prompts as JSON"),
        ("--resource URI", "read a resource"),
        ("--prompt NAME '{JSON}'", "render a prompt"),
        ("--resident", "serve many calls over standard input and output"),
        ("--version", "print name and version"),
    ];
    if program.mcp {
        commands.extend([
            ("--mcp", "serve an MCP client over standard input and output"),
            ("--mcp-http ADDRESS:PORT", "serve MCP clients over HTTP and print the URL"),
        ]);
    }
    rows(&mut text, "Commands", &owned(&commands));
    if program.owns_process {
        let variables = [("TOOLPOST_LOG", "log filter for stderr, such as debug; defaults to RUST_LOG")];
        rows(&mut text, "Environment", &owned(&variables));
    }
    text.push_str("\nResults print as text on a terminal, and as JSON through a pipe.\n");
    exit_statuses(&mut text);
    text
}

/// A value's placeholder in usage lines.
fn value_name(types: Types) -> &'static str {
    if types.is_unknown() {
        "VALUE"
    } else if types.array {
        "ITEM…"
    } else if types.object {
        "JSON"
    } else if types.string {
        "TEXT"
    } else if types.integer {
        "INTEGER"
    } else {
        "NUMBER"
    }
}

/// The constraints of a schema, in words.
fn limits(schema: &Value) -> Vec<String> {
    let mut parts = Vec::new();
    let words = [
        ("minimum", "at least "),
        ("exclusiveMinimum", "more than "),
        ("maximum", "at most "),
        ("exclusiveMaximum", "less than "),
        ("minLength", "characters at least "),
        ("maxLength", "characters at most "),
        ("minItems", "items at least "),
        ("maxItems", "items at most "),
        ("pattern", "matches "),
        ("format", "format "),
    ];
    for (keyword, word) in words {
        match schema.get(keyword) {
            Some(Value::String(value)) => parts.push(format!("{word}{value}")),
            Some(value) => parts.push(format!("{word}{value}")),
            None => {}
        }
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let shown: Vec<String> = values
            .iter()
            .filter(|value| !value.is_null())
            .take(MAX_CHOICES)
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        let more = if values.len() > MAX_CHOICES { ", …" } else { "" };
        parts.push(format!("one of {}{more}", shown.join(", ")));
    }
    match schema.get("default") {
        Some(Value::String(value)) => parts.push(format!("default {value}")),
        Some(Value::Null) | None => {}
        Some(value) => parts.push(format!("default {value}")),
    }
    parts
}

/// `TOOL --help`.
pub(super) fn tool(program: &Program, spec: &ToolSpec, is_only: bool) -> String {
    let command = if is_only { program.name.clone() } else { format!("{} {}", program.name, spec.name) };
    let schema = spec.input_schema.as_value();
    let properties = schema.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = spec.input_schema.required().collect();
    let mut text = format!("{}\n\n", spec.description.trim());
    let mut usage = format!("Usage: {command}");
    let mut parameters = Vec::new();
    for (name, property) in properties.into_iter().flatten() {
        let types = Types::new(property, schema);
        let flag = format!("--{}", name.replace('_', "-"));
        let flag = if types.is_boolean() { flag } else { format!("{flag} {}", value_name(types)) };
        let is_required = required.contains(&name.as_str());
        if is_required {
            let _ = write!(usage, " {flag}");
        }
        let description = property.get("description").and_then(Value::as_str).unwrap_or_default();
        let mut facts = limits(property);
        if is_required {
            facts.insert(0, "required".to_owned());
        }
        let facts = if facts.is_empty() { String::new() } else { format!(" [{}]", facts.join("; ")) };
        parameters.push((flag, format!("{description}{facts}")));
    }
    if parameters.len() > required.len() {
        usage.push_str(" [FLAGS]");
    }
    match spec.mode {
        Mode::Unary => {}
        Mode::Streaming => usage.push_str(" --stream"),
        Mode::Session => usage.push_str(" --session"),
    }
    let _ = writeln!(text, "{usage}");
    let _ = writeln!(text, "       {command} '{{JSON}}' | @FILE | -");
    rows(&mut text, "Parameters", &parameters);
    let options = [
        ("--stream", "print progress, log lines and files as JSON Lines"),
        ("--session", "answer the tool's questions, one JSON line each"),
        ("--sample-via stdin|URL", "where to send sampling requests"),
        ("--validate", "validate the arguments without a run"),
        ("--manifest", "print the tool's manifest as JSON"),
    ];
    rows(&mut text, "Options", &owned(&options));
    if !spec.examples.is_empty() {
        text.push_str("\nExamples:\n");
        for example in &spec.examples {
            let _ = writeln!(text, "  {command} {}", quoted(&example.args.to_string()));
        }
    }
    exit_statuses(&mut text);
    text
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

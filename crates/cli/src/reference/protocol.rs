//! The page of the executable protocol: the types of its lines, with their documentation.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{begin, table};

pub(super) fn page() -> String {
    let mut page = begin(
        "Executable protocol",
        "A tool program answers these command lines on standard output. `toolpost init tool --exec NAME` writes one, and \
         `toolpost call ./PROGRAM TOOL` calls it.",
    );
    let rows = [
        ("--discover", "prints a `Discovery`: the tools, resources and prompts"),
        ("TOOL --manifest", "prints a `Manifest`"),
        ("--tools", "prints the names and summaries of the tools"),
        (
            "TOOL '{JSON}'",
            "runs the tool with an object of arguments, and prints an envelope: `toolpost schema envelope`",
        ),
        ("TOOL -", "reads the object from standard input: large or sensitive arguments"),
        ("TOOL '{JSON}' --stream", "prints a `Notice` per line, then the envelope"),
        ("TOOL '{JSON}' --session", "prints prompts and reads answers as JSON Lines"),
        ("--resident", "serves many calls over standard input and output, in frames"),
    ];
    let rows = rows.map(|(line, meaning)| vec![line.to_owned(), meaning.to_owned()]);
    table(&mut page, &["command line", "what the program does"], &rows);
    for (title, file) in [("Dialect 0.1", "dialect.rs"), ("Resident mode", "frame.rs")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exec/src/protocol").join(file);
        let source = fs::read_to_string(path).unwrap();
        // Writing to a string cannot fail.
        let _ = write!(page, "## {title}\n\n");
        for line in source.lines().take_while(|line| line.starts_with("//!")).skip(2) {
            page += &prose(line.trim_start_matches("//!").trim_start_matches(' '));
            page.push('\n');
        }
        page.push('\n');
        for item in items(&source) {
            let _ = write!(page, "### {}\n\n{}\n\n", item.name, item.meaning);
            if !item.rows.is_empty() {
                table(&mut page, &["field or message", "type", "meaning"], &item.rows);
            }
        }
    }
    page.trim_end().to_owned() + "\n"
}

/// A public type with its fields or variants.
struct Item {
    name: String,
    meaning: String,
    rows: Vec<Vec<String>>,
}

fn items(source: &str) -> Vec<Item> {
    let (mut items, mut docs): (Vec<Item>, Vec<String>) = (Vec::new(), Vec::new());
    let (mut is_open, mut is_enum, mut variant): (bool, bool, Option<String>) = (false, false, None);
    for line in source.lines() {
        let text = line.trim();
        if let Some(doc) = text.strip_prefix("///") {
            docs.push(prose(doc.trim()));
            continue;
        }
        if text.starts_with("#[") {
            continue;
        }
        let meaning = std::mem::take(&mut docs).join(" ");
        let head = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
        if let Some(name) = head.and_then(|rest| rest.strip_suffix(" {")) {
            let name = name.split('<').next().unwrap_or(name).to_owned();
            items.push(Item { name, meaning, rows: Vec::new() });
            (is_open, is_enum, variant) = (true, line.starts_with("pub enum "), None);
        } else if line == "}" {
            is_open = false;
        } else if is_open && !meaning.is_empty() {
            let Some(item) = items.last_mut() else { continue };
            let (name, kind) = match text.trim_end_matches(',').split_once(": ") {
                Some((name, kind)) => (name.trim_start_matches("pub ").trim_start_matches("r#"), wire(kind)),
                None => (text, String::new()),
            };
            if is_enum && line.starts_with("    ") && !line.starts_with("     ") {
                let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
                let name = snake(&name[..end]);
                variant = text.ends_with('{').then(|| name.clone());
                item.rows.push(vec![name, String::new(), meaning]);
            } else {
                let name = variant.as_ref().map_or(name.to_owned(), |variant| format!("{variant}.{name}"));
                item.rows.push(vec![name, kind, meaning]);
            }
        }
    }
    items
}

/// Documentation without links of Rust.
fn prose(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        let _ = write!(result, "{before}`{name}`");
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    result + rest
}

/// A type as JSON has it.
fn wire(kind: &str) -> String {
    let inside = |begin: &str| kind.strip_prefix(begin).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inside("Option<").or_else(|| inside("Box<")) {
        return wire(inner);
    }
    if let Some(inner) = inside("Vec<") {
        return format!("list of {}", wire(inner));
    }
    let last = kind.rsplit("::").next().unwrap_or(kind);
    match last {
        "String" => "string".to_owned(),
        "bool" => "boolean".to_owned(),
        "u8" | "u32" | "u64" | "usize" | "i64" => "integer".to_owned(),
        "f32" | "f64" => "number".to_owned(),
        "Value" => "any".to_owned(),
        _ if kind.starts_with("BTreeMap<") || kind.starts_with("Map<") => "object".to_owned(),
        other => other.split('<').next().unwrap_or(other).to_owned(),
    }
}

fn snake(name: &str) -> String {
    let mut result = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            result.push('_');
        }
        result.extend(letter.to_lowercase());
    }
    result
}

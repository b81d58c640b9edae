//! Lines of hosted tools: the code or query, and the result.

use serde::Deserialize as _;
use serde_json::{Map, Value};
use toolpost_llm::{FileRef, HostedOutput};

use super::lines::{NAME, WIDTH, scrubbed_line, started as call_line};
use crate::env;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, one_line, paint};

/// The maximum number of lines of a text: at its beginning, and at its end.
const FIRST_LINES: usize = 12;
const LAST_LINES: usize = 8;

/// The maximum number of files and sources of a result.
const MAX_REFERENCES: usize = 10;

/// The lines of a started hosted tool.
pub(crate) fn started(tool: &str, input: Option<&Value>) -> Vec<String> {
    let Some(Value::Object(members)) = input else {
        return vec![call_line(tool, input.unwrap_or(&Value::Object(Map::new())))];
    };
    let is_long = |value: &Value| {
        value.as_str().is_some_and(|text| text.contains('\n') || text.chars().nth(WIDTH / 2).is_some())
    };
    let short = members.iter().filter(|(_, value)| !is_long(value));
    let short: Map<_, _> = short.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut lines = vec![call_line(tool, &Value::Object(short))];
    for text in members.values().filter(|value| is_long(value)).filter_map(Value::as_str) {
        lines.extend(text_lines(text));
    }
    lines
}

/// The lines of a finished hosted tool.
pub(crate) fn finished(tool: &str, output: &Value) -> Vec<String> {
    // Other results have nothing to print.
    let output = HostedOutput::deserialize(output).unwrap_or_default();
    let name = paint(STRONG, scrubbed_line(tool, NAME));
    let status = output.return_code.map(|code| format!("exit status {code}"));
    let mut lines = vec![match (output.is_error, status) {
        (true, status) => {
            let why = output.error_code.clone().or(status).unwrap_or_else(|| "failed".to_owned());
            format!("{} {name} {}", paint(BAD, "✗"), scrubbed_line(&why, WIDTH))
        }
        (false, Some(status)) if output.return_code != Some(0) => {
            format!("{} {name} {status}", paint(WARN, "!"))
        }
        (false, status) => {
            let status = status.map(|status| paint(FAINT, format!(" ({status})"))).unwrap_or_default();
            format!("{} {name}{status}", paint(GOOD, "✓"))
        }
    }];
    lines.extend(text_lines(&output.text));
    lines.extend(text_lines(&output.stderr).into_iter().map(|line| paint(WARN, line)));
    let files: Vec<String> = output.files.iter().take(MAX_REFERENCES).map(file).collect();
    let sources = output.sources.iter().filter_map(|source| {
        let url = source.url.clone().or_else(|| source.file.as_ref().map(file));
        let words: Vec<String> = source.title.iter().cloned().chain(url).collect();
        (!words.is_empty()).then(|| words.join(" "))
    });
    let sources: Vec<String> = sources.take(MAX_REFERENCES).collect();
    for (what, shown, all) in [("file", files, output.files.len()), ("source", sources, output.sources.len())]
    {
        lines.extend(shown.iter().map(|words| {
            format!("  {} {}", paint(FAINT, what), paint(HINT, scrubbed_line(words, 2 * WIDTH)))
        }));
        if all > MAX_REFERENCES {
            lines.push(paint(FAINT, format!("  and {} {what}s more", all - MAX_REFERENCES)));
        }
    }
    lines
}

fn file(file: &FileRef) -> String {
    match &file.name {
        Some(name) => format!("{name} ({})", file.id),
        None => file.id.clone(),
    }
}

/// The lines of a text, without the middle of a long one.
fn text_lines(text: &str) -> Vec<String> {
    // Scrubbed as a whole: a line's end may have part of a key.
    let text = env::scrubber().scrub(text.to_owned());
    let text = text.trim_end();
    let line = |line: &str| {
        // The middle is not scrubbed.
        let head: String = line.chars().take(WIDTH + 1).collect();
        format!("  │ {}", one_line(&head, WIDTH))
    };
    let count = text.lines().count();
    if count <= FIRST_LINES + LAST_LINES {
        return text.lines().map(line).collect();
    }
    let mut lines: Vec<String> = text.lines().take(FIRST_LINES).map(line).collect();
    lines.push(paint(FAINT, format!("  │ … {} lines more", count - FIRST_LINES - LAST_LINES)));
    lines.extend(text.lines().skip(count - LAST_LINES).map(line));
    lines
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use serde_json::json;

    use super::*;

    fn bare(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| strip_str(line).to_string()).collect()
    }

    #[test]
    fn code_and_queries_are_printed() {
        for (input, expected) in [
            (None, vec!["→ t"]),
            (Some(json!({"query": "rust"})), vec!["→ t query=rust"]),
            (Some(json!("all")), vec!["→ t \"all\""]),
            (
                Some(json!({"language": "PYTHON", "code": "a = 1\n\nprint(a)\n"})),
                vec!["→ t language=PYTHON", "  │ a = 1", "  │ ", "  │ print(a)"],
            ),
        ] {
            assert_eq!(bare(&started("t", input.as_ref())), expected);
        }
    }

    #[test]
    fn results_have_status_and_files() {
        for (output, expected) in [
            (json!(7), vec!["✓ t"]),
            (json!({"text": "a\nb\n", "return_code": 0}), vec!["✓ t (exit status 0)", "  │ a", "  │ b"]),
            (json!({"stderr": "no", "return_code": 1}), vec!["! t exit status 1", "  │ no"]),
            (json!({"is_error": true, "error_code": "unavailable"}), vec!["✗ t unavailable"]),
            (
                json!({"files": [{"id": "f1"}, {"id": "f2", "name": "a.png"}], "sources": [
                    {"url": "https://a.example", "title": "A"}, {"title": null}, {"file": {"id": "f3"}}]}),
                vec!["✓ t", "  file f1", "  file a.png (f2)", "  source A https://a.example", "  source f3"],
            ),
        ] {
            assert_eq!(bare(&finished("t", &output)), expected, "{output}");
        }
    }

    #[test]
    fn a_hostile_result_is_short_and_moves_no_cursor() {
        let many: Vec<Value> =
            (0..5_000).map(|number| json!({"id": format!("f{number}\u{1b}[2J")})).collect();
        let text = format!("{}\n{}end", "\u{1b}[2J\u{9b}x".repeat(100_000), "line\n".repeat(100_000));
        let output =
            json!({"text": text, "stderr": text, "files": many, "error_code": text, "is_error": true});
        let lines = bare(&finished(&text, &output));
        assert_eq!(lines.len(), 1 + 2 * (FIRST_LINES + 1 + LAST_LINES) + MAX_REFERENCES + 1);
        let is_harmless =
            |line: &String| !line.contains(['\u{1b}', '\u{9b}', '\n']) && line.chars().count() < 300;
        assert!(lines.iter().all(is_harmless), "{lines:?}");
        assert!(lines.contains(&"  │ … 99982 lines more".to_owned()), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "  and 4990 files more");
    }
}

//! The rule on `docs/troubleshooting.md`: each message in a heading is in the source.

use super::Complaint;
use crate::source::Source;
use crate::workspace::Workspace;

const PAGE: &str = "docs/troubleshooting.md";

/// The minimum length of the longest literal part of a message. A shorter one would match by chance.
const MIN_PART: usize = 10;

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let Some(page) = workspace.text(PAGE) else { return Vec::new() };
    let product = sources
        .iter()
        .filter(|source| source.path.starts_with("crates/") && source.path.contains("/src/"))
        .filter(|source| !source.is_test_file());
    let texts: Vec<String> = product
        .filter_map(|source| workspace.text(&source.path).map(|text| joined_literals(&text, source)))
        .collect();
    complaints(&page, &texts)
}

/// The file without comments and tests, where a string continued with `\` is on one line.
fn joined_literals(text: &str, source: &Source) -> String {
    let mut joined = String::with_capacity(text.len());
    for (raw, line) in text.lines().zip(&source.lines).filter(|(_, line)| !line.in_test) {
        let code = raw.strip_suffix(line.comment.as_str()).unwrap_or(raw);
        match code.strip_suffix('\\') {
            Some(begun) => joined.push_str(begun.trim_start()),
            None => {
                joined.push_str(code.trim_start());
                joined.push('\n');
            }
        }
    }
    joined
}

fn complaints(page: &str, texts: &[String]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let headings =
        page.lines().enumerate().filter_map(|(index, line)| Some((index, line.strip_prefix("### ")?)));
    for (index, heading) in headings {
        let message = heading.strip_prefix("``").and_then(|rest| rest.strip_suffix("``"));
        let complain =
            |found: String, action: &str| Complaint::new("messages", PAGE, found, action).at(index);
        let Some(message) = message.map(str::trim) else {
            complaints.push(complain("a heading without a message".into(), "quote it: ### ``message``"));
            continue;
        };
        let parts = || message.split('…').map(str::trim);
        if parts().all(|part| part.len() < MIN_PART) {
            let action = format!("quote {MIN_PART} literal characters in a row");
            complaints.push(complain(format!("the short message `{message}`"), &action));
        }
        let has = |part: &str| texts.iter().any(|text| text.contains(part));
        // A message and its cause are two literals, joined with a colon.
        let missing = parts().find(|part| !has(part) && !part.split(": ").all(has));
        if let Some(missing) = missing {
            let action = "quote the present message, or delete the entry";
            complaints.push(complain(format!("no source has the text `{missing}`"), action));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "fn f() {
    // the old message is gone
    fail(\"the program `{name}` was \\
          stopped\");
}
";

    #[test]
    fn a_message_that_the_source_lost_is_reported() {
        let texts = [joined_literals(CODE, &Source::new("crates/a/src/lib.rs", CODE))];
        let rows = [
            ("### ``the program `…` was stopped``", None),
            ("### ``the program `…` ``\nText.", None),
            ("### ``the program `…` was ended``", Some("no source has the text `` was ended`")),
            ("### ``the program `…`: was stopped``", None),
            ("### ``the program: was ended``", Some("no source has the text `the program: was ended`")),
            ("### ``the old message``", Some("no source has the text `the old message`")),
            ("### ``program``", Some("the short message `program`")),
            ("### the program", Some("a heading without a message")),
            ("## Sandbox", None),
        ];
        for (page, expected) in rows {
            let found = complaints(page, &texts).first().map(|complaint| complaint.found.clone());
            assert_eq!(found.as_deref(), expected, "{page}");
        }
    }
}

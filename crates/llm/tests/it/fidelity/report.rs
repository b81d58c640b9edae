//! Writes the counts to `docs/fidelity.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use toolpost_testkit::recordings;

use super::{Counts, Dialect, OfDialects, check, of_dialects};

#[test]
fn every_recorded_answer_survives() {
    let Some(found) = of_dialects("every_recorded_answer_survives") else { return };
    let OfDialects { dialects, unclaimed, unread } = found;
    for line in &unclaimed {
        println!("UNCLAIMED {line}");
    }
    for line in &unread {
        println!("UNREAD {line}");
    }
    let counted: Vec<(&dyn Dialect, Counts)> = std::thread::scope(|scope| {
        let threads: Vec<_> = dialects
            .into_iter()
            .map(|(dialect, recordings)| scope.spawn(move || (dialect, check(dialect, &recordings))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no check panics")).collect()
    });
    let mut wrong = Vec::new();
    for (dialect, counts) in &counted {
        println!(
            "{}: {} files, {} bodies, {} errors, {} streams, items back {} of {} answers, requests {}/{} (typed {})",
            dialect.provider(),
            counts.files,
            counts.bodies,
            counts.errors,
            counts.streams,
            counts.back.items,
            counts.back.answers,
            counts.requests.equal,
            counts.requests.built,
            counts.requests.typed,
        );
        wrong.extend(counts.wrong.iter().cloned());
    }
    assert!(wrong.is_empty(), "{} defects:\n{}", wrong.len(), wrong.join("\n"));
    if recordings::is_known() {
        check_document(&document(&counted, &unclaimed));
    }
}

/// Compares the document with the counts. `TOOLPOST_UPDATE=1` writes it.
fn check_document(text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fidelity.md");
    #[expect(clippy::disallowed_methods, reason = "the developer regenerates the page with it")]
    let update = std::env::var_os("TOOLPOST_UPDATE").is_some();
    if update {
        std::fs::write(&path, text).expect("the document can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/fidelity.md is outdated: run this test with TOOLPOST_UPDATE=1");
}

fn document(counted: &[(&dyn Dialect, Counts)], unclaimed: &[String]) -> String {
    let mut text = String::from(
        "# Fidelity of the provider wires\n\n\
         The test `fidelity::report::every_recorded_answer_survives` of `crates/llm` generates this page.\n\
         It reads recorded traffic of real providers from a directory next to the checkout, which is not part of the project.\n\
         `TOOLPOST_RECORDINGS` selects another directory.\n\n\
         ## Answers\n\n\
         The test decodes every recorded body and stream and asserts five claims:\n\n\
         - A decoded stream equals its reference: the terminal event, or a simple fold over plain JSON.\n\
         - The body of the same answer decodes to the same response.\n\
         - The deltas of a stream concatenate to its texts.\n\
         - Injected unknown events change nothing.\n\
         - A stream that was recorded without its end is an error.\n\n\
         | provider | wire | files | bodies | streams | events | errors | incomplete streams | injected unknown events |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (dialect, counts) in counted {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            dialect.provider(),
            dialect.wire().as_str(),
            counts.files,
            counts.bodies,
            counts.streams,
            counts.events,
            counts.errors,
            counts.cut_streams,
            counts.injected,
        );
    }
    text.push_str(
        "\n## Round trips\n\n\
         Toolpost sends every answer back in its next request.\n\
         The test compares each item with the provider's JSON, value by value.\n\
         Toolpost changes only the items of the second table.\n\
         The test `fidelity::faults::planted_faults_are_noticed` drops and changes every member, and fails if a check\n\
         accepts one of these faults.\n\n\
         | provider | answers | items | unchanged | changed |\n|---|---|---|---|---|\n",
    );
    for (dialect, Counts { back, .. }) in counted {
        let changed: usize = back.changes.values().sum();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {changed} |",
            dialect.provider(),
            back.answers,
            back.items,
            back.items - changed,
        );
    }
    text.push_str("\n| provider | change | items |\n|---|---|---|\n");
    for (dialect, Counts { back, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &back.changes);
    }
    text.push_str(
        "\n### Recorded clients\n\n\
         Some recorded clients sent the same answer back; the test compares their items with those of Toolpost.\n\
         An item may differ only if Toolpost's item equals the provider's.\n\n\
         | provider | items | equal | changed by the client |\n|---|---|---|---|\n",
    );
    for (dialect, Counts { history, .. }) in counted {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            dialect.provider(),
            history.items,
            history.equal,
            history.items - history.equal,
        );
    }
    text.push_str("\n| provider | change by the recorded client | items |\n|---|---|---|\n");
    for (dialect, Counts { history, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &history.changes);
    }
    text.push_str(
        "\n## Requests\n\n\
         The test rebuilds every recorded request with Toolpost's types and compares it with the recorded body.\n\
         A typed request has no raw parts and no provider options.\n\
         A rejected request is invalid for the provider, and Toolpost's types cannot express it.\n\n\
         | provider | requests | equal | typed | rejected |\n|---|---|---|---|---|\n",
    );
    for (dialect, Counts { requests, .. }) in counted {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            dialect.provider(),
            requests.built,
            requests.equal,
            requests.typed,
            requests.refused,
        );
    }
    text.push_str("\n| provider | difference and reason | requests |\n|---|---|---|\n");
    for (dialect, Counts { requests, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &requests.rules);
        rows(&mut text, dialect.provider(), "exception: ", &requests.exceptions);
    }
    text.push_str("\n## Kinds of items\n\n| provider | kind | items |\n|---|---|---|\n");
    for (dialect, counts) in counted {
        for (kind, number) in &counts.kinds {
            let _ = writeln!(text, "| {} | `{kind}` | {number} |", dialect.provider());
        }
    }
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    for line in unclaimed {
        let address = line.split_once(": ").map_or(line.as_str(), |(_, address)| address);
        let path = address.split('?').next().unwrap_or_default().trim_end_matches('/');
        let end =
            if path == "no address" { path } else { path.rsplit(['/', ':']).next().unwrap_or_default() };
        // All ids share one row.
        let end = if end.bytes().any(|byte| byte.is_ascii_digit()) { "an id" } else { end };
        *others.entry(end.to_owned()).or_default() += 1;
    }
    text.push_str(
        "\n## Exchanges of other APIs\n\n\
         These recorded exchanges belong to no wire. The test prints the file of each.\n\n\
         | last segment of the address | exchanges |\n|---|---|\n",
    );
    for (end, number) in &others {
        let _ = writeln!(text, "| `{end}` | {number} |");
    }
    text
}

fn rows(text: &mut String, provider: &str, word: &str, reasons: &BTreeMap<String, usize>) {
    for (reason, number) in reasons {
        let _ = writeln!(text, "| {provider} | {word}{reason} | {number} |");
    }
}

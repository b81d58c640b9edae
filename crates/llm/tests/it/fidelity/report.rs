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
    assert!(wrong.is_empty(), "{} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
    if recordings::is_known() {
        check_document(&document(&counted, &unclaimed));
    }
}

/// The document must be what was counted. `TOOLPOST_UPDATE=1` writes it.
fn check_document(text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fidelity.md");
    #[expect(clippy::disallowed_methods, reason = "for whoever changes what is counted")]
    let update = std::env::var_os("TOOLPOST_UPDATE").is_some();
    if update {
        std::fs::write(&path, text).expect("the document can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/fidelity.md is not what was counted: run this test with TOOLPOST_UPDATE=1");
}

fn document(counted: &[(&dyn Dialect, Counts)], unclaimed: &[String]) -> String {
    let mut text = String::from(
        "# What recorded traffic survives\n\n\
         Written by the test `fidelity::report::every_recorded_answer_survives` of `crates/llm`, which reads recorded\n\
         traffic of real providers beside the checkout. `TOOLPOST_RECORDINGS` names another directory, of which the same is\n\
         asserted. The recordings are not part of the project.\n\n\
         ## Answers\n\n\
         Every body and stream is read. A stream must give the same as its oracle (the terminal event, or a naive fold\n\
         on plain values), read again as a body it must be the same answer, its deltas must add up, and unknown events\n\
         in it must change nothing. Streams that were recorded without their end must be errors.\n\n\
         | provider | wire | files | bodies | streams | events | refusals | streams without end | unknown events injected |\n\
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
        "\n## What goes back\n\n\
         Every answer is given back in a request of ours and held against what the provider wrote, item by item and\n\
         value for value. What is changed on purpose is listed; all other items are unchanged. The test\n\
         `fidelity::faults::planted_faults_are_noticed` drops and changes each member at each place, and fails if a\n\
         check lets one of these faults pass.\n\n\
         | provider | answers | items | unchanged | changed on purpose |\n|---|---|---|---|---|\n",
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
    text.push_str("\n| provider | what is changed on purpose | how often |\n|---|---|---|\n");
    for (dialect, Counts { back, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &back.changes);
    }
    text.push_str(
        "\n### Recorded clients\n\n\
         Where a recorded client gave the same answer back, its items are held against ours. An item that differs is the\n\
         client's change if ours is what the provider said; anything else fails the test.\n\n\
         | provider | items | equal to ours | changed by the client |\n|---|---|---|---|\n",
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
    text.push_str("\n| provider | what the recorded client does | how often |\n|---|---|---|\n");
    for (dialect, Counts { history, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &history.changes);
    }
    text.push_str(
        "\n## Requests\n\n\
         Recorded requests are built through our types and held against what was sent; `typed` are those without raw\n\
         parts and without the provider's own options.\n\n\
         | provider | requests | equal | typed | refused by the provider and not said by our types |\n|---|---|---|---|---|\n",
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
    text.push_str("\n| provider | what differs and why | how often |\n|---|---|---|\n");
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
        // What ends in an id is of the kind that stands before it.
        let end = if end.bytes().any(|byte| byte.is_ascii_digit()) { "an id" } else { end };
        *others.entry(end.to_owned()).or_default() += 1;
    }
    text.push_str(
        "\n## What is of no wire\n\n\
         Exchanges that no wire claims, by the end of their address. The test prints each with its file.\n\n\
         | address ends in | exchanges |\n|---|---|\n",
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

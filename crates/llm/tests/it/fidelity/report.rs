//! What was counted, as `docs/fidelity.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use toolpost_testkit::recordings;

use super::{Counts, Dialect, check, of_dialects};

/// The least part of the items that must go back as they came, of those that the recorded client did not change itself.
const LEAST_EQUAL: f64 = 0.99;

#[test]
fn every_recorded_answer_survives() {
    let Some(dialects) = of_dialects("every_recorded_answer_survives") else { return };
    let counted: Vec<(&dyn Dialect, Counts)> = std::thread::scope(|scope| {
        let threads: Vec<_> = dialects
            .into_iter()
            .map(|(dialect, recordings)| scope.spawn(move || (dialect, check(dialect, &recordings))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no check panics")).collect()
    });
    let mut wrong = Vec::new();
    for (dialect, counts) in &counted {
        let name = dialect.provider();
        println!(
            "{name}: {} files, {} bodies, {} errors, {} streams, items back {}/{} (verbatim {}), requests {}/{} (typed {})",
            counts.files,
            counts.bodies,
            counts.errors,
            counts.streams,
            counts.history.equal,
            counts.history.items,
            counts.history.verbatim,
            counts.requests.equal,
            counts.requests.built,
            counts.requests.typed,
        );
        wrong.extend(counts.wrong.iter().cloned());
        let changed: usize = counts.history.exceptions.values().sum();
        let least = (counts.history.items - changed) as f64 * LEAST_EQUAL;
        // One change by the client that was recorded is more than a hundredth of a few items.
        let is_sample = !recordings::is_known() && counts.history.items < 100;
        if !is_sample && (counts.history.equal as f64) < least || recordings::is_known() {
            wrong.extend(counts.history.unexplained.iter().cloned());
        }
        if recordings::is_known() {
            wrong.extend(counts.requests.unexplained.iter().cloned());
        }
        if (counts.history.equal as f64) < least && !is_sample {
            wrong.push(format!("{name}: fewer than 99 % of the items go back as they came"));
        }
    }
    assert!(wrong.is_empty(), "{} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
    if recordings::is_known() {
        check_document(&document(&counted));
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

fn document(counted: &[(&dyn Dialect, Counts)]) -> String {
    let mut text = String::from(
        "# What recorded traffic survives\n\n\
         Written by the test `fidelity::report::every_recorded_answer_survives` of `crates/llm`, which reads recorded\n\
         traffic of real providers beside the checkout (or what `TOOLPOST_RECORDINGS` names; there nothing is assumed\n\
         but the kind of files). The recordings are not part of the project.\n\n\
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
         What a model said is given back in a request, and held item by item against what the recorded client gave\n\
         back. Equal are items that differ only in members that a rule names. An exception below is an item that the\n\
         recorded client changed itself: the last column leaves those out, and must be 99 % at least.\n\n\
         | provider | items | equal | verbatim | part | exceptions | part without them |\n|---|---|---|---|---|---|---|\n",
    );
    for (dialect, Counts { history, .. }) in counted {
        let part = |of: usize| 100.0 * history.equal as f64 / of.max(1) as f64;
        let changed: usize = history.exceptions.values().sum();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} % | {changed} | {:.1} % |",
            dialect.provider(),
            history.items,
            history.equal,
            history.verbatim,
            part(history.items),
            // An item may have several exceptions.
            part(history.items.saturating_sub(changed).max(history.equal)),
        );
    }
    text.push_str(
        "\n### Rules and exceptions\n\n| provider | what differs and why | how often |\n|---|---|---|\n",
    );
    for (dialect, Counts { history, .. }) in counted {
        rows(&mut text, dialect.provider(), "", &history.rules);
        rows(&mut text, dialect.provider(), "exception: ", &history.exceptions);
    }
    text.push_str(
        "\n## Requests\n\n\
         Recorded requests are built through our types and held against what was sent; `typed` are those without raw\n\
         parts and without the provider's own options.\n\n\
         | provider | requests | equal | typed |\n|---|---|---|---|\n",
    );
    for (dialect, Counts { requests, .. }) in counted {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            dialect.provider(),
            requests.built,
            requests.equal,
            requests.typed
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
    text
}

fn rows(text: &mut String, provider: &str, word: &str, reasons: &BTreeMap<String, usize>) {
    for (reason, number) in reasons {
        let _ = writeln!(text, "| {provider} | {word}{reason} | {number} |");
    }
}

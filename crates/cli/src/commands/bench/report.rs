//! The report: Markdown, charts and JSON.

use std::fmt::Write as _;
use std::path::Path;

use super::chart;
use super::figures::{Comparison, Figure, Results, Row, Status};
use crate::failure::Failure;

/// Formats a figure with three significant digits, and separators from 10,000.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0" } else { "?" }.to_owned();
    }
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if digits > 0 {
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        return text.to_owned();
    }
    let text = text.trim_start_matches('-');
    if text.len() < 5 {
        return format!("{}{text}", if value < 0.0 { "-" } else { "" });
    }
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a ratio, such as `4.2 ×`.
pub(super) fn ratio_text(ratio: f64) -> String {
    format!("{} ×", number(if ratio < 10.0 { (ratio * 100.0).round() / 100.0 } else { ratio }))
}

/// Untrusted text in a cell of a table.
fn cell(text: &str) -> String {
    crate::style::one_line(text, 200).replace('|', "\\|").replace('<', "&lt;")
}

fn interval(figure: Figure) -> String {
    format!("{} to {}", number(figure.low), number(figure.high))
}

/// The table of a comparison.
pub(super) fn table(comparison: &Comparison) -> String {
    let mut text = format!(
        "| subject | {} | 95 % interval | advantage of Toolpost |\n|---|--:|--:|--:|\n",
        comparison.unit
    );
    for (row, figure) in comparison.measured() {
        let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| ratio_text(ratio.value));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {ratio} |",
            cell(&row.name),
            number(figure.value),
            interval(figure)
        );
    }
    text
}

/// Failed and skipped rows: each subject once.
fn missing(results: &Results) -> Vec<(&Row, String)> {
    let mut rows: Vec<(&Row, String)> = Vec::new();
    for row in results.comparisons.iter().flat_map(|comparison| &comparison.rows) {
        let state = match row.status {
            Status::Measured => continue,
            Status::Failed => "failed",
            Status::Skipped => "skipped",
        };
        let reason = format!("{state}: {}", row.reason.as_deref().unwrap_or("unknown"));
        if !rows.iter().any(|(known, text)| known.name == row.name && *text == reason) {
            rows.push((row, reason));
        }
    }
    rows
}

/// The comparison with an earlier run: the figures whose intervals do not overlap.
pub(super) fn differences(results: &Results, old: &Results) -> String {
    let pairs = results.pairs(old);
    let mut text = format!(
        "{} of {} figures agree with the run of {} within their intervals.\n\n",
        pairs.iter().filter(|pair| pair.new.agrees(&pair.old)).count(),
        pairs.len(),
        old.started
    );
    for pair in pairs.iter().filter(|pair| !pair.new.agrees(&pair.old)) {
        let _ = writeln!(
            text,
            "- {}, {}: {} {} ({}), before {} ({})",
            pair.comparison.title,
            pair.name,
            number(pair.new.value),
            pair.comparison.unit,
            interval(pair.new),
            number(pair.old.value),
            interval(pair.old)
        );
    }
    text
}

/// The report in Markdown.
pub(super) fn markdown(results: &Results, old: Option<&Results>) -> String {
    let machine = &results.machine;
    let memory = machine.memory_bytes.map_or_else(
        || "unknown".to_owned(),
        |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1_u32 << 30)),
    );
    let sandbox = machine.level.as_ref().map_or_else(
        || "no level is available".to_owned(),
        |level| format!("level {level}: {}", machine.layers.join(", ")),
    );
    let mut text = format!(
        "# Benchmark\n\n`toolpost bench` of Toolpost {}, {}: {} rounds in {} s.\n\n\
         Each round measures every subject once, in alternating order.\n\
         A figure is the median of all rounds, with a bootstrapped 95 % interval.\n\
         The advantage compares figures of the same round with the first row of Toolpost.\nBelow 1 ×, the subject is better.\n\n\
         ## Machine\n\n| part | value |\n|---|---|\n| processor | {} |\n| cores | {} |\n| memory | {memory} |\n\
         | system | {} |\n| sandbox | {} |\n\n## Versions\n\n| subject | version |\n|---|---|\n",
        results.version,
        results.started,
        results.rounds,
        results.seconds,
        cell(&machine.processor),
        machine.cores,
        cell(&machine.system),
        sandbox
    );
    for version in &results.versions {
        let _ = writeln!(text, "| {} | {} |", cell(&version.name), cell(&version.version));
    }
    for comparison in &results.comparisons {
        let (title, about) = (&comparison.title, &comparison.about);
        let _ = write!(text, "\n## {title}\n\n{about}\n");
        if comparison.measured().next().is_some() {
            let _ = write!(text, "\n![{title}]({}.svg)\n\n{}", comparison.id, table(comparison));
        } else {
            text.push_str("\nNo subject was measured.\n");
        }
    }
    let missing = missing(results);
    if !missing.is_empty() {
        text.push_str("\n## Failed and skipped\n\n| subject | reason | fix |\n|---|---|---|\n");
        for (row, reason) in missing {
            let fix = row.fix.as_deref().unwrap_or("–");
            let _ = writeln!(text, "| {} | {} | {} |", cell(&row.name), cell(&reason), cell(fix));
        }
    }
    if let Some(old) = old {
        let _ = write!(text, "\n## Agreement\n\n{}", differences(results, old));
    }
    text
}

/// Writes the report, its charts and `results.json` to a directory.
pub(super) fn write(directory: &Path, results: &Results, old: Option<&Results>) -> Result<(), Failure> {
    let failed = |path: &Path, error: &std::io::Error| Failure::file("the report", path, error);
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))
    };
    for comparison in &results.comparisons {
        if let Some(chart) = chart::draw(comparison) {
            file(&format!("{}.svg", comparison.id), &chart)?;
        }
    }
    let json = serde_json::to_string_pretty(results)
        .map_err(|error| Failure::new(crate::exit::Exit::Failed, "INTERNAL", error.to_string()))?;
    file("results.json", &format!("{json}\n"))?;
    file("report.md", &markdown(results, old))
}

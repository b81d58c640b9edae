//! The attack table of the sandbox: runs it whole, as root and as an ordinary user, and writes `docs/attacks.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::command::Task;

/// Where the table is written.
pub const DOCUMENT: &str = "docs/attacks.md";
/// Where its rows are.
pub const ROWS: &str = "crates/sandbox/tests/it/attack/rows.rs";
/// What stands at a row that a run did not reach.
const NOT_RUN: &str = "not run";
/// Which tests belong to it: the table, what stays behind, and all of that again as an ordinary user.
const TESTS: [&str; 3] = ["attack", "leaks", "unprivileged"];

/// Runs everything and writes the document. The answer is whether every answer was the expected one.
pub fn run(root: &Path) -> Result<bool> {
    let program = build(root)?;
    let task = Task::new(&program, &TESTS)
        .argument("--nocapture")
        .argument("--test-threads")
        .argument("2")
        .folder(&root.join("crates/sandbox"))
        .variable("TOOLPOST_ATTACK", "all")
        .variable("RUST_BACKTRACE", "0")
        .limit(Duration::from_mins(75));
    eprintln!("running `{}`: up to an hour", task.line());
    let captured = task.capture()?;
    let report = Report::read(&captured.text);
    for line in captured.text.lines().chain(captured.errors.lines()) {
        if !line.starts_with("ATTACK") && !line.trim().is_empty() {
            println!("{line}");
        }
    }
    if report.lines.is_empty() {
        return Err("the tests printed no line of the table".into());
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = report.document(&today(), kernel.trim());
    fs::write(root.join(DOCUMENT), text).map_err(|error| format!("cannot write {DOCUMENT}: {error}"))?;
    let counts = report.counts();
    println!("{counts}; see {DOCUMENT}");
    let is_whole = report.rows.keys().all(|row| report.lines.keys().any(|answer| answer.row == *row));
    Ok(captured.success && counts.wrong == 0 && is_whole)
}

/// Builds the tests of the sandbox and gives the program.
fn build(root: &Path) -> Result<String> {
    let captured = Task::new("cargo", &["test", "--package", "toolpost-sandbox", "--test", "it", "--no-run"])
        .argument("--features")
        .argument("docker")
        .argument("--message-format=json")
        .folder(root)
        .capture()?;
    let program = captured.text.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "it";
        message["executable"].as_str().filter(|_| is_it).map(str::to_owned)
    });
    program.ok_or_else(|| format!("the tests of the sandbox do not build\n{}", captured.errors))
}

fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400);
    crate::bench::date(days)
}

/// One row of the specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    attack: String,
    specified: Vec<String>,
}

/// What a probe was and came to, without where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    row: u32,
    probe: String,
    level: String,
    backend: String,
    expected: String,
    got: String,
    result: String,
}

/// What the tests printed.
#[derive(Debug, Default)]
pub struct Report {
    rows: BTreeMap<u32, Row>,
    /// Each answer with the users and hosts that gave it.
    lines: BTreeMap<Answer, BTreeSet<(u32, String)>>,
    hosts: Vec<String>,
}

/// How many probes were run, and how they came out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that answered as expected, or where nothing is promised.
    pub held: usize,
    /// Others.
    pub wrong: usize,
    /// Probes that have nothing to say somewhere.
    pub silent: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, wrong, silent } = self;
        write!(f, "{} probes run: {held} held, {wrong} wrong; {silent} had nothing to say", held + wrong)
    }
}

impl Report {
    /// Reads the lines `ATTACK…` out of what the tests printed.
    pub fn read(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let mut fields = line.split('\t');
            match fields.next() {
                Some("ATTACK ROW") => report.add_row(&fields.collect::<Vec<_>>()),
                Some("ATTACK") => report.add_line(&fields.collect::<Vec<_>>()),
                _ => {}
            }
        }
        report
    }

    fn add_row(&mut self, fields: &[&str]) {
        if let [number, attack, specified @ ..] = fields
            && let Ok(number) = number.parse()
        {
            let specified = specified.iter().map(|&letter| letter.to_owned()).collect();
            self.rows.insert(number, Row { attack: (*attack).to_owned(), specified });
        }
    }

    fn add_line(&mut self, fields: &[&str]) {
        let [row, probe, level, backend, host, user, expected, got, result, ..] = fields else { return };
        let (Ok(row), Ok(user)) = (row.parse(), user.parse()) else { return };
        if !self.hosts.iter().any(|known| known == host) {
            self.hosts.push((*host).to_owned());
        }
        let text = |field: &&str| (*field).to_owned();
        let answer = Answer {
            row,
            probe: text(probe),
            level: text(level),
            backend: text(backend),
            expected: text(expected),
            got: text(got),
            result: text(result),
        };
        self.lines.entry(answer).or_default().insert((user, text(host)));
    }

    /// The counts of all lines.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (answer, places) in &self.lines {
            match answer.result.as_str() {
                "held" => counts.held += places.len(),
                "wrong" => counts.wrong += places.len(),
                _ => counts.silent += places.len(),
            }
        }
        counts
    }

    /// The document.
    pub fn document(&self, date: &str, kernel: &str) -> String {
        let mut text = String::new();
        let counts = self.counts();
        let users: BTreeSet<u32> = self.lines.values().flatten().map(|(user, _)| *user).collect();
        let users: Vec<String> = users.iter().map(u32::to_string).collect();
        let _ = write!(
            text,
            "# The attack table\n\nWritten by `cargo xtask attack` from a run on {date}, Linux {kernel}, x86-64, as the users {}. Do not edit it.\n\n{counts}.\n\n",
            users.join(" and ")
        );
        text.push_str(
            "Specified: `A` allowed and documented, `E` refused with an error, `I` invisible, `L` capped and reported, `K` killed with a reason, `ok` the host is not fooled, `-` no promise.\n\
             A probe is one way to carry an attack out; `verdict:` is what the run was ended with, `error:` a request that was refused. Where nothing is promised, what was got is shown and not compared.\n\n\
             ## Hosts\n\n| | host |\n|---|---|\n",
        );
        for (index, host) in self.hosts.iter().enumerate() {
            let _ = writeln!(text, "| {} | {} |", letter(index), cell(host));
        }
        text.push_str("\n## Rows\n\n| row | attack | minimal | standard | strict | maximum | held | wrong |\n|---|---|---|---|---|---|---|---|\n");
        for (number, row) in &self.rows {
            let of = |result: &str| -> usize {
                self.lines
                    .iter()
                    .filter(|(answer, _)| answer.row == *number && answer.result == result)
                    .map(|(_, places)| places.len())
                    .sum()
            };
            let is_run = self.lines.keys().any(|answer| answer.row == *number);
            let (held, wrong) = if is_run {
                (of("held").to_string(), of("wrong").to_string())
            } else {
                (NOT_RUN.to_owned(), NOT_RUN.to_owned())
            };
            let specified: Vec<String> = row.specified.iter().map(|letter| cell(letter)).collect();
            let _ = writeln!(
                text,
                "| {number} | {} | {} | {held} | {wrong} |",
                cell(&row.attack),
                specified.join(" | "),
            );
        }
        text.push_str("\n## What was run\n\n| row | probe | level | backend | expected | got | user | hosts |\n|---|---|---|---|---|---|---|---|\n");
        for (answer, places) in self.lines.iter().filter(|(answer, _)| answer.result != "nothing to say") {
            let got =
                if answer.result == "wrong" { format!("**{}**", answer.got) } else { answer.got.clone() };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                answer.row,
                cell(&answer.probe),
                answer.level,
                answer.backend,
                cell(&answer.expected),
                cell(&got),
                self.places(places)
            );
        }
        text.push_str("\n## Where a row has nothing to say\n\n| row | probe | level | backend | reason | user | hosts |\n|---|---|---|---|---|---|---|\n");
        for (answer, places) in self.lines.iter().filter(|(answer, _)| answer.result == "nothing to say") {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                answer.row,
                cell(&answer.probe),
                answer.level,
                answer.backend,
                cell(&answer.got),
                self.places(places)
            );
        }
        text
    }

    /// The cells `user | hosts`.
    fn places(&self, places: &BTreeSet<(u32, String)>) -> String {
        let mut of_user: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (user, host) in places {
            let index = self.hosts.iter().position(|known| known == host).unwrap_or_default();
            of_user.entry(*user).or_default().push(letter(index));
        }
        for hosts in of_user.values_mut() {
            hosts.sort();
        }
        let users: Vec<String> = of_user.keys().map(u32::to_string).collect();
        let hosts: BTreeSet<String> = of_user.values().map(|hosts| hosts.concat()).collect();
        let hosts: Vec<String> = if hosts.len() == 1 {
            hosts.into_iter().collect()
        } else {
            of_user.iter().map(|(user, hosts)| format!("{} ({user})", hosts.concat())).collect()
        };
        format!("{} | {}", users.join(", "), hosts.join(", "))
    }
}

fn letter(index: usize) -> String {
    char::from_u32('a' as u32 + u32::try_from(index).unwrap_or_default()).unwrap_or('?').to_string()
}

/// Text that ends no cell and tells nothing of this machine: folders of the tests are left out.
fn cell(text: &str) -> String {
    const MOST: usize = 160;
    let words: Vec<String> = text
        .split(' ')
        .map(|word| match word.find("/tmp/").or_else(|| word.find("/proc/")) {
            Some(at) if word.len() > at + 12 => format!("{}…", &word[..at]),
            _ => word.to_owned(),
        })
        .collect();
    let mut cell: String =
        words.join(" ").replace('|', "\\|").replace('<', "&lt;").chars().take(MOST).collect();
    if text.chars().count() > MOST {
        cell.push('…');
    }
    cell
}

/// The numbers of the rows that a file of rows names.
pub fn rows_of(text: &str) -> BTreeSet<u32> {
    // The formatter may put the number into a line of its own.
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
    joined
        .match_indices(" row(")
        .filter_map(|(at, begin)| {
            let rest = &joined[at + begin.len()..];
            rest.split(',').next()?.parse().ok()
        })
        .collect()
}

/// The rows for which the document has an answer that was run, a reason, or the words that the run did not reach them.
pub fn answered(document: &str) -> BTreeSet<u32> {
    let number = |line: &str| line.strip_prefix("| ")?.split(" |").next()?.parse().ok();
    let (rows, results) = document.split_once("\n## What was run\n").unwrap_or_default();
    let unreached = rows.lines().filter(|line| line.ends_with(&format!("| {NOT_RUN} |")));
    results.lines().chain(unreached).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "test x ... \nATTACK ROW\t1\tread | /etc/shadow\tA\tE\tI\tI\n\
        ATTACK ROW\t3\tnot reached\tA\tE\tI\tI\n\
        ATTACK\t1\tread it\tstrict\tprocess\tthis host\t0\tENOENT\tENOENT\theld\t12\n\
        ATTACK\t1\tread it\tstrict\tprocess\tthis host\t65534\tENOENT\tENOENT\theld\t12\n\
        ATTACK\t1\tread it\tstandard\tprocess\tno Landlock\t0\tEACCES\tallowed\twrong\t12\n\
        ATTACK\t2\tfill\tminimal\tprocess\tthis host\t0\t\tits own files\tnothing to say\t0\n";

    #[test]
    fn what_was_printed_becomes_a_table() {
        let report = Report::read(PRINTED);
        assert_eq!(report.counts(), Counts { held: 2, wrong: 1, silent: 1 });
        let text = report.document("2026-11-22", "6.18.0");
        for line in [
            "| 1 | read \\| /etc/shadow | A | E | I | I | 2 | 1 |",
            "| 1 | read it | strict | process | ENOENT | ENOENT | 0, 65534 | a |",
            "| 1 | read it | standard | process | EACCES | **allowed** | 0 | b |",
            "| 2 | fill | minimal | process | its own files | 0 | a |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(answered(&text), BTreeSet::from([1, 2, 3]));
        assert!(text.contains("| 3 | not reached | A | E | I | I | not run | not run |"), "{text}");
    }

    #[test]
    fn rows_are_found_however_they_are_formatted() {
        let text =
            "fn row(number: u32) {}\n    row(1, \"a\"),\n    row(\n        22,\n        \"b\",\n    ),\n";
        assert_eq!(rows_of(text), BTreeSet::from([1, 22]));
    }

    #[test]
    fn days_are_dates() {
        assert_eq!(
            (crate::bench::date(0), crate::bench::date(20_779)),
            ("1970-01-01".into(), "2026-11-22".into())
        );
    }
}

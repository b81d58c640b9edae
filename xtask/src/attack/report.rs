//! The output of the parts of the run, and its document.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::NOT_RUN;

/// One row of the specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    attack: String,
    specified: Vec<String>,
}

/// A probe and its outcome, without the place.
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

/// A part of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The user who ran it.
    pub user: u32,
    /// When, and by which build of the tests; nothing if it was not run.
    pub by: Option<(String, String)>,
    /// `passed`, `failed` or `not run`.
    pub end: String,
    /// The duration in seconds.
    pub seconds: u64,
    counts: Counts,
}

impl Run {
    /// One that was not run.
    pub fn missing(name: &str, user: u32) -> Self {
        Self {
            name: name.to_owned(),
            user,
            by: None,
            end: NOT_RUN.to_owned(),
            seconds: 0,
            counts: Counts::default(),
        }
    }

    /// Reads the fields of a line `ATTACK RUN`.
    fn read(fields: &[&str]) -> Option<Self> {
        let [name, user, build, date, end, seconds] = fields else { return None };
        Some(Self {
            by: Some(((*date).to_owned(), (*build).to_owned())),
            end: (*end).to_owned(),
            seconds: seconds.parse().ok()?,
            ..Self::missing(name, user.parse().ok()?)
        })
    }
}

/// The output of the tests.
#[derive(Debug, Default)]
pub struct Report {
    /// The parts, in the order in which they were added.
    pub runs: Vec<Run>,
    rows: BTreeMap<u32, Row>,
    /// Each answer with the users and hosts that gave it.
    lines: BTreeMap<Answer, BTreeSet<(u32, String)>>,
    hosts: Vec<String>,
    /// Each ability of the host with the users who have it, and those who do not.
    facts: BTreeMap<String, BTreeMap<u32, bool>>,
    /// The failure messages of tests beside the table, by part.
    failures: Vec<(String, String)>,
}

/// The number of probes, and their outcomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that answered as expected, or where nothing is promised.
    pub held: usize,
    /// Others.
    pub wrong: usize,
    /// Probes that have not applicable somewhere.
    pub silent: usize,
}

impl Counts {
    fn add(&mut self, result: &str, count: usize) {
        match result {
            "held" => self.held += count,
            "wrong" => self.wrong += count,
            _ => self.silent += count,
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, wrong, silent } = self;
        write!(f, "{} probes run: {held} held, {wrong} wrong; {silent} not applicable", held + wrong)
    }
}

impl Report {
    /// Reads the lines `ATTACK…` out of what a part printed.
    pub fn add(&mut self, text: &str) {
        let mut part = String::new();
        for line in text.lines() {
            let mut fields = line.split('\t');
            match fields.next() {
                Some("ATTACK RUN") => {
                    let run = Run::read(&fields.collect::<Vec<_>>());
                    part = run.as_ref().map(|run| run.name.clone()).unwrap_or_default();
                    self.runs.extend(run);
                }
                Some("ATTACK ROW") => self.add_row(&fields.collect::<Vec<_>>()),
                Some("ATTACK FACT") => self.add_fact(&fields.collect::<Vec<_>>()),
                Some("ATTACK") => self.add_line(&fields.collect::<Vec<_>>()),
                _ if line.contains("panicked at") || line.ends_with("... FAILED") => {
                    self.failures.push((part.clone(), line.to_owned()));
                }
                _ => {}
            }
        }
    }

    fn add_fact(&mut self, fields: &[&str]) {
        if let [name, user, available] = fields
            && let Ok(user) = user.parse()
        {
            self.facts.entry((*name).to_owned()).or_default().insert(user, *available == "true");
        }
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
        if let Some(run) = self.runs.last_mut() {
            run.counts.add(result, 1);
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
            counts.add(&answer.result, places.len());
        }
        counts
    }

    /// Whether every part was run by a build and passed, every row was reached, and no answer was wrong.
    pub fn is_good(&self, build: &str) -> bool {
        let is_run = |run: &Run| run.end == "passed" && run.by.as_ref().is_some_and(|(_, by)| by == build);
        let is_whole = self.rows.keys().all(|row| self.lines.keys().any(|answer| answer.row == *row));
        self.counts().wrong == 0 && is_whole && self.runs.iter().all(is_run)
    }

    /// The failures, each with its part.
    pub fn trouble(&self) -> &[(String, String)] {
        &self.failures
    }

    /// The summary: hosts, parts, and each row with its counts. `build` is the tests' program that is there now.
    pub fn document(&self, date: &str, kernel: &str, build: &str) -> String {
        let mut text = String::new();
        let counts = self.counts();
        let users: BTreeSet<u32> = self.runs.iter().map(|run| run.user).collect();
        let users: Vec<String> = users.iter().map(u32::to_string).collect();
        let _ = write!(
            text,
            "# The attack table\n\nWritten by `cargo xtask attack` on {date}, Linux {kernel}, x86-64, as the users {}. Do not edit it.\n\n{counts}.\n\n",
            users.join(" and ")
        );
        text.push_str(
            "Specified: `A` allowed and documented, `E` refused with an error, `I` invisible, `L` capped and reported, `K` killed with a reason, `ok` the host keeps its state, `-` no promise.\n\
             A probe is one way to carry an attack out; `verdict:` is the verdict of the run, `error:` the error of a rejected request. Without a promise, the answer is listed and not compared.\n\
             The command also writes `.dev/attack/probes.md`: each probe with its level, backend, host, user and answer.\n\
             On this host, each probe runs on each backend and level. On poor hosts, each short probe runs cold, and the core of the table in pools and sessions.\n",
        );
        self.write_hosts(&mut text);
        self.write_facts(&mut text);
        self.write_runs(&mut text, build);
        self.write_rows(&mut text);
        self.write_reasons(&mut text);
        text
    }

    /// Every probe, on each level, backend and host, with what was expected and got.
    pub fn probes(&self) -> String {
        let mut text = String::from("# Probes of the attack table\n");
        self.write_hosts(&mut text);
        self.write_answers(&mut text);
        self.write_silent(&mut text);
        text
    }

    fn write_hosts(&self, text: &mut String) {
        text.push_str("\n## Hosts\n\n| | host |\n|---|---|\n");
        for (index, host) in self.hosts.iter().enumerate() {
            let _ = writeln!(text, "| {} | {} |", letter(index), cell(host));
        }
    }

    fn write_facts(&self, text: &mut String) {
        text.push_str("\n## What this host has\n\n| ability | by user |\n|---|---|\n");
        for (name, by_user) in &self.facts {
            let has: BTreeSet<bool> = by_user.values().copied().collect();
            let word = |has: bool| if has { "yes" } else { "no" };
            let users: Vec<String> = if has.len() == 1 {
                has.into_iter().map(|has| word(has).to_owned()).collect()
            } else {
                by_user.iter().map(|(user, has)| format!("{} ({user})", word(*has))).collect()
            };
            let _ = writeln!(text, "| `{name}` | {} |", users.join(", "));
        }
    }

    fn write_runs(&self, text: &mut String, build: &str) {
        text.push_str("\n## Parts\n\n| part | end | held | wrong | not applicable | seconds |\n|---|---|---|---|---|---|\n");
        let mut others = BTreeSet::new();
        for run in &self.runs {
            let mark = match &run.by {
                Some((date, by)) if by != build => {
                    others.insert(date.clone());
                    " \\*"
                }
                _ => "",
            };
            let Counts { held, wrong, silent } = run.counts;
            let _ = writeln!(
                text,
                "| {}{mark} | {} | {held} | {wrong} | {silent} | {} |",
                cell(&run.name),
                run.end,
                run.seconds
            );
        }
        if !others.is_empty() {
            let others: Vec<String> = others.into_iter().collect();
            let _ = writeln!(
                text,
                "\n\\* Run on {} by another build of the tests than the others.",
                others.join(" and ")
            );
        }
        let failures: Vec<_> =
            self.failures.iter().filter(|(part, line)| self.is_of_failure(part, line)).collect();
        if !failures.is_empty() {
            text.push_str("\n## Failures\n\n| part | output |\n|---|---|\n");
            for (part, line) in failures {
                let _ = writeln!(text, "| {} | {} |", cell(part), cell(line));
            }
        }
    }

    /// Whether a line names a failure: tests that pass can have threads that panic on purpose.
    fn is_of_failure(&self, part: &str, line: &str) -> bool {
        let ended_well = |test: &str| {
            let failed = format!("test {test} ... FAILED");
            !self.failures.iter().any(|(other, line)| other == part && *line == failed)
        };
        let has_names =
            self.failures.iter().any(|(other, line)| other == part && line.ends_with("... FAILED"));
        match line.strip_prefix("thread '").and_then(|rest| rest.split('\'').next()) {
            Some(test) if has_names => !ended_well(test),
            _ => true,
        }
    }

    fn write_rows(&self, text: &mut String) {
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
    }

    fn write_answers(&self, text: &mut String) {
        text.push_str("\n## What was run\n\n| row | probe | level | backend | expected | got | user | hosts |\n|---|---|---|---|---|---|---|---|\n");
        for (answer, places) in self.lines.iter().filter(|(answer, _)| answer.result != "not applicable") {
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
    }

    fn write_reasons(&self, text: &mut String) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (answer, places) in self.lines.iter().filter(|(answer, _)| answer.result == "not applicable") {
            *counts.entry(&answer.got).or_default() += places.len();
        }
        text.push_str("\n## Why probes are not applicable\n\n| reason | probes |\n|---|---|\n");
        for (reason, count) in counts {
            let _ = writeln!(text, "| {} | {count} |", cell(reason));
        }
    }

    fn write_silent(&self, text: &mut String) {
        text.push_str("\n## Rows without applicable probes\n\n| row | probe | level | backend | reason | user | hosts |\n|---|---|---|---|---|---|---|\n");
        for (answer, places) in self.lines.iter().filter(|(answer, _)| answer.result == "not applicable") {
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

/// Text that ends no cell and tells nothing of this machine: directories of the tests are omitted.
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

#[cfg(test)]
mod tests {
    use super::super::answered;
    use super::*;

    const PRINTED: &str = "ATTACK RUN\tthis host, as user 0\t0\tb1\t2026-11-22\tpassed\t12\n\
        test x ... \nATTACK ROW\t1\tread | /etc/shadow\tA\tE\tI\tI\n\
        ATTACK ROW\t3\tnot reached\tA\tE\tI\tI\nATTACK FACT\tlandlock\t0\ttrue\n\
        ATTACK\t1\tread it\tstrict\tprocess\tthis host\t0\tENOENT\tENOENT\theld\t12\n\
        ATTACK\t1\tread it\tstandard\tprocess\tno Landlock\t0\tEACCES\tallowed\twrong\t12\n\
        ATTACK\t2\tfill\tminimal\tprocess\tthis host\t0\t\tits own files\tnot applicable\t0\n";
    const AS_NOBODY: &str = "ATTACK RUN\tthis host, as user 65534\t65534\tb0\t2026-11-20\tfailed\t3\n\
        ATTACK\t1\tread it\tstrict\tprocess\tthis host\t65534\tENOENT\tENOENT\theld\t12\n\
        ATTACK FACT\tlandlock\t65534\tfalse\nthread 'x' panicked at y\n";

    fn report() -> Report {
        let mut report = Report::default();
        report.add(PRINTED);
        report.add(AS_NOBODY);
        report
    }

    #[test]
    fn what_was_printed_becomes_a_table() {
        let report = report();
        assert_eq!(report.counts(), Counts { held: 2, wrong: 1, silent: 1 });
        let text = report.document("2026-11-22", "6.18.0", "b1");
        for line in [
            "as the users 0 and 65534.",
            "| `landlock` | yes (0), no (65534) |",
            "| this host, as user 0 | passed | 1 | 1 | 1 | 12 |",
            "| this host, as user 65534 \\* | failed | 1 | 0 | 0 | 3 |",
            "\\* Run on 2026-11-20 by another build of the tests than the others.",
            "| this host, as user 65534 | thread 'x' panicked at y |",
            "| 1 | read \\| /etc/shadow | A | E | I | I | 2 | 1 |",
            "| its own files | 1 |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(answered(&text), BTreeSet::from([1, 3]));
        let mut report = super::tests::report();
        report.add(
            "ATTACK RUN\tother, as user 0\t0\tb1\t2026-11-22\tfailed\t12\ntest a ... FAILED\n\
             thread 'a' panicked at q\nthread 'b' panicked at z\n",
        );
        let failed = report.document("2026-11-22", "6.18.0", "b1");
        assert!(failed.contains("panicked at q") && !failed.contains("panicked at z"), "{failed}");
        assert!(text.contains("| 3 | not reached | A | E | I | I | not run | not run |"), "{text}");
        let text = report.probes();
        for line in [
            "| a | this host |",
            "| 1 | read it | strict | process | ENOENT | ENOENT | 0, 65534 | a |",
            "| 1 | read it | standard | process | EACCES | **allowed** | 0 | b |",
            "| 2 | fill | minimal | process | its own files | 0 | a |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn only_a_whole_run_of_one_build_without_a_wrong_answer_is_good() {
        let good = "ATTACK RUN\tx\t0\tb1\t2026-11-22\tpassed\t12\nATTACK ROW\t1\tread\tA\tE\tI\tI\n\
            ATTACK\t1\tread it\tstrict\tprocess\tthis host\t0\tENOENT\tENOENT\theld\t12\n";
        let is_good = |text: &str, missing: bool| {
            let mut report = Report::default();
            report.add(text);
            if missing {
                report.runs.push(Run::missing("y", 0));
            }
            report.is_good("b1")
        };
        assert!(is_good(good, false));
        assert!(!is_good(good, true), "a part is missing");
        for (was, is) in [("passed", "failed"), ("held", "wrong"), ("\tb1", "\tb0"), ("ROW\t1", "ROW\t2")] {
            assert!(!is_good(&good.replace(was, is), false), "{was} {is}");
        }
    }
}

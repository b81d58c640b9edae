//! The attack table of the sandbox: runs it whole, as root and as an ordinary user, and writes `docs/attacks.md`.
//!
//! It is run in parts, each a program of its own that writes what it found to `.dev/attack`. Named parts can be run again
//! alone; the document is made of what every part found last, and says so where another build of the tests found it.

mod report;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::command::Task;
use crate::suite::setup;

pub use report::{Counts, Report, Run};

/// Where the table is written.
pub const DOCUMENT: &str = "docs/attacks.md";
/// Where every probe of it is written.
const PROBES: &str = ".dev/attack/probes.md";
/// Where its rows are.
pub const ROWS: &str = "crates/sandbox/tests/it/attack/rows.rs";
/// The text of a row that a run did not reach.
const NOT_RUN: &str = "not run";
/// The directory of the parts.
const DIRECTORY: &str = ".dev/attack";
/// The test that prints the rows, the parts and the facts of the host.
const PLAN: &str = "attack::table::every_row_has_a_probe";
/// The user that root becomes.
const NOBODY: u32 = 65_534;
/// The number of parts that run at once: most of them wait for something most of the time.
const AT_ONCE: usize = 5;

/// A piece of the run: some tests, as a user.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    name: String,
    user: u32,
    arguments: Vec<String>,
    /// The backend or the poor host, for a part of the table.
    place: Option<String>,
}

impl Part {
    fn new(name: &str, user: u32, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { name: format!("{name}, as user {user}"), user, arguments, place: None }
    }

    fn file(&self, directory: &Path) -> PathBuf {
        let name: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        directory.join(format!("{name}.log"))
    }

    /// Runs it and keeps what it printed, under a line that says by what and when.
    fn run(&self, root: &Path, program: &str, build: &str) -> Result<bool> {
        let mut task = Task::new(program, &[])
            .directory(Path::new("/"))
            .variable("TOOLPOST_ATTACK", "all")
            .variable("TMPDIR", "/tmp")
            .variable("RUST_BACKTRACE", "0")
            .limit(Duration::from_hours(1));
        for argument in
            self.arguments.iter().map(String::as_str).chain(["--nocapture", "--test-threads", "2"])
        {
            task = task.argument(argument);
        }
        if let Some(place) = &self.place {
            task = task.variable("TOOLPOST_ATTACK_PLACE", place);
        }
        if own_user()? != self.user {
            task = task.user(self.user);
        }
        let begin = Instant::now();
        let captured = task.capture()?;
        let seconds = begin.elapsed().as_secs();
        let end = if captured.success { "passed" } else { "failed" };
        let file = self.file(&root.join(DIRECTORY));
        let text = format!(
            "ATTACK RUN\t{}\t{}\t{build}\t{}\t{end}\t{seconds}\n{}\n{}",
            self.name,
            self.user,
            today(),
            captured.text,
            captured.errors
        );
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        eprintln!("[{seconds:5} s] {}: {end}", self.name);
        Ok(captured.success)
    }
}

/// Runs everything, or the parts whose names contain one of the words, and writes the document. The answer is whether every
/// part was run by this build, passed, and gave the expected answers.
pub fn run(root: &Path, words: &[String]) -> Result<bool> {
    setup::provide(root, setup::NEEDS);
    setup::provide(root, setup::ATTACKS);
    let program = build(root)?;
    let build = fingerprint(&program)?;
    let directory = root.join(DIRECTORY);
    if words.is_empty() && directory.exists() {
        fs::remove_dir_all(&directory).map_err(|error| format!("cannot clear {DIRECTORY}: {error}"))?;
    }
    fs::create_dir_all(&directory).map_err(|error| format!("cannot make {DIRECTORY}: {error}"))?;
    let user = own_user()?;
    let users = if user == 0 { vec![0, NOBODY] } else { vec![user] };
    let mut parts: Vec<Part> =
        users.iter().map(|&user| Part::new("the rows", user, &["--exact", PLAN])).collect();
    for part in &parts {
        part.run(root, &program, &build)?;
    }
    let plan = fs::read_to_string(parts[0].file(&directory)).unwrap_or_default();
    parts.extend(plan_of(&plan, &users));
    let wanted: Vec<&Part> = parts
        .iter()
        .skip(users.len())
        .filter(|part| words.is_empty() || words.iter().any(|word| part.name.contains(word.as_str())))
        .collect();
    if wanted.is_empty() {
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        return Err(format!("no part has {} in its name; there are: {}", words.join(", "), names.join("; ")));
    }
    eprintln!("{} parts, {AT_ONCE} at once: up to an hour for all", wanted.len());
    run_all(&wanted, root, &program, &build)?;
    let mut report = Report::default();
    for part in &parts {
        match fs::read_to_string(part.file(&directory)) {
            Ok(text) => report.add(&text),
            Err(_) => report.runs.push(Run::missing(&part.name, part.user)),
        }
    }
    let text = report.document(&today(), &kernel(), &build);
    fs::write(root.join(DOCUMENT), text).map_err(|error| format!("cannot write {DOCUMENT}: {error}"))?;
    fs::write(root.join(PROBES), report.probes())
        .map_err(|error| format!("cannot write {PROBES}: {error}"))?;
    let counts = report.counts();
    for (part, line) in report.trouble() {
        println!("{part}: {line}");
    }
    println!("{counts}; see {DOCUMENT}");
    Ok(report.is_good(&build))
}

/// Runs parts, some at once. One that cannot be started fails all, after the others.
fn run_all(parts: &[&Part], root: &Path, program: &str, build: &str) -> Result<()> {
    let queue = Mutex::new(parts.iter());
    let errors = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().map(|mut queue| queue.next()).unwrap_or_default();
                    let Some(part) = next else { break };
                    if let Err(error) = part.run(root, program, build)
                        && let Ok(mut errors) = errors.lock()
                    {
                        errors.push(error);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap_or_default();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// The parts that the tests name, and the tests beside the table; those that take longest first.
fn plan_of(printed: &str, users: &[u32]) -> Vec<Part> {
    const TABLE: &str = "attack::table::the_attack_table";
    let mut parts = Vec::new();
    for &user in users {
        parts.push(Part::new("what stays behind", user, &["leaks::"]));
        parts.push(Part::new("mixing, fuzzing, bad input", user, &["attack::", "--skip", TABLE]));
    }
    for line in printed.lines() {
        let mut fields = line.split('\t');
        let (Some("ATTACK PART"), Some(test), Some(place)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        for &user in users {
            let name = if test.ends_with("_here") { format!("this host: {place}") } else { place.to_owned() };
            let part = Part::new(&name, user, &["--exact", test]);
            parts.push(Part { place: Some(place.to_owned()), ..part });
        }
    }
    if users.len() > 1 {
        let others = ["--skip", "attack::", "--skip", "leaks::", "--skip", "unprivileged::"];
        parts.push(Part::new("every other test", NOBODY, &others));
    }
    // A container takes ten times as long as any other run: what has them begins first, then comes the table.
    parts.sort_by_key(|part| (part.place.as_deref() != Some("docker"), part.place.is_none()));
    parts
}

/// The user who runs this.
fn own_user() -> Result<u32> {
    let captured = Task::new("id", &["-u"]).capture()?;
    captured.text.trim().parse().map_err(|_| format!("`id -u` says `{}`", captured.text.trim()))
}

/// A number of the tests' program, by which results of another build are known.
fn fingerprint(program: &str) -> Result<String> {
    use std::hash::Hasher as _;
    let bytes = fs::read(program).map_err(|error| format!("cannot read {program}: {error}"))?;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

/// The release of the kernel without what a distributor or a cloud adds.
fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().split('-').next().unwrap_or_default().to_owned()
}

/// Builds the tests of the sandbox and gives the program.
pub fn build(root: &Path) -> Result<String> {
    let captured = Task::new("cargo", &["test", "--package", "toolpost-sandbox", "--test", "it", "--no-run"])
        .argument("--message-format=json")
        .directory(root)
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

/// The rows for which the document has counts, or the words that the run did not reach them.
pub fn answered(document: &str) -> BTreeSet<u32> {
    let number = |line: &str| line.strip_prefix("| ")?.split(" |").next()?.parse().ok();
    let (_, rows) = document.split_once("\n## Rows\n").unwrap_or_default();
    let rows = rows.split("\n## ").next().unwrap_or_default();
    rows.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_those_that_the_tests_name_for_each_user_and_the_rest() {
        let printed = "x\nATTACK PART\tattack::table::the_attack_table_holds_here\tpool\n\
            ATTACK PART\tattack::table::the_attack_table_holds_on_poor_hosts\ta kernel of 2019\n";
        let names = |users: &[u32]| -> Vec<String> {
            plan_of(printed, users).into_iter().map(|part| part.name).collect()
        };
        assert_eq!(
            names(&[0, NOBODY]),
            [
                "this host: pool, as user 0",
                "this host: pool, as user 65534",
                "a kernel of 2019, as user 0",
                "a kernel of 2019, as user 65534",
                "what stays behind, as user 0",
                "mixing, fuzzing, bad input, as user 0",
                "what stays behind, as user 65534",
                "mixing, fuzzing, bad input, as user 65534",
                "every other test, as user 65534",
            ]
        );
        assert_eq!(names(&[1000]).len(), 4);
        let parts = plan_of(printed, &[0]);
        assert_eq!(parts[0].place.as_deref(), Some("pool"));
        assert_eq!(parts[0].arguments, ["--exact", "attack::table::the_attack_table_holds_here"]);
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

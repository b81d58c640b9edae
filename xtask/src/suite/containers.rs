//! The command in containers with Docker's defaults, where neither namespaces nor overlays exist.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::report::Tally;
use super::setup;
use crate::Result;
use crate::attack;
use crate::command::Task;
use crate::workspace::Workspace;

/// Starts a daemon and makes an image of this machine's own files.
const DAEMON: &str = include_str!("containers/daemon.sh");
/// One small job for each way to use the command.
const SMOKE: &str = include_str!("containers/smoke.sh");
/// The attack table.
const ATTACK: &str = include_str!("containers/attack.sh");

/// A set of jobs.
struct Jobs<'a> {
    name: &'a str,
    script: &'a str,
    /// The program that the containers get.
    program: &'a Path,
    limit: Duration,
}

/// Runs the smoke jobs with the command that `cargo build` left.
pub fn smoke(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let program = workspace.target.join("debug/toolpost");
    if !program.exists() {
        tally.skip("containers", "needs the command, which `cargo build` makes");
        return Ok(());
    }
    let jobs = Jobs { name: "containers", script: SMOKE, program: &program, limit: Duration::from_mins(10) };
    run(&workspace.root, &jobs, tally)
}

/// Runs the smoke jobs, and the attack table in containers, or those of the two with one of these words in their names.
pub fn run_alone(root: &Path, words: &[String]) -> Result<bool> {
    setup::provide(root, setup::NEEDS);
    let mut tally = Tally::default();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    if is_wanted("smoke") {
        smoke(&Workspace::read(root)?, &mut tally)?;
    }
    if is_wanted("attack") {
        let program = attack::build(root)?;
        let jobs = Jobs {
            name: "attacks in containers",
            script: ATTACK,
            program: Path::new(&program),
            limit: Duration::from_hours(1),
        };
        run(root, &jobs, &mut tally)?;
    }
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

fn run(root: &Path, jobs: &Jobs<'_>, tally: &mut Tally) -> Result<()> {
    let probe = "[ $(id -u) = 0 ] && command -v dockerd docker";
    if !Task::new("sh", &["-c", probe]).capture()?.success {
        tally.skip(jobs.name, "needs root and docker.io");
        return Ok(());
    }
    let begin = Instant::now();
    let work = root.join(".dev/containers");
    let failed = |error: std::io::Error| format!("cannot make {}: {error}", work.display());
    let remove = || if work.exists() { fs::remove_dir_all(&work) } else { Ok(()) };
    remove().and_then(|()| fs::create_dir_all(&work)).map_err(failed)?;
    let script = format!("{DAEMON}\n{}", jobs.script);
    let captured = Task::new("sh", &["-c", &script])
        .variable("WORK", &work.display().to_string())
        .variable("ROOT", &root.display().to_string())
        .variable("BINARY", &jobs.program.display().to_string())
        .limit(jobs.limit)
        .capture()?;
    for line in captured.text.lines() {
        if let Some(reason) = line.strip_prefix("SKIP ") {
            tally.skip(jobs.name, reason);
        } else if line.starts_with("PASSED ") {
            tally.passed += 1;
        } else if let Some(failure) = line.strip_prefix("FAILED ") {
            tally.failed.push(format!("{}: {failure}", jobs.name));
        }
    }
    if !captured.success {
        tally.failed.push(format!("{}: {}{}", jobs.name, captured.text, captured.errors));
    }
    eprintln!("{}: {:.1} s", jobs.name, begin.elapsed().as_secs_f64());
    remove().map_err(failed)
}

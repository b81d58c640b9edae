//! A machine with a kernel of its own, in software: the release's binary confines code on Debian's kernel, as root, as
//! an ordinary user, and in a delegated control group of version 2. It covers aarch64, too, whose system calls
//! `qemu-user` cannot filter.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TARGETS, Target, build};
use crate::Result;
use crate::command::Task;
use crate::suite::report::Tally;
use crate::suite::setup;
use crate::workspace::Workspace;

/// Builds the disk and boots it.
const HOST: &str = include_str!("machine/host.sh");
/// The program that the machine runs instead of an init system.
const GUEST: &str = include_str!("machine/guest.sh");

/// Builds the static binaries, or those whose targets have one of these words, and tries each on a machine.
pub fn run(root: &Path, words: &[String]) -> Result<bool> {
    setup::provide(root, &[setup::ZIG, setup::TARGETS]);
    let workspace = Workspace::read(root)?;
    let mut tally = Tally::default();
    let is_named = |target: &Target| words.iter().any(|word| target.triple().contains(word.as_str()));
    for target in TARGETS.into_iter().filter(|target| words.is_empty() || is_named(target)) {
        let binary = build::binary(&workspace, target)?;
        boot(root, target, &binary, &mut tally)?;
    }
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Tries a static binary on the machine of its platform.
pub fn boot(root: &Path, target: Target, binary: &Path, tally: &mut Tally) -> Result<()> {
    setup::provide(root, &[setup::MACHINE]);
    let begin = Instant::now();
    let name = format!("machine {}", target.arch);
    let work = root.join(".dev/machine").join(target.arch);
    let captured = Task::new("sh", &["-c", HOST])
        .directory(root)
        .variable("WORK", &work.display().to_string())
        .variable("ARCH", target.arch)
        .variable("DEBIAN", target.debian)
        .variable("BINARY", &binary.display().to_string())
        .variable("GUEST", GUEST)
        .limit(Duration::from_mins(15))
        .capture()?;
    let mut has_ended = false;
    for line in captured.text.lines().map(str::trim) {
        if let Some(check) = line.strip_prefix("not ok ") {
            tally.failed.push(format!("{name}: {check}"));
        } else if line.starts_with("ok ") {
            tally.passed += 1;
        } else if let Some(reason) = line.strip_prefix("SKIP ") {
            tally.skip(&name, reason);
            has_ended = true;
        }
        has_ended |= line == "1..end";
    }
    if !has_ended {
        let output = format!("{}{}", captured.text, captured.errors);
        let last = output.trim().chars().rev().take(1500).collect::<Vec<_>>();
        tally.failed.push(format!("{name}: it ended early: {}", last.iter().rev().collect::<String>()));
    }
    eprintln!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

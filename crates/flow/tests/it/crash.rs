//! The store of a run fails: its process is killed within a commit, its disk is full, its clock jumps.

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_flow::{FlowProgress, Flows, RunStatus, StepStatus};
use toolpost_store::Store;

use crate::observed::Observed;
use crate::resume::{effects, file_toolbox, finish, long_plan, runtime};

/// Set for this program as the process whose store fails: `STORE LEDGER fails|ends PARALLEL`.
const VICTIM: &str = "TOOLPOST_TEST_CRASH";

fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n{line}").and_then(|()| out.flush());
}

/// The process whose store fails. It prints the steps that succeeded and were stored, and how the run ended.
#[test]
fn helper_crash() {
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one sets it")]
    let Ok(words) = std::env::var(VICTIM) else { return };
    let [store, ledger, how, parallel] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
    let parallel = parallel.parse().unwrap();
    let outcome = runtime().block_on(async {
        let store = Observed::new(Arc::new(Store::open(store)?), |_, is_done| {
            print(if is_done { "COMMITTED" } else { "COMMIT" });
            false
        });
        let flows = Flows::new(file_toolbox(Path::new(ledger))).store(store);
        let run = match flows.find("last").await {
            Ok(id) => flows.resume(id),
            Err(_) => flows.run(long_plan(how == "fails"), Value::Null),
        };
        let run = run.max_parallel(parallel).on_progress(|event| {
            if let FlowProgress::Ended { step, status: StepStatus::Succeeded, .. } = event {
                print(&format!("DONE {step}"));
            }
        });
        run.into_future().await
    });
    match outcome {
        Ok(outcome) => print(&format!("ENDED {}", outcome.status.as_str())),
        Err(error) => print(&format!("ERROR {error}")),
    }
}

/// This program as the process whose store fails, started by a wrapper.
fn victim(wrapper: &[&str], directory: &Path, store: &Path, how: &str, parallel: usize) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut words: Vec<&std::ffi::OsStr> = wrapper.iter().map(std::ffi::OsStr::new).collect();
    words.push(own.as_os_str());
    #[expect(clippy::disallowed_methods, reason = "this test program itself, as another process")]
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(["crash::helper_crash", "--exact", "--nocapture"])
        .env(VICTIM, format!("{} {} {how} {parallel}", store.display(), directory.join("ledger").display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The effects of each step in the ledger.
fn counts(directory: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(directory.join("ledger")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line.split('=').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    counts
}

/// No step whose end was acknowledged ran again, at most `in_flight` steps ran twice, and all ran.
fn check_effects(directory: &Path, printed: &str, expected: &[String], in_flight: usize, context: &str) {
    let counts = counts(directory);
    for step in printed.lines().filter_map(|line| line.strip_prefix("DONE ")) {
        if let Some(count) = counts.get(step) {
            assert_eq!(*count, 1, "{context}: {step} had ended and ran again");
        }
    }
    let (repeated, done) = effects(directory);
    assert_eq!(done, expected, "{context}");
    assert!(repeated <= in_flight, "{context}: {repeated} steps ran twice");
}

/// The effects of a run that nothing disturbs, and the number of its commits.
fn undisturbed(how: &str, parallel: usize) -> (Vec<String>, usize) {
    let directory = tempfile::tempdir().unwrap();
    let output =
        victim(&[], directory.path(), &directory.path().join("store"), how, parallel).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let (repeated, expected) = effects(directory.path());
    assert!(repeated == 0 && expected.len() >= 27, "{printed}");
    (expected, printed.lines().filter(|line| *line == "COMMIT").count())
}

/// SIGKILL at a random microsecond of a random commit: the transaction is complete or absent, and the run resumes.
#[test]
fn a_process_killed_within_a_commit_loses_nothing() {
    const ROUNDS: u64 = 60;
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |bound: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as usize % bound
    };
    let plans = [undisturbed("ends", 1), undisturbed("fails", 1)];
    let (mut within, mut repeats) = (0, 0);
    for round in 0..ROUNDS {
        let which = below(2);
        let how = ["ends", "fails"][which];
        let (expected, commits) = &plans[which];
        let directory = tempfile::tempdir().unwrap();
        // The first commit is the run itself.
        let point = 2 + below(commits - 2);
        let delay = Duration::from_micros(below(400) as u64);
        let mut child =
            victim(&[], directory.path(), &directory.path().join("store"), how, 1).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut printed = String::new();
        let mut count = 0;
        for line in lines.by_ref() {
            printed.extend([line.as_str(), "\n"]);
            count += usize::from(line == "COMMIT");
            if count == point {
                break;
            }
        }
        let until = Instant::now() + delay;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        // SIGKILL.
        let _ = child.kill();
        child.wait().unwrap();
        let rest: Vec<String> = lines.collect();
        let commits = |word: &str| {
            printed.lines().chain(rest.iter().map(String::as_str)).filter(|line| *line == word).count()
        };
        within += usize::from(commits("COMMIT") > commits("COMMITTED"));
        printed += &rest.join("\n");
        if !printed.contains("ENDED") {
            let context = format!("{how}, round {round}, commit {point}, {delay:?}");
            let running = runtime().block_on(async {
                let store = Store::open(directory.path().join("store")).unwrap();
                let flows = Flows::new(file_toolbox(&directory.path().join("ledger"))).store(Arc::new(store));
                let id = flows.find("last").await.unwrap();
                flows.summary(id).await.unwrap().status == RunStatus::Running
            });
            if running {
                let outcome = finish(directory.path());
                let status = if how == "fails" { RunStatus::Failed } else { RunStatus::Succeeded };
                assert_eq!(outcome.status, status, "{context}: {:?}", outcome.error);
            }
            check_effects(directory.path(), &printed, expected, 1, &context);
            repeats += effects(directory.path()).0;
        }
    }
    // Otherwise the test shows little.
    assert!(within >= ROUNDS as usize / 4, "{within} of {ROUNDS} within a commit, {repeats} repeated steps");
}

/// The effect of a full disk on a run: the error, and the whole output.
fn check_error(printed: &str, store: &Path, causes: &[&str], context: &str) {
    let error = printed.lines().find_map(|line| line.strip_prefix("ERROR ")).unwrap_or_default();
    assert!(error.contains(&format!("the store `{}`", store.display())), "{context}: {printed}");
    assert!(causes.iter().any(|cause| error.contains(cause)), "{context}: {error}");
}

/// Files that may not grow, at many sizes. An ordinary user can do that everywhere.
#[test]
fn a_store_that_cannot_grow_is_a_clear_error_and_loses_nothing() {
    let mut failed = 0;
    for how in ["ends", "fails"] {
        let (expected, _) = undisturbed(how, 4);
        let mut starts = 0;
        for round in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let store = directory.path().join("store");
            // In blocks of 512 bytes. The signal would end the process before it can report the error.
            let limit = 64 + 8 * round;
            let script = format!("trap '' XFSZ; ulimit -f {limit} || exit 9; exec \"$0\" \"$@\"");
            let output = victim(&["sh", "-c", &script], directory.path(), &store, how, 4).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let context = format!("{how}, {limit} blocks");
            if printed.contains("\nENDED ") {
                break;
            }
            assert!(round < 200, "{context}: {printed}");
            check_error(&printed, &store, &["failed unexpectedly", "disk is full"], &context);
            if counts(directory.path()).is_empty() {
                // Not even the run fits.
                starts += 1;
                continue;
            }
            let outcome = finish(directory.path());
            let status = if how == "fails" { RunStatus::Failed } else { RunStatus::Succeeded };
            assert_eq!(outcome.status, status, "{context}: {:?}", outcome.error);
            check_effects(directory.path(), &printed, &expected, 4, &context);
            failed += 1;
        }
        assert!(starts < 40, "the run never starts");
    }
    assert!(failed >= 20, "only {failed} runs met the limit");
}

/// A disk of a few hundred kilobytes, which then grows. It needs a user namespace with mounts.
#[test]
fn a_full_disk_is_a_clear_error_and_the_run_resumes_when_there_is_space() {
    let probe = ["unshare", "--user", "--map-root-user", "--mount", "true"];
    #[expect(clippy::disallowed_methods, reason = "the question whether the machine can")]
    let probed = Command::new(probe[0]).args(&probe[1..]).stderr(Stdio::null()).status();
    if !probed.is_ok_and(|status| status.success()) {
        println!("SKIP a full disk: no user namespace with mounts on this host");
        return;
    }
    let (mut failed, how) = (0, "fails");
    let (expected, _) = undisturbed(how, 4);
    for size in (96..).step_by(8) {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let script = format!(
            "set -e; mount -t tmpfs -o size={size}k none '{disk}'; \"$0\" \"$@\"; echo; echo SPACE; \
             mount -o remount,size=64m '{disk}'; exec \"$0\" \"$@\"",
            disk = disk.display()
        );
        let wrapper = [&probe[..4], &["sh", "-c", &script]].concat();
        let output = victim(&wrapper, directory.path(), &disk.join("store"), how, 4).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let context = format!("{size} KiB: {}", String::from_utf8_lossy(&output.stderr));
        let (before, after) =
            printed.split_once("\nSPACE\n").unwrap_or_else(|| panic!("{context}: {printed}"));
        if before.contains("\nENDED ") {
            break;
        }
        assert!(size < 8_000, "{context}: {printed}");
        check_error(before, &disk.join("store"), &["disk is full"], &context);
        assert!(after.contains("\nENDED failed"), "{context}: {after}");
        check_effects(directory.path(), before, &expected, 4, &context);
        failed += 1;
    }
    assert!(failed >= 3, "only {failed} runs met the full disk");
}

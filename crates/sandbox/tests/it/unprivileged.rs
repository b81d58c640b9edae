//! When the tests run as root, repeats those that depend on the user as an ordinary user. `cargo xtask
//! attack` repeats all.

/// Which modules are repeated as an ordinary user, and why or why not. A test checks that each module is
/// listed.
const MODULES: &[(&str, bool, &str)] = &[
    ("attack", true, "what the user's own rights reach"),
    ("backends", false, "an example of the trait, which starts no sandbox of its own"),
    ("builds", false, "builds are runs: `runs`, `files` and `languages` hold what the user changes in them"),
    ("copies", true, "owners and rights of the copy"),
    ("daemon", false, "the Docker daemon of the attack table needs root"),
    ("derived_paths", true, "shown directories are mounted and covered in other ways"),
    ("detached", false, "services are runs that are left alone: `starts` holds the start"),
    ("egress", true, "the network namespace is made without root's rights; this module has the servers"),
    ("egress_attacks", false, "the proxy is the host's own thread: it parses the same for everybody"),
    ("egress_clients", false, "as `egress_attacks`"),
    ("egress_limits", false, "as `egress_attacks`"),
    ("egress_runs", true, "egress from a user-owned namespace"),
    ("egress_secrets", false, "as `egress_attacks`"),
    ("egress_tls", false, "as `egress_attacks`"),
    ("environments", true, "directories of the user are shown in other ways"),
    ("files", true, "owners and rights of what goes in and comes back"),
    ("generated_values", false, "it has no tests"),
    ("git_commits", true, "as `layer`, and git of the user"),
    ("git_configuration", true, "as `layer`"),
    ("hardening", true, "what the kernel gives to a user without rights"),
    ("ladder", true, "each rung is another one without root's rights"),
    ("languages", false, "which interpreters are found is a matter of their places"),
    ("layer", true, "overlays of a user namespace, owners and rights"),
    ("layer_conflicts", true, "as `layer`"),
    ("layer_programs", true, "as `layer`"),
    ("layer_records", true, "as `layer`"),
    ("leaks", true, "control groups, directories and mounts are made in other ways"),
    ("levels", true, "the layers of each level are made in other ways"),
    ("limits", true, "control groups and limits count by user"),
    ("mass_deletion", true, "as `layer`"),
    ("pool_directories", true, "a directory is attached from a namespace that the user owns"),
    ("pool_failures", true, "as `pools`"),
    ("pools", true, "spares are made in other ways"),
    ("protected_names", true, "as `layer`"),
    ("roots", true, "mounts and identities"),
    ("run_changes", true, "as `layer`"),
    ("runs", true, "the run itself"),
    ("sessions", true, "members and their roots are made in other ways"),
    ("sessions_data", false, "the packages of the profile: `sessions` holds the session"),
    ("sessions_egress", true, "egress from a user-owned namespace, in a session"),
    ("sessions_forks", true, "forks copy mounts that the user owns"),
    ("sessions_hostile", true, "as `attack`"),
    ("sessions_idle", false, "the clock and the freezer are the host's own: `sessions` holds the session"),
    ("sessions_javascript", false, "another interpreter in a session: `sessions` holds the session"),
    ("starts", true, "helpers and control groups are made in other ways"),
    ("support", false, "it has no tests"),
    ("typescript", false, "a run of an interpreter"),
    ("unprivileged", false, "this one"),
    (
        "values",
        false,
        "a matter of the interpreters: `runs`, `pools` and `sessions` hold the ways to run code",
    ),
];

/// The tests that the test program skips.
fn left_out() -> Vec<String> {
    let is_complete = crate::attack::is_complete();
    MODULES
        .iter()
        .filter(|(name, again, _)| *name == "unprivileged" || !(is_complete || *again))
        .flat_map(|(name, ..)| ["--skip".to_owned(), format!("{name}::")])
        .collect()
}

#[test]
fn every_test_module_is_repeated_or_has_a_reason() {
    let declared: Vec<&str> = include_str!("main.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let named: Vec<&str> = MODULES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(declared, named, "each module has a line here, in the order of main.rs");
    assert!(MODULES.iter().all(|(.., reason)| !reason.is_empty()));
}

#[test]
fn user_dependent_tests_repeat_as_an_ordinary_user() {
    const NAME: &str = "user_dependent_tests_repeat_as_an_ordinary_user";
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIP {NAME}: this is an ordinary user already");
        return;
    }
    let program = std::env::current_exe().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the test program itself, as another user")]
    let mut command = std::process::Command::new(&program);
    command
        .args(left_out())
        .args(["--test-threads", "2", "--nocapture"])
        .current_dir("/")
        .env("TMPDIR", "/tmp");
    let output = match command.uid(65_534).gid(65_534).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIP {NAME}: {}: {error}", program.display());
            return;
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{printed}{errors}");
    // Failures are at the end, where a truncated log still has them.
    let failed: Vec<&str> = errors.lines().chain(printed.lines()).filter(|line| is_failure(line)).collect();
    assert!(output.status.success(), "as user 65534: {}\n{}", output.status, failed.join("\n"));
}

/// Whether a line names a failed test or its reason.
fn is_failure(line: &str) -> bool {
    line.ends_with("... FAILED") || line.contains("panicked at") || line.starts_with("row ")
}

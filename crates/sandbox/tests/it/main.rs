//! Integration tests of the sandbox: programs, limits, attacks and leaks.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "test helpers panic on failure and print what they skip"
)]

mod attack;
mod backends;
mod builds;
mod copies;
#[path = "../../../docker/tests/it/daemon.rs"]
#[expect(dead_code, reason = "the tests of the Docker backend use the rest")]
mod daemon;
mod derived_paths;
mod detached;
mod egress;
mod egress_attacks;
mod egress_clients;
mod egress_limits;
mod egress_runs;
mod egress_secrets;
#[cfg(feature = "egress-tls")]
mod egress_tls;
mod environments;
mod files;
mod generated_values;
mod git_commits;
mod git_configuration;
mod hardening;
mod ladder;
mod languages;
mod layer;
mod layer_conflicts;
mod layer_programs;
mod layer_records;
mod leaks;
mod levels;
mod limits;
mod mass_deletion;
mod pool_directories;
mod pool_failures;
mod pools;
mod protected_names;
mod roots;
mod run_changes;
mod runs;
mod sessions;
mod sessions_data;
mod sessions_egress;
mod sessions_forks;
mod sessions_hostile;
mod sessions_idle;
mod sessions_javascript;
mod starts;
mod support;
mod typescript;
mod unprivileged;
mod values;

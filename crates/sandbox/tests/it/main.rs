//! The sandbox from outside: what programs get, what limits do, what attacks reach, what stays behind.
#![cfg(target_os = "linux")]

#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "helpers of tests fail by panicking, skip loudly and print what came out"
)]
mod attack;
#[expect(clippy::unwrap_used, reason = "a backend of a test fails by panicking")]
mod backends;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod builds;
mod detached;
#[cfg(feature = "docker")]
#[expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod docker;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking and skip loudly"
)]
mod egress;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod egress_attacks;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking and skip loudly"
)]
mod egress_clients;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod egress_limits;
mod egress_runs;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod egress_secrets;
#[cfg(feature = "egress-tls")]
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod egress_tls;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking and skip loudly"
)]
mod environments;
mod files;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking and skip loudly"
)]
mod hardening;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "helpers of tests fail by panicking and skip loudly"
)]
mod ladder;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod languages;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod layer;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod layer_programs;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod leaks;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod levels;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod limits;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod packages;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod pool_failures;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod pool_folders;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod pools;
mod roots;
mod runs;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod sessions;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod sessions_data;
mod sessions_egress;
#[expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod sessions_forks;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod sessions_hostile;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod sessions_idle;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod sessions_javascript;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]
mod starts;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of tests fails by panicking and skips loudly"
)]
mod support;
mod typescript;
mod unprivileged;

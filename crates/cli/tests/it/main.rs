//! Tests of the built command.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod agent_file;
mod bad_input;
mod bench;
mod call;
mod chat;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod claude_code;
#[cfg(feature = "restate")]
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod cluster;
mod config;
#[path = "../../../docker/tests/it/daemon.rs"]
#[expect(dead_code, reason = "the sandbox's own tests use the rest of it")]
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
mod daemon;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod directory;
mod docker;
mod environment;
mod everyday;
mod exec;
mod files;
mod flows;
mod forwarded;
mod gateway;
mod gateway_start;
#[path = "../../../sandbox/tests/it/generated_values.rs"]
#[expect(dead_code, reason = "the tests of the sandbox use the rest")]
mod generated_values;
mod global;
mod golden;
mod grants;
mod help;
mod hosted;
mod hostile;
mod hostile_names;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod internal;
mod interrupt;
mod killed;
mod launchers;
mod login;
mod look;
mod loop_limits;
mod mcp;
mod memory;
mod models;
mod not_shown;
mod options;
mod own_files;
mod packages;
mod policy_secrets;
mod provider;
mod replay;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod review;
mod run;
mod run_agent;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod run_changes;
mod search_path;
mod serve;
mod serve_clients;
mod serve_oauth;
mod serve_secrets;
mod serve_tasks;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod session;
mod several;
mod state;
mod support;
mod targets;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod toolchains;
mod trust;
#[expect(clippy::print_stdout, reason = "a test that cannot run here skips loudly")]
mod trusted_code;
mod tuning;
mod values;
mod weather;
mod whole_data;

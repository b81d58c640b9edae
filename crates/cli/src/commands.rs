//! Commands, one module each.

#[cfg(unix)]
pub(crate) mod bench;
pub(crate) mod call;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod flow;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod login;
pub(crate) mod models;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod tools;
pub(crate) mod trust;

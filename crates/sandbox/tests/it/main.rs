//! The sandbox from outside: what programs get, what limits do, what attacks reach, what stays behind.
#![cfg(target_os = "linux")]

mod attack_rows;
mod attacks;
mod files;
mod leaks;
mod limits;
mod runs;
mod support;
mod unprivileged;

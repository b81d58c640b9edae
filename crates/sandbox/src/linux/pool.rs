//! Idle sandboxes that later receive the program to run.

mod base;
mod call_list;
mod fork_image;
mod host_directory;
mod manager;
mod worker;
mod zygote;

pub(crate) use manager::{Dispatch, Manager};

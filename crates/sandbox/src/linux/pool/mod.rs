//! Sandboxes that are made ahead and told later what to run.

mod base;
mod fork;
mod host_directory;
mod manager;
mod recipe;
mod worker;
mod zygote;

pub(crate) use manager::{Manager, Taken};

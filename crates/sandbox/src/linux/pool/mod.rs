//! Sandboxes that are made ahead and told later what to run.

mod base;
mod folder;
mod fork;
mod keeper;
mod recipe;
mod spare;
mod zygote;

pub(crate) use keeper::{Keeper, Taken};

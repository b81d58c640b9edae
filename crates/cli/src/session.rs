//! Sessions that stay from one command to the next: a live interpreter in a process of its own, its *holder*.
//!
//! A command that names a session talks to its holder over a socket, and starts one where there is none. A holder ends
//! when its sessions have ended, when nobody has used them for a while, and on a signal; everything in its sandbox dies
//! with it.

mod client;
mod holder;
mod place;
mod wire;

pub(crate) use self::client::{Connection, begin, find, list};
pub(crate) use self::holder::{COMMAND, hold};
pub(crate) use self::wire::{Answer, Frame, Request};

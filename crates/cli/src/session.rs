//! Sessions: live interpreters that persist between commands, each in a *holder* process.
//!
//! A command talks to the holder over a socket, and starts one if needed. A holder ends with its sessions, when
//! it is idle, and on a signal; its sandbox dies with it.

mod client;
mod holder;
mod sockets;
mod wire;

pub(crate) use self::client::{Connection, begin, find, list};
pub(crate) use self::holder::hold;
pub(crate) use self::wire::{Answer, Frame, SessionRequest};

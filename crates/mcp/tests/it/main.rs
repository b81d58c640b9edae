//! The Model Context Protocol, from outside.

mod server;

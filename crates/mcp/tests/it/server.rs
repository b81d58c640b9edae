//! The server, as clients see it.

mod asking;
mod bad_input;
mod changes;
mod http;
mod sessions;
mod streams;
mod support;

//! The `toolpost` command.
fn main() {}

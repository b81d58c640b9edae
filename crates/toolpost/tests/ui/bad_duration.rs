/// Shout.
#[toolpost::tool(timeout = "10 seconds")]
fn shout() {}

fn main() {}

/// Shout.
#[toolpost::tool(timeout_s = "10 seconds")]
fn shout() {}

fn main() {}

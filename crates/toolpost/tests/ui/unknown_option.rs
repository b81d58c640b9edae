/// Shout.
#[toolpost::tool(timout = "10s")]
fn shout() {}

fn main() {}

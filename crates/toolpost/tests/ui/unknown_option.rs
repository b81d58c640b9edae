/// Shout.
#[toolpost::tool(timout_s = 10)]
fn shout() {}

fn main() {}

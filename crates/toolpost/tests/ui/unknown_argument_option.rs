/// Shout.
#[toolpost::tool]
fn shout(#[arg(maximum = 3)] times: u8) {}

fn main() {}

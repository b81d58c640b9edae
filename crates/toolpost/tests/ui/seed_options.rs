/// Shout.
#[toolpost::tool(conflict_policy = "retry")]
fn shout() {}

/// Whisper.
#[toolpost::tool(cpu_bound = true)]
fn whisper() {}

fn main() {}

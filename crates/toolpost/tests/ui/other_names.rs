/// Shout.
#[toolpost::tool(timeout = "10s")]
fn shout0() {}

/// Shout.
#[toolpost::tool(backoff = "5ms..250ms")]
fn shout1() {}

/// Shout.
#[toolpost::tool(snapshot("counters"))]
fn shout2() {}

/// Shout.
#[toolpost::tool(parallel)]
fn shout3() {}

/// Shout.
#[toolpost::tool(title = "Shout")]
fn shout4() {}

/// Shout.
#[toolpost::tool(mode = "session")]
fn shout5() {}

/// Shout.
#[toolpost::tool(input_model = Input)]
fn shout6() {}

/// Shout.
#[toolpost::tool(blocking)]
fn shout7() {}

/// Shout.
#[toolpost::tool(cpu_bound = true)]
fn flag0() {}

/// Shout.
#[toolpost::tool(policy(idempotent = true))]
fn flag1() {}

/// Tool.
#[toolpost::tool(read_only)]
fn read_only() {}

/// Tool.
#[toolpost::tool(cache = "5m")]
fn cache() {}

/// Tool.
#[toolpost::tool(cpu_bound, policy(placement = "blocking"))]
fn two_placements() {}

fn main() {}

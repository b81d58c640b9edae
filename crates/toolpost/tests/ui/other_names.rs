/// Shout.
#[toolpost::tool(conflict_policy = "retry")]
fn shout0() {}

/// Shout.
#[toolpost::tool(backoff_initial_ms = 5)]
fn shout1() {}

/// Shout.
#[toolpost::tool(snapshot("counters"))]
fn shout2() {}

/// Shout.
#[toolpost::tool(parallel)]
fn shout3() {}

/// Shout.
#[toolpost::tool(summary = "Shout")]
fn shout4() {}

/// Shout.
#[toolpost::tool(session_mode)]
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
#[toolpost::tool(idempotent = true)]
fn flag1() {}

fn main() {}

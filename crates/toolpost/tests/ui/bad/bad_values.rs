/// Rate.
#[toolpost::tool(rate = "fast")]
fn rate() {}

/// Placement.
#[toolpost::tool(placement = "anywhere")]
fn placement() {}

/// Concurrency.
#[toolpost::tool(concurrency = 0)]
fn concurrency() {}

/// Name.
#[toolpost::tool(name = "1st")]
fn first() {}

/// Backoff.
#[toolpost::tool(backoff = "1s")]
fn backoff() {}

/// Minimum.
#[toolpost::tool]
fn minimum(#[arg(min = "one")] x: u8) {}

fn main() {}

/// Rate.
#[toolpost::tool(policy(rate = "fast"))]
fn rate() {}

/// Placement.
#[toolpost::tool(policy(placement = "anywhere"))]
fn placement() {}

/// Concurrency.
#[toolpost::tool(policy(concurrency = 0))]
fn concurrency() {}

/// Name.
#[toolpost::tool(name = "1st")]
fn first() {}

/// Backoff.
#[toolpost::tool(backoff_max_ms = "1s")]
fn backoff() {}

/// Minimum.
#[toolpost::tool]
fn minimum(#[arg(min = "one")] x: u8) {}

/// Format.
#[toolpost::tool]
fn format(#[arg(format = "emial")] address: String) {}

/// Example.
#[toolpost::tool(examples("{city: Oslo}"))]
fn example(city: String) {}

/// A list is not a set of arguments.
#[toolpost::tool(examples("[1]"))]
fn list(city: String) {}

fn main() {}

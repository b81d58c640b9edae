/// Draw a number.
#[toolpost::tool(policy(memory_mib = 64))]
fn draw() -> u8 {
    4
}

/// Draw another one.
#[toolpost::tool(policy(placement = "blocking", memory_mib = 64))]
fn draw_again() -> u8 {
    4
}

fn main() {}

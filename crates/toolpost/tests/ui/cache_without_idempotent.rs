/// Draw a number.
#[toolpost::tool(policy(cache = "5m"))]
fn draw() -> u8 {
    4
}

fn main() {}

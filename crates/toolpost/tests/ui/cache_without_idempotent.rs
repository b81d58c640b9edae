/// Draw a number.
#[toolpost::tool(cache = "5m")]
fn draw() -> u8 {
    4
}

fn main() {}

#[toolpost::tool]
fn silent() {}

fn main() {}

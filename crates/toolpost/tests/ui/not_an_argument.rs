struct Connection;

/// Query.
#[toolpost::tool]
async fn query(connection: Connection) {}

fn main() {}

struct Connection;

/// Open.
#[toolpost::tool]
async fn open() -> Connection {
    Connection
}

fn main() {}

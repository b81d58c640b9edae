struct Connection;

/// Open.
#[toolpost::tool]
async fn open() -> Connection {
    Connection
}

type Opened<T> = Result<T, Connection>;

/// Fail with what is not an error.
#[toolpost::tool]
async fn fail() -> Opened<u8> {
    Err(Connection)
}

fn main() {}

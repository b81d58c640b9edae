/// Generic.
#[toolpost::tool]
fn generic<T>(x: T) {}

/// Impl.
#[toolpost::tool]
fn anything(x: impl ToString) {}

/// Answer.
#[toolpost::tool]
fn answer() -> impl ToString {
    1
}

fn main() {}

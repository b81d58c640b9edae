//! A tool program that keeps state from one process to the next, in one file that several of them may share.
//!
//! ```console
//! $ cargo run -p toolpost --features state --example counter -- add --name apples --by 2
//! {"status":"success","result":{"result":2}}
//! ```

use std::sync::Arc;

use toolpost::{Store, ToolError, Toolbox, tool};

/// Add to a named counter, and tell how far it is.
#[tool(conflict_policy = "retry", max_retries = 16, backoff_initial_ms = 5, backoff_max_ms = 250)]
fn add(
    #[state(id = "counters/{owner}", path = "/by_name/{name}")] count: &mut i64,
    name: String,
    by: i64,
) -> i64 {
    *count += by;
    *count
}

/// Set a named counter back to nothing.
#[tool]
fn reset(#[state(id = "counters/{owner}", path = "/by_name/{name}")] count: &mut i64, name: String) -> i64 {
    std::mem::take(count)
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| {
        let store = Store::open(std::env::temp_dir().join("toolpost-counters.db"))?;
        Ok::<_, ToolError>(Toolbox::builder().store(Arc::new(store)).tool(add).tool(reset))
    })
}

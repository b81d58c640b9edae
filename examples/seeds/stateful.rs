//! State with conflict policies, beside `stateful.py`.

use std::sync::Arc;
use std::time::SystemTime;

use toolpost::prelude::*;

#[data]
struct Item {
    value: String,
    timestamp: SystemTime,
}

/// Increment counter with retry on conflict.
#[tool(conflict_policy = "retry", max_retries = 5, backoff_initial_ms = 10, backoff_max_ms = 1000)]
fn increment_counter(#[state(id = "stateful", path = "/counter")] counter: &mut i64) -> Output {
    *counter += 1;
    Output::json(json!({ "old_value": *counter - 1, "new_value": *counter }))
}

/// Add item with error on conflict.
#[tool(conflict_policy = "error")]
fn add_item(#[state(id = "stateful", path = "/items")] items: &mut Vec<Item>, item: String) -> Output {
    items.push(Item { value: item, timestamp: SystemTime::now() });
    Output::json(json!({ "item_count": items.len() }))
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| {
        let store = Arc::new(Store::open(std::env::temp_dir().join("toolpost-stateful.db"))?);
        Ok::<_, ToolError>(Toolbox::builder().store(store).tool(increment_counter).tool(add_item))
    })
}

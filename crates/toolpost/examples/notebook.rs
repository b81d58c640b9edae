//! A notebook that is still there for the next process, and that several processes may write in at once.
//!
//! ```console
//! $ cargo run -p toolpost --features state --example notebook -- write --notebook trip --text "Buy a map."
//! {"status":"success","result":{"result":1}}
//! $ cargo run -p toolpost --features state --example notebook -- read --notebook trip
//! {"status":"success","result":{"result":["Buy a map."]}}
//! ```
#![expect(clippy::ptr_arg, reason = "what a tool sees of a document is a value of its own")]

use std::sync::Arc;

use toolpost::{Store, ToolError, Toolbox, tool};

/// Write a page at the end of a notebook, and tell its number.
#[tool(conflict_policy = "retry", max_retries = 16, backoff_initial_ms = 5, backoff_max_ms = 250)]
fn write(
    #[state(id = "notebooks/{owner}", path = "/{notebook}")] pages: &mut Vec<String>,
    /// Which notebook.
    #[arg(min_len = 1, max_len = 64)]
    notebook: String,
    /// The page.
    #[arg(max_len = 10000)]
    text: String,
) -> usize {
    pages.push(text);
    pages.len()
}

/// Read all pages of a notebook.
#[tool(policy(read_only))]
fn read(
    #[state(id = "notebooks/{owner}", path = "/{notebook}")] pages: &Vec<String>,
    /// Which notebook.
    notebook: String,
) -> Vec<String> {
    pages.clone()
}

/// Tear a page out of a notebook, and tell what stood there.
#[tool(policy(destructive))]
fn tear_out(
    #[state(id = "notebooks/{owner}", path = "/{notebook}")] pages: &mut Vec<String>,
    /// Which notebook.
    notebook: String,
    /// Which page, from 1.
    #[arg(min = 1)]
    page: usize,
) -> Result<String, ToolError> {
    if page > pages.len() {
        return Err(ToolError::not_found(format!(
            "`{notebook}` has {} pages, and no page {page}",
            pages.len()
        )));
    }
    Ok(pages.remove(page - 1))
}

/// Throw a notebook away, and tell how many pages it had.
#[tool(policy(destructive))]
fn throw_away(
    #[state(id = "notebooks/{owner}", path = "/{notebook}")] pages: &mut Vec<String>,
    /// Which notebook.
    notebook: String,
) -> usize {
    std::mem::take(pages).len()
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| {
        let store = Store::open(std::env::temp_dir().join("toolpost-notebooks.db"))?;
        let toolbox = Toolbox::builder().store(Arc::new(store));
        Ok::<_, ToolError>(toolbox.tool(write).tool(read).tool(tear_out).tool(throw_away))
    })
}

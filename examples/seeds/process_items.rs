//! A program that streams progress, beside `process_items.py`.

use toolpost::prelude::*;

/// Process a list of items with progress updates.
#[tool(summary = "Process items with progress", streaming)]
fn process_items(ctx: &Ctx, items: Vec<String>) -> Output {
    for (i, item) in items.iter().enumerate() {
        ctx.progress(format!("Processing {item}..."), (i * 100 / items.len()) as f64);
        // ... do work ...
    }
    Output::json(json!({ "processed": items.len() }))
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| Toolbox::builder().tool(process_items))
}

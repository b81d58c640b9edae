//! CPU-bound work in a worker process, beside `factorials.py`.

use std::sync::Arc;

use toolpost::prelude::*;
use toolpost::toolbox::ToolboxBuilder;

#[data]
#[derive(Default)]
struct Computation {
    input_count: usize,
    results_count: usize,
}

/// CPU-intensive operation with worker process.
#[tool(cpu_bound, timeout_s = 300, conflict_policy = "retry", max_retries = 3)]
fn heavy_computation(
    #[state(id = "advanced", path = "/cache/last_computation")] last: &mut Computation,
    numbers: Vec<u64>,
) -> Output {
    let results: Vec<u64> = numbers.iter().filter(|n| **n < 20).map(|n| (1..=*n).product()).collect();
    *last = Computation { input_count: numbers.len(), results_count: results.len() };
    Output::json(json!({ "factorials": results }))
}

fn build() -> Result<ToolboxBuilder, ToolError> {
    let store = Arc::new(Store::open(std::env::temp_dir().join("toolpost-factorials.db"))?);
    Ok(Toolbox::builder().store(store).runner(toolpost::workers()).tool(heavy_computation))
}

fn main() -> std::process::ExitCode {
    toolpost::main(build)
}

//! An analysis that keeps a processor busy: it runs in a worker process, so that the program continues answering, a
//! timeout kills it for certain, and its memory has a limit of its own.
//!
//! ```console
//! $ cargo run -p toolpost --features workers --example analysis -- longest_chain --below 100000
//! ```

use std::process::ExitCode;

use toolpost::toolbox::ToolboxBuilder;
use toolpost::{Ctx, ToolProgram, Toolbox, data, tool, worker_entry, workers};

/// A chain of numbers.
#[data]
struct Chain {
    /// Where it begins.
    start: u64,
    /// The number of its values.
    length: u32,
}

/// Find the number below a limit whose Collatz chain is the longest.
#[tool(cpu_bound, timeout_s = 30, policy(read_only, idempotent))]
fn longest_chain(
    ctx: &Ctx,
    /// The limit.
    #[arg(min = 2, max = 100_000_000)]
    below: u64,
) -> Chain {
    let mut best = Chain { start: 1, length: 1 };
    for start in 1..below {
        let mut number = start;
        let mut length = 1;
        while number != 1 {
            number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
            length += 1;
        }
        if length > best.length {
            best = Chain { start, length };
        }
        if start % 100_000 == 0 {
            ctx.progress("looking", start as f64 * 100.0 / below as f64);
        }
    }
    best
}

/// Tell that the program is there, whatever its workers do.
#[tool(policy(read_only))]
fn are_you_there() -> bool {
    true
}

fn build() -> ToolboxBuilder {
    Toolbox::builder().tool(longest_chain).tool(are_you_there).runner(workers())
}

fn main() -> ExitCode {
    // First of all: in a worker process it does not return.
    worker_entry(build);
    ToolProgram::new(build).name("analysis").about("Long calculations in processes of their own.").main()
}

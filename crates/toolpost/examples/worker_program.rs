//! A tool program that runs some of its tools in worker processes: what they do to their process, one call feels.
//!
//! ```text
//! worker_program whereabouts
//! worker_program die
//! worker_program --resident
//! ```

use std::process::ExitCode;
use std::time::Duration;

use toolpost::toolbox::ToolboxBuilder;
use toolpost::{Ctx, ToolError, ToolProgram, Toolbox, resource, tool, worker_entry, workers};

/// Tell which process this is.
#[tool]
fn here() -> u32 {
    std::process::id()
}

/// Tell which process this tool runs in: that of the program is another one.
#[tool(cpu_bound)]
fn whereabouts() -> u32 {
    std::process::id()
}

/// Die in the middle of a call, as a library in C may.
#[tool(cpu_bound)]
fn die() -> u32 {
    std::process::abort()
}

/// Say so, and be busy for a long time without a look at anything.
#[tool(cpu_bound)]
fn be_busy(ctx: &Ctx) {
    ctx.progress("busy", 0.0);
    std::thread::sleep(Duration::from_mins(10));
}

/// Read a file that is missing, in a worker: callers get an id, and the author gets the causes.
#[tool(cpu_bound)]
fn lose() -> Result<String, ToolError> {
    lost()
}

/// Read a file that is missing, in the program's own process.
#[tool]
fn lose_here() -> Result<String, ToolError> {
    lost()
}

/// The file that is missing.
#[resource("index://all")]
async fn index() -> Result<String, ToolError> {
    lost()
}

fn lost() -> Result<String, ToolError> {
    std::fs::read_to_string("/missing/index.db")
        .map_err(|error| ToolError::internal("the index cannot be opened").caused_by(error))
}

fn build() -> ToolboxBuilder {
    // The question at the start, on a runtime of its own.
    let tools = tokio::runtime::Builder::new_current_thread().build().map(|runtime| {
        runtime.block_on(async {
            let builder = Toolbox::builder().tool(here).tool(whereabouts).tool(die).tool(be_busy);
            builder.tool(lose).tool(lose_here).resource(index)
        })
    });
    tools.unwrap_or_default().runner(workers())
}

fn main() -> ExitCode {
    // First of all: in a worker process it does not return.
    worker_entry(build);
    let toolbox = build().build();
    ToolProgram::new(move || toolbox.clone())
        .name("worker_program")
        .about("Tools that run in processes of their own.")
        .main()
}

//! The engine of the Python package `toolpost`: the module `toolpost._engine`.
//!
//! The package's Python files derive schemas and offer the public names; this crate runs calls, agents and sandboxes.
//!
//! # Invariants
//!
//! - No thread holds the interpreter while it waits, and no Rust lock is held while Python code runs.
//! - The event loop of the caller polls an awaited call. A cancelled await reaches the tool, and returns after the
//!   tool's coroutine has ended.
//! - `KeyboardInterrupt`, `SystemExit` and `CancelledError` end the outermost call; they never become a tool's answer.
//! - A child process after `fork` starts a runtime of its own.
#![forbid(unsafe_code)]

mod agent;
mod answer;
mod awaitable;
mod bridge;
mod call_forms;
mod conversation;
mod convert;
mod ctx;
mod detached;
mod driver;
mod errors;
mod exit;
mod flow;
mod hints;
mod hooks;
mod inbox;
mod job;
mod model;
mod offered;
mod outcome;
mod output;
mod pool;
mod port;
mod reply;
mod run;
mod running;
mod runtime;
mod sandbox;
mod serve;
mod session;
mod slot;
mod state;
mod tool;
mod toolbox;

use pyo3::prelude::*;

/// The compiled half of the package.
#[pymodule]
mod _engine {
    use pyo3::prelude::*;

    /// Rejects interpreters other than the first.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::runtime::check_interpreter(module.py())
    }

    #[pymodule_export]
    use super::agent::Agent;
    #[pymodule_export]
    use super::awaitable::Awaitable;
    #[pymodule_export]
    use super::conversation::Conversation;
    #[pymodule_export]
    use super::ctx::CallContext;
    #[pymodule_export]
    use super::exit::begin_exit;
    #[pymodule_export]
    use super::flow::{Flow, FlowProblem, FlowResult};
    #[pymodule_export]
    use super::model::{Model, RecordingModel, ScriptModel};
    #[pymodule_export]
    use super::outcome::{Artifact, Outcome, Verdict};
    #[pymodule_export]
    use super::pool::Pool;
    #[pymodule_export]
    use super::reply::Reply;
    #[pymodule_export]
    use super::run::{RunEvents, RunResult};
    #[pymodule_export]
    use super::runtime::reset_after_fork;
    #[pymodule_export]
    use super::sandbox::Sandbox;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::state::StateDoc;
    #[pymodule_export]
    use super::toolbox::Toolbox;
}

//! Tools that run code and programs in the sandbox.

mod describe;
mod execution;
mod failure;
mod pool;
mod run;
mod session;
mod settings;
mod truncation;

pub use self::execution::{CodeExecutionError, CodeExecutionFile, CodeExecutionResult, code_execution};
pub use self::pool::CodePool;
pub use self::run::{CodeArtifact, CodeResult, run_code, run_command};
pub use self::session::CodeSession;
pub use self::settings::CodeSettings;

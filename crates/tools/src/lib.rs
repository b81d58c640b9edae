//! The built-in tools: files, arithmetic, statistics, hashes, code and programs in the sandbox, and with the feature
//! `http` requests and searches.
//!
//! [`builtin`] returns all of them. The operator's settings are injected by type, on the toolbox or on a call:
//! [`FileRoot`] sets the root directory, [`CodeSettings`] what code may do. Without them the call's working directory is
//! the root, and code runs at the best level of the host. With `http`, `HttpSettings` allows non-public addresses, and
//! `SearchSettings` sets the search engines. With the feature `compat`, a call can carry tighter `ResourceLimits`.
//!
//! [`code_execution()`] is not built in: it replaces the hosted tool with this name of some providers.
//!
//! Applications create two more: [`FileSystemTool`] for files with permission rules, [`DataTransferTool`] for a typed
//! value from a conversation.
//!
//! # Invariants
//!
//! - Arguments are untrusted. `openat2` opens files beneath their root: no `..`, no absolute path, no symbolic link and no
//!   concurrent rename leads out. Writes follow no link.
//! - Files are replaced atomically by default; a backup overwrites nothing.
//! - Reads, listings, calculations and output are bounded in bytes, entries, depth and lines. A truncated result says so.
//! - A program's failure is a result; a program that cannot run is an error. The record has the layers that confined
//!   each run.
//! - A request goes to an address that was checked after DNS resolution, and a redirect is checked again. The machine, its
//!   networks and its cloud are unreachable unless the operator allows the host. Secrets of a request are in no record,
//!   no error, and on no other server.
//! - Nothing here starts a process, reads the environment or knows the toolbox.
//!
//! Deliberately absent: tools to delete or move files (code can, in the sandbox), `eval`, and confinement by path
//! comparison: without `openat2` the file tools fail with `PRECONDITION`.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod arithmetic;
mod call_limits;
mod code;
mod files;
mod hash;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod search;
mod statistics;
mod transfer;
mod with_text;

use std::sync::Arc;

use toolpost::{Alias, Tool, with_aliases};

pub use self::arithmetic::{Calculated, calculate};
pub use self::code::{
    CodeArtifact, CodeExecutionError, CodeExecutionFile, CodeExecutionResult, CodePool, CodeResult,
    CodeSession, CodeSettings, code_execution, run_code, run_command,
};
pub use self::files::{
    EntryKind, FilePermission, FileRoot, FileSystemTool, FileText, Listing, ListingEntry, OutputDirectory,
    PermittedFile, PermittedFiles, WrittenFile, list_directory, read_file, write_file,
};
pub use self::hash::{TextHash, hash_text};
#[cfg(feature = "http")]
pub use self::http::{HttpResponse, HttpSettings, http_request};
#[cfg(feature = "http")]
pub use self::search::{SearchEngine, SearchResult, SearchResults, SearchSettings, web_search};
pub use self::statistics::{Correlation, DataAnalysis, HistogramBin, NotANumber, Quantile, analyze_data};
pub use self::transfer::DataTransferTool;
pub use self::with_text::WithText;
pub use toolpost_sandbox::{Level, Limits};

/// Names of the built-in tools, in the order of [`builtin`].
pub const BUILTIN_NAMES: [&str; if cfg!(feature = "http") { 10 } else { 8 }] = [
    "read_file",
    "write_file",
    "list_directory",
    "calculate",
    "run_code",
    "run_command",
    "hash_text",
    "analyze_data",
    #[cfg(feature = "http")]
    "http_request",
    #[cfg(feature = "http")]
    "web_search",
];

/// The built-in tools, in a fixed order; those that use the network need the feature `http`.
///
/// Aliases from other tool collections: `read_local_file`, `safe_math_evaluator`, `python_code_executor` and
/// `data_analyzer`.
pub fn builtin() -> Vec<Arc<dyn Tool>> {
    vec![
        with_aliases(read_file, [Alias::new("read_local_file").parameter("file_path", "path")]),
        Arc::new(write_file()),
        Arc::new(list_directory()),
        with_aliases(calculate, [Alias::new("safe_math_evaluator")]),
        with_aliases(run_code, [Alias::new("python_code_executor").argument("language", "python")]),
        Arc::new(run_command()),
        Arc::new(hash_text()),
        with_aliases(analyze_data, [Alias::new("data_analyzer").parameter("analysis_type", "analysis")]),
        #[cfg(feature = "http")]
        Arc::new(http_request()),
        #[cfg(feature = "http")]
        Arc::new(web_search()),
    ]
}

//! The built-in tools: files beneath a root, arithmetic, statistics, digests, code and programs in the sandbox, and
//! with the feature `http` requests and searches.
//!
//! [`builtin`] gives all of them. What the operator decides is injected by type, into the toolbox or into a call:
//! [`FileRoot`] says which folder is seen, [`CodeSettings`] what code may do. Without them the call's working folder
//! is the root, and code runs at the best level of the host. With `http`, `HttpSettings` says which addresses beside
//! public ones may be asked, and `SearchSettings` which engines there are. A call can bring
//! [`ResourceLimits`](toolpost::import::ResourceLimits), which only tighten.
//!
//! [`code_execution()`] is not among them: it stands in for the tool of that name that some providers host.
//!
//! Two more are made by the application: [`FileSystemTool`] gives files as far as rules permit, [`DataTransferTool`] takes
//! a typed value out of a conversation.
//!
//! # Invariants
//!
//! - Arguments are hostile. A file is opened by `openat2` beneath its root and nowhere else: no `..`, no absolute path
//!   and no symbolic link leads out, whatever is renamed meanwhile. Writing follows no link at all.
//! - A file that is replaced is replaced in one step unless the caller says otherwise; a copy overwrites nothing.
//! - Reading, listing, calculating and telling output have bounds in bytes, entries, depth and lines, and a result that
//!   was cut says so.
//! - What a program does is a result; that it could not be run is an error. Every run tells the record which layers
//!   confined it.
//! - A request goes to an address that was checked after its name was looked up, and a redirect is a new request:
//!   nothing of this machine, its networks or its cloud is asked unless the operator allows the host. Secrets of a
//!   request are in no record, no error, and on no other server.
//! - Nothing here starts a process, reads the environment or knows the toolbox that calls it.
//!
//! Deliberately absent: a way to delete or move files (code can, in the sandbox), `eval` of any kind, and confinement by
//! comparing paths: where `openat2` is missing the file tools answer `PRECONDITION`.
#![forbid(unsafe_code)]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod arithmetic;
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
    EntryKind, FilePermission, FileRoot, FileSystemTool, FileText, Listing, ListingEntry, PermittedFile,
    PermittedFiles, WrittenFile, list_directory, read_file, write_file,
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

/// The names of the built-in tools, in the order of [`builtin`].
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

/// The built-in tools, always in the same order. Those that use the network are there with the feature `http`.
/// Some can also be called by names that they have in other collections of tools: `read_local_file`,
/// `safe_math_evaluator`, `python_code_executor` and `data_analyzer`.
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

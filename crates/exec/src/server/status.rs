//! Exit codes.

use toolpost_core::{Code, ToolError};

/// Success, at least partial.
pub(super) const OK: u8 = 0;
/// The tool failed.
pub(super) const FAILED: u8 = 1;
/// Invalid command line.
pub(super) const USAGE: u8 = 2;
/// A dependency is unreachable or too slow.
const UNREACHABLE: u8 = 4;
/// Denied by policy or approval.
const DENIED: u8 = 5;
/// A limit was reached.
const LIMIT: u8 = 6;
/// Cancelled by the caller.
const INTERRUPTED: u8 = 130;

/// The table for `--help`.
pub(super) const TABLE: &[(u8, &str)] = &[
    (OK, "success, at least partial"),
    (FAILED, "the tool failed, or the arguments are invalid"),
    (USAGE, "invalid command line"),
    (UNREACHABLE, "a dependency is unreachable or too slow"),
    (DENIED, "permission denied"),
    (LIMIT, "a limit was reached"),
    (INTERRUPTED, "cancelled"),
];

/// The exit code of an error.
pub(super) fn for_error(error: &ToolError) -> u8 {
    match error.code() {
        Code::Dependency if error.is_program_failure() => FAILED,
        Code::Dependency | Code::Timeout | Code::Overloaded => UNREACHABLE,
        Code::Permission => DENIED,
        Code::Limit => LIMIT,
        Code::Cancelled => INTERRUPTED,
        _ => FAILED,
    }
}

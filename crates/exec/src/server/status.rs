//! Exit statuses.

use toolpost_core::{Code, ToolError};

/// It was done, at least in part.
pub(super) const OK: u8 = 0;
/// The tool reported failure.
pub(super) const FAILED: u8 = 1;
/// The command line is wrong.
pub(super) const USAGE: u8 = 2;
/// Something is unreachable or too slow.
const UNREACHABLE: u8 = 4;
/// Policy or approval says no.
const DENIED: u8 = 5;
/// A limit was reached.
const LIMIT: u8 = 6;
/// The caller asked to stop.
const INTERRUPTED: u8 = 130;

/// The table for `--help`.
pub(super) const TABLE: &[(u8, &str)] = &[
    (OK, "done, at least in part"),
    (FAILED, "the tool failed, or the arguments do not fit"),
    (USAGE, "the command line is wrong"),
    (UNREACHABLE, "something it needs is unreachable or too slow"),
    (DENIED, "not permitted"),
    (LIMIT, "a limit was reached"),
    (INTERRUPTED, "interrupted"),
];

/// The status of an error.
pub(super) fn of(error: &ToolError) -> u8 {
    match error.code() {
        Code::Dependency if error.is_program_failure() => FAILED,
        Code::Dependency | Code::Timeout | Code::Overloaded => UNREACHABLE,
        Code::Permission => DENIED,
        Code::Limit => LIMIT,
        Code::Cancelled => INTERRUPTED,
        _ => FAILED,
    }
}

// Hosts other than Linux: paths cannot be confined, so the file tools do nothing.

use toolpost::ToolError;

use super::{Directory, FileContent, ListOptions, ListingEntry, Write, Written};

fn unsupported() -> ToolError {
    ToolError::precondition("the file tools need Linux 5.6 or later: they confine paths with `openat2`")
        .suggest("Run on Linux, or in a Linux virtual machine or container.")
}

pub(super) fn read(_: &Directory, _: &str, _: &str, _: u64) -> Result<FileContent, ToolError> {
    Err(unsupported())
}

pub(super) fn write(_: &Directory, _: &str, _: &str, _: &Write<'_>) -> Result<Written, ToolError> {
    Err(unsupported())
}

pub(super) fn list(
    _: &Directory,
    _: &str,
    _: &str,
    _: &ListOptions<'_>,
) -> Result<(Vec<ListingEntry>, bool), ToolError> {
    Err(unsupported())
}

// Hosts that are not Linux: nothing confines a path there yet, and so no file is touched.

use toolpost::ToolError;

use super::{Asked, Folder, Found, ListingEntry, Writing, Written};

fn unsupported() -> ToolError {
    ToolError::precondition(
        "the file tools need Linux 5.6 or later: only its `openat2` confines paths to a root",
    )
    .suggest("Run on Linux, or in a Linux virtual machine or container.")
}

pub(super) fn read(_: &Folder, _: &str, _: &str, _: u64) -> Result<Found, ToolError> {
    Err(unsupported())
}

pub(super) fn write(_: &Folder, _: &str, _: &str, _: &Writing<'_>) -> Result<Written, ToolError> {
    Err(unsupported())
}

pub(super) fn list(
    _: &Folder,
    _: &str,
    _: &str,
    _: &Asked<'_>,
) -> Result<(Vec<ListingEntry>, bool), ToolError> {
    Err(unsupported())
}

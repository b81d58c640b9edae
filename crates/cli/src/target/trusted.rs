//! Reads trusted files.

use std::io;
use std::path::Path;

use crate::config::trust::{Pins, TrustState};
use crate::exit::Exit;
use crate::failure::Failure;

/// The maximum size of a description, in bytes.
pub(crate) const MAX_DESCRIPTION: u64 = 1 << 20;

/// Reads a trusted file; `what` and `reason` are for the error.
pub(crate) fn trusted_as(what: &str, reason: &str, path: &Path) -> Result<String, Failure> {
    let wrong = |error: &io::Error| Failure::file(what, path, error);
    // Read once, so that the trusted content is the used one.
    let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).map_err(|error| wrong(&error))?;
    match Pins::load()?.standing_of(path, text.as_bytes()) {
        TrustState::Trusted => Ok(text),
        standing => {
            let why = standing.reason(path);
            Err(Failure::new(Exit::Denied, "PERMISSION", format!("{what} `{}` {why}", path.display()))
                .hint(format!("{reason} Read it; then `toolpost trust {}`.", path.display())))
        }
    }
}

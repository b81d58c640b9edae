//! Names of documents that nobody can guess.

use crate::{ToolError, hex};

/// How many random bytes a handle has.
const BYTES: usize = 16;

/// A new handle: 128 bits from the system's random numbers, in hexadecimal digits.
///
/// # Errors
/// `DEPENDENCY` if the system has none.
pub(crate) fn new_handle() -> Result<String, ToolError> {
    let mut bytes = [0_u8; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        ToolError::dependency("the system gave no random numbers for a handle").caused_by(error.to_string())
    })?;
    Ok(hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_differ_and_have_128_bits() {
        let (one, other) = (new_handle().unwrap(), new_handle().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}

//! Unguessable names.

use crate::{ToolError, hex};

/// Random bytes of the operating system in hexadecimal digits: 16 for an unguessable name, 32 for a token.
///
/// # Errors
/// `DEPENDENCY` if the system provides no random numbers.
pub fn random_hex(bytes: usize) -> Result<String, ToolError> {
    let mut random = vec![0_u8; bytes];
    getrandom::fill(&mut random).map_err(|error| {
        ToolError::dependency("the system has no random numbers").caused_by(error.to_string())
    })?;
    Ok(hex(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_requested_length_and_differs() {
        let (one, other) = (random_hex(16).unwrap(), random_hex(16).unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(random_hex(32).unwrap().len(), 64);
    }
}

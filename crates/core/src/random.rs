//! Names that nobody can guess.

use crate::{ToolError, hex};

/// So many bytes of the system's random numbers, in hexadecimal digits: 16 for a name that nobody can guess, 32 for a
/// token.
///
/// # Errors
/// `DEPENDENCY` if the system has none.
pub fn random_hex(bytes: usize) -> Result<String, ToolError> {
    let mut random = vec![0_u8; bytes];
    getrandom::fill(&mut random).map_err(|error| {
        ToolError::dependency("the system gave no random numbers").caused_by(error.to_string())
    })?;
    Ok(hex(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_another_one_of_the_length_that_was_asked_for() {
        let (one, other) = (random_hex(16).unwrap(), random_hex(16).unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(random_hex(32).unwrap().len(), 64);
    }
}

//! Patterns of names.

use std::str::FromStr;

use toolpost_core::ToolError;

/// The maximum length of a pattern, in bytes.
const MAX_PATTERN: usize = 256;

/// A pattern of names. `*` matches any characters, `?` matches one character, and the whole name must match.
///
/// ```
/// use toolpost_gateway::Glob;
/// let pattern: Glob = "read_*".parse().unwrap();
/// assert!(pattern.matches("read_file"));
/// assert!(!pattern.matches("spread_file"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Whether a name matches, in time proportional to the length of the pattern times that of the name.
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut rest) = (self.0.as_str(), name);
        // The pattern after the last star, and the position in the name of its last match.
        let mut star: Option<(&str, &str)> = None;
        loop {
            let mut expected_chars = pattern.chars();
            let mut found = rest.chars();
            match (expected_chars.next(), found.next()) {
                (Some('*'), _) => {
                    pattern = expected_chars.as_str();
                    star = Some((pattern, rest));
                    continue;
                }
                (None, None) => return true,
                (Some(one), Some(other)) if one == '?' || one == other => {
                    (pattern, rest) = (expected_chars.as_str(), found.as_str());
                    continue;
                }
                _ => {}
            }
            let Some((after, tried)) = star else { return false };
            let mut longer = tried.chars();
            if longer.next().is_none() {
                return false;
            }
            star = Some((after, longer.as_str()));
            (pattern, rest) = (after, longer.as_str());
        }
    }
}

impl FromStr for Glob {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, ToolError> {
        if text.is_empty() || text.len() > MAX_PATTERN {
            return Err(ToolError::invalid_input(format!(
                "`{}` is not a valid pattern: expected 1 to {MAX_PATTERN} bytes",
                crate::shown(text)
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("add", "add", true),
            ("add", "adds", false),
            ("*", "", true),
            ("*", "anything", true),
            ("?", "", false),
            ("?", "é", true),
            ("a?c", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*_file", "read_file", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("**", "x", true),
            ("a*a", "a", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(pattern.parse::<Glob>().unwrap().matches(name), expected, "{pattern} {name}");
        }
        assert!("".parse::<Glob>().is_err() && "a".repeat(257).parse::<Glob>().is_err());
    }

    #[test]
    fn matching_takes_polynomial_time() {
        let pattern: Glob = format!("{}b", "*a".repeat(100)).parse().unwrap();
        let begun = std::time::Instant::now();
        assert!(!pattern.matches(&"a".repeat(8192)));
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}

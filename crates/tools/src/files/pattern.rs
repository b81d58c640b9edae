//! Glob patterns: `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, and `**` for any number of directories.

use regex::{Regex, escape};
use toolpost::ToolError;

use super::shown;

/// A validated pattern. Without `/` it matches the name, otherwise the whole relative path.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    has_slash: bool,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, ToolError> {
        let invalid = |reason: &str| {
            ToolError::invalid_input(format!("the pattern `{}` {reason}", shown(text)))
                .with("pointer", "/pattern")
                .suggest("Write a pattern such as `*.csv`, `data/**/*.json` or `*.{png,jpg}`.")
        };
        if text.is_empty() || text.chars().count() > 256 {
            return Err(invalid("is empty or has more than 256 characters"));
        }
        let regex = Regex::new(&to_regex(text).map_err(invalid)?);
        let regex = regex.map_err(|_| invalid("is invalid"))?;
        Ok(Self { regex, has_slash: text.contains('/') })
    }

    /// Whether an entry matches; `path` is relative to the listed directory.
    pub(super) fn matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.regex.is_match(if self.has_slash { path } else { name })
    }

    /// Whether a whole path matches, even if the pattern has no `/`.
    pub(super) fn matches_path(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }
}

/// Translates a pattern into a regular expression. Only `**` matches a `/`.
fn to_regex(text: &str) -> Result<String, &'static str> {
    let mut regex = "(?s)^".to_owned();
    // The characters before each open brace.
    let mut braces = Vec::new();
    let (mut rest, mut before) = (text, '/');
    while let Some(letter) = rest.chars().next() {
        let (piece, length) = match letter {
            // At the start of a path component, `**/` also matches nothing.
            '*' if rest.starts_with("**/") => (if before == '/' { "(?:.*/)?" } else { ".*/" }.into(), 3),
            '*' if rest.starts_with("**") => (".*".into(), 2),
            '*' => ("[^/]*".into(), 1),
            '?' => ("[^/]".into(), 1),
            '[' => {
                let end = class_end(rest).ok_or("has a `[` without `]`")?;
                (class(&rest[1..end]), end + 1)
            }
            '{' => {
                braces.push(before);
                ("(?:".into(), 1)
            }
            ',' if !braces.is_empty() => ("|".into(), 1),
            '}' if !braces.is_empty() => (")".into(), 1),
            letter => (escape(letter.encode_utf8(&mut [0; 4])), letter.len_utf8()),
        };
        before = match (piece.as_str(), braces.last()) {
            ("(?:" | "|", Some(start)) => *start,
            _ => rest[..length].chars().last().unwrap_or(before),
        };
        if piece == ")" {
            braces.pop();
        }
        regex.push_str(&piece);
        rest = &rest[length..];
    }
    if braces.is_empty() { Ok(regex + "$") } else { Err("has a `{` without `}`") }
}

/// The end of the character class at the start of a text; a `]` at the start of the class is literal.
fn class_end(text: &str) -> Option<usize> {
    let first = if text[1..].starts_with(['!', '^']) { 2 } else { 1 };
    let start = first + text[first..].chars().next()?.len_utf8();
    text[start..].find(']').map(|end| start + end)
}

fn class(content: &str) -> String {
    let (negation, content) = match content.strip_prefix(['!', '^']) {
        Some(content) => ("^", content),
        None => ("", content),
    };
    let escaped: Vec<String> = content.split('-').map(escape).collect();
    format!("[[{negation}{}]&&[^/]]", escaped.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_paths() {
        for (pattern, path, expected) in [
            ("*.csv", "data/a.csv", true),
            ("*.csv", "a.csv.gz", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]*[!0-9]", "beta", true),
            ("[a-c]*[!0-9]", "beta7", false),
            ("[]x]", "]", true),
            ("*.{png,jpg}", "p.jpg", true),
            ("{a,b}{1,2}", "b2", true),
            ("{a,{b,c}}", "c", true),
            ("data/*.json", "data/a.json", true),
            ("data/*.json", "data/x/a.json", false),
            ("data/**/*.json", "data/x/y/a.json", true),
            ("data/**/*.json", "data/a.json", true),
            ("**/a", "a", true),
            ("**/a", "xa", false),
            ("src/**", "src/a/b", true),
            ("**/{a,b/**/c}", "x/b/c", true),
            ("a**/b", "ab", false),
            ("a[!b]c", "a/c", false),
            ("[a^&&-]", "&", true),
            ("a(b)+.é", "a(b)+.é", true),
            ("*", "résumé", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for pattern in ["", "[a", "{a", "[z-a]", &"x".repeat(300)] {
            assert_eq!(Pattern::new(pattern).unwrap_err().context()["pointer"], "/pattern", "{pattern}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_linear_time() {
        let pattern = Pattern::new(&"*a".repeat(128)).unwrap();
        assert!(!pattern.matches(&"a".repeat(4000).replace("aaaa", "aaab")[..3999].replace('a', "b")));
    }
}

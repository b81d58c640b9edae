//! Glob patterns: `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, and `**` for any number of directories.

use toolpost::ToolError;

use super::shown;

/// Maximum number of expanded alternatives.
const MAX_ALTERNATIVES: usize = 64;

/// A validated pattern. Without `/` it matches the name, otherwise the whole relative path.
#[derive(Debug)]
pub(super) struct Pattern {
    alternatives: Vec<Vec<char>>,
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
        let mut open = vec![text.chars().collect::<Vec<char>>()];
        let mut alternatives = Vec::new();
        while let Some(pattern) = open.pop() {
            if open.len() + alternatives.len() > MAX_ALTERNATIVES {
                return Err(invalid("has braces with more than 64 alternatives"));
            }
            match braces(&pattern).ok_or_else(|| invalid("has a `{` without `}`"))? {
                None => alternatives.push(pattern),
                Some((start, end)) => {
                    let inner = pattern[start + 1..end].split(|letter| *letter == ',');
                    open.extend(
                        inner.map(|choice| [&pattern[..start], choice, &pattern[end + 1..]].concat()),
                    );
                }
            }
        }
        if alternatives.iter().any(|pattern| !classes_are_closed(pattern)) {
            return Err(invalid("has a `[` without `]`"));
        }
        Ok(Self { alternatives })
    }

    /// Whether an entry matches; `path` is relative to the listed directory.
    pub(super) fn matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.alternatives.iter().any(|pattern| {
            let subject = if pattern.contains(&'/') { path } else { name };
            matches(pattern, &subject.chars().collect::<Vec<char>>())
        })
    }

    /// Whether a whole path matches, even if the pattern has no `/`.
    pub(super) fn matches_path(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        self.alternatives.iter().any(|pattern| matches(pattern, &path))
    }
}

/// The innermost first pair of braces: `Some(None)` without braces, `None` for an unclosed one.
#[expect(clippy::option_option, reason = "no braces and an unclosed brace are different results")]
fn braces(pattern: &[char]) -> Option<Option<(usize, usize)>> {
    let Some(end) = pattern.iter().position(|letter| *letter == '}') else {
        return if pattern.contains(&'{') { None } else { Some(None) };
    };
    match pattern[..end].iter().rposition(|letter| *letter == '{') {
        Some(start) => Some(Some((start, end))),
        // A lone closing brace is literal, and so are the braces after it.
        None => Some(None),
    }
}

fn classes_are_closed(pattern: &[char]) -> bool {
    let mut position = 0;
    while position < pattern.len() {
        if pattern[position] == '[' {
            match class_end(&pattern[position..]) {
                Some(end) => position += end,
                None => return false,
            }
        }
        position += 1;
    }
    true
}

/// The end of the character class; a `]` at its start is literal.
fn class_end(pattern: &[char]) -> Option<usize> {
    let first = if matches!(pattern.get(1), Some('!' | '^')) { 2 } else { 1 };
    pattern.iter().skip(first + 1).position(|letter| *letter == ']').map(|found| found + first + 1)
}

fn class_has(class: &[char], letter: char) -> bool {
    let (negated, class) = match class.first() {
        Some('!' | '^') => (true, &class[1..]),
        _ => (false, class),
    };
    let mut position = 0;
    let mut found = false;
    while position < class.len() {
        if class.get(position + 1) == Some(&'-') && position + 2 < class.len() {
            found |= (class[position]..=class[position + 2]).contains(&letter);
            position += 3;
        } else {
            found |= class[position] == letter;
            position += 1;
        }
    }
    found != negated
}

/// Matches with a table of one row per pattern character, in time linear in pattern length times subject length.
fn matches(pattern: &[char], subject: &[char]) -> bool {
    let mut reached = vec![false; subject.len() + 1];
    reached[0] = true;
    let mut position = 0;
    while position < pattern.len() {
        let mut next = vec![false; subject.len() + 1];
        match pattern[position] {
            '*' if pattern.get(position + 1) == Some(&'*') => {
                let mut any = false;
                let directories_only = pattern.get(position + 2) == Some(&'/');
                for index in 0..=subject.len() {
                    // `**/` ends at the start of a path component.
                    let at_part = index == 0 || subject[index - 1] == '/';
                    any |= reached[index];
                    next[index] = any && (!directories_only || at_part);
                }
                position += if directories_only { 3 } else { 2 };
            }
            '*' => {
                let mut any = false;
                for index in 0..=subject.len() {
                    any = reached[index] || (any && subject[index - 1] != '/');
                    next[index] = any;
                }
                position += 1;
            }
            '[' if class_end(&pattern[position..]).is_some() => {
                let end = class_end(&pattern[position..]).unwrap_or(0);
                let class = &pattern[position + 1..position + end];
                for index in 0..subject.len() {
                    next[index + 1] =
                        reached[index] && subject[index] != '/' && class_has(class, subject[index]);
                }
                position += end + 1;
            }
            letter => {
                for index in 0..subject.len() {
                    let fits = letter == subject[index] || (letter == '?' && subject[index] != '/');
                    next[index + 1] = reached[index] && fits;
                }
                position += 1;
            }
        }
        reached = next;
    }
    reached[subject.len()]
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
            ("*", "résumé", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        let many = "{a,b}".repeat(10);
        for pattern in ["", "[a", "{a", &many, &"x".repeat(300)] {
            assert_eq!(Pattern::new(pattern).unwrap_err().context()["pointer"], "/pattern", "{pattern}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_linear_time() {
        let pattern = Pattern::new(&"*a".repeat(128)).unwrap();
        assert!(!pattern.matches(&"a".repeat(4000).replace("aaaa", "aaab")[..3999].replace('a', "b")));
    }
}

//! Did you mean…?

/// Names longer than this are not compared: the cost is quadratic and nobody misspells a page of text.
const LONGEST: usize = 64;

/// A sentence such as "Did you mean `text`?", when one of `known` is at most a third away; otherwise nothing.
pub(crate) fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let length = found.chars().count();
    if length == 0 || length > LONGEST {
        return None;
    }
    let near = known.into_iter().map(|name| (distance(found, name), name)).min()?;
    (near.0 <= (length.max(near.1.chars().count()) / 3).max(1)).then(|| format!("Did you mean `{}`?", near.1))
}

/// The number of insertions, deletions and replacements that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, in_a) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, in_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(in_a != *in_b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["text", "calls", "expect"];
        assert_eq!(did_you_mean("txt", known).as_deref(), Some("Did you mean `text`?"));
        assert_eq!(did_you_mean("expects", known).as_deref(), Some("Did you mean `expect`?"));
        assert_eq!(did_you_mean("banana", known), None);
        assert_eq!(did_you_mean("", known), None);
    }
}

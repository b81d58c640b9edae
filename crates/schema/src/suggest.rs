//! Suggestions for misspelled names.

/// Maximum length of a compared name, in characters: the cost is quadratic.
const MAX_LENGTH: usize = 64;

/// Edit distance: insertions, deletions, replacements and swaps of adjacent characters.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for (index, row) in rows.iter_mut().enumerate() {
        row[0] = index;
    }
    for (index, cell) in rows[0].iter_mut().enumerate() {
        *cell = index;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// Up to three of `known` that resemble `found`, nearest first. Case, spaces, `-` and `_` are ignored.
pub fn suggestions<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let found = plain(found);
    if found.is_empty() || found.chars().count() > MAX_LENGTH {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|name| name.chars().count() <= MAX_LENGTH)
        .filter_map(|name| {
            let candidate = plain(name);
            let apart = distance(&found, &candidate);
            let allowed = (found.chars().count().max(candidate.chars().count()) / 3).max(1);
            let contained = found.len() >= 3 && (candidate.contains(&found) || found.contains(&candidate));
            (apart <= allowed || (contained && candidate.len() >= 3)).then_some((apart, name))
        })
        .collect();
    near.sort_unstable();
    near.truncate(3);
    near.into_iter().map(|(_, name)| name).collect()
}

/// A sentence such as "Did you mean `read_file`?", if a name is similar.
pub fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let near = suggestions(found, known);
    let quoted: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
    (!quoted.is_empty()).then(|| format!("Did you mean {}?", quoted.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_first() {
        let known = ["read_file", "write_file", "list_directory"];
        assert_eq!(suggestions("raed_file", known), ["read_file"]);
        assert_eq!(suggestions("Read-File", known), ["read_file"]);
        assert_eq!(suggestions("file", known), ["read_file", "write_file"]);
        assert!(suggestions("forecast", known).is_empty());
        assert!(suggestions("", known).is_empty());
        assert!(suggestions(&"x".repeat(10_000), known).is_empty());
    }
}

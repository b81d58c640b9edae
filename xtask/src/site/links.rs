//! Links and anchors of Markdown.

use std::collections::{BTreeMap, BTreeSet};

/// The links of a page with the indices of their lines: targets in `](…)` outside of code.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose(text) {
        let bare = without_code(line);
        for (at, _) in bare.match_indices("](") {
            let target = line.get(at + 2..).and_then(|rest| rest.split(')').next()).unwrap_or_default();
            found.push((index, target.split(' ').next().unwrap_or_default().to_owned()));
        }
    }
    found
}

/// The anchors of a page: its headings, as GitHub and mdBook name them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(title) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()) else {
            continue;
        };
        let anchor = anchor(title);
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// The lines outside of fenced code.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<String> = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let mark: String = line.trim_start().chars().take_while(|c| *c == '`').collect();
        let is_code = fence.is_some() || mark.len() >= 3;
        match &fence {
            Some(open) if line.trim() == open => fence = None,
            None if mark.len() >= 3 => fence = Some(mark),
            _ => {}
        }
        !is_code
    })
}

/// The line with its code spans blanked; the length in bytes stays.
fn without_code(line: &str) -> String {
    let mut result = String::new();
    let mut rest = line;
    while let Some(begin) = rest.find('`') {
        let mark: String = rest[begin..].chars().take_while(|c| *c == '`').collect();
        let after = begin + mark.len();
        let Some(end) = rest[after..].find(&mark) else { break };
        let end = after + end + mark.len();
        result += &rest[..begin];
        result += &" ".repeat(end - begin);
        rest = &rest[end..];
    }
    result + rest
}

/// The anchor of a heading.
fn anchor(title: &str) -> String {
    // The text of a link, without its target.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text += rest;
    text.chars()
        .filter_map(|c| match c {
            _ if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_lowercase().to_string()),
            ' ' => Some("-".to_owned()),
            _ => None,
        })
        .collect()
}

/// The path of a link from a page; `None` if it leaves the tree.
pub fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The path from a page to a file, both below the same directory.
pub fn relative(page: &str, file: &str) -> String {
    format!("{}{file}", "../".repeat(page.matches('/').count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_outside_of_code() {
        let text = "[a](b.md#c) and `[x](y)`, [d](e \"t\")\n```md\n[f](g)\n```\n[h](i)\n";
        let expected = [(0, "b.md#c".to_owned()), (0, "e".to_owned()), (4, "i".to_owned())];
        assert_eq!(links(text), expected);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# A `tool`, and more\n\n## One\n\n## One\n\n```sh\n# no\n```\n### [b](c.md): d_e\n";
        let found: Vec<String> = anchors(text).into_iter().collect();
        assert_eq!(found, ["a-tool-and-more", "b-d_e", "one", "one-1"]);
    }

    #[test]
    fn paths_resolve() {
        assert_eq!(resolve("docs/guides/a.md", "../b.md").as_deref(), Some("docs/b.md"));
        assert_eq!(resolve("README.md", "docs/").as_deref(), Some("docs"));
        assert_eq!(resolve("README.md", "../x"), None);
        assert_eq!(relative("guides/a.md", "project/B.md"), "../project/B.md");
    }
}

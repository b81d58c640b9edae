//! The pages of the documentation: each link and anchor exists, and `docs/SUMMARY.md` lists each page.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use crate::site::links::{anchors, links, resolve};
use crate::workspace::{Workspace, has_extension};

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Directories below `docs/` that are not pages of the book.
const APART: &[&str] = &["docs/skill/"];

pub(super) fn check(workspace: &Workspace) -> Vec<Complaint> {
    let is_page =
        |path: &&String| has_extension(path, "md") && (path.starts_with("docs/") || !path.contains('/'));
    let pages: BTreeMap<&str, String> = workspace
        .files
        .iter()
        .filter(is_page)
        .filter_map(|path| Some((path.as_str(), workspace.text(path)?)))
        .collect();
    let headings: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (*path, anchors(text))).collect();
    let mut complaints = Vec::new();
    let mut listed = BTreeSet::from([SUMMARY.to_owned()]);
    for (path, text) in &pages {
        for (index, link) in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { Some((*path).to_owned()) } else { resolve(path, file) };
            let exists = |target: &str| {
                workspace.files.contains(target)
                    || workspace.files.iter().any(|file| file.starts_with(&format!("{target}/")))
            };
            let Some(target) = target.filter(|target| exists(target)) else {
                let action = "correct the path, or write the page";
                complaints.push(Complaint::new("links", path, format!("no file `{link}`"), action).at(index));
                continue;
            };
            let known = headings.get(target.as_str());
            if !anchor.is_empty() && known.is_some_and(|known| !known.contains(anchor)) {
                let found = format!("`{target}` has no heading `#{anchor}`");
                complaints.push(Complaint::new("links", path, found, "correct the anchor").at(index));
            }
            if *path == SUMMARY {
                listed.insert(target);
            }
        }
    }
    if pages.contains_key(SUMMARY) {
        let is_listed = |path: &&&str| {
            !path.starts_with("docs/")
                || APART.iter().any(|apart| path.starts_with(apart))
                || listed.contains(**path)
        };
        for path in pages.keys().filter(|path| !is_listed(path)) {
            let found = format!("{SUMMARY} does not list it");
            complaints.push(Complaint::new("links", path, found, "add a line there"));
        }
    }
    complaints
}

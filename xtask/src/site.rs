//! The documentation as a site: mdBook over a copy of `docs/`, and the reference pages.

pub mod links;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::command::Task;
use crate::suite::pages::markdown;
use crate::suite::setup::{self, MDBOOK};
use crate::tidy;
use crate::workspace::{Workspace, has_extension};
use links::{links, relative, resolve};

/// Where the pages are copied to, and where the site is built, below the root.
const SOURCE: &str = "target/site-source";
const SITE: &str = "target/site";

/// Files of the root that become pages of the site.
const PROJECT: &[&str] =
    &["SPECIFICATION.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "STYLE.md", "CHANGELOG.md"];

/// The other files of the repository.
const REPOSITORY: &str = "https://github.com/toolpost/toolpost";

/// The page of the Python API, and what prints it.
const PYTHON_PAGE: &str = "docs/reference/python.md";
const PYTHON_REFERENCE: &str = "xtask/src/site/python_reference.py";

/// Writes the pages of `docs/reference`.
pub fn reference(root: &Path) -> Result<bool> {
    let tests = ["test", "--quiet", "--package=toolpost-cli", "--bin=toolpost", "reference::"];
    let pages = Task::new("cargo", &tests).directory(root).variable("TOOLPOST_UPDATE", "1");
    let path = root.join(PYTHON_PAGE);
    let text = python_reference(root)?;
    fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    pages.show()
}

/// Fails if the page of the Python API is outdated. The tests of the command compare the other pages.
pub fn check_python_reference(root: &Path) -> Result<()> {
    if fs::read_to_string(root.join(PYTHON_PAGE)).unwrap_or_default() == python_reference(root)? {
        return Ok(());
    }
    Err(format!("{PYTHON_PAGE} is outdated; run `cargo xtask reference`"))
}

fn python_reference(root: &Path) -> Result<String> {
    let printed = Task::new("python3", &[PYTHON_REFERENCE]).directory(root).capture()?;
    if printed.success { Ok(printed.text) } else { Err(printed.errors) }
}

/// Builds the site in `target/site`. Fails for a dead link or a page that the table of contents lacks.
pub fn run(root: &Path) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let complaints = tidy::check_pages(&workspace);
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        return Ok(false);
    }
    let source = root.join(SOURCE);
    if source.exists() {
        fs::remove_dir_all(&source).map_err(|error| format!("cannot empty {SOURCE}: {error}"))?;
    }
    for path in workspace.below("docs/") {
        let name = path.trim_start_matches("docs/");
        match workspace.text(path).filter(|_| has_extension(path, "md")) {
            Some(text) if name == "SUMMARY.md" => write(&source, name, &(text + &project_summary()))?,
            Some(text) => write(&source, name, &page(name, path, &text))?,
            None => copy(&root.join(path), &source.join(name))?,
        }
    }
    for path in PROJECT {
        if let Some(text) = workspace.text(path) {
            let name = format!("project/{path}");
            write(&source, &name, &page(&name, path, &text))?;
        }
    }
    setup::provide(root, &[MDBOOK]);
    let site = root.join(SITE);
    let program = root.join(setup::MDBOOK_PROGRAM).display().to_string();
    let task = Task::new(&program, &["build", SOURCE, "--dest-dir"]).argument(&site.to_string_lossy());
    if !task.directory(root).show()? {
        return Ok(false);
    }
    let summary = fs::read_to_string(source.join("SUMMARY.md")).map_err(|error| error.to_string())?;
    write(&site, "llms.txt", &llms(&source, &summary, false))?;
    write(&site, "llms-full.txt", &llms(&source, &summary, true))?;
    copy(&root.join("docs/skill/SKILL.md"), &site.join("skill/SKILL.md"))?;
    for (_, page) in links(&summary) {
        copy(&source.join(&page), &site.join(&page))?;
    }
    let _ = fs::remove_file(site.join("book.toml"));
    eprintln!("{SITE}/index.html");
    Ok(true)
}

fn project_summary() -> String {
    let mut text = "\n# Project\n\n".to_owned();
    for path in PROJECT {
        let title = path.trim_end_matches(".md");
        let title = format!("{}{}", &title[..1], title[1..].to_lowercase());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- [{title}](project/{path})");
    }
    text
}

/// A page for the site: links to other files of the repository, and the names of files above their blocks.
fn page(name: &str, path: &str, text: &str) -> String {
    let names: Vec<(usize, String)> = markdown::blocks(text)
        .iter()
        .filter_map(|block| {
            let file = block.words.iter().find_map(|word| word.strip_prefix("file="))?;
            Some((block.line, file.to_owned()))
        })
        .collect();
    let mut result = String::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((_, file)) = names.iter().find(|(number, _)| *number == index + 1) {
            let indent = &line[..line.len() - line.trim_start().len()];
            let _ = write!(result, "{indent}<div class=\"file\">{file}</div>\n\n");
        }
        result += line;
        result.push('\n');
    }
    for (_, link) in links(text) {
        if let Some(target) = moved(name, path, &link) {
            result = result.replace(&format!("]({link})"), &format!("]({target})"));
        }
    }
    result
}

/// The target of a link on the site, if it differs.
fn moved(name: &str, path: &str, link: &str) -> Option<String> {
    let (file, anchor) =
        link.split_once('#').map_or((link, String::new()), |(file, anchor)| (file, format!("#{anchor}")));
    if file.is_empty() || file.contains(':') {
        return None;
    }
    let target = resolve(path, file)?;
    let place = match target.strip_prefix("docs/") {
        Some(page) if has_extension(page, "md") => page.to_owned(),
        _ if PROJECT.contains(&target.as_str()) => format!("project/{target}"),
        _ if Path::new(&target).extension().is_some() => {
            return Some(format!("{REPOSITORY}/blob/main/{target}{anchor}"));
        }
        _ => return Some(format!("{REPOSITORY}/tree/main/{target}")),
    };
    Some(relative(name, &place) + &anchor)
}

/// The index of the pages for language models (llmstxt.org), or all pages in one text.
fn llms(source: &Path, summary: &str, is_full: bool) -> String {
    let mut text = String::new();
    for line in summary.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            let _ = match title {
                "Summary" => write!(
                    text,
                    "# Toolpost\n\n> Toolpost is a tool runtime for LLM agents: define a tool once, call it from a \
                     shell, an MCP client, an agent loop, Python, Rust or TypeScript, sandboxed and recorded.\n\n\
                     The agent skill is at skill/SKILL.md.\n{}",
                    if is_full { "" } else { "\n## Start\n\n" }
                ),
                title if is_full => write!(text, "\n# {title}\n"),
                title => write!(text, "\n## {title}\n\n"),
            };
        }
        for (_, page) in links(line) {
            let content = fs::read_to_string(source.join(&page)).unwrap_or_default();
            let title = line.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
            let is_record = page.starts_with("decisions/") || page.starts_with("project/");
            let _ = match (is_full, is_record) {
                (true, true) => Ok(()),
                (true, false) => write!(text, "\n<!-- {page} -->\n\n{content}"),
                (false, _) => writeln!(text, "- [{title}]({page}): {}", first_sentence(&content)),
            };
        }
    }
    text
}

/// The first sentence of a page, without links.
fn first_sentence(text: &str) -> String {
    let is_text = |line: &&str| line.starts_with(|c: char| c.is_alphanumeric() || "`*[".contains(c));
    let line = links::prose(text).map(|(_, line)| line).find(is_text).unwrap_or_default();
    let end = line.find(". ").map_or(line.len(), |end| end + 1);
    let mut sentence = String::new();
    let mut rest = &line[..end];
    while let Some((before, after)) = rest.split_once("](") {
        sentence += &before.replace('[', "");
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    (sentence + rest).replace("**", "")
}

fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap_or(directory))
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| fs::copy(from, to))
        .map(drop)
        .map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_site_or_the_repository() {
        let rows = [
            ("../tools.md#targets", Some("../tools.md#targets")),
            ("../../SECURITY.md", Some("../project/SECURITY.md")),
            ("../../examples/flows", Some("https://github.com/toolpost/toolpost/tree/main/examples/flows")),
            ("../../a/b.rs#L1", Some("https://github.com/toolpost/toolpost/blob/main/a/b.rs#L1")),
            ("#here", None),
            ("https://example.com", None),
        ];
        for (link, expected) in rows {
            assert_eq!(moved("guides/a.md", "docs/guides/a.md", link).as_deref(), expected, "{link}");
        }
        assert_eq!(moved("project/A.md", "A.md", "docs/tools.md").as_deref(), Some("../tools.md"));
    }

    #[test]
    fn names_of_files_are_above_their_blocks() {
        let text = "1. One\n   ```toml file=a.toml\n   a = 1\n   ```\n";
        let expected =
            "1. One\n   <div class=\"file\">a.toml</div>\n\n   ```toml file=a.toml\n   a = 1\n   ```\n";
        assert_eq!(page("a.md", "docs/a.md", text), expected);
    }

    #[test]
    fn first_sentences_have_no_links() {
        assert_eq!(first_sentence("# A\n\nA [tool](b.md) is **one**. More.\n"), "A tool is one.");
    }
}

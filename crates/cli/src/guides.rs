//! The guides of the documentation, as pages of `toolpost help --guide`.

use toolpost_core::did_you_mean;

use crate::failure::Failure;
use crate::print::Stream;
use crate::style::{HINT, paint};
use crate::terminal::{markdown, size};

/// A guide: its name and its Markdown. `guides` links to `docs/guides`.
macro_rules! guides {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../guides/", $name, ".md")))),+]
    };
}

/// The guides. A test compares the table with the directory.
const GUIDES: &[(&str, &str)] = guides![
    "approvals",
    "budgets",
    "ci",
    "claude-code",
    "cluster",
    "flows",
    "gateway",
    "keys",
    "pandas",
    "production",
    "testing"
];

/// The maximum width of a guide on a terminal.
const MAX_WIDTH: usize = 100;

/// A guide: styled lines for a terminal, Markdown elsewhere. Without a name, the list of guides.
pub(crate) fn page(name: &str) -> Result<String, Failure> {
    if name.is_empty() {
        return Ok(list());
    }
    let (_, source) = GUIDES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let known = GUIDES.iter().map(|(name, _)| *name);
        let hint = did_you_mean(name, known.clone())
            .unwrap_or_else(|| format!("There are: {}.", known.collect::<Vec<_>>().join(", ")));
        Failure::usage(format!("there is no guide `{name}`")).hint(hint)
    })?;
    if Stream::Stdout.is_terminal() {
        return Ok(markdown::lines(source, size().0.saturating_sub(1).min(MAX_WIDTH)).join("\n"));
    }
    Ok((*source).to_owned())
}

fn list() -> String {
    let width = GUIDES.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 2;
    let lines = GUIDES.iter().map(|(name, source)| {
        let gap = " ".repeat(width - name.len());
        format!("{}{gap}{}", paint(HINT, name), title(source))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The first heading.
fn title(source: &str) -> &str {
    source.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_table_has_every_guide() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("guides");
        let mut files: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let table: Vec<String> = GUIDES.iter().map(|(name, _)| format!("{name}.md")).collect();
        assert_eq!(table, files);
    }

    #[test]
    fn every_guide_has_a_title() {
        for (name, source) in GUIDES {
            assert!(!title(source).is_empty(), "{name}");
        }
    }
}

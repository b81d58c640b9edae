//! Advice on a program that failed, by the cause that its stderr names.

use std::path::Path;

use serde_json::Value;
use toolpost_core::ToolError;

use crate::env;
use crate::style::shell_word;

/// The maximum length of a name in a message.
const MAX_NAME: usize = 200;

/// The fix for the last known cause in the stderr of a failed program.
pub(crate) fn hint(error: &ToolError) -> Option<String> {
    let stderr = error.context().get("stderr").and_then(Value::as_str)?;
    stderr.lines().rev().find_map(of_line)
}

fn of_line(line: &str) -> Option<String> {
    if let Some((_, rest)) = line.split_once("KeyError: ") {
        let name = quoted(rest).filter(|name| env::variable(name).is_some())?;
        return Some(format!(
            "The program reads the variable `{name}`. If you trust it, add `--secret-raw {name}`."
        ));
    }
    let is_read_only = line.contains("Read-only file system") || line.contains("EROFS");
    if is_read_only {
        let directory = quoted(line).map(Path::new).filter(|path| path.is_absolute()).and_then(Path::parent);
        let directory =
            directory.map_or_else(|| "DIR".to_owned(), |path| shell_word(&path.display().to_string()));
        return Some(format!(
            "The program writes outside of its workspace. If you trust it, add `--writable {directory}`."
        ));
    }
    let is_import = ["ModuleNotFoundError: ", "ImportError: ", "Cannot find module "];
    if is_import.iter().any(|kind| line.contains(kind)) {
        let module =
            quoted(line).map_or_else(|| "a module".to_owned(), |name| format!("the module `{name}`"));
        return Some(format!(
            "The program lacks {module}: install it in a system directory, or show its directory with `--readable PATH`."
        ));
    }
    None
}

/// The first name in single quotes.
fn quoted(text: &str) -> Option<&str> {
    let name = text.split('\'').nth(1)?;
    (!name.is_empty() && name.len() <= MAX_NAME && !name.contains(|c: char| c.is_control() || c == '`'))
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_fits_the_cause() {
        let failed = |stderr: &str| hint(&ToolError::dependency("exited").with("stderr", stderr));
        for (stderr, expected) in [
            ("Traceback\nKeyError: 'PATH'\n", Some("`--secret-raw PATH`")),
            // A variable that the caller lacks, or the key of another mapping.
            ("KeyError: 'TOOLPOST_TEST_NO_SUCH'", None),
            ("OSError: [Errno 30] Read-only file system: '/var/data/x.db'", Some("`--writable /var/data`")),
            ("Error: EROFS: read-only file system, open '/srv/a/b'", Some("`--writable /srv/a`")),
            ("mkdir: Read-only file system", Some("`--writable DIR`")),
            ("ModuleNotFoundError: No module named 'mcp'\n", Some("the module `mcp`")),
            ("Error: Cannot find module 'express'\n    at node:internal", Some("the module `express`")),
            ("ImportError: libpq.so.5: cannot open shared object file", Some("a module")),
            ("segmentation fault", None),
        ] {
            let found = failed(stderr);
            assert_eq!(found.is_some(), expected.is_some(), "{stderr}: {found:?}");
            let has = found.as_deref().zip(expected).is_none_or(|(found, expected)| found.contains(expected));
            assert!(has, "{stderr}: {found:?}");
        }
        assert_eq!(hint(&ToolError::dependency("exited")), None);
    }
}

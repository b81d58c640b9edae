//! Meanings of exit statuses.

use regex::Regex;
use toolpost_core::{Code, ToolError};

use super::output;
use super::place::DescriptionError;
use super::reader::{Item, Section};

/// The meaning of an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The output is the result.
    Success,
    /// An empty result.
    Empty,
    /// An error of this code.
    Error(Code),
}

const MEANINGS: [(&str, Meaning); 12] = [
    ("success", Meaning::Success),
    ("empty", Meaning::Empty),
    ("INVALID_INPUT", Meaning::Error(Code::InvalidInput)),
    ("MISSING_PARAM", Meaning::Error(Code::MissingParam)),
    ("INVALID_PATH", Meaning::Error(Code::InvalidPath)),
    ("NOT_FOUND", Meaning::Error(Code::NotFound)),
    ("CONFLICT", Meaning::Error(Code::Conflict)),
    ("PRECONDITION", Meaning::Error(Code::Precondition)),
    ("TIMEOUT", Meaning::Error(Code::Timeout)),
    ("PERMISSION", Meaning::Error(Code::Permission)),
    ("LIMIT", Meaning::Error(Code::Limit)),
    ("DEPENDENCY", Meaning::Error(Code::Dependency)),
];

/// One entry of `exit`; the first match applies.
#[derive(Clone, Debug)]
pub(super) struct ExitRule {
    /// The statuses; an empty list matches all but 0.
    statuses: Vec<i32>,
    /// A pattern for stderr.
    stderr: Option<Regex>,
    means: Meaning,
    message: Option<String>,
    suggestion: Option<String>,
}

impl ExitRule {
    pub(super) fn read(mut table: Section<'_>) -> Result<Self, DescriptionError> {
        let status = |item: &Item<'_>| {
            i32::try_from(item.integer()?)
                .ok()
                .filter(|status| (0..=255).contains(status))
                .ok_or_else(|| item.error("expected an exit status from 0 to 255"))
        };
        let statuses = table
            .read("code", |item| {
                if item.is_list() {
                    item.list()?.iter().map(status).collect()
                } else {
                    Ok(vec![status(item)?])
                }
            })?
            .unwrap_or_default();
        let rule = Self {
            statuses,
            stderr: table.read("stderr", output::pattern)?,
            means: table.need("means")?.one_of(&MEANINGS)?,
            message: table.read("message", Item::non_empty)?,
            suggestion: table.read("suggestion", Item::non_empty)?,
        };
        if rule.statuses.is_empty() && rule.stderr.is_none() {
            return Err(table.error(
                "expected a `code`, a `stderr` pattern, or both: the rule would match every failure",
            ));
        }
        if !matches!(rule.means, Meaning::Error(_)) && (rule.message.is_some() || rule.suggestion.is_some()) {
            return Err(table.error("`message` and `suggestion` are for errors"));
        }
        table.end()?;
        Ok(rule)
    }

    fn fits(&self, status: i32, stderr: &str) -> bool {
        let by_status = if self.statuses.is_empty() { status != 0 } else { self.statuses.contains(&status) };
        by_status && self.stderr.as_ref().is_none_or(|pattern| pattern.is_match(stderr))
    }
}

/// The meaning of a status: that of the first matching rule, else success for 0 and `DEPENDENCY` for others.
///
/// # Errors
/// The rule's error, with the program's stderr.
pub(super) fn judge<'r>(
    rules: impl IntoIterator<Item = &'r ExitRule>,
    program: &str,
    status: i32,
    stderr: &str,
) -> Result<Meaning, ToolError> {
    let rule = rules.into_iter().find(|rule| rule.fits(status, stderr));
    let means = match rule {
        Some(rule) => rule.means,
        None if status == 0 => Meaning::Success,
        None => Meaning::Error(Code::Dependency),
    };
    let Meaning::Error(code) = means else { return Ok(means) };
    let stderr = excerpt(stderr);
    let message = match rule.and_then(|rule| rule.message.clone()) {
        Some(message) => message,
        None if stderr.is_empty() => format!("`{program}` exited with status {status} and printed no error"),
        None => format!("`{program}` exited with status {status}: {stderr}"),
    };
    Err(ToolError::new(code, message)
        .with("exit_code", status)
        .with("stderr", stderr)
        .suggest_maybe(rule.and_then(|rule| rule.suggestion.clone())))
}

/// The end of stderr, which usually has the reason, without control characters.
fn excerpt(stderr: &str) -> String {
    const MAX_EXCERPT: usize = 1000;
    let text = stderr.trim();
    let skip = text.chars().count().saturating_sub(MAX_EXCERPT);
    let mut short: String = text
        .chars()
        .skip(skip)
        .map(
            |letter| {
                if letter.is_control() && letter != '\n' && letter != '\t' { '\u{fffd}' } else { letter }
            },
        )
        .collect();
    if skip > 0 {
        short.insert(0, '…');
    }
    short
}

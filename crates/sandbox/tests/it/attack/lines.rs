//! Prints the results of the table as lines for `cargo xtask attack`.

use std::fmt::Write as _;

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Result {
    /// As expected, or allowed without a guarantee.
    Held,
    /// Unexpected.
    Wrong,
    /// The probe does not apply there; the reason is printed.
    NotThere,
}

/// A line: where a probe ran, and its result.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) row: u32,
    pub(crate) probe: &'a str,
    pub(crate) level: &'a str,
    pub(crate) backend: &'a str,
    pub(crate) host: &'a str,
    pub(crate) expected: String,
    pub(crate) got: &'a str,
    pub(crate) result: Result,
    pub(crate) took: std::time::Duration,
}

/// The user who runs the tests.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Line<'_> {
    /// Prints it in one write: several processes share the stream.
    pub(crate) fn print(&self) {
        let mut text = String::from("\nATTACK");
        let row = self.row.to_string();
        let user = user().to_string();
        let took = self.took.as_millis().to_string();
        let result = match self.result {
            Result::Held => "held",
            Result::Wrong => "wrong",
            Result::NotThere => "not applicable",
        };
        for field in [
            &*row,
            self.probe,
            self.level,
            self.backend,
            self.host,
            &user,
            &self.expected,
            self.got,
            result,
            &took,
        ] {
            let _ = write!(text, "\t{}", field.replace(['\t', '\n', '\r'], " "));
        }
        println!("{text}");
    }
}

/// Whether the complete table is requested, as by `cargo xtask attack`; otherwise a core that takes less than
/// a minute.
pub(crate) fn is_complete() -> bool {
    #[expect(clippy::disallowed_methods, reason = "`cargo xtask attack` says so")]
    std::env::var_os("TOOLPOST_ATTACK").is_some_and(|value| value == "all")
}

//! Which languages a host can run, with which programs, and how to install the others.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use toolpost_sandbox::{Error, Host, Language, Sandbox};

/// Concurrent version queries.
const AT_ONCE: usize = 4;

/// The status of one language on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LanguageStatus {
    /// The language.
    pub language: Language,
    /// Whether its code runs.
    pub available: bool,
    /// The program that runs or builds it.
    pub path: Option<PathBuf>,
    /// Its version, or the line that it printed: at most 80 printable characters.
    pub version: Option<String>,
    /// Whether code is built before it runs.
    pub compiled: bool,
    /// The reason why its code does not run.
    pub reason: Option<String>,
    /// The installation, if it is missing.
    pub hint: Option<&'static str>,
}

/// The status of each language, in the order of [`Language::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Languages(Vec<LanguageStatus>);

impl Languages {
    /// Finds the programs of every language in the sandbox's search path and queries their versions.
    ///
    /// Each query runs in a sandbox of the same level and host with small limits. It takes as long as the
    /// slowest interpreter's start, some hundred milliseconds. Results are cached until a program changes.
    pub fn detect(sandbox: &Sandbox) -> Self {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            while let Some(language) = Language::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                found.push(status(*language, sandbox));
            }
            found
        };
        let mut all: Vec<LanguageStatus> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..AT_ONCE).map(|_| scope.spawn(work)).collect();
            let own = work();
            // The languages of a panicked thread are checked again below.
            own.into_iter()
                .chain(others.into_iter().filter_map(|thread| thread.join().ok()).flatten())
                .collect()
        });
        for language in Language::ALL {
            if !all.iter().any(|status| status.language == language) {
                all.push(status(language, sandbox));
            }
        }
        all.sort_by_key(|status| status.language);
        Self(all)
    }

    /// A variant for a host and a search path in the form of `PATH`, by default [`SYSTEM_SEARCH_PATH`].
    ///
    /// [`SYSTEM_SEARCH_PATH`]: toolpost_sandbox::SYSTEM_SEARCH_PATH
    pub fn of_host(host: &Host, search_path: Option<&OsStr>) -> Self {
        let sandbox = Sandbox::new().host(host.clone());
        Self::detect(&search_path.into_iter().fold(sandbox, Sandbox::search_path))
    }

    /// The status of one language.
    pub fn get(&self, language: Language) -> Option<&LanguageStatus> {
        self.iter().find(|status| status.language == language)
    }

    /// The status of all languages.
    pub fn iter(&self) -> impl Iterator<Item = &LanguageStatus> {
        self.0.iter()
    }
}

impl IntoIterator for Languages {
    type Item = LanguageStatus;
    type IntoIter = std::vec::IntoIter<LanguageStatus>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

fn status(language: Language, sandbox: &Sandbox) -> LanguageStatus {
    let mut status = LanguageStatus {
        language,
        available: false,
        path: None,
        version: None,
        compiled: language.is_compiled(),
        reason: None,
        hint: None,
    };
    match sandbox.find_language(language) {
        Ok(found) => {
            status = LanguageStatus {
                available: true,
                path: Some(found.path),
                version: Some(found.version),
                compiled: found.is_compiler,
                ..status
            };
        }
        Err(error) => {
            status.hint = Some(match &error {
                Error::LanguageMissing { hint, .. } => *hint,
                _ => language.install_hint(),
            });
            // `hint` has the fix.
            status.reason = Some(match &error {
                Error::LanguageMissing { program, .. } => format!("no {program} on the search path"),
                _ => error.to_string(),
            });
        }
    }
    status
}

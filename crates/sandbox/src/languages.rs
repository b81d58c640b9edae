//! Which languages a host can run, with what, and what to install for the others.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::{Error, Language, Sandbox};

/// Starts of programs at one time when they are asked for their versions.
const AT_ONCE: usize = 4;

/// What a host has for one language.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LanguageStatus {
    /// The language.
    pub language: Language,
    /// Whether code in it runs.
    pub available: bool,
    /// The program that runs or builds it.
    pub path: Option<PathBuf>,
    /// Its version, or the line with which it answered the question for it: at most 80 characters, none of control.
    pub version: Option<String>,
    /// Whether code is built before it runs.
    pub compiled: bool,
    /// Why code in it does not run.
    pub reason: Option<String>,
    /// How to get it, if it is missing.
    pub hint: Option<&'static str>,
}

/// What a host has for each language, in the order of [`Language::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Languages(Vec<LanguageStatus>);

impl Languages {
    /// Looks for the programs of every language in the search path of a sandbox and asks each for its version, in a
    /// sandbox of the same level and host with small limits. Takes as long as the slowest interpreters need to start,
    /// some hundred milliseconds; a program that has not changed since is not asked again.
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
            // A thread that panicked has lost its languages; they are looked at again below.
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

    /// What there is for one language.
    pub fn get(&self, language: Language) -> Option<&LanguageStatus> {
        self.iter().find(|status| status.language == language)
    }

    /// All languages.
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
    match crate::platform::detect(language, sandbox) {
        Ok((path, version, compiled)) => {
            status = LanguageStatus {
                available: true,
                path: Some(path),
                version: Some(version),
                compiled,
                ..status
            };
        }
        Err(error) => {
            status.hint = Some(match &error {
                Error::LanguageMissing { hint, .. } => *hint,
                _ => language.install_hint(),
            });
            // The hint stands beside it.
            status.reason = Some(match &error {
                Error::LanguageMissing { program, .. } => format!("no {program} on the search path"),
                _ => error.to_string(),
            });
        }
    }
    status
}

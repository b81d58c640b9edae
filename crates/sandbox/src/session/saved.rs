//! A saved session: a directory with the files and the log.
//!
//! It has `session.json` (written last, so that a partial save is invalid), `files/` with the workspace and
//! `uploads/` with the uploads. Both use numbers as names: host programs would obey some of the code's names.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log::Entry;
use super::{Reset, Session, SessionLimits};
use crate::error::newer_format;
use crate::level::shorten;
use crate::outcome::sha256;
use crate::sandbox::check_file_name;
use crate::{Cancel, Error, Language, Sandbox, Source, Verdict};

/// The version of the format. Another one is refused.
const VERSION: u32 = 2;
const RECORD: &str = "session.json";
/// The largest record in bytes.
const MAX_RECORD_BYTES: u64 = 256 << 20;
/// The largest file or upload in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    language: Language,
    log: Vec<Entry>,
    files: Vec<SavedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedFile {
    path: String,
    sha256: String,
}

/// A difference between a saved session and its replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The cell number, if the difference is in a cell.
    pub cell: Option<u32>,
    /// The part that differs: `verdict`, `value`, `stdout`, `cell`, or `file` and its path.
    pub subject: String,
    /// The saved value, truncated.
    pub expected: String,
    /// The replayed value, truncated. Files are restored to their saved content anyway.
    pub found: String,
}

fn bad(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::SavedSession { path: path.to_owned(), reason: reason.to_string() }
}

fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let fail = |error: std::io::Error| bad(path, format!("cannot be written: {error}"));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(fail)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(fail)
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let fail = |error: std::io::Error| bad(path, format!("cannot be read: {error}"));
    let metadata = fs::symlink_metadata(path).map_err(fail)?;
    if !metadata.is_file() || metadata.len() > most {
        return Err(bad(path, format!("expected a regular file of at most {most} bytes")));
    }
    let mut content = Vec::new();
    fs::File::open(path).map_err(fail)?.take(most).read_to_end(&mut content).map_err(fail)?;
    Ok(content)
}

impl Session {
    /// The version of the format of saved sessions.
    pub const FORMAT: u32 = VERSION;

    /// Saves the session's files and log to a directory, which is created or must be empty.
    ///
    /// Returns the paths of files that are not saved: those with rejected names and those that are not
    /// regular files with one link.
    ///
    /// The memory of the interpreter and files above 1 GiB are not saved. A session with a log above 64 MiB
    /// cannot be saved.
    pub fn save(&self, directory: &Path) -> Result<Vec<String>, Error> {
        let fail = |error: std::io::Error| bad(directory, error);
        fs::create_dir_all(directory).map_err(fail)?;
        if fs::read_dir(directory).map_err(fail)?.next().is_some() {
            return Err(bad(directory, "the directory is not empty; choose another one"));
        }
        let mut state = self.state("save")?;
        let language = self.language();
        let entries = state
            .log
            .entries()
            .map(<[Arc<Entry>]>::to_vec)
            .ok_or_else(|| bad(directory, "the log exceeds 64 MiB; export the files instead"))?;
        let interpreter = state.interpreter()?;
        let (files, left_out) = interpreter.files()?;
        if let Some(reason) = left_out {
            return Err(bad(directory, format!("some files cannot be saved: {reason}")));
        }
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        for (path, _) in files {
            match interpreter.download(&path, MAX_FILE_BYTES) {
                Ok(content) => {
                    write(&directory.join("files").join(kept.len().to_string()), &content)?;
                    kept.push(SavedFile { path, sha256: sha256(&content) });
                }
                Err(_) => missing.push(shorten(&path)),
            }
        }
        let mut log = Vec::with_capacity(entries.len());
        for (number, deed) in entries.iter().enumerate() {
            if let Entry::Upload { content, .. } = &**deed {
                write(&directory.join("uploads").join(number.to_string()), content)?;
            }
            log.push((**deed).clone());
        }
        let record = Record { v: VERSION, language, log, files: kept };
        let text = serde_json::to_vec(&record).map_err(|error| bad(directory, error))?;
        write(&directory.join(RECORD), &text)?;
        Ok(missing)
    }

    /// Starts a session and replays a saved log: uploads, cells and resets in order.
    ///
    /// Pass the `sandbox` and `limits` of the saved session, including its first files. Afterwards the
    /// workspace equals the saved one, and the list names each difference. Cells that had been stopped are
    /// not replayed.
    pub fn restore(
        sandbox: &Sandbox,
        limits: &SessionLimits,
        directory: &Path,
        cancel: &Cancel,
    ) -> Result<(Self, Vec<Difference>), Error> {
        let path = directory.join(RECORD);
        let text = read(&path, MAX_RECORD_BYTES)?;
        let version: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(&path, error))?;
        let found = version.get("v").cloned().unwrap_or_default();
        if found.as_u64().is_some_and(|found| found > VERSION.into()) {
            return Err(bad(&path, newer_format(&found, VERSION)));
        }
        if found != serde_json::json!(VERSION) {
            return Err(bad(&path, format!("expected version {VERSION}, found {found}")));
        }
        let record: Record = serde_json::from_value(version).map_err(|error| bad(&path, error))?;
        for kept in &record.files {
            check_file_name(&kept.path)?;
        }
        let session = Self::start_with(sandbox, record.language, limits)?;
        let mut differences = Vec::new();
        for (number, deed) in record.log.into_iter().enumerate() {
            if cancel.is_cancelled() {
                return Err(bad(&path, "the restore was cancelled"));
            }
            match deed {
                Entry::Upload { name, .. } => {
                    let content = read(&directory.join("uploads").join(number.to_string()), MAX_FILE_BYTES)?;
                    session.upload(&name, &Source::Bytes(content))?;
                }
                Entry::Reset { fresh: true } => session.reset(Reset::Fresh)?,
                Entry::Reset { fresh: false } => session.reset(Reset::KeepFiles)?,

                Entry::Cell { code, limits, verdict, value, stdout } => {
                    let cell = session.cells() + 1;
                    let mut differs = |subject: &str, expected: String, found: String| {
                        differences.push(Difference {
                            cell: Some(cell),
                            subject: subject.to_owned(),
                            expected: shorten(&expected),
                            found: shorten(&found),
                        });
                    };
                    if !matches!(verdict, Verdict::Ok | Verdict::Exit { .. }) {
                        differs("cell", format!("{verdict:?}"), "not replayed".into());
                        continue;
                    }
                    let outcome = session.run(&code, &limits, cancel, &mut |_| {})?;
                    if outcome.verdict != verdict {
                        differs("verdict", format!("{verdict:?}"), format!("{:?}", outcome.verdict));
                    }
                    let text = |value: Option<serde_json::Value>| {
                        value.map_or_else(|| "none".to_owned(), |value| value.to_string())
                    };
                    if outcome.value != value {
                        differs("value", text(value), text(outcome.value.clone()));
                    }
                    let found = sha256(&outcome.stdout.bytes());
                    if found != stdout {
                        differs("stdout", format!("SHA-256 {stdout}"), format!("SHA-256 {found}"));
                    }
                }
            }
        }
        session.restore_files(directory, &record.files, &mut differences)?;
        Ok((session, differences))
    }

    fn restore_files(
        &self,
        directory: &Path,
        saved: &[SavedFile],
        differences: &mut Vec<Difference>,
    ) -> Result<(), Error> {
        let mut state = self.state("restore")?;
        let interpreter = state.interpreter()?;
        let mut differs = |path: &str, expected: &str, found: &str| {
            differences.push(Difference {
                cell: None,
                subject: format!("file `{}`", shorten(path)),
                expected: shorten(expected),
                found: shorten(found),
            });
        };
        let (present, _) = interpreter.files()?;
        for (path, _) in present.iter().filter(|(path, _)| saved.iter().all(|kept| kept.path != *path)) {
            differs(path, "none", "a file");
            interpreter.remove(path)?;
        }
        for (number, kept) in saved.iter().enumerate() {
            let found = interpreter
                .download(&kept.path, MAX_FILE_BYTES)
                .map_or_else(|_| "none".to_owned(), |content| sha256(&content));
            if found == kept.sha256 {
                continue;
            }
            differs(&kept.path, &kept.sha256, &found);
            let path = directory.join("files").join(number.to_string());
            let content = read(&path, MAX_FILE_BYTES)?;
            if sha256(&content) != kept.sha256 {
                return Err(bad(&path, "its content differs from the saved digest"));
            }
            interpreter.upload(&kept.path, &Source::Bytes(content))?;
        }
        Ok(())
    }
}

//! A session in a folder: its files, and the log of what was done.
//!
//! The folder has `session.json` (written last, so that a part of a saved session is none), `files/` with the workspace
//! and `uploads/` with what was uploaded. Both are by number: programs of the host would obey some of the code's names.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log::Deed;
use super::{Reset, Session, SessionLimits};
use crate::level::shorten;
use crate::outcome::sha256;
use crate::sandbox::check_file_name;
use crate::{Cancel, Error, Language, Sandbox, Source, Verdict};

/// The version of the format. Another one is refused.
const VERSION: u32 = 2;
const RECORD: &str = "session.json";
/// A record that is larger is refused.
const MAXIMUM_RECORD: u64 = 256 << 20;
/// A file or upload that is larger is refused.
const MAXIMUM_FILE: u64 = 1 << 30;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    language: Language,
    log: Vec<Deed>,
    files: Vec<Kept>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    path: String,
    sha256: String,
}

/// Something that is not as it was when the session was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The number of the cell, if it is about one.
    pub cell: Option<u32>,
    /// What differs: `verdict`, `value`, `stdout`, `cell`, or `file` and its path.
    pub subject: String,
    /// What was saved, shortened.
    pub expected: String,
    /// What was found, shortened. A file is as it was saved in spite of it.
    pub found: String,
}

fn bad(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Saved { path: path.to_owned(), reason: reason.to_string() }
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
    /// Saves the session to a folder, which is made, or empty: its files, and what was done, to be done again. Gives the
    /// paths of files that are not among them, because their names are not acceptable or they are no regular files of
    /// one name.
    ///
    /// What is in the memory of the interpreter is not saved, nor are files above 1 GiB. A session whose log grew beyond
    /// 64 MiB cannot be saved.
    pub fn save(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let fail = |error: std::io::Error| bad(folder, error);
        fs::create_dir_all(folder).map_err(fail)?;
        if fs::read_dir(folder).map_err(fail)?.next().is_some() {
            return Err(bad(folder, "the folder is not empty; name another one"));
        }
        let mut state = self.state("save")?;
        let language = self.language();
        let deeds = state.log.deeds().map(<[Arc<Deed>]>::to_vec).ok_or_else(|| {
            bad(
                folder,
                "more than 64 MiB were run and uploaded, which is too much to do again; export its files",
            )
        })?;
        let interpreter = state.interpreter()?;
        let (files, left_out) = interpreter.files()?;
        if let Some(reason) = left_out {
            return Err(bad(folder, format!("not every file can be saved: {reason}")));
        }
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        for (path, _) in files {
            match interpreter.download(&path, MAXIMUM_FILE) {
                Ok(content) => {
                    write(&folder.join("files").join(kept.len().to_string()), &content)?;
                    kept.push(Kept { path, sha256: sha256(&content) });
                }
                Err(_) => missing.push(shorten(&path)),
            }
        }
        let mut log = Vec::with_capacity(deeds.len());
        for (number, deed) in deeds.iter().enumerate() {
            if let Deed::Upload { content, .. } = &**deed {
                write(&folder.join("uploads").join(number.to_string()), content)?;
            }
            log.push((**deed).clone());
        }
        let record = Record { v: VERSION, language, log, files: kept };
        let text = serde_json::to_vec(&record).map_err(|error| bad(folder, error))?;
        write(&folder.join(RECORD), &text)?;
        Ok(missing)
    }

    /// Starts a session and does again what was done in the one that was saved: uploads, cells and resets, in order.
    /// `sandbox` and `limits` should be those of the saved one, the first files included. Afterwards the workspace is as
    /// it was saved; what came out otherwise is in the list. Cells that had been stopped are not run again.
    pub fn restore(
        sandbox: &Sandbox,
        limits: &SessionLimits,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<(Self, Vec<Difference>), Error> {
        let path = folder.join(RECORD);
        let text = read(&path, MAXIMUM_RECORD)?;
        let version: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(&path, error))?;
        let found = version.get("v").cloned().unwrap_or_default();
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
                return Err(bad(&path, "restoring was cancelled"));
            }
            match deed {
                Deed::Upload { name, .. } => {
                    let content = read(&folder.join("uploads").join(number.to_string()), MAXIMUM_FILE)?;
                    session.upload(&name, &Source::Bytes(content))?;
                }
                Deed::Reset { fresh: true } => session.reset(Reset::Fresh)?,
                Deed::Reset { fresh: false } => session.reset(Reset::KeepFiles)?,

                Deed::Cell { code, limits, verdict, value, stdout } => {
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
                        differs("cell", format!("{verdict:?}"), "not run again".into());
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
        session.restore_files(folder, &record.files, &mut differences)?;
        Ok((session, differences))
    }

    fn restore_files(
        &self,
        folder: &Path,
        saved: &[Kept],
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
                .download(&kept.path, MAXIMUM_FILE)
                .map_or_else(|_| "none".to_owned(), |content| sha256(&content));
            if found == kept.sha256 {
                continue;
            }
            differs(&kept.path, &kept.sha256, &found);
            let path = folder.join("files").join(number.to_string());
            let content = read(&path, MAXIMUM_FILE)?;
            if sha256(&content) != kept.sha256 {
                return Err(bad(&path, "its content is not what was saved"));
            }
            interpreter.upload(&kept.path, &Source::Bytes(content))?;
        }
        Ok(())
    }
}

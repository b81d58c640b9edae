//! What a program tells while it runs, handed to the caller's port.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use toolpost_core::{Artifact, ArtifactData, Call, LogLevel, LogLine, Progress, ToolError};

use super::program::excerpt;
use crate::protocol::dialect::{Notice, level_of};

/// The largest artefact that is taken over a line or from the working folder, in bytes.
const MAX_ARTIFACT: u64 = 16 << 20;
/// The most artefacts of one call.
const MAX_ARTIFACTS: usize = 64;
/// The longest message, in characters.
const MAX_MESSAGE: usize = 8_000;
/// Where a sandbox of a strict level shows the working folder.
const INSIDE: &str = "/workspace";

/// The caller's side of a call.
pub(super) struct Notices<'a> {
    pub(super) call: &'a Call,
    /// The host's folder in which the program works, if it is one.
    pub(super) folder: Option<PathBuf>,
    /// What the port did not take, and for the record what it took.
    pub(super) artifacts: Vec<Artifact>,
}

impl Notices<'_> {
    pub(super) fn log(&self, level: LogLevel, message: &str) {
        let message = excerpt(message.as_bytes(), MAX_MESSAGE);
        self.call.port.log(self.call.id, LogLine { level, message });
    }

    pub(super) async fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::Progress { message, percent } => {
                let percent =
                    percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
                let message = excerpt(message.as_bytes(), MAX_MESSAGE);
                self.call.port.progress(self.call.id, Progress { message, percent, attempt: 1 });
            }
            Notice::Log { level, message } => self.log(level_of(&level), &message),
            Notice::Artifact { name, uri } => {
                let taken = if self.artifacts.len() < MAX_ARTIFACTS {
                    self.artifact(&name, &uri).await
                } else {
                    Err(ToolError::limit(format!("a call hands over at most {MAX_ARTIFACTS} files")))
                };
                if let Err(error) = taken {
                    let name = excerpt(name.as_bytes(), 200);
                    self.log(
                        LogLevel::Warn,
                        &format!("the artefact `{name}` was not taken: {}", error.message()),
                    );
                }
            }
        }
    }

    async fn artifact(&mut self, name: &str, uri: &str) -> Result<(), ToolError> {
        let name = file_name(name)?;
        let (media_type, bytes) = match uri.strip_prefix("data:") {
            Some(data) => inline(data)?,
            None => ("application/octet-stream".to_owned(), self.file(uri).await?),
        };
        let artifact = Artifact::from_bytes(name, media_type, bytes);
        if self.call.port.takes_artifacts() {
            self.call.port.artifact(self.call.id, artifact.clone()).await?;
            self.artifacts.push(artifact.without_data());
        } else {
            self.artifacts.push(artifact);
        }
        Ok(())
    }

    /// The content of a file of the working folder. The program names it, so that nothing else of the host may be read
    /// on its behalf.
    async fn file(&self, uri: &str) -> Result<Vec<u8>, ToolError> {
        let Some(folder) = self.folder.clone() else {
            return Err(ToolError::precondition("the program's folder is gone with it")
                .suggest("Call it in a working folder, or let it hand over a `data:` address."));
        };
        let path = uri.strip_prefix("file://").unwrap_or(uri);
        if path.contains("://") {
            return Err(ToolError::invalid_path(
                "only files of the working folder and `data:` addresses are taken",
            ));
        }
        let path = PathBuf::from(path);
        tokio::task::spawn_blocking(move || read_beneath(&folder, &path)).await?
    }
}

fn read_beneath(folder: &Path, path: &Path) -> Result<Vec<u8>, ToolError> {
    let wrong = |error: std::io::Error| ToolError::invalid_path(format!("it cannot be read: {error}"));
    let folder = folder.canonicalize().map_err(wrong)?;
    let path = path.strip_prefix(INSIDE).unwrap_or(path);
    let file = open(&folder.join(path)).map_err(wrong)?;
    let metadata = file.metadata().map_err(wrong)?;
    // The program may swap a name for a link at any moment: what counts is where the file that was opened lies.
    if !lies_at(&file).is_some_and(|place| place.starts_with(&folder)) || !metadata.is_file() {
        return Err(ToolError::invalid_path("it is no file of the working folder"));
    }
    if metadata.len() > MAX_ARTIFACT {
        return Err(ToolError::limit(format!("it has {} bytes, at most 16 MiB are taken", metadata.len())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_ARTIFACT).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}

#[cfg(target_os = "linux")]
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe would block for ever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    std::fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)
}

#[cfg(target_os = "linux")]
fn lies_at(file: &std::fs::File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn open(_path: &Path) -> std::io::Result<std::fs::File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn lies_at(_file: &std::fs::File) -> Option<PathBuf> {
    None
}

/// The content of a `data:` address, without that word.
fn inline(data: &str) -> Result<(String, Vec<u8>), ToolError> {
    let (kind, data) =
        data.split_once(',').ok_or_else(|| ToolError::invalid_input("its `data:` address has no comma"))?;
    let kind_of = |kind: &str| {
        let known =
            !kind.is_empty() && kind.len() < 200 && kind.is_ascii() && !kind.contains(char::is_control);
        if known { kind.to_owned() } else { "text/plain".to_owned() }
    };
    if data.len() as u64 > MAX_ARTIFACT * 2 {
        return Err(ToolError::limit("it is larger than 16 MiB"));
    }
    match kind.strip_suffix(";base64") {
        Some(kind) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(data)
                .map_err(|error| ToolError::invalid_input(format!("it is no base 64: {error}")))?;
            Ok((kind_of(kind), bytes))
        }
        None => Ok((kind_of(kind), data.as_bytes().to_vec())),
    }
}

/// A relative path that stays where it is put.
pub(super) fn file_name(name: &str) -> Result<String, ToolError> {
    let good = !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('/')
        && !name.contains(['\\', ':'])
        && !name.contains(char::is_control)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if good {
        return Ok(name.to_owned());
    }
    Err(ToolError::invalid_path("its name is no relative path without `..`"))
}

/// Whether the bytes of an artefact are here.
pub(super) fn has_data(artifact: &Artifact) -> bool {
    artifact.data != ArtifactData::Absent
}

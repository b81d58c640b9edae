//! Notices of a running program, forwarded to the caller's port.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use toolpost_core::{Artifact, ArtifactData, Call, LogLevel, LogLine, Progress, ToolError};

use super::program::excerpt;
use crate::protocol::dialect::{Notice, level_of};

/// Maximum size of an artifact, in bytes.
const MAX_ARTIFACT: u64 = 16 << 20;
/// Maximum number of artifacts per call.
const MAX_ARTIFACTS: usize = 64;
/// Maximum length of a message, in characters.
const MAX_MESSAGE: usize = 8_000;
/// Path of the working directory inside a sandbox of a strict level.
const INSIDE: &str = "/workspace";

/// The caller of a running program.
pub(super) struct Notices<'a> {
    pub(super) call: &'a Call,
    /// The host directory that the program works in, if any.
    pub(super) directory: Option<PathBuf>,
    /// Artifacts that the port does not accept, and those delivered, without their data.
    pub(super) artifacts: Vec<Artifact>,
}

impl Notices<'_> {
    pub(super) fn log(&self, level: LogLevel, message: &str) {
        let message = excerpt(message.as_bytes(), MAX_MESSAGE);
        self.call.port.log(self.call.id, LogLine { level, message });
    }

    pub(super) async fn forward(&mut self, notice: Notice) {
        match notice {
            Notice::Progress { message, percent } => {
                let percent =
                    percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
                let message = excerpt(message.as_bytes(), MAX_MESSAGE);
                self.call.port.progress(self.call.id, Progress { message, percent, attempt: 1 });
            }
            Notice::Log { level, message } => self.log(level_of(&level), &message),
            Notice::Artifact { name, uri } => {
                let delivered = if self.artifacts.len() < MAX_ARTIFACTS {
                    self.artifact(&name, &uri).await
                } else {
                    Err(ToolError::limit(format!("a call may deliver at most {MAX_ARTIFACTS} files")))
                };
                if let Err(error) = delivered {
                    let name = excerpt(name.as_bytes(), 200);
                    self.log(
                        LogLevel::Warn,
                        &format!("the artifact `{name}` was dropped: {}", error.message()),
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

    /// Reads a file of the working directory. The program chooses the name, so no other file of the host may be read.
    async fn file(&self, uri: &str) -> Result<Vec<u8>, ToolError> {
        let Some(directory) = self.directory.clone() else {
            return Err(ToolError::precondition("the program's temporary directory no longer exists")
                .suggest("Call it in a working directory, or let it deliver a `data:` URI."));
        };
        let path = uri.strip_prefix("file://").unwrap_or(uri);
        if path.contains("://") {
            return Err(ToolError::invalid_path(
                "only files of the working directory and `data:` URIs are accepted",
            ));
        }
        let path = PathBuf::from(path);
        tokio::task::spawn_blocking(move || read_beneath(&directory, &path)).await?
    }
}

fn read_beneath(directory: &Path, path: &Path) -> Result<Vec<u8>, ToolError> {
    let wrong = |error: std::io::Error| ToolError::invalid_path(format!("cannot read the file: {error}"));
    let directory = directory.canonicalize().map_err(wrong)?;
    let path = path.strip_prefix(INSIDE).unwrap_or(path);
    let file = open(&directory.join(path)).map_err(wrong)?;
    let metadata = file.metadata().map_err(wrong)?;
    // The program may swap the path for a link at any time, so check where the opened file is.
    if !lies_at(&file).is_some_and(|place| place.starts_with(&directory)) || !metadata.is_file() {
        return Err(ToolError::invalid_path("it is not a file of the working directory"));
    }
    if metadata.len() > MAX_ARTIFACT {
        return Err(ToolError::limit(format!("it has {} bytes; the maximum is 16 MiB", metadata.len())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_ARTIFACT).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}

#[cfg(target_os = "linux")]
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // Opening a pipe would block.
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

/// Decodes a `data:` URI without its scheme.
fn inline(data: &str) -> Result<(String, Vec<u8>), ToolError> {
    let (kind, data) =
        data.split_once(',').ok_or_else(|| ToolError::invalid_input("its `data:` URI has no comma"))?;
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
                .map_err(|error| ToolError::invalid_input(format!("it is not valid base64: {error}")))?;
            Ok((kind_of(kind), bytes))
        }
        None => Ok((kind_of(kind), data.as_bytes().to_vec())),
    }
}

/// Checks that a name is a relative path without `..`.
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
    Err(ToolError::invalid_path("its name is not a relative path without `..`"))
}

/// Whether an artifact has its data.
pub(super) fn has_data(artifact: &Artifact) -> bool {
    artifact.data != ArtifactData::Absent
}

//! Read-only host paths in a container.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use toolpost_egress::shorten;

use serde_json::{Value, json};

use super::error::DockerError;
use super::host::DockerHost;
use toolpost_sandbox::{BackendRequest, Workspace};

/// The container's own paths.
const RESERVED: [&str; 6] = ["/workspace", "/tmp", "/proc", "/sys", "/dev", "/.toolpost"];
const WORKSPACE: &str = "/workspace";

/// A read-only host path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    source: String,
    target: String,
}

impl Shown {
    /// The shown paths of a request.
    ///
    /// They need a daemon on this machine and access for the unprivileged user inside, and must not lead to
    /// the daemon's socket.
    pub(super) fn all(
        read_only: &[PathBuf],
        workspace: &Workspace,
        host: &DockerHost,
    ) -> Result<Vec<Self>, DockerError> {
        let mut all = Vec::new();
        for path in read_only {
            let target = path.to_string_lossy().into_owned();
            let is_taken = |taken: &str| {
                Path::new(taken).starts_with(path) || (path.starts_with(taken) && taken != "/tmp")
            };
            if let Some(taken) = RESERVED.into_iter().find(|taken| is_taken(taken)) {
                return Err(refused(path, &format!("the container has its own `{taken}`")));
            }
            all.push(Self::new(path, target, host)?);
        }
        if let Workspace::ReadOnlyHost(path) = workspace {
            all.push(Self::new(path, WORKSPACE.into(), host)?);
        }
        Ok(all)
    }

    /// Rejects a directory with files of Toolpost, because a container shows it whole.
    pub(super) fn check_hidden(
        request: &BackendRequest<'_>,
        read_only: &[PathBuf],
    ) -> Result<(), DockerError> {
        let workspace = match request.workspace() {
            Workspace::ReadOnlyHost(path) => Some(path),
            _ => None,
        };
        for path in read_only.iter().chain(workspace) {
            let real = path.canonicalize().map_err(|error| refused(path, &error.to_string()))?;
            if request.hidden().any(|hidden| hidden != real && hidden.starts_with(&real)) {
                return Err(refused(path, "Toolpost keeps its own files in it; show its other directories"));
            }
        }
        Ok(())
    }

    fn new(path: &Path, target: String, host: &DockerHost) -> Result<Self, DockerError> {
        let DockerHost::Unix(socket) = host else {
            return Err(refused(path, "the daemon is on another machine; upload files instead"));
        };
        let real = path.canonicalize().map_err(|error| refused(path, &error.to_string()))?;
        let metadata = real.metadata().map_err(|error| refused(path, &error.to_string()))?;
        let socket = socket.canonicalize().unwrap_or_else(|_| socket.clone());
        if socket.starts_with(&real)
            || ["/proc", "/sys", "/dev"].iter().any(|directory| real.starts_with(directory))
        {
            return Err(refused(path, "it contains the daemon's socket or is a kernel path"));
        }
        let (is_right, needed) =
            (metadata.is_dir() || metadata.is_file(), if metadata.is_dir() { 5 } else { 4 });
        if !is_right {
            return Err(refused(path, "it is neither a file nor a directory"));
        }
        if metadata.mode() & needed != needed {
            let reason =
                "the program runs as user 65534, who cannot read it; run `chmod o+r` or upload files";
            return Err(refused(path, reason));
        }
        let source = real.to_str().ok_or_else(|| refused(path, "its name is not valid UTF-8"))?.to_owned();
        Ok(Self { source, target })
    }

    /// Is the workspace.
    pub(super) fn is_workspace(&self) -> bool {
        self.target == WORKSPACE
    }

    /// Its path in the mount table, with octal escapes.
    pub(super) fn mount_path(&self) -> String {
        let mut place = String::new();
        for letter in self.target.chars() {
            match letter {
                ' ' | '\t' | '\n' | '\\' => {
                    let _ =
                        std::fmt::Write::write_fmt(&mut place, format_args!("\\{:03o}", u32::from(letter)));
                }
                other => place.push(other),
            }
        }
        place
    }

    /// The path inside, for a person.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The mount setting for the Docker API. Submounts are excluded: they would stay writable.
    pub(super) fn settings(&self) -> Value {
        json!({
            "Type": "bind", "Source": self.source, "Target": self.target, "ReadOnly": true,
            "BindOptions": { "Propagation": "rprivate", "NonRecursive": true },
        })
    }
}

fn refused(path: &Path, reason: &str) -> DockerError {
    DockerError::Unsupported {
        what: format!("the path `{}`", shorten(&path.display().to_string())),
        reason: reason.to_owned(),
    }
}

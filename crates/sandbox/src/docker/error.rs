//! What can go wrong between this program and a daemon.

use std::time::Duration;

use crate::level::shorten;

/// Why the daemon, an image or a container could not be used. Each comes within a time limit
/// ([`crate::docker::Options::patience`]).
///
/// A run gives it inside [`crate::Error::Backend`]; [`DockerError::of`] finds it there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DockerError {
    /// The address of the daemon is not one.
    #[error("Docker host `{address}` cannot be used: {reason}")]
    Address {
        /// What was given, shortened and escaped.
        address: String,
        /// What is wrong with it, and what is expected.
        reason: String,
    },
    /// Nobody answers at the address, or the connection broke: the daemon is not running, or gone.
    #[error("no Docker daemon at `{host}` ({action}): {source}; start it, or set `DOCKER_HOST`")]
    Gone {
        /// The address.
        host: String,
        /// What was tried.
        action: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The daemon takes the connection and does not answer in time.
    #[error("the Docker daemon at `{host}` did not answer within {} ms ({action}); restart it", limit.as_millis())]
    Hangs {
        /// The address.
        host: String,
        /// What was tried.
        action: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The daemon says no.
    #[error("the Docker daemon refused ({action}) with status {status}: {message}")]
    Refused {
        /// What was tried.
        action: String,
        /// The HTTP status.
        status: u16,
        /// The daemon's message, shortened and escaped.
        message: String,
    },
    /// The daemon's answer is not what its interface says.
    #[error("unexpected answer of the Docker daemon ({action}): {reason}")]
    Protocol {
        /// What was tried.
        action: String,
        /// What was unexpected.
        reason: String,
    },
    /// The daemon does not have the image, and it was not to be fetched.
    #[error(
        "image `{image}` is not there; `docker pull {image}`, set the pull policy to `missing`, or build one with `toolpost image build`"
    )]
    ImageMissing {
        /// The image.
        image: String,
    },
    /// The image could not be fetched.
    #[error("image `{image}` could not be pulled: {reason}")]
    NotPulled {
        /// The image.
        image: String,
        /// The registry's or the daemon's reason.
        reason: String,
    },
    /// The registry of the image does not give it to whoever asked: it wants a login, or refused the one that was shown.
    #[error(
        "image `{image}` could not be pulled: the registry `{registry}` refused the login ({reason}); check name and password, by `docker login {registry}`"
    )]
    LoginRefused {
        /// The image.
        image: String,
        /// Its registry.
        registry: String,
        /// The registry's reason.
        reason: String,
    },
    /// The image cannot be used.
    #[error("image `{image}` cannot be used: {reason}")]
    ImageUnusable {
        /// The image.
        image: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The container ended or was removed by somebody else while it was in use.
    #[error("container `{container}` is gone: {reason}")]
    ContainerGone {
        /// The name of the container.
        container: String,
        /// What the daemon says about it.
        reason: String,
    },
    /// The daemon does not know the runtime.
    #[error(
        "the Docker daemon has no runtime `{runtime}` (it has {known}); add it to `runtimes` in its `daemon.json`"
    )]
    RuntimeMissing {
        /// The runtime.
        runtime: String,
        /// Those that it has.
        known: String,
    },
    /// What was asked for cannot be done in a container.
    #[error("{what} cannot be had in a container: {reason}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// What the daemon made is weaker than what was asked of it.
    #[error("the container is not confined as it must be: {reason}")]
    NotConfined {
        /// What is missing.
        reason: String,
    },
    /// A file of an image could not be read or made.
    #[error("{action} `{path}`: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl DockerError {
    /// The error of the daemon inside the error of a run.
    pub fn of(error: &crate::Error) -> Option<&Self> {
        match error {
            crate::Error::Backend { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    pub(super) fn protocol(action: &str, reason: impl Into<String>) -> Self {
        Self::Protocol { action: action.to_owned(), reason: shorten(&reason.into()) }
    }
}

impl From<DockerError> for crate::Error {
    fn from(error: DockerError) -> Self {
        Self::Backend { backend: super::NAME, source: Box::new(error) }
    }
}

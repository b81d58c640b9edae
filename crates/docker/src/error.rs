//! Errors of the Docker backend.

use std::time::Duration;
use toolpost_egress::shorten;
use toolpost_sandbox::SandboxHint;

/// The reason why the daemon, an image or a container cannot be used.
///
/// Each error comes within [`crate::Options::answer_timeout`]. A run wraps it in
/// [`toolpost_sandbox::Error::Backend`]; [`DockerError::from_sandbox`] unwraps it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DockerError {
    /// The daemon's address is invalid.
    #[error("Docker host `{address}` is invalid: {reason}")]
    Address {
        /// The address, shortened and escaped.
        address: String,
        /// The problem and the expected form.
        reason: String,
    },
    /// No daemon answers at the address, or the connection broke.
    #[error("no Docker daemon at `{host}` ({action}): {source}")]
    Unreachable {
        /// The address.
        host: String,
        /// The action.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The daemon accepted the connection but did not answer in time.
    #[error("the Docker daemon at `{host}` timed out after {} ms ({action})", limit.as_millis())]
    Timeout {
        /// The address.
        host: String,
        /// The action.
        action: String,
        /// The time limit.
        limit: Duration,
    },
    /// The daemon rejected the request.
    #[error("the Docker daemon rejected the request ({action}) with status {status}: {message}")]
    Rejected {
        /// The action.
        action: String,
        /// The HTTP status.
        status: u16,
        /// The daemon's message, shortened and escaped.
        message: String,
    },
    /// The daemon's answer does not match its API.
    #[error("unexpected answer of the Docker daemon ({action}): {reason}")]
    Protocol {
        /// The action.
        action: String,
        /// The problem.
        reason: String,
    },
    /// The daemon lacks the image, and pulls are disabled.
    #[error("image `{image}` is missing")]
    ImageMissing {
        /// The image.
        image: String,
    },
    /// The image could not be pulled.
    #[error("pulling image `{image}` failed: {reason}")]
    NotPulled {
        /// The image.
        image: String,
        /// The registry's or the daemon's reason.
        reason: String,
    },
    /// The image's registry requires a login, or rejected it.
    #[error(
        "pulling image `{image}` failed: registry `{registry}` rejected the login ({reason}); run `docker login {registry}`"
    )]
    LoginRejected {
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
        /// The reason and the fix.
        reason: String,
    },
    /// The container ended or was removed during its use.
    #[error("container `{container}` is gone: {reason}")]
    ContainerGone {
        /// The name of the container.
        container: String,
        /// The daemon's information about it.
        reason: String,
    },
    /// The daemon does not have the runtime.
    #[error(
        "the Docker daemon has no runtime `{runtime}` (it has {known}); add it to `runtimes` in its `daemon.json`"
    )]
    RuntimeMissing {
        /// The runtime.
        runtime: String,
        /// The daemon's runtimes.
        known: String,
    },
    /// A container does not support the request.
    #[error("a container does not support {what}: {reason}")]
    Unsupported {
        /// The requested feature.
        what: String,
        /// The reason and the alternative.
        reason: String,
    },
    /// The container is weaker than requested.
    #[error("the container lacks a required protection: {reason}")]
    NotConfined {
        /// The missing protection.
        reason: String,
    },
    /// Reading or writing a file of an image failed.
    #[error("{action} `{path}`: {source}")]
    File {
        /// The action.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl DockerError {
    /// Unwraps the Docker error in the error of a run.
    pub fn from_sandbox(error: &toolpost_sandbox::Error) -> Option<&Self> {
        match error {
            toolpost_sandbox::Error::Backend { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    /// The fix, if it is not part of the message.
    pub fn hint(&self) -> Option<SandboxHint> {
        let other = |text: &str| Some(SandboxHint::Other { text: text.to_owned() });
        match self {
            Self::Unreachable { .. } => other("Start it, or set `DOCKER_HOST`."),
            Self::Timeout { .. } => other("Restart it."),
            // Names of our own images have no owner in a registry.
            Self::ImageMissing { image } => Some(match image.strip_prefix("toolpost/") {
                Some(name) => {
                    SandboxHint::BuildImage { recipe: name.split(':').next().unwrap_or(name).to_owned() }
                }
                None => SandboxHint::PullImage { image: image.clone() },
            }),
            _ => None,
        }
    }

    pub(super) fn protocol(action: &str, reason: impl Into<String>) -> Self {
        Self::Protocol { action: action.to_owned(), reason: shorten(&reason.into()) }
    }
}

impl From<DockerError> for toolpost_sandbox::Error {
    fn from(error: DockerError) -> Self {
        Self::Backend { backend: super::NAME, hint: error.hint(), source: Box::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_ours_is_built_and_never_pulled() {
        let recipe = |recipe: &str| SandboxHint::BuildImage { recipe: recipe.into() };
        let image = |image: &str| SandboxHint::PullImage { image: image.into() };
        for (name, fix) in [
            ("toolpost/python:latest", recipe("python")),
            ("toolpost/data", recipe("data")),
            ("registry.example/toolpost/a:1", image("registry.example/toolpost/a:1")),
        ] {
            let error = DockerError::ImageMissing { image: name.to_owned() };
            assert_eq!(toolpost_sandbox::Error::from(error).hint(), Some(fix));
        }
    }
}

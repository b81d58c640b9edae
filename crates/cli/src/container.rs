//! The Docker daemon: containers that code runs in, and their images.

use std::time::Duration;

use crate::exit::Exit;

/// The recipe of the image that a container has when nothing else is named.
pub(crate) const DEFAULT_RECIPE: &str = "python";
/// How long the daemon may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same where the command only wants to know whether there is one.
const SOON: Duration = Duration::from_secs(3);
/// How long each part of building an image may take.
const BUILD_LIMIT: Duration = Duration::from_mins(30);

/// The name of the image of a recipe or profile.
pub(crate) fn tag(name: &str) -> String {
    format!("toolpost/{name}:latest")
}

/// What the daemon says of itself.
pub(crate) struct Daemon {
    pub(crate) version: String,
    pub(crate) runtimes: Vec<String>,
}

/// The recipe of the image with Claude Code.
pub(crate) const CLAUDE_CODE: &str = "claude-code";
/// How the names of containers with Claude Code begin.
const AGENT: &str = "agent";

/// A server in a container: who runs it, and what is started.
pub(crate) struct Served {
    pub(crate) backend: std::sync::Arc<dyn toolpost_sandbox::Backend>,
    pub(crate) argv: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
}

pub(crate) use self::daemon::{backend, build, claude_code, exit, list, look, remove, server};

#[cfg(target_os = "linux")]
mod daemon {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use toolpost_sandbox::docker::image::{CLAUDE_CODE_PROGRAM, Image, Images, Recipe};
    use toolpost_sandbox::docker::{Docker, DockerError, DockerHost, Login, Options, Pull};
    use toolpost_sandbox::{Backend, Error};

    use super::{AGENT, BUILD_LIMIT, Daemon, Duration, Exit, PATIENCE, SOON, Served};
    use crate::env;
    use crate::failure::Failure;

    /// Where the environment says that the daemon is.
    fn host() -> Result<DockerHost, Error> {
        let certificates = env::get_os("DOCKER_CERT_PATH");
        let host = DockerHost::from_variables(
            env::get("DOCKER_HOST").as_deref(),
            env::get("DOCKER_TLS_VERIFY").as_deref(),
            certificates.as_deref().map(Path::new),
        );
        Ok(host?)
    }

    /// Containers of an image, one for each run.
    pub(crate) fn backend(
        image: &str,
        runtime: Option<&str>,
        pull: crate::args::Pull,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let mut options = options(image, pull)?;
        if let Some(runtime) = runtime {
            options = options.runtime(runtime);
        }
        Ok(Arc::new(connect(options)?))
    }

    /// Containers of an image with Claude Code, and where the program is in it.
    pub(crate) fn claude_code(
        image: &str,
        pull: crate::args::Pull,
    ) -> Result<(Arc<dyn Backend>, PathBuf), Failure> {
        let docker = connect(options(image, pull)?.name_prefix(AGENT))?;
        Ok((Arc::new(docker), CLAUDE_CODE_PROGRAM.into()))
    }

    /// A server in a container of an image, which starts as the image says. Nothing is fetched for it.
    pub(crate) fn server(image: &str, arguments: &[String]) -> Result<Served, Failure> {
        let docker = connect(options(image, crate::args::Pull::Never)?.start_in_image_directory(true))?;
        let entry = docker.entry(arguments).map_err(Error::from)?;
        Ok(Served { backend: Arc::new(docker), argv: entry.argv, variables: entry.variables })
    }

    fn options(image: &str, pull: crate::args::Pull) -> Result<Options, Failure> {
        // The command ends with its run: nothing is kept ready for another one.
        let mut options = Options::new(image).idle_containers(0).answer_timeout(PATIENCE);
        options = options.pull(match pull {
            crate::args::Pull::Never => Pull::Never,
            crate::args::Pull::Missing => Pull::Missing,
            crate::args::Pull::Always => Pull::Always,
        });
        if options.pull != Pull::Never
            && let Some(login) = login(image)?
        {
            options = options.login(login);
        }
        Ok(options)
    }

    fn connect(options: Options) -> Result<Docker, Failure> {
        Ok(Docker::connect(&host()?, options).map_err(Error::from)?)
    }

    /// What `docker login` has kept for the registry of an image.
    fn login(image: &str) -> Result<Option<Login>, Failure> {
        let folder = env::get_os("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::get_os("HOME")?).join(".docker")));
        let Some(path) = folder.map(|folder| folder.join("config.json")) else { return Ok(None) };
        match std::fs::read_to_string(&path) {
            Ok(content) => Ok(Login::from_config(&content, image).map_err(Error::from)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::file("the logins of Docker", &path, &error)),
        }
    }

    fn images(patience: Duration) -> Result<Images, Failure> {
        Ok(Images::connect(&host()?, patience).map_err(Error::from)?)
    }

    /// What the daemon says of itself, if it answers soon.
    pub(crate) fn look() -> Result<Daemon, Failure> {
        let (version, runtimes) = images(SOON)?.daemon().map_err(Error::from)?;
        Ok(Daemon { version, runtimes })
    }

    /// The images that were built here.
    pub(crate) fn list() -> Result<Vec<Image>, Failure> {
        Ok(images(SOON)?.list().map_err(Error::from)?)
    }

    /// Builds the image of a recipe. The programs that are started get the variables.
    pub(crate) fn build(
        recipe: &str,
        variables: Vec<(&'static str, OsString)>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Image, Failure> {
        let recipe = Recipe::named(recipe).map_err(Error::from)?;
        let images = images(PATIENCE)?;
        let images = variables.into_iter().fold(images, |images, (name, value)| images.env(name, value));
        Ok(images.build(&recipe, &recipe.tag(), BUILD_LIMIT, progress).map_err(Error::from)?)
    }

    /// Removes an image.
    pub(crate) fn remove(name: &str) -> Result<(), Failure> {
        Ok(images(PATIENCE)?.remove(name).map_err(Error::from)?)
    }

    /// How the command ends when a container could not run something.
    pub(crate) fn exit(error: &Error) -> Exit {
        match DockerError::of(error) {
            Some(
                DockerError::Address { .. }
                | DockerError::ImageMissing { .. }
                | DockerError::ImageUnusable { .. }
                | DockerError::LoginRejected { .. }
                | DockerError::RuntimeMissing { .. }
                | DockerError::Unsupported { .. }
                | DockerError::File { .. },
            ) => Exit::Usage,
            Some(DockerError::NotConfined { .. }) => Exit::Denied,
            _ => Exit::Unreachable,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod daemon {
    use std::ffi::OsString;
    use std::sync::Arc;

    use serde_json::Value;
    use toolpost_sandbox::{Backend, Error};

    use super::{Daemon, Exit};
    use crate::failure::Failure;

    fn refused<T>() -> Result<T, Failure> {
        Err(Failure::usage("containers are for hosts with Linux").hint("Run the command on one."))
    }

    pub(crate) fn backend(
        _image: &str,
        _runtime: Option<&str>,
        _pull: crate::args::Pull,
    ) -> Result<Arc<dyn Backend>, Failure> {
        refused()
    }

    pub(crate) fn claude_code(
        _image: &str,
        _pull: crate::args::Pull,
    ) -> Result<(Arc<dyn Backend>, std::path::PathBuf), Failure> {
        refused()
    }

    pub(crate) fn server(_image: &str, _arguments: &[String]) -> Result<super::Served, Failure> {
        refused()
    }

    pub(crate) fn look() -> Result<Daemon, Failure> {
        refused()
    }

    pub(crate) fn list() -> Result<Vec<Value>, Failure> {
        refused()
    }

    pub(crate) fn build(
        _recipe: &str,
        _variables: Vec<(&'static str, OsString)>,
        _progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        refused()
    }

    pub(crate) fn remove(_name: &str) -> Result<(), Failure> {
        refused()
    }

    pub(crate) fn exit(_error: &Error) -> Exit {
        Exit::Unreachable
    }
}

//! Containers of the Docker daemon, and their images.

use std::time::Duration;

use crate::args::values::Pull;
use crate::failure::Failure;

/// The default recipe of a container image.
pub(crate) const DEFAULT_RECIPE: &str = "python";
/// The time limit of one answer of the daemon.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time limit of a check for a daemon.
const SOON: Duration = Duration::from_secs(3);
/// The time limit of each step of an image build.
const BUILD_LIMIT: Duration = Duration::from_mins(30);

/// The image tag of a recipe or profile.
pub(crate) fn tag(name: &str) -> String {
    format!("toolpost/{name}:latest")
}

/// The named image, else the image that `toolpost image build` makes of a recipe, which is never pulled: its name
/// has no owner in a public registry.
pub(crate) fn image(named: Option<&str>, recipe: &str, pull: Option<Pull>) -> Result<String, Failure> {
    match named {
        Some(image) => Ok(image.to_owned()),
        None if pull.unwrap_or_default() == Pull::Never => Ok(tag(recipe)),
        None => Err(Failure::usage("`--pull` needs `--image`")
            .hint(format!("Name an image, or build one: `toolpost image build {recipe} --docker`."))),
    }
}

/// The daemon's version.
pub(crate) struct Daemon {
    pub(crate) version: String,
    pub(crate) runtimes: Vec<String>,
}

/// The recipe of the image with Claude Code.
pub(crate) const CLAUDE_CODE: &str = "claude-code";
/// The prefix of container names for Claude Code.
const AGENT: &str = "agent";

/// An MCP server in a container: its backend and command.
pub(crate) struct Served {
    pub(crate) backend: std::sync::Arc<dyn toolpost_sandbox::Backend>,
    pub(crate) argv: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
}

pub(crate) use self::daemon::{backend, build, claude_code, list, probe, remove, server};

#[cfg(target_os = "linux")]
mod daemon {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use toolpost_docker::image::{CLAUDE_CODE_PROGRAM, Image, Images, Recipe};
    use toolpost_docker::{Docker, DockerHost, Options, Pull, RegistryLogin};
    use toolpost_sandbox::{Backend, Error};

    use super::{AGENT, BUILD_LIMIT, Daemon, Duration, PATIENCE, SOON, Served};
    use crate::env;
    use crate::failure::Failure;

    /// The address of the daemon.
    fn host() -> Result<DockerHost, Error> {
        let certificates = env::get_os("DOCKER_CERT_PATH");
        let host = DockerHost::from_variables(
            env::get("DOCKER_HOST").as_deref(),
            env::get("DOCKER_TLS_VERIFY").as_deref(),
            certificates.as_deref().map(Path::new),
        );
        Ok(host?)
    }

    /// A backend with one container per run.
    pub(crate) fn backend(
        image: &str,
        runtime: Option<&str>,
        pull: crate::args::values::Pull,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let mut options = options(image, pull)?;
        if let Some(runtime) = runtime {
            options = options.runtime(runtime);
        }
        Ok(Arc::new(connect(options)?))
    }

    /// A backend with Claude Code, and the path of its program.
    pub(crate) fn claude_code(
        image: &str,
        pull: crate::args::values::Pull,
    ) -> Result<(Arc<dyn Backend>, PathBuf), Failure> {
        let docker = connect(options(image, pull)?.name_prefix(AGENT))?;
        Ok((Arc::new(docker), CLAUDE_CODE_PROGRAM.into()))
    }

    /// A server in a container of a local image, with the image's entry point.
    pub(crate) fn server(image: &str, arguments: &[String]) -> Result<Served, Failure> {
        let docker =
            connect(options(image, crate::args::values::Pull::Never)?.start_in_image_directory(true))?;
        let entry = docker.entry(arguments).map_err(Error::from)?;
        Ok(Served { backend: Arc::new(docker), argv: entry.argv, variables: entry.variables })
    }

    fn options(image: &str, pull: crate::args::values::Pull) -> Result<Options, Failure> {
        // The command ends with its run, so it prewarms nothing.
        let mut options = Options::new(image).idle_containers(0).answer_timeout(PATIENCE);
        options = options.pull(match pull {
            crate::args::values::Pull::Never => Pull::Never,
            crate::args::values::Pull::Missing => Pull::Missing,
            crate::args::values::Pull::Always => Pull::Always,
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

    /// The `docker login` credentials for the registry of an image.
    fn login(image: &str) -> Result<Option<RegistryLogin>, Failure> {
        let directory = env::get_os("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::get_os("HOME")?).join(".docker")));
        let Some(path) = directory.map(|directory| directory.join("config.json")) else { return Ok(None) };
        match std::fs::read_to_string(&path) {
            Ok(content) => Ok(RegistryLogin::from_config(&content, image).map_err(Error::from)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::file("the logins of Docker", &path, &error)),
        }
    }

    fn images(patience: Duration) -> Result<Images, Failure> {
        Ok(Images::connect(&host()?, patience).map_err(Error::from)?)
    }

    /// The daemon's version, if it answers soon.
    pub(crate) fn probe() -> Result<Daemon, Failure> {
        let (version, runtimes) = images(SOON)?.daemon().map_err(Error::from)?;
        Ok(Daemon { version, runtimes })
    }

    /// The images of this machine that Toolpost built.
    pub(crate) fn list() -> Result<Vec<Image>, Failure> {
        Ok(images(SOON)?.list().map_err(Error::from)?)
    }

    /// Builds the image of a recipe; its programs get the variables.
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
}

#[cfg(not(target_os = "linux"))]
mod daemon {
    use std::ffi::OsString;
    use std::sync::Arc;

    use serde_json::Value;
    use toolpost_sandbox::Backend;

    use super::Daemon;
    use crate::failure::Failure;

    fn refused<T>() -> Result<T, Failure> {
        Err(Failure::usage("containers need a Linux host").hint("Run the command on Linux."))
    }

    pub(crate) fn backend(
        _image: &str,
        _runtime: Option<&str>,
        _pull: crate::args::values::Pull,
    ) -> Result<Arc<dyn Backend>, Failure> {
        refused()
    }

    pub(crate) fn claude_code(
        _image: &str,
        _pull: crate::args::values::Pull,
    ) -> Result<(Arc<dyn Backend>, std::path::PathBuf), Failure> {
        refused()
    }

    pub(crate) fn server(_image: &str, _arguments: &[String]) -> Result<super::Served, Failure> {
        refused()
    }

    pub(crate) fn probe() -> Result<Daemon, Failure> {
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
}

//! Base images for [`super::Docker`]: build, pull, list, remove.
//!
//! A recipe is a list of steps that fill a directory, which becomes an image of one layer. Without a registry
//! it uses this machine's static busybox, or `debootstrap` with the machine's package sources. With a
//! registry, [`Images::pull`] pulls any image. The build programs run on the host as the operator, who alone
//! chooses them.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

mod claude_code;

pub use claude_code::{CLAUDE_CODE_PROGRAM, CLAUDE_CODE_VERSION};

use super::container;
use super::engine::Engine;
use super::error::DockerError;
use super::host::DockerHost;
use super::login::RegistryLogin;
use super::tar;
use toolpost_egress::shorten;

/// The label of images built here; its value is the recipe's name.
const RECIPE: &str = "toolpost.recipe";
/// The maximum number of entries in an image directory.
const MAX_ENTRIES: usize = 500_000;

/// A recipe for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// A static busybox with its links: a shell and small tools, 2 MB.
    Busybox {
        /// The static program, for example `/bin/busybox` from the package `busybox-static`.
        program: PathBuf,
    },
    /// Debian with Python, built by `debootstrap`, without installation tools.
    Python,
    /// Python plus the packages of the profile `data` ([`toolpost_runtimes::Profile::named`]), installed by this
    /// machine's `pip` from its configured index.
    Data,
    /// Claude Code as a native program, fetched by this machine's `npm`, with its libraries from this machine
    /// and a busybox shell.
    ///
    /// Its version is fixed, and its digest is verified.
    ClaudeCode {
        /// The static busybox.
        shell: PathBuf,
    },
    /// The content of a directory, unchanged.
    Directory {
        /// The directory, which becomes the root.
        path: PathBuf,
    },
}

impl Recipe {
    /// Returns a recipe by name with this machine's defaults: `busybox`, `python`, `data` or `claude-code`.
    pub fn named(name: &str) -> Result<Self, DockerError> {
        match name {
            "busybox" | "claude-code" => {
                let found = ["/bin/busybox", "/usr/bin/busybox", "/sbin/busybox"]
                    .into_iter()
                    .map(PathBuf::from)
                    .find(|path| path.is_file());
                let program = found.ok_or_else(|| DockerError::Unsupported {
                    what: format!("the recipe `{name}`"),
                    reason:
                        "`/bin/busybox` is missing; install it, for example `apt-get install busybox-static`"
                            .into(),
                })?;
                Ok(if name == "busybox" {
                    Self::Busybox { program }
                } else {
                    Self::ClaudeCode { shell: program }
                })
            }
            "python" => Ok(Self::Python),
            "data" => Ok(Self::Data),
            _ => Err(DockerError::Unsupported {
                what: format!("the recipe `{}`", shorten(name)),
                reason: "expected `busybox`, `python`, `data` or `claude-code`".into(),
            }),
        }
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Busybox { .. } => "busybox",
            Self::Python => "python",
            Self::Data => "data",
            Self::ClaudeCode { .. } => "claude-code",
            Self::Directory { .. } => "directory",
        }
    }

    /// The default tag of an image: `toolpost/NAME:latest`.
    pub fn tag(&self) -> String {
        format!("toolpost/{}:latest", self.name())
    }
}

/// An image of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Image {
    /// The name with its version.
    pub name: String,
    /// The id: `sha256:` and 64 digits.
    pub id: String,
    /// The size in bytes, shared layers included.
    pub size: u64,
    /// The creation time, as the daemon formats it.
    pub created: String,
    /// The recipe, if it was built here.
    pub recipe: Option<String>,
    /// The platform, for example `linux/amd64`.
    pub system: String,
}

/// The images of a daemon.
#[derive(Debug, Clone)]
pub struct Images {
    engine: Engine,
    environment: Vec<(String, OsString)>,
}

impl Images {
    /// Connects to the daemon; `answer_timeout` limits each answer.
    pub fn connect(host: &DockerHost, answer_timeout: Duration) -> Result<Self, DockerError> {
        Ok(Self { engine: Engine::connect(host, answer_timeout)?, environment: Vec::new() })
    }

    /// Sets a variable for the programs of [`Images::build`], for example `https_proxy` or `PIP_INDEX_URL`.
    ///
    /// Their environment is otherwise clean.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Builds an image. `progress` receives a line per step; `limit` bounds each program and the import.
    pub fn build(
        &self,
        recipe: &Recipe,
        tag: &str,
        limit: Duration,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Image, DockerError> {
        check_tag(tag)?;
        let scratch;
        let root = match recipe {
            Recipe::Directory { path } => path.as_path(),
            _ => {
                scratch = TemporaryDirectory::new()?;
                fill(recipe, &scratch.root, &Commands { limit, environment: &self.environment }, progress)?;
                scratch.root.as_path()
            }
        };
        progress("importing the image");
        let label = format!("LABEL {RECIPE}={}", recipe.name());
        let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let mut archive = Archive::from_directory(root)?;
        self.engine.import(tag, &[label, path], &mut archive, limit)?;
        archive.finish()?;
        self.get(tag)
    }

    /// The daemon's version and runtimes.
    pub fn daemon(&self) -> Result<(String, Vec<String>), DockerError> {
        let information = self.engine.information()?;
        Ok((information.server, information.runtimes))
    }

    /// Inspects an image.
    pub fn get(&self, name: &str) -> Result<Image, DockerError> {
        check_tag(name)?;
        let found = self.engine.image(name)?;
        let facts = found.ok_or_else(|| DockerError::ImageMissing { image: shorten(name) })?;
        let recipe = facts.labels.iter().find(|(label, _)| label == RECIPE).map(|(_, value)| value.clone());
        Ok(Image {
            name: facts.tags.iter().find(|tag| *tag == name).cloned().unwrap_or_else(|| name.to_owned()),
            id: facts.id,
            size: facts.size,
            created: facts.created,
            recipe,
            system: facts.system,
        })
    }

    /// Lists the images built here.
    pub fn list(&self) -> Result<Vec<Image>, DockerError> {
        let names = self.engine.images_with_label(RECIPE)?;
        let mut images = Vec::new();
        for name in names {
            // Prepared images are removed with their base.
            if name.starts_with("toolpost-prepared:") {
                continue;
            }
            match self.get(&name) {
                Ok(image) => images.push(image),
                // It was removed meanwhile.
                Err(DockerError::ImageMissing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        images.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(images)
    }

    /// Pulls an image within a time limit, optionally with a login.
    pub fn pull(
        &self,
        name: &str,
        login: Option<&RegistryLogin>,
        limit: Duration,
    ) -> Result<Image, DockerError> {
        check_tag(name)?;
        self.engine.pull(name, login, limit)?;
        self.get(name)
    }

    /// Removes an image and the prepared images made of it. Fails if a container uses it.
    pub fn remove(&self, name: &str) -> Result<(), DockerError> {
        check_tag(name)?;
        let image = self.get(name)?;
        for prepared in container::prepared_from(&self.engine, &image.id)? {
            self.engine.remove_image(&prepared, true)?;
        }
        self.engine.remove_image(name, false)
    }
}

/// Checks an image name, which becomes part of requests and labels.
fn check_tag(tag: &str) -> Result<(), DockerError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let good = !tag.is_empty()
        && tag.len() <= 255
        && tag.bytes().all(fits)
        && tag.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && !tag.contains("..")
        && !tag.contains("//");
    if good {
        return Ok(());
    }
    Err(DockerError::ImageUnusable {
        image: shorten(tag),
        reason: "a name has letters, digits and `._-/:@`, for example `toolpost/python:latest`".into(),
    })
}

/// A directory that is removed on drop.
struct TemporaryDirectory {
    directory: PathBuf,
    root: PathBuf,
}

impl TemporaryDirectory {
    fn new() -> Result<Self, DockerError> {
        let directory = std::env::temp_dir().join(container::name(container::PREFIX));
        let fail = |source| file("create directory", &directory, source);
        std::fs::create_dir(&directory).map_err(fail)?;
        let root = directory.join("root");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).map_err(fail)?;
        std::fs::create_dir(&root).map_err(fail)?;
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).map_err(fail)?;
        Ok(Self { directory, root })
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Leftovers are in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn file(action: &'static str, path: &Path, source: io::Error) -> DockerError {
    DockerError::File { action, path: path.display().to_string(), source }
}

/// Starts programs of the host.
struct Commands<'a> {
    limit: Duration,
    environment: &'a [(String, OsString)],
}

/// Fills the root directory of an image.
fn fill(
    recipe: &Recipe,
    root: &Path,
    commands: &Commands<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), DockerError> {
    match recipe {
        Recipe::Directory { .. } => Ok(()),
        Recipe::Busybox { program } => busybox(program, root, commands),
        Recipe::ClaudeCode { shell } => {
            busybox(shell, root, commands)?;
            claude_code::fill(root, commands, progress)
        }
        Recipe::Python => debian(root, commands, progress),
        Recipe::Data => {
            debian(root, commands, progress)?;
            progress("installing the packages of the profile `data`");
            let target = root.join("usr/local/lib/toolpost-data");
            let version = python_version(root)?;
            let mut arguments: Vec<String> = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--only-binary=:all:",
                "--implementation=cp",
                "--python-version",
                &version,
                "--target",
            ]
            .map(str::to_owned)
            .into();
            arguments.push(target.display().to_string());
            let profile = toolpost_runtimes::Profile::named("data").map_err(|error| {
                self::file("read", Path::new("the profile `data`"), io::Error::other(error.to_string()))
            })?;
            arguments.extend(profile.packages.into_iter().map(|package| package.requirement));
            commands.run("python3", &arguments)?;
            // The interpreter runs isolated and ignores variables, so a `.pth` file names the packages.
            let place = root.join(format!("usr/local/lib/python{version}/dist-packages"));
            let path_file = place.join("toolpost-data.pth");
            std::fs::create_dir_all(&place)
                .and_then(|()| std::fs::write(&path_file, "/usr/local/lib/toolpost-data\n"))
                .map_err(|source| self::file("write", &path_file, source))
        }
    }
}

/// Adds a busybox with the directories that a root needs.
fn busybox(program: &Path, root: &Path, commands: &Commands<'_>) -> Result<(), DockerError> {
    let fail = |source| file("copy", program, source);
    for directory in ["bin", "etc", "tmp", "workspace", "proc", "sys", "dev"] {
        std::fs::create_dir(root.join(directory)).map_err(fail)?;
    }
    let target = root.join("bin/busybox");
    std::fs::copy(program, &target).map_err(fail)?;
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).map_err(fail)?;
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        .map_err(fail)?;
    std::fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n").map_err(fail)?;
    let list = commands.run(&program.display().to_string(), &["--list".to_owned()])?;
    for name in list.lines().filter(|name| !name.is_empty() && *name != "busybox" && !name.contains('/')) {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).map_err(fail)?;
    }
    Ok(())
}

/// The release of Debian.
const RELEASE: &str = "bookworm";
/// Files that only installations or people need.
const NOT_NEEDED: [&str; 6] =
    ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log"];

fn debian(root: &Path, commands: &Commands<'_>, progress: &mut dyn FnMut(&str)) -> Result<(), DockerError> {
    progress("building a small Debian with `debootstrap`, which takes some minutes");
    let mut arguments: Vec<String> =
        ["--variant=minbase", "--include=python3-minimal,libpython3-stdlib,ca-certificates"]
            .map(str::to_owned)
            .into();
    arguments.extend([RELEASE.to_owned(), root.display().to_string()]);
    commands.run("debootstrap", &arguments)?;
    for directory in NOT_NEEDED {
        let directory = root.join(directory);
        if directory.is_dir() {
            std::fs::remove_dir_all(&directory)
                .and_then(|()| std::fs::create_dir(&directory))
                .map_err(|source| file("empty", &directory, source))?;
        }
    }
    Ok(())
}

/// The interpreter's version in a root, for example `3.11`.
fn python_version(root: &Path) -> Result<String, DockerError> {
    let link = root.join("usr/bin/python3");
    let target = std::fs::read_link(&link).map_err(|source| file("read link", &link, source))?;
    let name = target.to_string_lossy().into_owned();
    let version = name.rsplit('/').next().and_then(|name| name.strip_prefix("python"));
    version
        .map(str::to_owned)
        .ok_or_else(|| file("read link", &link, io::Error::other("it names no Python version")))
}

impl Commands<'_> {
    /// Runs a host program to its end and returns its output. It is the operator's own: unconfined, but
    /// bounded, and it dies with this program.
    fn run(&self, program: &str, arguments: &[String]) -> Result<String, DockerError> {
        let limits = toolpost_sandbox::Limits::default()
            .with_wall(self.limit)
            .with_memory(8 << 30)
            .with_processes(4096)
            .with_descriptors(4096)
            .with_file_size(8 << 30);
        let mut all = vec![program.to_owned()];
        all.extend(arguments.iter().cloned());
        let failed = |reason: String| DockerError::Unsupported { what: format!("`{program}`"), reason };
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if let Some((name, _)) = self.environment.iter().find(|(name, _)| !is_name(name)) {
            return Err(failed(format!(
                "the variable name `{}` has characters other than letters, digits and underscores",
                shorten(name)
            )));
        }
        // `env` sets variables that the sandbox would reject for untrusted programs.
        let mut command = vec!["env".into()];
        command.extend(self.environment.iter().map(|(name, value)| {
            let mut pair = OsString::from(format!("{name}="));
            pair.push(value);
            pair
        }));
        command.extend(all.into_iter().map(OsString::from));
        let outcome = toolpost_sandbox::Sandbox::unconfined()
            .limits(limits)
            .run(
                &toolpost_sandbox::Program::operator_argv(command),
                &toolpost_sandbox::Cancel::new(),
                &mut |_| {},
            )
            .map_err(|error| failed(error.to_string()))?;
        if outcome.verdict.is_ok() {
            return Ok(outcome.stdout.text());
        }
        if outcome.exit_code == Some(127) {
            return Err(failed("it is not installed; install it, for example by `apt-get install`".into()));
        }
        let text = outcome.stderr.text();
        let last: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        let last: Vec<String> = last.into_iter().rev().map(shorten).collect();
        Err(failed(format!("it ended with {:?}: {}", outcome.verdict, last.join(" / "))))
    }
}

/// Streams the directory of an image as an archive. Everything belongs to root; devices, sockets and pipes
/// are skipped.
struct Archive {
    pipe: std::io::PipeReader,
    writer: Option<std::thread::JoinHandle<io::Result<()>>>,
    directory: PathBuf,
}

impl Archive {
    fn from_directory(directory: &Path) -> Result<Self, DockerError> {
        let fail = |source| file("read directory", directory, source);
        if !directory.is_dir() {
            return Err(fail(io::ErrorKind::NotADirectory.into()));
        }
        let (pipe, target) = std::io::pipe().map_err(fail)?;
        let root = directory.to_owned();
        let writer = std::thread::Builder::new()
            .name("image-archive".into())
            .spawn(move || write_directory(&root, std::io::BufWriter::new(target)))
            .map_err(fail)?;
        Ok(Self { pipe, writer: Some(writer), directory: directory.to_owned() })
    }

    /// The error of reading the directory, if any.
    fn finish(mut self) -> Result<(), DockerError> {
        let result = self.writer.take().map_or(Ok(Ok(())), std::thread::JoinHandle::join);
        result
            .unwrap_or_else(|_| Err(io::Error::other("the writing thread ended early")))
            .map_err(|source| file("read directory", &self.directory, source))
    }
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pipe.read(buffer)
    }
}

fn write_directory(root: &Path, target: impl io::Write) -> io::Result<()> {
    let mut archive = tar::Writer::new(target);
    let mut waiting = vec![PathBuf::new()];
    let mut seen = 0usize;
    while let Some(directory) = waiting.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(root.join(&directory))?.collect::<Result<_, _>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err(io::Error::other("there are more than 500,000 files and directories"));
            }
            let path = directory.join(entry.file_name());
            let name = path.to_str().ok_or_else(|| io::Error::other("a name is not valid UTF-8"))?;
            let metadata = entry.metadata()?;
            // No setuid bits: programs in a container could not use them.
            let mode = metadata.mode() & 0o1777;
            if metadata.is_dir() {
                archive.directory(name, mode)?;
                waiting.push(path);
            } else if metadata.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                archive.link(name, &target.to_string_lossy())?;
            } else if metadata.is_file() {
                let mut content = std::fs::File::open(entry.path())?;
                archive.file(name, mode, metadata.len(), &mut content)?;
            }
        }
    }
    archive.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_checked() {
        for name in ["toolpost/python:latest", "localhost:5000/a", "a@sha256:00", "busybox"] {
            check_tag(name).unwrap();
        }
        for name in ["", "-a", "a b", "a\nb", "../a", "a//b", "a?x=1", &"a".repeat(256)] {
            assert!(check_tag(name).is_err(), "{name}");
        }
    }

    #[test]
    fn recipes_have_names() {
        for name in ["python", "data"] {
            let recipe = Recipe::named(name).unwrap();
            assert_eq!((recipe.name(), recipe.tag()), (name, format!("toolpost/{name}:latest")));
        }
        let error = Recipe::named("pyhton").unwrap_err().to_string();
        assert!(error.contains("`busybox`, `python`, `data` or `claude-code`"), "{error}");
    }
}

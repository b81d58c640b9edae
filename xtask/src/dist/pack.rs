//! The packages around the binaries. The same binaries make the same packages, byte for byte.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bill::Bill;
use super::{Target, output};
use crate::Result;
use crate::command::Task;

/// The file with the checksums of all others.
pub const SUMS: &str = "SHA256SUMS";

const LICENSES: &str = "THIRD-PARTY-LICENSES.txt";
const OWN_LICENSES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
const SUMMARY: &str = "Tool runtime for LLM agents";
/// The files of the first job of the README.
const DEMO: [&str; 2] = ["examples/weather/seattle-weather.csv", "examples/weather/weather.yaml"];

/// A release and where its packages go.
#[derive(Debug)]
pub struct Release {
    root: PathBuf,
    /// The directory of the packages.
    pub output: PathBuf,
    /// The version of the workspace.
    pub version: String,
    repository: String,
    /// The time of all files, in seconds since 1970.
    epoch: String,
    /// Whether compression is fast, and the npm package is what the last compilation left.
    is_quick: bool,
}

impl Release {
    /// Reads version and time of the checkout: `SOURCE_DATE_EPOCH`, else that of the commit.
    pub fn read(root: &Path, output_directory: &Path, is_quick: bool) -> Result<Self> {
        let manifest = read(&root.join("Cargo.toml"))?;
        let manifest: toml::Table = manifest.parse().map_err(|error| format!("Cargo.toml: {error}"))?;
        let fact = |name: &str| {
            let value = manifest.get("workspace")?.get("package")?.get(name)?.as_str()?;
            Some(value.to_owned())
        };
        let epoch = std::env::var("SOURCE_DATE_EPOCH");
        let commit = Task::new("git", &["log", "-1", "--format=%ct"]).directory(root);
        Ok(Self {
            root: root.to_owned(),
            output: output_directory.to_owned(),
            version: fact("version").ok_or("Cargo.toml has no version")?,
            repository: fact("repository").ok_or("Cargo.toml has no repository")?,
            epoch: epoch.or_else(|_| output(&commit))?.trim().to_owned(),
            is_quick,
        })
    }

    /// Packs the binaries. `runs_here` is the one that prints completions and man pages.
    pub fn pack(&self, binaries: &[(Target, PathBuf)], runs_here: &Path) -> Result<()> {
        let (first, _) = binaries.first().ok_or("there is no binary")?;
        let bill = Bill::read(&self.root, *first)?;
        let stage = Stage(self.output.with_extension("stage"));
        for directory in [&self.output, &stage.0] {
            if directory.exists() {
                fs::remove_dir_all(directory).map_err(|error| failed("remove", directory, &error))?;
            }
            fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))?;
        }
        let pages = stage.inside("pages");
        pages.pages(runs_here)?;
        pages.write(LICENSES, bill.licenses()?)?;
        for (target, binary) in binaries {
            self.archive(*target, binary, &pages, &stage)?;
            self.debian(*target, binary, &pages, &stage)?;
            self.npm(*target, binary, &pages, &stage)?;
            self.image(*target, binary, &pages)?;
        }
        self.npm_main()?;
        let own = Stage(self.output.clone());
        own.write("toolpost.rb", self.formula(binaries)?)?;
        let script = read(&self.root.join("packaging/install.sh"))?;
        let script = script.replace("@VERSION@", &self.version).replace("@REPOSITORY@", &self.repository);
        own.write("install.sh", script)?;
        let bill = bill.cyclonedx(&self.version, &self.time("+%Y-%m-%dT%H:%M:%SZ")?)?;
        own.write(&format!("toolpost-{}.cdx.json", self.version), format!("{bill:#}\n"))?;
        fs::remove_dir_all(&stage.0).map_err(|error| failed("remove", &stage.0, &error))?;
        own.write(SUMS, self.sums()?)
    }

    /// The name of the archive of a platform.
    pub fn archive_name(&self, target: Target) -> String {
        format!("toolpost-{}-{}.tar.gz", self.version, target.triple())
    }

    fn time(&self, format: &str) -> Result<String> {
        let time = format!("--date=@{}", self.epoch);
        let task = Task::new("date", &["--utc", &time, format]).variable("LC_ALL", "C");
        Ok(output(&task)?.trim().to_owned())
    }

    /// Copies files of the checkout, and the licenses of the packages in the binary.
    fn copy_documents(&self, stage: &Stage, pages: &Stage, names: &[&str]) -> Result<()> {
        stage.copy(&pages.0.join(LICENSES), LICENSES, 0o644)?;
        names.iter().try_for_each(|name| stage.copy(&self.root.join(name), name, 0o644))
    }

    fn archive(&self, target: Target, binary: &Path, pages: &Stage, stage: &Stage) -> Result<()> {
        let name = self.archive_name(target);
        let inside = stage.inside(name.trim_end_matches(".tar.gz"));
        inside.copy(binary, "toolpost", 0o755)?;
        self.copy_documents(&inside, pages, &[&["README.md"], &OWN_LICENSES[..], &DEMO].concat())?;
        for directory in ["completions", "man"] {
            for path in files(&pages.0.join(directory))? {
                inside.copy(&path, &format!("{directory}/{}", file_name(&path)), 0o644)?;
            }
        }
        self.tar(&inside, &name)
    }

    /// Makes an archive of a staged directory, with its name as the first part of each path.
    fn tar(&self, inside: &Stage, name: &str) -> Result<()> {
        let parent = inside.0.parent().unwrap_or(&inside.0);
        let archive = self.output.join(name.trim_end_matches(".tar.gz").trim_end_matches(".tgz"));
        let archive = archive.display().to_string();
        let time = format!("--mtime=@{}", self.epoch);
        let options = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar", &time];
        let task = Task::new("tar", &options).argument("--create").argument("--file").argument(&archive);
        output(&task.argument(&file_name(&inside.0)).directory(parent))?;
        self.gzip(&archive)?;
        let compressed = format!("{archive}.gz");
        fs::rename(&compressed, self.output.join(name)).map_err(|error| failed("rename", &compressed, &error))
    }

    /// Replaces a file by its compressed form, without name and time.
    fn gzip(&self, path: &str) -> Result<()> {
        let level = if self.is_quick { "-1" } else { "-9" };
        output(&Task::new("gzip", &["--no-name", level, path])).map(drop)
    }

    fn debian(&self, target: Target, binary: &Path, pages: &Stage, stage: &Stage) -> Result<()> {
        let Self { version, repository, .. } = self;
        let inside = stage.inside(&format!("debian-{}", target.debian));
        let document = |name: &str| format!("usr/share/doc/toolpost/{name}");
        inside.copy(binary, "usr/bin/toolpost", 0o755)?;
        self.copy_documents(&inside.inside(&document("")), pages, &[&["README.md"], &DEMO[..]].concat())?;
        for (from, to) in [
            ("toolpost.bash", "usr/share/bash-completion/completions/toolpost"),
            ("_toolpost", "usr/share/zsh/vendor-completions/_toolpost"),
            ("toolpost.fish", "usr/share/fish/vendor_completions.d/toolpost.fish"),
        ] {
            inside.copy(&pages.0.join("completions").join(from), to, 0o644)?;
        }
        for path in files(&pages.0.join("man"))? {
            let to = format!("usr/share/man/man1/{}", file_name(&path));
            inside.copy(&path, &to, 0o644)?;
            self.gzip(&inside.0.join(to).display().to_string())?;
        }
        let maintainer = "The Toolpost developers <toolpost@users.noreply.github.com>";
        let changes = format!(
            "toolpost ({version}) unstable; urgency=medium\n\n  * See {repository}/blob/main/CHANGELOG.md.\n\n -- {maintainer}  {}\n",
            self.time("+%a, %d %b %Y %H:%M:%S +0000")?
        );
        inside.write(&document("changelog"), changes)?;
        self.gzip(&inside.0.join(document("changelog")).display().to_string())?;
        let mit = read(&self.root.join("LICENSE-MIT"))?;
        let copyright = format!(
            "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
             Upstream-Name: toolpost\nSource: {repository}\n\
             Comment: The licenses of the packages in the binary are in {LICENSES}.\n\n\
             Files: *\nCopyright: The Toolpost developers\nLicense: Expat or Apache-2.0\n\n\
             License: Apache-2.0\n /usr/share/common-licenses/Apache-2.0 has the license.\n\n\
             License: Expat\n{}",
            indented(&mit)
        );
        inside.write(&document("copyright"), copyright)?;
        let find = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
        inside.write("DEBIAN/md5sums", output(&Task::new("sh", &["-c", find]).directory(&inside.0))?)?;
        let size = output(&Task::new("du", &["-sk", "--apparent-size", "usr"]).directory(&inside.0))?;
        let size = size.split_whitespace().next().unwrap_or("0");
        let control = format!(
            "Package: toolpost\nVersion: {version}\nArchitecture: {}\nMaintainer: {maintainer}\n\
             Installed-Size: {size}\nRecommends: ca-certificates, python3\nSection: devel\nPriority: optional\n\
             Homepage: {repository}\nDescription: {SUMMARY}\n Define a tool once, as a function or any executable. Call it from a shell, an\n \
             MCP client or an agent loop, in a sandbox.\n",
            target.debian
        );
        inside.write("DEBIAN/control", control)?;
        let package = format!("toolpost_{version}_{}.deb", target.debian);
        let compression = if self.is_quick { ["-Zgzip", "-z1"] } else { ["-Zxz", "-z9"] };
        let task = Task::new("dpkg-deb", &["--root-owner-group"])
            .argument(compression[0])
            .argument(compression[1])
            .argument("--build")
            .argument(&inside.0.display().to_string())
            .argument(&self.output.join(package).display().to_string());
        output(&task.variable("SOURCE_DATE_EPOCH", &self.epoch)).map(drop)
    }

    /// The npm package of a platform, which the main package depends on.
    fn npm(&self, target: Target, binary: &Path, pages: &Stage, stage: &Stage) -> Result<()> {
        let name = format!("toolpost-linux-{}", target.node);
        let inside = stage.inside(&name).inside("package");
        inside.copy(binary, "bin/toolpost", 0o755)?;
        self.copy_documents(&inside, pages, &OWN_LICENSES)?;
        inside.write("README.md", format!("# {name}\n\nThe binary of the package `toolpost`.\n"))?;
        let manifest = json!({
            "name": name,
            "version": self.version,
            "description": format!("The binary of the package `toolpost` for Linux on {}.", target.node),
            "license": "MIT OR Apache-2.0",
            "repository": { "type": "git", "url": format!("git+{}.git", self.repository) },
            "os": ["linux"],
            "cpu": [target.node],
            "files": ["bin", LICENSES],
        });
        inside.write("package.json", format!("{manifest:#}\n"))?;
        self.tar(&inside, &format!("{name}-{}.tgz", self.version))
    }

    /// The main npm package: the library and the launcher.
    fn npm_main(&self) -> Result<()> {
        let manifest = read(&self.root.join("typescript/package.json"))?;
        let manifest: Value = serde_json::from_str(&manifest).map_err(|error| error.to_string())?;
        let dependencies = manifest["optionalDependencies"].as_object().into_iter().flatten();
        let versions = dependencies.map(|(_, version)| version).chain([&manifest["version"]]);
        if let Some(version) = versions.into_iter().find(|version| **version != self.version) {
            return Err(format!("typescript/package.json names version {version}; write {}", self.version));
        }
        let destination = self.output.display().to_string();
        let mut task = Task::new("npm", &["pack", "--silent", "--pack-destination", &destination]);
        if self.is_quick {
            task = task.argument("--ignore-scripts");
        }
        output(&task.directory(&self.root.join("typescript"))).map(drop)
    }

    /// The root of an image: the context of `packaging/Dockerfile` is `image/ARCHITECTURE`.
    fn image(&self, target: Target, binary: &Path, pages: &Stage) -> Result<()> {
        let inside = Stage(self.output.join("image").join(target.debian));
        inside.copy(binary, "usr/bin/toolpost", 0o755)?;
        self.copy_documents(&inside.inside("usr/share/doc/toolpost"), pages, &OWN_LICENSES)?;
        inside.write("etc/passwd", "toolpost:x:1000:1000::/home:/usr/bin/toolpost\n".to_owned())?;
        for (directory, mode) in [("tmp", 0o1777), ("home", 0o777), ("work", 0o777)] {
            let path = inside.0.join(directory);
            fs::create_dir_all(&path).map_err(|error| failed("make", &path, &error))?;
            set_mode(&path, mode)?;
        }
        Ok(())
    }

    fn formula(&self, binaries: &[(Target, PathBuf)]) -> Result<String> {
        let Self { version, repository, .. } = self;
        let mut platforms = String::new();
        for (target, _) in binaries {
            let archive = self.archive_name(*target);
            let sum = output(&Task::new("sha256sum", &[&archive]).directory(&self.output))?;
            let sum = sum.split_whitespace().next().unwrap_or_default();
            write!(
                platforms,
                "    on_{} do\n      url \"{repository}/releases/download/v{version}/{archive}\"\n      sha256 \"{sum}\"\n    end\n",
                target.homebrew
            )
            .map_err(|error| error.to_string())?;
        }
        Ok(format!(
            "class Toolpost < Formula\n  desc \"{SUMMARY}\"\n  homepage \"{repository}\"\n  version \"{version}\"\n  \
             license any_of: [\"MIT\", \"Apache-2.0\"]\n  depends_on :linux\n\n  on_linux do\n{platforms}  end\n\n  \
             def install\n    bin.install \"toolpost\"\n    bash_completion.install \"completions/toolpost.bash\" => \"toolpost\"\n    \
             zsh_completion.install \"completions/_toolpost\"\n    fish_completion.install \"completions/toolpost.fish\"\n    \
             man1.install Dir[\"man/*.1\"]\n  end\n\n  test do\n    \
             assert_match version.to_s, shell_output(\"#{{bin}}/toolpost --version\")\n  end\nend\n"
        ))
    }

    fn sums(&self) -> Result<String> {
        let names: Vec<String> = files(&self.output)?.iter().map(|path| file_name(path)).collect();
        let mut task = Task::new("sha256sum", &[]).directory(&self.output);
        for name in &names {
            task = task.argument(name);
        }
        output(&task)
    }
}

/// A directory in which the files of a package are laid out.
#[derive(Debug)]
struct Stage(PathBuf);

impl Stage {
    fn inside(&self, directory: &str) -> Self {
        Self(self.0.join(directory))
    }

    fn place(&self, to: &str) -> Result<PathBuf> {
        let path = self.0.join(to);
        let mut directories = Vec::new();
        let mut directory = path.parent();
        while let Some(missing) = directory.filter(|directory| !directory.exists()) {
            directories.push(missing.to_owned());
            directory = missing.parent();
        }
        for directory in directories.iter().rev() {
            fs::create_dir(directory).map_err(|error| failed("make", directory, &error))?;
            // The mask of the user is not a part of a package.
            set_mode(directory, 0o755)?;
        }
        Ok(path)
    }

    /// Lays out the completions and man pages that a binary prints.
    fn pages(&self, binary: &Path) -> Result<()> {
        let binary = binary.display().to_string();
        for (shell, name) in [("bash", "toolpost.bash"), ("zsh", "_toolpost"), ("fish", "toolpost.fish")] {
            self.write(
                &format!("completions/{name}"),
                output(&Task::new(&binary, &["completions", shell]))?,
            )?;
        }
        let man = self.0.join("man");
        fs::create_dir_all(&man).map_err(|error| failed("make", &man, &error))?;
        output(&Task::new(&binary, &["man-pages", &man.display().to_string()])).map(drop)
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let path = self.place(to)?;
        fs::copy(from, &path).map_err(|error| failed("copy", from, &error))?;
        set_mode(&path, mode)
    }

    fn write(&self, to: &str, text: String) -> Result<()> {
        let path = self.place(to)?;
        fs::write(&path, text).map_err(|error| failed("write", &path, &error))?;
        set_mode(&path, 0o644)
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| failed("change the mode of", path, &error))
}

fn failed(verb: &str, path: impl AsRef<Path>, error: &std::io::Error) -> String {
    format!("cannot {verb} {}: {error}", path.as_ref().display())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| failed("read", path, &error))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|error| failed("list", directory, &error))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

/// A text as Debian's field: each line begins with a space, an empty one is a dot.
fn indented(text: &str) -> String {
    let line = |line: &str| if line.trim().is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
    text.lines().map(line).collect()
}

//! Profiles (named lists of Python packages) and the virtual environments that contain them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use toolpost_egress::shorten;
use toolpost_sandbox::{Cancel, Error, Language, Level, Program, Ready, Sandbox, private_directory};

use crate::installer::{PIP_OPTIONS, distributions, failed, file_error, finish, lock, open_record, remove};
use crate::requirements::name;
use crate::{Installer, Requirements};

/// The profile `data`, in the format of [`Profile::parse`].
const DATA: &str = include_str!("../profiles/data.txt");
/// The largest profile file in bytes.
const MAX_PROFILE_BYTES: u64 = 64 << 10;
/// The directory of the virtual environment in an environment's directory.
const INNER: &str = "env";

/// One package of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProfilePackage {
    /// The requirement: a name, optionally with versions, as in [`Requirements::python`].
    pub requirement: String,
    /// The module to import.
    pub module: String,
}

/// A named list of Python packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// The name: letters, digits, `-` and `_`.
    pub name: String,
    /// The packages in load order.
    pub packages: Vec<ProfilePackage>,
}

impl Profile {
    /// The built-in profiles.
    pub const NAMES: [&str; 1] = ["data"];

    /// Returns a built-in profile.
    ///
    /// `data` has tables, numbers, statistics, figures and office files: pandas, numpy, scipy, scikit-learn,
    /// statsmodels, matplotlib, pyarrow, openpyxl, xlrd, pillow, sympy, mpmath, tqdm, python-dateutil, pytz,
    /// joblib.
    ///
    /// # Errors
    /// [`Error::InvalidName`] lists the profiles.
    pub fn named(name: &str) -> Result<Self, Error> {
        if name == "data" {
            return Self::parse(name, DATA);
        }
        let reason = format!("there is no such profile; there is `{}`", Self::NAMES.join("`, `"));
        Err(Error::InvalidName { what: "profile", name: shorten(name), reason })
    }

    /// Parses a profile. Each line has a requirement and its module, which defaults to the same name.
    ///
    /// `#` begins a comment.
    ///
    /// # Errors
    /// [`Error::InvalidName`] names the invalid line.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let refuse = |what: &'static str, name: &str, reason: &str| Error::InvalidName {
            what,
            name: shorten(name),
            reason: reason.into(),
        };
        let is_word = |text: &str, more: &str| {
            !text.is_empty()
                && text.len() <= 100
                && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && text.chars().all(|letter| letter.is_ascii_alphanumeric() || more.contains(letter))
        };
        if !is_word(name, "-_") {
            return Err(refuse(
                "profile",
                name,
                "a name has letters, digits, `-` and `_`, and begins with a letter",
            ));
        }
        let mut packages = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let (requirement, module) = match words.as_slice() {
                [] => continue,
                [requirement] => (*requirement, crate::requirements::name(requirement)),
                [requirement, module] => (*requirement, *module),
                _ => return Err(refuse("profile line", line, "expected a requirement and a module")),
            };
            if !is_word(module, "_.") {
                return Err(refuse("module", module, "a module's name has letters, digits, `_` and dots"));
            }
            packages.push(ProfilePackage { requirement: requirement.into(), module: module.into() });
        }
        let profile = Self { name: name.into(), packages };
        profile.requirements()?;
        Ok(profile)
    }

    /// Reads a profile file of at most 64 KiB, in the format of [`Profile::parse`]. Its name is the file's.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let fail = |source| Error::File { action: "read profile", path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(fail)?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_PROFILE_BYTES), &mut text)
            .map_err(fail)?;
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        Self::parse(name, &text)
    }

    /// The packages to install.
    pub fn requirements(&self) -> Result<Requirements, Error> {
        Requirements::python(self.packages.iter().map(|package| package.requirement.as_str()))
    }

    /// The modules, for example to preload them.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().map(|package| package.module.as_str())
    }

    /// Lists the packages that the sandbox's Python lacks.
    ///
    /// Python runs in that sandbox for some tens of milliseconds and loads none of them.
    ///
    /// # Errors
    /// [`Error::LanguageMissing`] without Python, and the errors of [`Sandbox::run`].
    pub fn missing(&self, sandbox: &Sandbox) -> Result<Vec<&ProfilePackage>, Error> {
        let modules = serde_json::to_string(&self.modules().collect::<Vec<_>>()).unwrap_or_default();
        let code = format!(
            "import importlib.util\n\
             def has(name):\n    \
                 try: return importlib.util.find_spec(name) is not None\n    \
                 except ImportError: return False\n\
             [name for name in {modules} if not has(name)]"
        );
        let outcome = sandbox.run(&Program::code(Language::Python, code), &Cancel::new(), &mut |_| {})?;
        let missing: Option<Vec<String>> = outcome.value.and_then(|value| serde_json::from_value(value).ok());
        let missing = missing.ok_or_else(|| Error::ProgramNotFound {
            program: "python3".into(),
            reason: format!("it failed to list its modules: {}", shorten(&outcome.stderr.text())),
        })?;
        Ok(self.packages.iter().filter(|package| missing.contains(&package.module)).collect())
    }
}

/// A virtual environment of this host with the packages of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Environment {
    /// The profile's name, also of its directory.
    pub name: String,
    /// The directory.
    pub directory: PathBuf,
    /// The requested packages.
    pub requirements: Vec<String>,
    /// All installed packages, sorted, as `name==version`.
    pub installed: Vec<String>,
    /// The Python that created it: path, version, time and size of the file.
    pub interpreter: String,
    /// The total size of its files in bytes.
    pub bytes: u64,
}

impl Environment {
    /// Creates the environment of a profile in a private directory beneath `directory`.
    ///
    /// Python's `venv` and `pip` run in a sandbox of level `standard`, because the environment contains host
    /// paths. An existing environment with the same packages and Python is returned unchanged; others are
    /// replaced.
    ///
    /// # Errors
    /// [`Error::Requirement`] names the package that could not be installed.
    pub fn build(
        profile: &Profile,
        directory: &Path,
        installer: &Installer,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        let requirements = profile.requirements()?;
        let directory = private_directory("create environments in", directory)?;
        installer.hosts(Language::Python)?;
        let mut installer = installer.clone();
        installer.sandbox = installer.sandbox.level(Level::Standard);
        let (tool, interpreter) = installer.sandbox.find_installer(Language::Python)?;
        let place = directory.join(&profile.name);
        let _lock =
            lock(&directory.join(format!(".{}.lock", profile.name)), cancel, installer.limits().wall)?;
        if let Some(environment) = Self::open(&place)
            && environment.interpreter == interpreter
            && environment.requirements == requirements.packages()
        {
            return Ok(environment);
        }
        remove(&place)?;
        std::fs::create_dir(&place).map_err(|source| file_error(&place, source))?;
        let result = Self::fill(&place, tool, &requirements, interpreter, &installer, cancel);
        if result.is_err() {
            // An incomplete environment is useless; report the first error.
            let _ = remove(&place);
        }
        result
    }

    fn fill(
        place: &Path,
        tool: Ready,
        requirements: &Requirements,
        interpreter: String,
        installer: &Installer,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        const SCRIPT: &str = r#"python=$1; shift
"$python" -I -m venv env || { echo "ERROR: this Python lacks venv; for example apt-get install python3-venv" >&2; exit 1; }
exec env/bin/python -I -m pip install "$@""#;
        let python = tool.path().to_owned();
        let mut tool = tool.replaced_by("/bin/sh");
        tool.extend(["-c", SCRIPT, "sh"]);
        tool.extend([python]);
        tool.extend(PIP_OPTIONS);
        tool.extend(installer.sources()?);
        tool.extend(["--"]);
        tool.extend(requirements.packages());
        let outcome =
            installer.confined(place, Language::Python)?.run(&Program::Ready(tool), cancel, &mut |_| {})?;
        if !outcome.verdict.is_ok() {
            return Err(failed(requirements.packages(), &outcome));
        }
        let library = place.join(INNER).join("lib");
        let packages = library
            .read_dir()
            .map_err(|source| file_error(&library, source))?
            .flatten()
            .flat_map(|version| distributions(&version.path().join("site-packages")))
            .collect();
        finish(place, requirements.packages(), packages, interpreter)?;
        Self::open(place).ok_or_else(|| {
            file_error(place, std::io::Error::other("the record of the environment cannot be read"))
        })
    }

    /// Opens the finished environment in a directory, if there is one.
    pub fn open(directory: &Path) -> Option<Self> {
        let (_, record) = open_record(directory)?;
        let python = directory.join(INNER).join("bin/python3");
        python.exists().then_some(Self {
            name: directory.file_name()?.to_str()?.to_owned(),
            directory: directory.to_owned(),
            requirements: record.requested,
            installed: record.packages,
            interpreter: record.interpreter,
            bytes: record.bytes,
        })
    }

    /// Lists all finished environments beneath a directory by name. A missing directory has none.
    pub fn list(directory: &Path) -> Vec<Self> {
        const MAX_ENTRIES: usize = 1000;
        let Ok(entries) = directory.read_dir() else { return Vec::new() };
        let mut all: Vec<Self> =
            entries.take(MAX_ENTRIES).flatten().filter_map(|entry| Self::open(&entry.path())).collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    /// Deletes the environment.
    pub fn remove(self) -> Result<(), Error> {
        remove(&self.directory)
    }

    /// The directory of its programs, for the start of a search path.
    pub fn programs(&self) -> PathBuf {
        self.directory.join(INNER).join("bin")
    }

    /// The version of an installed package.
    pub fn version(&self, package: &str) -> Option<&str> {
        self.installed
            .iter()
            .find(|entry| name(entry) == package)?
            .split_once("==")
            .map(|(_, version)| version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_data_has_its_packages_and_their_modules() {
        let data = Profile::named("data").unwrap();
        assert_eq!(data.packages.len(), 16);
        let modules: Vec<&str> = data.modules().collect();
        assert!(modules.contains(&"sklearn") && modules.contains(&"PIL") && modules.contains(&"dateutil"));
        let error = Profile::named("dta").unwrap_err().to_string();
        assert!(error.contains("there is `data`"), "{error}");
    }

    #[test]
    fn each_line_of_a_profile_is_checked() {
        let profile = Profile::parse("own", "requests==2.*  # the client\n\nscikit-learn sklearn\n").unwrap();
        assert_eq!(profile.packages[0].module, "requests");
        assert_eq!(profile.requirements().unwrap().packages(), ["requests==2.*", "scikit-learn"]);
        for (name, text) in [
            ("own", ""),
            ("own", "-r x"),
            ("own", "x y z"),
            ("own", "https://x/y"),
            ("own", "x y;import"),
            ("../own", "x"),
            ("", "x"),
            ("-x", "x"),
        ] {
            assert!(Profile::parse(name, text).is_err(), "{name} {text}");
        }
    }
}

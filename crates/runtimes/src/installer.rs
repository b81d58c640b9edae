//! Installs packages with `pip` and `npm`, each time in its own sandbox.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use toolpost_egress::shorten;
use toolpost_sandbox::{
    Cancel, EgressLog, Error, HostPattern, Language, Limits, Modules, Outcome, Program, Ready, Sandbox,
    Verdict, Workspace, private_directory,
};

use crate::Requirements;
use crate::requirements::name;

/// The record of a finished directory. A directory without it is unfinished.
const RECORD: &str = "toolpost.json";
/// The largest record in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// The maximum number of installed files.
const MAX_FILES: u64 = 400_000;
/// The directory of Python packages in a finished directory.
const PYTHON_PACKAGES: &str = "packages";
/// The directory of npm packages.
const NODE_PACKAGES: &str = "node_modules";
/// The number of install locks; two package lists rarely share one.
const LOCKS: u8 = 16;

/// Settings of package installs: the index, and the confinement of the client.
///
/// Start with [`Installer::new`]. This crate reads no environment, so set the index, certificate file and
/// package directories here.
#[derive(Debug, Clone)]
pub struct Installer {
    pub(crate) sandbox: Sandbox,
    index: Option<String>,
    certificate: Option<PathBuf>,
    find_links: Option<PathBuf>,
    offline: bool,
    allow_build: bool,
    max_bytes: u64,
}

/// The record of a finished directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    v: u32,
    /// The requested packages.
    pub(crate) requested: Vec<String>,
    /// The installed packages, as `name==version` or `name@version`.
    pub(crate) packages: Vec<String>,
    /// The interpreter that they are for.
    pub(crate) interpreter: String,
    pub(crate) bytes: u64,
}

/// Installed packages, for [`Sandbox::modules`].
///
/// While a value exists, its packages are not evicted.
#[derive(Debug, Clone)]
pub struct Installed {
    language: Language,
    directory: PathBuf,
    record: Record,
    in_use: Arc<File>,
}

impl Installed {
    /// The language of the packages.
    pub fn language(&self) -> Language {
        self.language
    }

    /// The directory of the modules, visible in a run at the same path, read-only.
    pub fn modules(&self) -> PathBuf {
        self.directory.join(if self.language == Language::Python { PYTHON_PACKAGES } else { NODE_PACKAGES })
    }

    /// All installed packages with dependencies, sorted: `name==version`, of npm `name@version`.
    pub fn packages(&self) -> &[String] {
        &self.record.packages
    }

    /// The total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.record.bytes
    }

    fn open(directory: &Path, language: Language) -> Option<Self> {
        let (file, record) = open_record(directory)?;
        // Eviction takes the exclusive lock.
        file.try_lock_shared().ok()?;
        let _ = file.set_modified(SystemTime::now());
        Some(Self { language, directory: directory.to_owned(), record, in_use: Arc::new(file) })
    }
}

impl From<Installed> for Modules {
    fn from(installed: Installed) -> Self {
        let search = installed.modules();
        Self::new(installed.language, installed.directory, search, installed.in_use)
    }
}

/// Reads the record of a finished directory.
pub(crate) fn open_record(directory: &Path) -> Option<(File, Record)> {
    let path = directory.join(RECORD);
    // The directory is this user's own, and installed packages can no longer write to it.
    let metadata = std::fs::symlink_metadata(&path).ok()?;
    if !metadata.is_file() || metadata.len() > MAX_RECORD_BYTES {
        return None;
    }
    let file = File::options().read(true).write(true).open(&path).ok()?;
    let record: Record = serde_json::from_reader(io::Read::take(&file, MAX_RECORD_BYTES)).ok()?;
    (record.v == 1).then_some((file, record))
}

impl Installer {
    /// The default total size of the packages in one directory: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;

    /// Configures installs from the public index of each language.
    ///
    /// Uses the sandbox's level, host, search path and limits (default [`Limits::for_builds`] with 10
    /// minutes). Of its [`toolpost_sandbox::Egress`] it uses the address rules, limits and upstream proxy. Only the
    /// hosts of the index are allowed ([`Installer::hosts`]). They may also resolve to addresses for
    /// documentation and benchmarks (such as `203.0.113.0/24`), which some gateways use.
    pub fn new(sandbox: Sandbox) -> Self {
        Self {
            sandbox,
            index: None,
            certificate: None,
            find_links: None,
            offline: false,
            allow_build: false,
            max_bytes: Self::DEFAULT_BYTES,
        }
    }

    /// Sets the URL of the index.
    ///
    /// The default for Python is the simple index `https://pypi.org/simple`, for npm the registry
    /// `https://registry.npmjs.org`. A URL with user or password is rejected, because the client and its
    /// scripts could read them.
    #[must_use]
    pub fn index(mut self, address: impl Into<String>) -> Self {
        self.index = Some(address.into());
        self
    }

    /// Sets a PEM file with trusted certificate authorities. Default: those of the client.
    #[must_use]
    pub fn certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate = Some(file.into());
        self
    }

    /// Sets a host directory with Python packages to use besides the index. It is mounted read-only.
    #[must_use]
    pub fn find_links(mut self, directory: impl Into<PathBuf>) -> Self {
        self.find_links = Some(directory.into());
        self
    }

    /// Disables the index, so that Python packages come only from [`Installer::find_links`]. Default no.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Allows packages to run code during the install. Default no.
    ///
    /// `pip` builds packages without a wheel, and `npm` runs install scripts. They run in the sandbox with
    /// the same network.
    #[must_use]
    pub fn allow_build(mut self, allow: bool) -> Self {
        self.allow_build = allow;
        self
    }

    /// Sets the total size of the packages in one directory. Default [`Installer::DEFAULT_BYTES`].
    ///
    /// The least recently used packages are evicted first, never those in use.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// The hosts that an install contacts. A sandbox needs to allow only these.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for an invalid index URL.
    pub fn hosts(&self, language: Language) -> Result<Vec<String>, Error> {
        if self.offline && language == Language::Python {
            return Ok(Vec::new());
        }
        let host = host(self.address(language))?;
        // The public index stores its files on another host.
        let more = (host == "pypi.org").then(|| "files.pythonhosted.org".to_owned());
        Ok(std::iter::once(host).chain(more).collect())
    }

    fn address(&self, language: Language) -> &str {
        let default = match language {
            Language::Python => "https://pypi.org/simple",
            _ => "https://registry.npmjs.org",
        };
        self.index.as_deref().unwrap_or(default)
    }

    /// Packages that [`install`](Self::install) has installed in this directory.
    ///
    /// # Errors
    /// Errors of a missing client or an invalid index.
    pub fn installed(
        &self,
        requirements: &Requirements,
        directory: &Path,
    ) -> Result<Option<Installed>, Error> {
        let directory = private_directory("install packages in", directory)?;
        let language = requirements.language();
        self.hosts(language)?;
        let (_, interpreter) = self.sandbox.find_installer(language)?;
        Ok(Installed::open(&directory.join(self.key(requirements, &interpreter)), language))
    }

    /// Installs packages into a private host directory, which is created if missing.
    ///
    /// A list for one interpreter and index is installed once; an open version keeps its first
    /// resolution. Blocks until the install ends, a limit is reached, or `cancel`.
    ///
    /// # Errors
    /// [`Error::Requirement`] names the package. The installer needs a level with namespaces.
    pub fn install(
        &self,
        requirements: &Requirements,
        directory: &Path,
        cancel: &Cancel,
    ) -> Result<Installed, Error> {
        let directory = private_directory("install packages in", directory)?;
        let language = requirements.language();
        self.hosts(language)?;
        let (tool, interpreter) = self.sandbox.find_installer(language)?;
        let key = self.key(requirements, &interpreter);
        let place = directory.join(&key);
        if let Some(installed) = Installed::open(&place, language) {
            return Ok(installed);
        }
        let number = u8::from_str_radix(&key[..2], 16).unwrap_or(0) % LOCKS;
        let _lock = lock(&directory.join(format!("lock-{number:02}")), cancel, self.limits().wall)?;
        if let Some(installed) = Installed::open(&place, language) {
            return Ok(installed);
        }
        let staging = Staging::make(directory.join(format!("{key}.new")))?;
        let outcome = match language {
            Language::Python => self.pip(tool, requirements.packages(), &staging.0, cancel)?,
            _ => self.npm(tool, requirements.packages(), &staging.0, cancel)?,
        };
        if !outcome.verdict.is_ok() {
            return Err(failed(requirements.packages(), &outcome));
        }
        let packages = match language {
            Language::Python => distributions(&staging.0.join(PYTHON_PACKAGES)),
            _ => locked(&staging.0),
        };
        finish(&staging.0, requirements.packages(), packages, interpreter)?;
        remove(&place)?;
        std::fs::rename(&staging.0, &place).map_err(|source| file_error(&place, source))?;
        let installed = Installed::open(&place, language).ok_or_else(|| {
            file_error(&place, io::Error::other("the record of the install cannot be read"))
        })?;
        self.make_room(&directory);
        Ok(installed)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.sandbox.own_limits().cloned().unwrap_or_else(|| {
            Limits::for_builds()
                .with_wall(Duration::from_mins(10))
                .with_artifacts(1)
                .with_connections(4096)
                .with_requests(16_384)
                .with_network_bytes(8 << 30)
        })
    }

    /// The sandbox of one install in a host directory.
    pub(crate) fn confined(&self, directory: &Path, language: Language) -> Result<Sandbox, Error> {
        let hosts = self.hosts(language)?;
        let egress = (!hosts.is_empty()).then(|| {
            let hosts = hosts.iter().map(|host| HostPattern::new(host)).collect::<Result<_, _>>()?;
            // The client verifies the certificate of the index, so any address may serve it.
            let own = self.sandbox.own_egress().cloned().unwrap_or_default();
            Ok::<_, Error>(own.only(hosts).allow_stand_ins())
        });
        // The directory is this crate's own and has no personal files. It can lie in a protected directory.
        let workspace = Workspace::LiveHost(directory.to_owned());
        let mut sandbox = self.sandbox.same_host().limits(self.limits()).workspace(workspace);
        sandbox = sandbox.allow_protected([PathBuf::from(".")]);
        if let Some(egress) = egress.transpose()? {
            sandbox = sandbox.egress(egress);
        }
        self.certificate.iter().chain(&self.find_links).try_fold(sandbox, |sandbox, path| {
            Ok(sandbox.read_only(path.canonicalize().map_err(|source| file_error(path, source))?))
        })
    }

    /// The `pip` options for the package sources.
    pub(crate) fn sources(&self) -> Result<Vec<OsString>, Error> {
        let mut options: Vec<OsString> = Vec::new();
        if self.offline {
            options.push("--no-index".into());
        } else {
            host(self.address(Language::Python))?;
            options.extend(["--index-url".into(), self.address(Language::Python).into()]);
        }
        let real = |path: &PathBuf| path.canonicalize().map_err(|source| file_error(path, source));
        if let Some(directory) = &self.find_links {
            options.extend(["--find-links".into(), real(directory)?.into_os_string()]);
        }
        if let Some(file) = &self.certificate {
            options.extend(["--cert".into(), real(file)?.into_os_string()]);
        }
        if !self.allow_build {
            options.extend(["--only-binary".into(), ":all:".into()]);
        }
        Ok(options)
    }

    fn pip(
        &self,
        mut tool: Ready,
        packages: &[String],
        directory: &Path,
        cancel: &Cancel,
    ) -> Result<Outcome, Error> {
        tool.extend(["-I", "-m", "pip", "install", "--target", PYTHON_PACKAGES]);
        tool.extend(PIP_OPTIONS);
        tool.extend(self.sources()?);
        tool.extend(["--"]);
        tool.extend(packages);
        let sandbox = self.confined(directory, Language::Python)?;
        sandbox.run(&Program::Ready(tool), cancel, &mut |_| {})
    }

    fn npm(
        &self,
        mut tool: Ready,
        packages: &[String],
        directory: &Path,
        cancel: &Cancel,
    ) -> Result<Outcome, Error> {
        let fixed =
            ["install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--cache=/tmp/npm"];
        tool.extend(fixed);
        if !self.allow_build {
            tool.extend(["--ignore-scripts"]);
        }
        let address = self.address(Language::JavaScript);
        tool.extend([format!("--registry={address}")]);
        if let Some(file) = &self.certificate {
            let file = file.canonicalize().map_err(|source| file_error(file, source))?;
            tool.extend([format!("--cafile={}", file.display())]);
        }
        tool.extend(["--"]);
        tool.extend(packages);
        // Otherwise npm uses a parent directory with a package file.
        let package = directory.join("package.json");
        std::fs::write(&package, "{\"private\": true}").map_err(|source| file_error(&package, source))?;
        let sandbox = self.confined(directory, Language::JavaScript)?;
        sandbox.run(&Program::Ready(tool), cancel, &mut |_| {})
    }

    /// Hashes everything that determines the result. Each part has its length, so that no two lists collide.
    fn key(&self, requirements: &Requirements, interpreter: &str) -> String {
        let mut hash = Sha256::new();
        let mut part = |text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        part(requirements.language().name().as_bytes());
        part(interpreter.as_bytes());
        part(self.address(requirements.language()).as_bytes());
        part(self.find_links.as_deref().unwrap_or(Path::new("")).as_os_str().as_encoded_bytes());
        part(format!("{} {} {}", self.offline, self.allow_build, std::env::consts::ARCH).as_bytes());
        for package in requirements.packages() {
            part(package.as_bytes());
        }
        hash.finalize().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// Evicts the least recently used packages until the rest fits.
    fn make_room(&self, directory: &Path) {
        let Ok(entries) = directory.read_dir() else { return };
        let mut all: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let (file, record) = open_record(&entry.path())?;
                Some((file.metadata().ok()?.modified().ok()?, record.bytes, entry.path()))
            })
            .collect();
        let mut total: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
        all.sort();
        for (_, bytes, path) in all {
            if total <= self.max_bytes {
                break;
            }
            // Packages in use hold the lock.
            let Some((file, _)) = open_record(&path) else { continue };
            if file.try_lock().is_ok() && remove(&path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// The `pip` options of every install.
pub(crate) const PIP_OPTIONS: [&str; 6] = [
    "--no-input",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--no-compile",
    "--progress-bar=off",
    "--no-warn-script-location",
];

/// The directory of an unfinished install. It is removed on drop unless it was renamed.
pub(crate) struct Staging(pub(crate) PathBuf);

impl Staging {
    fn make(path: PathBuf) -> Result<Self, Error> {
        remove(&path)?;
        std::fs::create_dir(&path).map_err(|source| file_error(&path, source))?;
        Ok(Self(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next install of the same list removes leftovers.
        let _ = remove(&self.0);
    }
}

pub(crate) fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { action: "install packages in", path: path.to_owned(), source }
}

/// Removes a directory and its contents, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(path, error)),
        _ => Ok(()),
    }
}

/// Locks an install; waits for another process with the same one.
pub(crate) fn lock(path: &Path, cancel: &Cancel, wait: Duration) -> Result<File, Error> {
    let fail = |source| Error::File { action: "lock", path: path.to_owned(), source };
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(fail)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if cancel.is_cancelled() || since.elapsed() > wait => {
                return Err(fail(io::Error::other("waiting for another install timed out")));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
    }
}

/// Measures the installed files and writes the record.
pub(crate) fn finish(
    directory: &Path,
    requested: &[String],
    mut packages: Vec<String>,
    interpreter: String,
) -> Result<Record, Error> {
    packages.sort();
    let bytes = size(directory).map_err(|source| file_error(directory, source))?;
    let record = Record { v: 1, requested: requested.to_vec(), packages, interpreter, bytes };
    let path = directory.join(RECORD);
    // The installer could have created one.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(&path, error)),
        _ => {}
    }
    File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|file| serde_json::to_writer(file, &record).map_err(io::Error::from))
        .map_err(|source| file_error(&path, source))?;
    Ok(record)
}

/// The total size of a directory's files. Links are not followed.
fn size(directory: &Path) -> io::Result<u64> {
    let (mut bytes, mut files) = (0u64, 0u64);
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir()? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            files += 1;
            if files > MAX_FILES {
                return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            } else {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}

/// The distributions in a Python package directory, as `name==version`.
pub(crate) fn distributions(directory: &Path) -> Vec<String> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    entries
        .take(MAX_FILES as usize)
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
            Some(format!("{}=={version}", name.replace('_', "-").to_lowercase()))
        })
        .collect()
}

/// The packages in npm's lock file, as `name@version`.
fn locked(directory: &Path) -> Vec<String> {
    const MAX_BYTES: u64 = 32 << 20;
    let path = directory.join("package-lock.json");
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
    let text = File::open(&path).ok().filter(|_| is_file).and_then(|file| {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, MAX_BYTES), &mut text).ok().map(|_| text)
    });
    let lock: serde_json::Value = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let Some(packages) = lock["packages"].as_object() else { return Vec::new() };
    packages
        .iter()
        .filter_map(|(path, package)| {
            let (_, name) = path.rsplit_once("node_modules/")?;
            Some(format!("{name}@{}", package["version"].as_str()?))
        })
        .collect()
}

/// The host of an index URL, with its port if given.
fn host(address: &str) -> Result<String, Error> {
    let refuse =
        |reason: &str| Error::InvalidName { what: "index", name: shorten(address), reason: reason.into() };
    let rest = address
        .strip_prefix("https://")
        .or_else(|| address.strip_prefix("http://"))
        .ok_or_else(|| refuse("expected an address that begins with `https://` or `http://`"))?;
    if !address.chars().all(|letter| letter.is_ascii_graphic()) {
        return Err(refuse("it has an invalid character"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Error::InvalidName {
            what: "index",
            name: "…@…".into(),
            reason: "remove the user and password, which the client could leak".into(),
        });
    }
    if authority.is_empty() || authority.starts_with(':') {
        return Err(refuse("the host is missing"));
    }
    Ok(authority.to_ascii_lowercase())
}

/// The error of a failed install: the package, and the end of the client's output.
pub(crate) fn failed(packages: &[String], outcome: &Outcome) -> Error {
    const MAX_BYTES: usize = 1000;
    let text = outcome.stderr.text();
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| ["ERROR", "error", "npm ERR"].iter().any(|word| line.contains(word)))
        .collect();
    let lines: Vec<&str> = if errors.is_empty() { text.lines().rev().take(3).collect() } else { errors };
    let blamed = packages.iter().find(|package| {
        lines.iter().any(|line| {
            line.split(|letter: char| !(letter.is_ascii_alphanumeric() || "@/._-".contains(letter))).any(
                |word| {
                    word.trim_end_matches('.') == name(package)
                        || word.starts_with(&format!("{}@", name(package)))
                },
            )
        })
    });
    let package = blamed.cloned().unwrap_or_else(|| packages.join(", "));
    let mut reason: String =
        lines.join(" ").chars().filter(|letter| !letter.is_control()).take(MAX_BYTES).collect();
    if !matches!(outcome.verdict, Verdict::Exit { .. }) {
        reason = format!("{:?} {reason}", outcome.verdict);
    }
    if let Some(refused) = outcome.report.egress.as_ref().and_then(EgressLog::refusal) {
        // The client only reports that it found nothing.
        reason = format!("{}; {reason}", refused.message);
    }
    if text.contains("No module named pip") {
        reason = "this Python has no pip; install it, for example `apt-get install python3-pip`".into();
    }
    Error::Requirement { package, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_of_the_index_are_allowed() {
        let installer = Installer::new(Sandbox::new());
        assert_eq!(installer.hosts(Language::Python).unwrap(), ["pypi.org", "files.pythonhosted.org"]);
        assert_eq!(installer.hosts(Language::JavaScript).unwrap(), ["registry.npmjs.org"]);
        let own = installer.clone().index("https://Packages.example:8443/simple/");
        assert_eq!(own.hosts(Language::Python).unwrap(), ["packages.example:8443"]);
        assert!(installer.clone().offline(true).hosts(Language::Python).unwrap().is_empty());
        for address in ["ftp://x", "https://", "-x", "https://x y", "https://x\n", "file:///etc"] {
            assert!(installer.clone().index(address).hosts(Language::Python).is_err(), "{address}");
        }
        let error =
            installer.index("https://user:token@x/simple").hosts(Language::Python).unwrap_err().to_string();
        assert!(!error.contains("token"), "{error}");
    }

    #[test]
    fn a_failure_names_the_package() {
        let packages = ["good==1".to_owned(), "no-such==2".to_owned()];
        let report = toolpost_sandbox::Report::new("process", None, toolpost_sandbox::Level::Strict);
        let mut outcome = Outcome::new(Verdict::Exit { code: 1 }, report);
        let text = "ERROR: Could not find a version that satisfies the requirement no-such==2 (from versions: none)\n\
                    ERROR: No matching distribution found for no-such==2";
        outcome.stderr = toolpost_sandbox::Captured::keep(text.as_bytes(), 4096);
        let Error::Requirement { package, reason } = failed(&packages, &outcome) else { panic!() };
        assert_eq!(package, "no-such==2");
        assert!(reason.contains("No matching distribution"), "{reason}");
        let refused: EgressLog = serde_json::from_value(serde_json::json!({
            "connections": 1, "requests": 1, "refused": 1, "bytes_up": 0, "bytes_down": 0, "limits_reached": [],
            "events_left_out": 0, "events": [{
                "at_ms": 0, "duration_ms": 0, "kind": "connect", "target": "pypi.org:443", "method": null,
                "address": null, "status": 403, "bytes_up": 0, "bytes_down": 0, "secrets": [], "failure": null,
                "refused": { "rule": "private", "message": "the address 10.0.0.1 belongs to a private network", "option": null },
            }],
        }))
        .unwrap();
        outcome.report.egress = Some(refused);
        let Error::Requirement { package, reason } = failed(&packages, &outcome) else { panic!() };
        assert_eq!(package, "no-such==2");
        assert!(reason.starts_with("the address 10.0.0.1 belongs to a private network; ERROR"), "{reason}");
        outcome.report.egress = None;
        outcome.stderr = toolpost_sandbox::Captured::keep(b"something else", 4096);
        let Error::Requirement { package, .. } = failed(&packages, &outcome) else { panic!() };
        assert_eq!(package, "good==1, no-such==2");
    }
}

//! Installs packages by the ordinary clients, `pip` and `npm`, each time in a sandbox of its own.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::HostPattern;
use crate::requirements::name;
use crate::sandbox::Variables;
use crate::{
    Cancel, Error, Language, Limits, Outcome, Program, Ready, Requirements, Sandbox, Verdict, Workspace,
};

/// The record of a finished folder; a folder without it is not finished.
const RECORD: &str = "toolpost.json";
/// A longer record is not read.
const MAXIMUM_RECORD: u64 = 1 << 20;
/// More files than that are refused in what was installed.
const MAXIMUM_FILES: u64 = 400_000;
/// Where packages of Python lie in a finished folder.
const PYTHON_PACKAGES: &str = "packages";
/// Where packages of Node.js lie.
const NODE_PACKAGES: &str = "node_modules";
/// Locks that installations share; two of different packages rarely wait for each other.
const LOCKS: u8 = 16;

/// How packages are installed: where they come from and how strictly the client that fetches them is confined. Start with
/// [`Installer::new`]. This crate reads no environment: the address of an index, a certificate file and folders with
/// packages are given here.
#[derive(Debug, Clone)]
pub struct Installer {
    pub(crate) sandbox: Sandbox,
    index: Option<String>,
    certificate: Option<PathBuf>,
    find_links: Option<PathBuf>,
    offline: bool,
    allow_build: bool,
    maximum_bytes: u64,
}

/// What is kept about a finished folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    v: u32,
    /// What was asked for.
    pub(crate) requested: Vec<String>,
    /// What was installed, as `name==version` or `name@version`.
    pub(crate) packages: Vec<String>,
    /// The interpreter that it is for.
    pub(crate) interpreter: String,
    pub(crate) bytes: u64,
}

/// Packages that are installed and that a run can use: [`Sandbox::requirements`]. As long as a value of it is alive, what
/// it stands for is not removed to make room.
#[derive(Debug, Clone)]
pub struct Installed {
    language: Language,
    folder: PathBuf,
    record: Record,
    _in_use: Arc<File>,
}

impl Installed {
    /// The language whose code can use the packages.
    pub fn language(&self) -> Language {
        self.language
    }

    /// Where the modules are: what a run sees at the same path, read-only.
    pub fn modules(&self) -> PathBuf {
        self.folder.join(if self.language == Language::Python { PYTHON_PACKAGES } else { NODE_PACKAGES })
    }

    /// Everything that was installed, dependencies too, with versions: `name==version`, of npm `name@version`; sorted.
    pub fn packages(&self) -> &[String] {
        &self.record.packages
    }

    /// How many bytes its files have.
    pub fn bytes(&self) -> u64 {
        self.record.bytes
    }

    /// The folder that a run must see.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether code in a language can use it.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn serves(&self, language: Language) -> bool {
        self.language == language
            || (self.language == Language::JavaScript && language == Language::TypeScript)
    }

    fn open(folder: &Path, language: Language) -> Option<Self> {
        let (file, record) = open_record(folder)?;
        // Whoever makes room asks for the lock alone.
        file.try_lock_shared().ok()?;
        let _ = file.set_modified(SystemTime::now());
        Some(Self { language, folder: folder.to_owned(), record, _in_use: Arc::new(file) })
    }
}

/// The record of a finished folder.
pub(crate) fn open_record(folder: &Path) -> Option<(File, Record)> {
    let path = folder.join(RECORD);
    // The folder is ours alone, and what is installed cannot write to it any more.
    let metadata = std::fs::symlink_metadata(&path).ok()?;
    if !metadata.is_file() || metadata.len() > MAXIMUM_RECORD {
        return None;
    }
    let file = File::options().read(true).write(true).open(&path).ok()?;
    let record: Record = serde_json::from_reader(io::Read::take(&file, MAXIMUM_RECORD)).ok()?;
    (record.v == 1).then_some((file, record))
}

impl Installer {
    /// The size of all packages of one folder unless [`Installer::maximum_bytes`] says otherwise: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;

    /// Packages come from the public index of their language. Of the sandbox are used: level, host, search path, limits
    /// if it has any (else [`Limits::for_builds`] with 10 minutes), and of its [`crate::Egress`] the addresses, refusals,
    /// limits and proxy; the only names that may be reached are those of the index ([`Installer::hosts`]). They may also lead
    /// to addresses for documents and benchmarks (such as `203.0.113.0/24`), with which a gateway stands in for names.
    pub fn new(sandbox: Sandbox) -> Self {
        Self {
            sandbox,
            index: None,
            certificate: None,
            find_links: None,
            offline: false,
            allow_build: false,
            maximum_bytes: Self::DEFAULT_BYTES,
        }
    }

    /// Sets the address of the index: the simple index of Python packages (default `https://pypi.org/simple`) or the
    /// registry of npm (default `https://registry.npmjs.org`). One with a name and password in it is refused, because
    /// the client and what it runs could read them.
    #[must_use]
    pub fn index(mut self, address: impl Into<String>) -> Self {
        self.index = Some(address.into());
        self
    }

    /// Sets a file with the certificates of authorities that the client trusts, in PEM form. Default its own.
    #[must_use]
    pub fn certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate = Some(file.into());
        self
    }

    /// Sets a folder of the host with packages of Python, which are looked at besides the index. It is shown read-only.
    #[must_use]
    pub fn find_links(mut self, folder: impl Into<PathBuf>) -> Self {
        self.find_links = Some(folder.into());
        self
    }

    /// Whether no index is asked, so that packages of Python come from [`Installer::find_links`] alone. Default no.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Whether code of the packages may run while they are installed: `pip` builds what has no wheel, `npm` runs the
    /// packages' scripts. Default no. It runs in the sandbox too, with the same network.
    #[must_use]
    pub fn allow_build(mut self, allow: bool) -> Self {
        self.allow_build = allow;
        self
    }

    /// Sets how many bytes all packages of one folder may have; those not used for longest go first, never those in use.
    /// Default [`Installer::DEFAULT_BYTES`].
    #[must_use]
    pub fn maximum_bytes(mut self, bytes: u64) -> Self {
        self.maximum_bytes = bytes;
        self
    }

    /// The hosts that installing needs to reach: what a sandbox must allow on the network, and nothing else.
    ///
    /// # Errors
    /// [`Error::InvalidName`] when the address of the index cannot be used.
    pub fn hosts(&self, language: Language) -> Result<Vec<String>, Error> {
        if self.offline && language == Language::Python {
            return Ok(Vec::new());
        }
        let host = host(self.address(language))?;
        // The public index keeps its files elsewhere.
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

    /// Installs packages into a folder of the host that is this user's alone (made if missing), or takes them from there:
    /// the same list for the same interpreter from the same index is installed once, and a version that was left open
    /// stays what it was then. Blocks, at most as long as the limits of the sandbox say, and until `cancel`.
    ///
    /// # Errors
    /// [`Error::Requirement`] names the package. The installer needs a level with namespaces.
    pub fn install(
        &self,
        requirements: &Requirements,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Installed, Error> {
        let folder = crate::platform::private_folder("install packages in", folder)?;
        let language = requirements.language;
        self.hosts(language)?;
        let (tool, interpreter) = crate::platform::installer(language, &self.sandbox)?;
        let key = self.key(requirements, &interpreter);
        let place = folder.join(&key);
        if let Some(installed) = Installed::open(&place, language) {
            return Ok(installed);
        }
        let number = u8::from_str_radix(&key[..2], 16).unwrap_or(0) % LOCKS;
        let _lock = lock(&folder.join(format!("lock-{number:02}")), cancel, self.limits().wall)?;
        if let Some(installed) = Installed::open(&place, language) {
            return Ok(installed);
        }
        let staging = Staging::make(folder.join(format!("{key}.new")))?;
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
        let installed = Installed::open(&place, language)
            .ok_or_else(|| file_error(&place, io::Error::other("what was just installed cannot be read")))?;
        self.make_room(&folder);
        Ok(installed)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.sandbox.limits.clone().unwrap_or_else(|| {
            Limits::for_builds()
                .with_wall(Duration::from_mins(10))
                .with_artifacts(1)
                .with_connections(4096)
                .with_requests(16_384)
                .with_network_bytes(8 << 30)
        })
    }

    /// The sandbox of one installation, in a folder of the host.
    pub(crate) fn confined(&self, folder: &Path, language: Language) -> Result<Sandbox, Error> {
        let hosts = self.hosts(language)?;
        let egress = (!hosts.is_empty()).then(|| {
            let hosts = hosts.iter().map(|host| HostPattern::new(host)).collect::<Result<_, _>>()?;
            // The client checks the certificate of the index, whichever gateway forwards it.
            Ok::<_, Error>(self.sandbox.egress.clone().unwrap_or_default().only(hosts).allow_stand_ins())
        });
        let mut sandbox = Sandbox {
            limits: Some(self.limits()),
            // It is this crate's own: nothing of a person's is there.
            workspace: Workspace::LiveHost(folder.to_owned()),
            files: Vec::new(),
            environment: Variables::default(),
            directory: None,
            read_only: Vec::new(),
            read_write: Vec::new(),
            raw_variables: Vec::new(),
            backend: None,
            egress: egress.transpose()?,
            ..self.sandbox.clone()
        };
        for path in self.certificate.iter().chain(&self.find_links) {
            sandbox.read_only.push(path.canonicalize().map_err(|source| file_error(path, source))?);
        }
        Ok(sandbox)
    }

    /// The options of `pip` that say where packages come from.
    pub(crate) fn sources(&self) -> Result<Vec<OsString>, Error> {
        let mut options: Vec<OsString> = Vec::new();
        if self.offline {
            options.push("--no-index".into());
        } else {
            host(self.address(Language::Python))?;
            options.extend(["--index-url".into(), self.address(Language::Python).into()]);
        }
        let real = |path: &PathBuf| path.canonicalize().map_err(|source| file_error(path, source));
        if let Some(folder) = &self.find_links {
            options.extend(["--find-links".into(), real(folder)?.into_os_string()]);
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
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Outcome, Error> {
        tool.arguments
            .extend(["-I", "-m", "pip", "install", "--target", PYTHON_PACKAGES].map(OsString::from));
        tool.arguments.extend(PIP_OPTIONS.map(OsString::from));
        tool.arguments.extend(self.sources()?);
        tool.arguments.push("--".into());
        tool.arguments.extend(packages.iter().map(OsString::from));
        let sandbox = self.confined(folder, Language::Python)?;
        sandbox.run(&Program::Ready(tool), cancel, &mut |_| {})
    }

    fn npm(
        &self,
        mut tool: Ready,
        packages: &[String],
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Outcome, Error> {
        let fixed =
            ["install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--cache=/tmp/npm"];
        tool.arguments.extend(fixed.map(OsString::from));
        if !self.allow_build {
            tool.arguments.push("--ignore-scripts".into());
        }
        let address = self.address(Language::JavaScript);
        tool.arguments.push(format!("--registry={address}").into());
        if let Some(file) = &self.certificate {
            let file = file.canonicalize().map_err(|source| file_error(file, source))?;
            tool.arguments.push(format!("--cafile={}", file.display()).into());
        }
        tool.arguments.push("--".into());
        tool.arguments.extend(packages.iter().map(OsString::from));
        // Else npm takes a folder further up for its own.
        let package = folder.join("package.json");
        std::fs::write(&package, "{\"private\": true}").map_err(|source| file_error(&package, source))?;
        let sandbox = self.confined(folder, Language::JavaScript)?;
        sandbox.run(&Program::Ready(tool), cancel, &mut |_| {})
    }

    /// Everything that decides what is installed; each part with its length, so that no two lists look the same.
    fn key(&self, requirements: &Requirements, interpreter: &str) -> String {
        let mut hash = Sha256::new();
        let mut part = |text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        part(requirements.language.name().as_bytes());
        part(interpreter.as_bytes());
        part(self.address(requirements.language).as_bytes());
        part(self.find_links.as_deref().unwrap_or(Path::new("")).as_os_str().as_encoded_bytes());
        part(format!("{} {} {}", self.offline, self.allow_build, std::env::consts::ARCH).as_bytes());
        for package in requirements.packages() {
            part(package.as_bytes());
        }
        hash.finalize().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// Removes what was not used for longest until everything fits.
    fn make_room(&self, folder: &Path) {
        let Ok(entries) = folder.read_dir() else { return };
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
            if total <= self.maximum_bytes {
                break;
            }
            // What is in use has the lock.
            let Some((file, _)) = open_record(&path) else { continue };
            if file.try_lock().is_ok() && remove(&path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// Options of `pip` that hold for every installation.
pub(crate) const PIP_OPTIONS: [&str; 6] = [
    "--no-input",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--no-compile",
    "--progress-bar=off",
    "--no-warn-script-location",
];

/// The folder in which something is being installed; it goes away unless it was renamed.
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
        // What cannot be removed is removed by the next installation of the same list.
        let _ = remove(&self.0);
    }
}

pub(crate) fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { action: "install packages in", path: path.to_owned(), source }
}

/// Removes a folder with everything in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(path, error)),
        _ => Ok(()),
    }
}

/// Waits until nobody else installs the same.
pub(crate) fn lock(path: &Path, cancel: &Cancel, wait: Duration) -> Result<File, Error> {
    let fail = |source| Error::File { action: "lock", path: path.to_owned(), source };
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(fail)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if cancel.is_cancelled() || since.elapsed() > wait => {
                return Err(fail(io::Error::other("another installation was not waited for any longer")));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
    }
}

/// Measures what was installed and writes its record.
pub(crate) fn finish(
    folder: &Path,
    requested: &[String],
    mut packages: Vec<String>,
    interpreter: String,
) -> Result<Record, Error> {
    packages.sort();
    let bytes = size(folder).map_err(|source| file_error(folder, source))?;
    let record = Record { v: 1, requested: requested.to_vec(), packages, interpreter, bytes };
    let path = folder.join(RECORD);
    // The installer could have put something there.
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

/// The bytes of all files of a folder. Links are not followed.
fn size(folder: &Path) -> io::Result<u64> {
    let (mut bytes, mut files) = (0u64, 0u64);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            files += 1;
            if files > MAXIMUM_FILES {
                return Err(io::Error::other(format!("it has more than {MAXIMUM_FILES} files")));
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}

/// The distributions in a folder of Python packages, as `name==version`.
pub(crate) fn distributions(folder: &Path) -> Vec<String> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    entries
        .take(MAXIMUM_FILES as usize)
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
            Some(format!("{}=={version}", name.replace('_', "-").to_lowercase()))
        })
        .collect()
}

/// The packages in npm's own lock file, as `name@version`.
fn locked(folder: &Path) -> Vec<String> {
    const MAXIMUM: u64 = 32 << 20;
    let path = folder.join("package-lock.json");
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
    let text = File::open(&path).ok().filter(|_| is_file).and_then(|file| {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, MAXIMUM), &mut text).ok().map(|_| text)
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

/// The host in the address of an index, with its port if it names one.
fn host(address: &str) -> Result<String, Error> {
    let refuse = |reason: &str| Error::InvalidName {
        what: "index",
        name: crate::level::shorten(address),
        reason: reason.into(),
    };
    let rest = address
        .strip_prefix("https://")
        .or_else(|| address.strip_prefix("http://"))
        .ok_or_else(|| refuse("expected an address that begins with `https://` or `http://`"))?;
    if !address.chars().all(|letter| letter.is_ascii_graphic()) {
        return Err(refuse("it has a character that no address has"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Error::InvalidName {
            what: "index",
            name: "…@…".into(),
            reason: "it has a name or password, which the client could hand on; leave it out".into(),
        });
    }
    if authority.is_empty() || authority.starts_with(':') {
        return Err(refuse("it has no host"));
    }
    Ok(authority.to_ascii_lowercase())
}

/// The error of an installation that failed: which package, and the end of what the client says.
pub(crate) fn failed(packages: &[String], outcome: &Outcome) -> Error {
    const MAXIMUM: usize = 1000;
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
        lines.join(" ").chars().filter(|letter| !letter.is_control()).take(MAXIMUM).collect();
    if !matches!(outcome.verdict, Verdict::Exit { .. }) {
        reason = format!("{:?} {reason}", outcome.verdict);
    }
    if let Some(refused) = outcome.report.egress.as_ref().and_then(crate::EgressLog::refusal) {
        // What the client says of it is only that it found nothing.
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
    fn the_hosts_are_those_of_the_index_and_no_others() {
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
    fn a_failure_names_the_package_that_the_client_names() {
        let packages = ["good==1".to_owned(), "no-such==2".to_owned()];
        let report = crate::Report::new("process", None, crate::Level::Strict);
        let mut outcome = Outcome::new(Verdict::Exit { code: 1 }, report);
        let text = "ERROR: Could not find a version that satisfies the requirement no-such==2 (from versions: none)\n\
                    ERROR: No matching distribution found for no-such==2";
        outcome.stderr = crate::Captured::keep(text.as_bytes(), 4096);
        let Error::Requirement { package, reason } = failed(&packages, &outcome) else { panic!() };
        assert_eq!(package, "no-such==2");
        assert!(reason.contains("No matching distribution"), "{reason}");
        let refused: crate::EgressLog = serde_json::from_value(serde_json::json!({
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
        outcome.stderr = crate::Captured::keep(b"something else", 4096);
        let Error::Requirement { package, .. } = failed(&packages, &outcome) else { panic!() };
        assert_eq!(package, "good==1, no-such==2");
    }
}

//! The private root: the visible paths besides the workspace, and the steps that build it.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::child_steps::{Step, attribute};
use super::launch::{c_string, duplicate};
use super::plan::INSIDE;
use super::template::has_changed;
use crate::Level;

/// The path of the old root while the new one is built.
const OLD: &str = "/.host";
/// System directories that every level shows.
pub(super) const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/nix/store"];
/// The entries of `/etc` at level `standard`: data and settings of libraries and interpreters. No accounts,
/// keys or settings of services.
const ETC_STANDARD: [&str; 22] = [
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/java",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/magic",
    "/etc/magic.mime",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/perl",
    "/etc/pki/ca-trust",
    "/etc/pki/java",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/tls/openssl.d",
    "/etc/protocols",
    "/etc/services",
    // On NixOS the links in `/etc` lead through it.
    "/etc/static",
    "/etc/terminfo",
    "/etc/timezone",
];
/// Prefixes of `/etc` entries with a version in their names.
const ETC_VERSIONED: [&str; 3] = ["java-", "ld-musl-", "python"];
/// The maximum number of `/etc` entries to search for such names.
const MAX_ETC_ENTRIES: usize = 4096;
/// The entries of `/etc` at level `strict`. Certificates are public, and programs verify allowed hosts with
/// them. R starts with `/etc/R`, to which its own directory links.
pub(super) const ETC_STRICT: [&str; 9] = [
    "/etc/R",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// Harmless device nodes.
pub(super) const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// An empty directory of the private root: the second layer that an overlay of one directory needs.
const EMPTY: &str = "/.empty";
/// The mount type for system directories.
pub(super) const OVERLAY: &std::ffi::CStr = c"overlay";
/// The home directory in a private root: caches and settings end with the run and are not artifacts.
pub(super) const HOME: &str = "/tmp";
/// Temporary directories, and whether they are mounted noexec.
pub(super) const SCRATCH: [(&str, bool); 2] = [(HOME, false), ("/dev/shm", true)];
/// The options of the root file system; large enough for its own files.
const ROOT_OPTIONS: &str = "mode=755,size=1m,nr_inodes=512";

pub(super) const READ_ONLY: u64 = attribute::READ_ONLY | attribute::NO_SETUID | attribute::NO_DEVICES;

/// The generated files of `/etc` in a private root.
fn etc_files() -> [(&'static str, String); 5] {
    [
        (
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:{INSIDE}:{INSIDE}:sandbox:{HOME}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
            ),
        ),
        ("/etc/group", format!("root:x:0:\nsandbox:x:{INSIDE}:\nnogroup:x:65534:\n")),
        ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n".to_owned()),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
        ("/etc/resolv.conf", String::new()),
    ]
}

/// The `/etc` entries of level `standard` that exist on this host.
fn etc_standard() -> impl Iterator<Item = PathBuf> {
    let is_versioned =
        |name: &OsStr| ETC_VERSIONED.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()));
    let entries = std::fs::read_dir("/etc").into_iter().flatten().take(MAX_ETC_ENTRIES).flatten();
    let versioned = entries.filter(move |entry| is_versioned(&entry.file_name())).map(|entry| entry.path());
    ETC_STRICT.into_iter().chain(ETC_STANDARD).map(PathBuf::from).chain(versioned)
}

/// The topmost parent that is a symbolic link. The link is shown instead; its target has its own entries.
fn first_link(entry: &Path) -> Option<PathBuf> {
    let above: Vec<&Path> = entry.ancestors().skip(1).collect();
    above.into_iter().rev().find(|directory| directory.is_symlink()).map(Path::to_owned)
}

/// The readable system paths in the host's root: as in a private one, with the host's own files instead of
/// generated ones.
pub(super) fn readable_system() -> impl Iterator<Item = PathBuf> {
    let files = etc_files().map(|(file, _)| PathBuf::from(file));
    SYSTEM.into_iter().map(PathBuf::from).chain(files).chain(etc_standard())
}

/// Copies of the two files of `/sys` that the C library reads before it uses huge pages. With these, a fork
/// of much memory is 100 times faster.
fn large_pages() -> &'static [(&'static str, Vec<u8>)] {
    const FILES: [&str; 2] =
        ["/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"];
    static COPIES: OnceLock<Vec<(&'static str, Vec<u8>)>> = OnceLock::new();
    COPIES.get_or_init(|| {
        let read = FILES.map(|file| std::fs::read(file).ok().filter(|content| content.len() < 100));
        match read {
            [Some(enabled), Some(size)] => FILES.into_iter().zip([enabled, size]).collect(),
            _ => Vec::new(),
        }
    })
}

pub(super) fn path(path: impl AsRef<Path>) -> CString {
    c_string(path.as_ref().as_os_str().as_bytes())
}

pub(super) fn under_old(path: &Path) -> CString {
    let mut text = OLD.as_bytes().to_vec();
    text.extend_from_slice(path.as_os_str().as_bytes());
    c_string(text)
}

/// Whether a path or one of its parents is already mounted.
pub(super) fn is_shown(shown: &[PathBuf], wanted: &Path) -> bool {
    shown.iter().any(|directory| wanted.starts_with(directory))
}

/// Creates each directory once, parents first.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) steps: Vec<Step>,
    made: Vec<PathBuf>,
}

impl Tree {
    /// Creates the directories above a shown path. Their names belong to the host's user, so they can be
    /// entered but not listed.
    pub(super) fn passage(&mut self, shown: &Path) {
        let Some(parent) = shown.parent().filter(|parent| *parent != Path::new("/")) else { return };
        if self.made.iter().any(|made| made == parent) {
            return;
        }
        self.passage(parent);
        self.steps.push(Step::Directory { path: path(parent), mode: 0o111 });
        self.made.push(parent.to_owned());
    }

    /// Shows a symbolic link of the host as the same link.
    pub(super) fn link(&mut self, shown: &[PathBuf], link: &Path, target: &Path) {
        if is_shown(shown, link) || self.made.iter().any(|made| made == link) {
            return;
        }
        self.passage(link);
        self.steps.push(Step::Link { path: path(link), target: path(target) });
        self.made.push(link.to_owned());
    }

    pub(super) fn directory(&mut self, directory: &Path) {
        if directory == Path::new("/") || self.made.iter().any(|made| made == directory) {
            return;
        }
        if let Some(parent) = directory.parent() {
            self.directory(parent);
        }
        self.steps.push(Step::Directory { path: path(directory), mode: 0o755 });
        self.made.push(directory.to_owned());
    }

    pub(super) fn file(&mut self, file: &Path, content: Vec<u8>) {
        if self.made.iter().any(|made| made == file) {
            return;
        }
        if let Some(parent) = file.parent() {
            self.directory(parent);
        }
        self.steps.push(Step::File { path: path(file), content });
        self.made.push(file.to_owned());
    }

    /// Shows a host path; a symbolic link as the same link.
    fn show(&mut self, shown: &mut Vec<PathBuf>, wanted: &Path) {
        if is_shown(shown, wanted) || self.made.iter().any(|made| made == wanted) {
            return;
        }
        let Ok(metadata) = std::fs::symlink_metadata(wanted) else { return };
        if let Some(parent) = wanted.parent() {
            self.directory(parent);
        }
        if metadata.is_symlink() {
            let Ok(target) = std::fs::read_link(wanted) else { return };
            self.steps.push(Step::Link { path: path(wanted), target: path(target) });
            self.made.push(wanted.to_owned());
            return;
        }
        if metadata.is_dir() {
            self.directory(wanted);
        } else {
            self.file(wanted, Vec::new());
        }
        self.steps.push(Step::Bind {
            source: under_old(wanted),
            target: path(wanted),
            attributes: READ_ONLY,
        });
        shown.push(wanted.to_owned());
    }
}

/// A writable file system in memory.
pub(super) fn temporary(target: &Path, size: u64, inodes: u64, no_execute: bool) -> Step {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if no_execute {
        flags |= MountFlags::NOEXEC;
    }
    Step::Mount {
        kind: c"tmpfs",
        target: path(target),
        options: c_string(format!("size={size},nr_inodes={inodes},mode=1777")),
        flags,
    }
}

/// The system directories that an overlay can cover, because nothing is mounted beneath.
pub(super) fn coverable() -> Vec<PathBuf> {
    mounts().map(|mounts| mounts.coverable.clone()).unwrap_or_default()
}

/// Whether something is mounted beneath a path, which an overlay would hide; also if that is unknown.
pub(super) fn has_mount_beneath(path: &Path) -> bool {
    mounts().is_none_or(|mounts| mounts.points.iter().any(|point| point != path && point.starts_with(path)))
}

/// The host's mounts.
#[derive(Debug)]
struct Mounts {
    points: Vec<PathBuf>,
    coverable: Vec<PathBuf>,
}

/// The host's mounts, read again when they change.
fn mounts() -> Option<Arc<Mounts>> {
    /// The process, the mount table that reports a change once, and its content.
    static CACHE: Mutex<Option<(u32, OwnedFd, Arc<Mounts>)>> = Mutex::new(None);
    let mut kept = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((reader, table, found)) = kept.as_ref()
        && *reader == process
        && !has_changed(table)
    {
        return Some(Arc::clone(found));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty()).ok()?;
    let found = Arc::new(read_mounts(&table).ok()?);
    Some(Arc::clone(&kept.insert((process, table, found)).2))
}

fn read_mounts(table: &OwnedFd) -> std::io::Result<Mounts> {
    let text = std::io::read_to_string(std::fs::File::from(duplicate(table.as_fd())?))?;
    let points: Vec<PathBuf> =
        text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| unescape(point).into()).collect();
    let is_coverable = |directory: &PathBuf| {
        std::fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir())
            && !points.iter().any(|point| point != directory && point.starts_with(directory))
    };
    let coverable = SYSTEM.into_iter().map(PathBuf::from).filter(is_coverable).collect();
    Ok(Mounts { points, coverable })
}

/// A path of the mount table, which writes blanks and backslashes as `\\040` in octal digits.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    OsString::from_vec(bytes)
}

/// A path in the options of an overlay.
pub(super) fn escape(path: &Path) -> Vec<u8> {
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b',' | b':' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

impl Tree {
    /// Enters an empty private root. The host's root is beneath it until [`Tree::finish`].
    pub(super) fn begin(&mut self, mount_point: &Path) {
        self.steps.push(Step::PrivateMounts);
        self.steps.push(Step::Mount {
            kind: c"tmpfs",
            target: path(mount_point),
            options: c_string(ROOT_OPTIONS),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        });
        self.steps.push(Step::Enter(path(mount_point)));
        self.steps.push(Step::Directory { path: c_string(OLD.trim_start_matches('/')), mode: 0o700 });
        self.steps.push(Step::Pivot { old: c_string(OLD.trim_start_matches('/')) });
    }

    /// Shows the system directories of a level. Returns the shown paths with their submounts.
    pub(super) fn system(&mut self, level: Level) -> Vec<PathBuf> {
        let mut shown = Vec::new();
        for directory in SYSTEM {
            self.show(&mut shown, Path::new(directory));
        }
        for (file, content) in etc_files() {
            self.file(Path::new(file), content.into_bytes());
        }
        if level == Level::Standard {
            for entry in etc_standard() {
                self.show(&mut shown, &first_link(&entry).unwrap_or(entry));
            }
        } else {
            for entry in ETC_STRICT.map(PathBuf::from) {
                self.show(&mut shown, &first_link(&entry).unwrap_or(entry));
            }
        }
        shown
    }

    /// Shows the harmless device nodes.
    pub(super) fn devices(&mut self) {
        for name in DEVICES {
            let device = Path::new("/dev").join(name);
            self.file(&device, Vec::new());
            self.steps.push(Step::Bind { source: under_old(&device), target: path(&device), attributes: 0 });
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            self.steps
                .push(Step::Link { path: path(Path::new("/dev").join(name)), target: c_string(target) });
        }
        for (file, content) in large_pages() {
            self.file(Path::new(file), content.clone());
        }
    }

    /// Creates the temporary directories.
    pub(super) fn scratch(&mut self) {
        for (directory, _) in SCRATCH {
            self.directory(Path::new(directory));
        }
        self.directory(Path::new(EMPTY));
    }

    /// Covers system directories with overlays.
    pub(super) fn overlays(&mut self, wanted: &[PathBuf]) {
        for directory in coverable().iter().filter(|directory| wanted.contains(directory)) {
            self.cover(directory);
        }
    }

    /// Covers a shown directory with an overlay. Its inodes differ from the host's, so that no socket in it answers,
    /// and locks and watches of code cannot see or block host programs.
    pub(super) fn cover(&mut self, directory: &Path) {
        let options = [b"lowerdir=".as_slice(), &escape(directory), b":", EMPTY.as_bytes()].concat();
        self.steps.push(Step::Mount {
            kind: OVERLAY,
            target: path(directory),
            options: c_string(options),
            flags: MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        });
    }

    /// Creates the other mount points of a run. The workspace may already exist beneath one of them or
    /// beneath a shown path.
    pub(super) fn places(&mut self, workspace: &Path, shown: &[PathBuf]) {
        self.directory(Path::new("/proc"));
        if !is_shown(shown, workspace) {
            self.directory(workspace);
        }
    }

    /// Removes the host's root and makes the private one read-only.
    pub(super) fn finish(&mut self) {
        self.steps.push(Step::DetachOld { old: c_string(OLD) });
        self.steps.push(Step::Attributes { path: c_string("/"), attributes: READ_ONLY });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_above_an_entry_is_shown_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("pki/certs")).unwrap();
        std::os::unix::fs::symlink("pki", root.join("ssl")).unwrap();
        assert_eq!(first_link(&root.join("ssl/certs")), Some(root.join("ssl")));
        assert_eq!(first_link(&root.join("ssl")), None);
        assert_eq!(first_link(&root.join("pki/certs")), None);
    }
}

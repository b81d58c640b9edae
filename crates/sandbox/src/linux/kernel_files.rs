//! Protects the files that control the kernel, in a separate mount namespace.
//!
//! At level `minimal` root's program has no capability, but many of these files check only the user.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use super::child_steps::{Step, attribute};
use super::launch::c_string;
use super::root::path;

/// Paths mounted read-only, with their submounts.
const SETTINGS: [&str; 9] = [
    "/sys",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/mtrr",
];
/// The kernel's file systems, wherever they are mounted.
const OF_THE_KERNEL: [&str; 10] = [
    "cgroup",
    "cgroup2",
    "sysfs",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "bpf",
    "pstore",
    "binfmt_misc",
];
/// The maximum number of devices.
const MAX_DEVICES: usize = 64;
/// The maximum depth of device directories.
const MAX_DEPTH: usize = 3;

/// The steps for a child with a mount namespace that it may change.
pub(super) fn steps(as_root: bool) -> Vec<Step> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut places: Vec<PathBuf> = SETTINGS.iter().map(PathBuf::from).collect();
    places.extend(of_the_kernel(&mounts));
    let mut steps = vec![Step::PrivateMounts];
    let mut shown: Vec<PathBuf> = Vec::new();
    for place in places {
        let is_covered = shown.iter().any(|other| place.starts_with(other));
        if is_covered || std::fs::symlink_metadata(&place).is_err() {
            continue;
        }
        let (source, target) = (path(&place), path(&place));
        steps.push(Step::Bind { source, target, attributes: attribute::READ_ONLY });
        shown.push(place);
    }
    if as_root {
        steps.extend(devices(Path::new("/dev")));
    }
    steps
}

/// The mount points of the kernel's file systems.
fn of_the_kernel(mounts: &str) -> Vec<PathBuf> {
    let place = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let kind = kind.split(' ').next()?;
        OF_THE_KERNEL.contains(&kind).then(|| unescaped(place.split(' ').nth(4).unwrap_or_default()))
    };
    mounts.lines().filter_map(place).filter(|place| place.is_absolute()).collect()
}

/// A path of the mount table, with octal escapes decoded.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = others.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Keeps only the devices that every user of the host can read and write; others, and later ones, cannot be
/// opened.
fn devices(directory: &Path) -> Vec<Step> {
    if !directory.is_dir() {
        return Vec::new();
    }
    let bind = |place: &Path| Step::Bind { source: path(place), target: path(place), attributes: 0 };
    let mut usable = Vec::new();
    of_everybody(directory, 0, &mut usable);
    let mut steps = vec![bind(directory)];
    steps.extend(usable.iter().filter(|device| !device.ends_with("ptmx")).map(|device| bind(device)));
    // A private `devpts`: the host's terminals belong to root too.
    let (terminals, maker) = (directory.join("pts"), directory.join("ptmx"));
    if terminals.is_dir() {
        steps.push(Step::Mount {
            kind: c"devpts",
            target: path(&terminals),
            options: c_string("newinstance,ptmxmode=0666,mode=0620"),
            flags: MountFlags::NOSUID | MountFlags::NOEXEC,
        });
        if std::fs::symlink_metadata(&maker).is_ok_and(|metadata| metadata.file_type().is_char_device()) {
            let source = path(terminals.join("ptmx"));
            steps.push(Step::Bind { source, target: path(&maker), attributes: 0 });
        }
    }
    steps.push(Step::Attributes { path: path(directory), attributes: attribute::NO_DEVICES });
    steps
}

fn of_everybody(directory: &Path, depth: usize, usable: &mut Vec<PathBuf>) {
    let own = std::fs::metadata(directory).map(|metadata| metadata.dev());
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if usable.len() >= MAX_DEVICES {
            return;
        }
        let Ok(metadata) = entry.metadata() else { continue };
        // Submounts keep their own devices: terminals.
        if own.as_ref().ok() != Some(&metadata.dev()) {
            continue;
        }
        if metadata.is_dir() && depth < MAX_DEPTH {
            of_everybody(&entry.path(), depth + 1, usable);
        } else if metadata.file_type().is_char_device() && metadata.mode() & 0o006 == 0o006 {
            usable.push(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_kernel_are_found_wherever_they_are() {
        let table = "1 0 0:1 / /sys rw - sysfs sysfs rw\n\
            2 1 0:2 / /a\\040b/cg rw,nosuid shared:1 - cgroup2 cgroup rw\n\
            3 1 8:1 / /home rw - ext4 /dev/vda rw\n\
            4 1 0:3 / /old/pids rw - cgroup cgroup rw,pids\nnonsense\n";
        let found = of_the_kernel(table);
        assert_eq!(found, ["/sys", "/a b/cg", "/old/pids"].map(PathBuf::from));
    }

    #[test]
    fn harmless_devices_are_kept_and_disks_are_not() {
        let mut usable = Vec::new();
        of_everybody(Path::new("/dev"), 0, &mut usable);
        for name in ["/dev/null", "/dev/zero", "/dev/urandom"] {
            assert!(usable.contains(&PathBuf::from(name)), "{name}: {usable:?}");
        }
        for device in &usable {
            let kind = std::fs::metadata(device).unwrap().file_type();
            assert!(kind.is_char_device(), "{}", device.display());
        }
    }
}

//! A cache across processes: whether this host supports every layer, so that single runs need no probe.
//!
//! The cache is a file with a key: boot, user and mount namespaces, user, seccomp mode and security label. It
//! claims full support or does not exist. A run performs its plan or fails, so a forged or outdated file
//! never weakens one.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Facts, identity};
use crate::Host;

/// The name of the file.
const NAME: &str = "host-gives-all";
/// The maximum length of a key.
const MAX_KEY: u64 = 4096;
/// Kernel files and links that become parts of the key.
const FILES: [&str; 2] = ["/proc/sys/kernel/random/boot_id", "/proc/self/attr/current"];
const LINKS: [&str; 2] = ["/proc/self/ns/user", "/proc/self/ns/mnt"];

/// The host: assumed to support everything if the cache says so, else probed and cached.
pub(crate) fn host(directory: &Path) -> Host {
    let key = key();
    let path = directory.join(NAME);
    if read(&path).is_some_and(|found| found == key)
        && let Some(facts) = Facts::assume(&path)
    {
        return Host::from_facts(facts);
    }
    let host = Host::probe().clone();
    if host.facts.is_everything() {
        write(directory, &path, &key);
    }
    host
}

/// Deletes the cache of an assumed host and probes. None for a probed host.
pub(super) fn corrected(host: &Host) -> Option<Host> {
    let path = host.facts.hint.as_ref()?;
    let _ = fs::remove_file(path);
    identity::assume_quotas(false);
    Some(Host::probe().clone())
}

fn key() -> String {
    let mut key = format!(
        "{} {} {} {}\n",
        env!("CARGO_PKG_VERSION"),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        rustix::system::uname().release().to_string_lossy(),
    );
    for path in FILES {
        let mut text = Vec::new();
        let file = fs::File::open(path).map(|file| file.take(MAX_KEY / 4));
        let _ = file.and_then(|mut file| file.read_to_end(&mut text));
        key.push_str(String::from_utf8_lossy(&text).trim_end_matches(['\n', '\0']));
        key.push('\n');
    }
    for path in LINKS {
        key.push_str(&fs::read_link(path).unwrap_or_default().to_string_lossy());
        key.push('\n');
    }
    key
}

/// Reads the key, if the file belongs to this user alone and is not writable for others.
fn read(path: &Path) -> Option<String> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    if !is_own || found.mode() & 0o077 != 0 || found.len() > MAX_KEY {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_KEY).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Writes the file atomically. If that fails, the next process probes again.
fn write(directory: &Path, path: &Path, key: &str) {
    let beside: PathBuf = directory.join(format!(".{NAME}-{}", std::process::id()));
    let _ = fs::create_dir_all(directory);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
    let written = file.and_then(|mut file| file.write_all(key.as_bytes()));
    if written.and_then(|()| fs::rename(&beside, path)).is_err() {
        let _ = fs::remove_file(&beside);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::{Cancel, Level, Program, Sandbox};

    /// A directory with a cache, if this host supports everything.
    fn hinted() -> Option<tempfile::TempDir> {
        let directory = tempfile::tempdir().unwrap();
        if host(directory.path()).facts.hint.is_some() || !Host::probe().facts.is_everything() {
            println!("SKIP remember: this host does not give every layer");
            return None;
        }
        Some(directory)
    }

    #[test]
    fn the_second_process_assumes_what_the_first_one_found() {
        let Some(directory) = hinted() else { return };
        let assumed = host(directory.path());
        assert!(assumed.facts.hint.is_some());
        let run = |host: Host| {
            let sandbox = Sandbox::new().level(Level::Strict).host(host);
            sandbox.run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {}).unwrap().report
        };
        assert_eq!(run(assumed), run(Host::probe().clone()), "the attestation is that of what was done");
        assert_eq!(fs::metadata(directory.path().join(NAME)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_hint_that_others_can_write_or_of_another_host_is_not_taken() {
        let Some(directory) = hinted() else { return };
        let path = directory.path().join(NAME);
        let is_taken = || read(&path).is_some_and(|found| found == key());
        assert!(is_taken());
        for mode in [0o620, 0o602, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(!is_taken(), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replacen('\n', "x\n", 1)).unwrap();
        assert!(!is_taken());
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(!is_taken());
        fs::rename(&path, directory.path().join("other")).unwrap();
        fs::write(directory.path().join("other"), &good).unwrap();
        symlink("other", &path).unwrap();
        assert!(!is_taken());
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, &good).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(!is_taken());
        }
    }

    /// The kernel denies the user and group that the run assumes: it probes, with the same result.
    #[test]
    fn a_hint_that_is_wrong_costs_time_and_weakens_nothing() {
        let Some(directory) = hinted() else { return };
        let mut wrong = host(directory.path());
        (wrong.facts.unprivileged, wrong.facts.user, wrong.facts.group) = (u32::MAX, u32::MAX, u32::MAX);
        let sandbox = Sandbox::new().level(Level::Strict).host(wrong.clone());
        let outcome = sandbox.run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {}).unwrap();
        let probed = Sandbox::new().level(Level::Strict).host(Host::probe().clone());
        let expected = probed.run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(outcome.report, expected.report);
        assert!(!directory.path().join(NAME).exists());
        // A probed host is not corrected.
        wrong.facts.hint = None;
        let sandbox = Sandbox::new().level(Level::Strict).host(wrong);
        assert!(sandbox.run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {}).is_err());
    }
}

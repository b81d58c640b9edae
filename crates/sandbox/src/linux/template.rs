//! The template of level `strict`'s private root, built once and copied by runs that mount nothing else.
//!
//! Building a root takes two thirds of a run's mounts, and leaving the host's root waits for every processor
//! to pass through the scheduler. If the host program is root, the finished root is kept as a mount namespace
//! without processes. A child enters it and copies it, then mounts its own `/tmp`, `/dev/shm`, `/proc` and
//! `/workspace`. The template's file system is read-only, so no run can write to it, whatever its privileges.
//! An ordinary user's run builds its own root, because it must belong to the run's user namespace.
//!
//! The template is rebuilt when the host's mounts or a shown directory change.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};

use super::Facts;
use super::child_steps::Step;
use super::launch::{self, Child, Plan};
use super::plan::WORKSPACE;
use super::root::{ETC_STRICT, SYSTEM, Tree};
use crate::Level;

/// A host directory that every template shows with its submounts.
pub(super) const TEMPLATE_SHOWS: &str = "/usr";

/// Device and inode of every shown path; none for missing ones.
type Key = [Option<(u64, u64)>; SYSTEM.len() + ETC_STRICT.len()];

#[derive(Debug)]
struct Template {
    /// The process that built it: after a fork both would wait for the same notifications of `mounts`.
    process: u32,
    key: Key,
    /// The host's mount table, which reports a change once.
    mounts: OwnedFd,
    /// None if building failed; retried only after a change.
    namespace: Option<Arc<OwnedFd>>,
}

/// Returns the namespace of the template. None if it cannot be built: then the run builds its own root.
pub(super) fn namespace(facts: &Facts) -> Option<Arc<OwnedFd>> {
    static CACHE: Mutex<Option<Template>> = Mutex::new(None);
    let mut kept = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let (process, key) = (std::process::id(), key());
    if let Some(kept) = kept.as_ref()
        && kept.process == process
        && kept.key == key
        && !has_changed(&kept.mounts)
    {
        return kept.namespace.clone();
    }
    // Drop the old one first, so that it pins no host mounts meanwhile.
    *kept = None;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mounts = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty()).ok()?;
    let namespace = if is_simple(&mounts, &key) { make(facts).map(Arc::new) } else { None };
    kept.insert(Template { process, key, mounts, namespace }).namespace.clone()
}

fn shown() -> impl Iterator<Item = &'static str> {
    SYSTEM.into_iter().chain(ETC_STRICT)
}

fn key() -> Key {
    let mut key = [None; SYSTEM.len() + ETC_STRICT.len()];
    for (entry, path) in key.iter_mut().zip(shown()) {
        *entry = rustix::fs::lstat(path).ok().map(|found| (found.st_dev, found.st_ino));
    }
    key
}

/// Whether the mount table has changed since the last check.
pub(super) fn has_changed(mounts: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(mounts, PollFlags::PRI)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut waiting, Some(&now)).is_err()
        || waiting.iter().any(|entry| entry.revents().intersects(PollFlags::PRI | PollFlags::ERR))
}

/// Whether nothing is mounted beneath shown paths: a copy of such a mount would keep the host from unmounting
/// its device.
fn is_simple(mounts: &OwnedFd, key: &Key) -> bool {
    let mut text = String::new();
    let Ok(copy) = launch::duplicate(mounts.as_fd()) else { return false };
    if std::io::Read::read_to_string(&mut std::fs::File::from(copy), &mut text).is_err() {
        return false;
    }
    let is_directory = std::fs::symlink_metadata(TEMPLATE_SHOWS).is_ok_and(|found| found.is_dir());
    is_directory && key.iter().any(Option::is_some) && !text.is_empty() && has_no_mount_beneath(&text)
}

fn has_no_mount_beneath(table: &str) -> bool {
    table.lines().filter_map(|line| line.split(' ').nth(4)).all(|point| {
        let point = Path::new(point);
        !shown().any(|directory| point != Path::new(directory) && point.starts_with(directory))
    })
}

/// Builds the root in a child, keeps its namespace, and verifies it with another child.
fn make(facts: &Facts) -> Option<OwnedFd> {
    let mut tree = Tree::default();
    tree.begin(facts.mount_point());
    tree.scratch();
    tree.system(Level::Strict);
    tree.devices();
    tree.places(Path::new(WORKSPACE), &[]);
    tree.finish();
    let mut steps = tree.steps;
    steps.extend([Step::Freeze, Step::SendDirectory(c"/".to_owned()), Step::wait_for_host()]);
    let child = start(libc::CLONE_NEWNS, steps)?;
    if launch::first_letter(&child) != Some(b'W') {
        return None;
    }
    let path = format!("/proc/{}/ns/mnt", child.pid);
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let namespace = Arc::new(launch::high(namespace).ok()?);
    drop(child);
    let trial = start(
        0,
        vec![Step::EnterMounts(Arc::clone(&namespace)), Step::Unshare(libc::CLONE_NEWNS), Step::Exit],
    )?;
    // A child that reached its end sends nothing.
    if launch::first_letter(&trial).is_some() {
        return None;
    }
    drop(trial);
    Arc::into_inner(namespace)
}

fn start(namespaces: i32, steps: Vec<Step>) -> Option<Child> {
    launch::start(&Plan { namespaces: namespaces as u64, cgroup: None, steps }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    /// The facts of this host, if it supports templates.
    fn facts() -> Option<Facts> {
        let facts = Host::probe().facts.clone();
        if facts.is_root() && facts.namespaces.is_ok() {
            return Some(facts);
        }
        println!("SKIP template: needs root and namespaces");
        None
    }

    /// The result of a step for a child in the template with root's capabilities.
    fn outcome(namespace: &Arc<OwnedFd>, step: Step) -> Option<u64> {
        let steps = vec![
            Step::EnterMounts(Arc::clone(namespace)),
            Step::Unshare(libc::CLONE_NEWNS),
            step,
            Step::Exit,
        ];
        let child = start(0, steps).unwrap();
        let mut bytes = [0u8; 64];
        let (size, _) =
            rustix::net::recv(&child.control, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
        (size > 0).then(|| u64::from_ne_bytes(bytes[16..24].try_into().unwrap()))
    }

    #[test]
    fn even_root_cannot_write_to_a_template() {
        let Some(facts) = facts() else { return };
        let namespace = make(&facts).map(Arc::new).unwrap();
        let read_only = Some(libc::EROFS as u64);
        for path in [c"/new", c"/etc/new", c"/dev/new", c"/tmp/new", c"/workspace/new", c"/usr/new"] {
            let file = Step::File { path: path.to_owned(), content: vec![] };
            assert_eq!(outcome(&namespace, file), read_only, "{path:?}");
            let directory = Step::Directory { path: path.to_owned(), mode: 0o755 };
            assert_eq!(outcome(&namespace, directory), read_only, "{path:?}");
        }
        let passwd = Step::Write { path: c"/etc/passwd".to_owned(), text: b"x".to_vec() };
        assert_eq!(outcome(&namespace, passwd), read_only);
        // Nothing of the host's root is visible.
        let old = Step::Enter(c"/.host".to_owned());
        assert_eq!(outcome(&namespace, old), Some(libc::ENOENT as u64));
        let home = Step::Enter(c"/home".to_owned());
        assert_eq!(outcome(&namespace, home), Some(libc::ENOENT as u64));
        assert_eq!(outcome(&namespace, Step::Enter(c"/usr/bin".to_owned())), None);
    }

    #[test]
    fn a_template_is_reused() {
        let Some(facts) = facts() else { return };
        let Some(first) = super::namespace(&facts) else {
            println!("SKIP a_template_is_reused: something is mounted beneath a system directory");
            return;
        };
        // Other programs may mount something between both calls.
        let again = (0..10)
            .any(|_| super::namespace(&facts).is_some_and(|second| Arc::ptr_eq(&first, &second)))
            || super::namespace(&facts)
                .zip(super::namespace(&facts))
                .is_some_and(|(one, other)| Arc::ptr_eq(&one, &other));
        assert!(again);
    }

    #[test]
    fn a_mount_beneath_a_shown_path_prevents_a_template() {
        let line = |point: &str| format!("36 31 0:32 / {point} rw,relatime - tmpfs tmpfs rw\n");
        for point in ["/", "/usr", "/home", "/usrlocal", "/etc", "/etc/ld.so.cache"] {
            assert!(has_no_mount_beneath(&line(point)), "{point}");
        }
        for point in ["/usr/share", "/usr/lib/x", "/nix/store/a", "/etc/alternatives/cc"] {
            assert!(!has_no_mount_beneath(&line(point)), "{point}");
        }
    }
}

//! Mounts with mapped ids.
//!
//! If the host program is root, code runs as an unprivileged user. Through such a mount it can still write to
//! the operator's directory, and new files belong to the directory's owner.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use super::child_steps::{MountAttributes, Step, attribute, set_attributes};
use super::files::Owner;
use super::launch::{self, Plan, high};

/// Quotas of a user namespace for everything in it. The host's user usually has 128 instances and some
/// 100,000 watches.
const QUOTAS: [(&str, &str); 2] = [("max_inotify_instances", "32"), ("max_inotify_watches", "16384")];
/// The path of the quotas of the reader's user namespace.
pub(super) const QUOTA_PLACE: &str = "/proc/sys/user/";

const EMPTY_PATH: i32 = 0x1000;
const RECURSIVE: i32 = 0x8000;

/// Clones the mount of a host path and maps the files of `owner` to `program`.
pub(super) fn mapped_tree(
    directory: BorrowedFd<'_>,
    owner: Owner,
    program: u32,
    read_only: bool,
) -> io::Result<OwnedFd> {
    use rustix::mount::OpenTreeFlags;
    let namespace = namespace(owner, program)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = high(rustix::mount::open_tree(directory, c"", flags)?)?;
    let mut set = attribute::NO_SETUID | attribute::NO_DEVICES | attribute::IDENTITY_MAP;
    if read_only {
        set |= attribute::READ_ONLY;
    }
    let attributes = MountAttributes {
        set,
        clear: 0,
        propagation: rustix::mount::MountPropagationFlags::PRIVATE.bits().into(),
        user_namespace: namespace.as_raw_fd() as u64,
    };
    set_attributes(tree.as_fd(), c"", EMPTY_PATH | RECURSIVE, &attributes)?;
    Ok(tree)
}

/// A user namespace in which `owner` is the host's user `program`. Cached: one per owner of a directory, and
/// one for all code if the host program is root.
pub(super) fn namespace(owner: Owner, program: u32) -> io::Result<OwnedFd> {
    static CACHE: Mutex<BTreeMap<(u32, u32, u32), OwnedFd>> = Mutex::new(BTreeMap::new());
    let key = (owner.user, owner.group, program);
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(namespace) = cache.get(&key) {
        return launch::duplicate(namespace.as_fd());
    }
    let namespace = fresh_namespace(owner, program)?;
    let copy = launch::duplicate(namespace.as_fd())?;
    cache.insert(key, namespace);
    Ok(copy)
}

/// The steps that set the quotas of the child's user namespace, with the host's `/proc`.
pub(super) fn quotas() -> impl Iterator<Item = Step> {
    QUOTAS.into_iter().map(|(name, most)| Step::Write {
        path: launch::c_string(format!("{QUOTA_PLACE}{name}")),
        text: most.into(),
    })
}

/// Whether this host supports quotas in a user namespace; none before the probe.
static SETS_QUOTAS: Mutex<Option<bool>> = Mutex::new(None);

/// Whether this host supports quotas in a user namespace: in containers the files are read-only. Probed once.
pub(super) fn sets_quotas() -> bool {
    let mut found = SETS_QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    *found.get_or_insert_with(|| {
        let steps = quotas().chain([Step::Exit]).collect();
        let plan = Plan { namespaces: libc::CLONE_NEWUSER as u64, cgroup: None, steps };
        launch::start(&plan).is_ok_and(|child| launch::first_letter(&child).is_none())
    })
}

/// Assumes support for quotas unless it was probed, or resets the assumption.
pub(super) fn assume_quotas(is_assumed: bool) {
    let mut found = SETS_QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    *found = if is_assumed { found.or(Some(true)) } else { None };
}

/// A new namespace, not cached: a pool's zygote has capabilities over it that no run may have over another's.
pub(super) fn fresh_namespace(owner: Owner, program: u32) -> io::Result<OwnedFd> {
    let mut steps = Vec::new();
    if sets_quotas() {
        steps.extend(quotas());
    }
    // The descriptor is unused: the message means that the quotas are set.
    steps.extend([Step::SendDirectory(c"/".to_owned()), Step::wait_for_host(), Step::Exit]);
    let plan = Plan { namespaces: libc::CLONE_NEWUSER as u64, cgroup: None, steps };
    let child = launch::start(&plan)?;
    if launch::first_letter(&child) != Some(b'W') {
        return Err(io::Error::other("setting up the user namespace failed"));
    }
    let own = format!("/proc/{}", child.pid);
    std::fs::write(format!("{own}/uid_map"), format!("{} {program} 1", owner.user))?;
    std::fs::write(format!("{own}/gid_map"), format!("{} {program} 1", owner.group))?;
    let namespace =
        rustix::fs::open(format!("{own}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    high(namespace)
}

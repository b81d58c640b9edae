//! Mounts that show one user's files as another's. When the host program is root, the code runs as a user without
//! rights; through such a mount it can still write to the operator's folder, and what it makes there belongs to the
//! folder's owner.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use super::files::Owner;
use super::launch::{self, Plan, high};
use super::steps::{MountAttributes, Step, attribute, set_attributes};

/// Quotas of a user that a user namespace holds in itself, and how much of each is for everything in it. The host's user
/// usually has 128 instances and some 100,000 watches.
const QUOTAS: [(&str, &str); 2] = [("max_inotify_instances", "32"), ("max_inotify_watches", "16384")];
/// Where the kernel shows those of the reader's user namespace.
pub(super) const QUOTA_PLACE: &str = "/proc/sys/user/";

const EMPTY_PATH: i32 = 0x1000;
const RECURSIVE: i32 = 0x8000;

/// A detached copy of a folder or file of the host in which the files of `owner` belong to `program`.
pub(super) fn mapped_tree(
    folder: BorrowedFd<'_>,
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
    let tree = high(rustix::mount::open_tree(folder, c"", flags)?)?;
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

/// A user namespace in which `owner` is the host's user `program`. Kept: there is one per owner of a folder, and one in
/// which all code runs when the host program is root.
pub(super) fn namespace(owner: Owner, program: u32) -> io::Result<OwnedFd> {
    static KEPT: Mutex<BTreeMap<(u32, u32, u32), OwnedFd>> = Mutex::new(BTreeMap::new());
    let key = (owner.user, owner.group, program);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(namespace) = kept.get(&key) {
        return launch::duplicate(namespace.as_fd());
    }
    let namespace = fresh_namespace(owner, program)?;
    let copy = launch::duplicate(namespace.as_fd())?;
    kept.insert(key, namespace);
    Ok(copy)
}

/// The steps that set the quotas of the user namespace in which the child is, with the host's `/proc`.
pub(super) fn quotas() -> impl Iterator<Item = Step> {
    QUOTAS.into_iter().map(|(name, most)| Step::Write {
        path: launch::c_string(format!("{QUOTA_PLACE}{name}")),
        text: most.into(),
    })
}

/// Whether this host sets quotas in a user namespace; none before it was tried.
static SETS_QUOTAS: Mutex<Option<bool>> = Mutex::new(None);

/// Whether this host sets quotas in a user namespace: in containers the files are read-only. Tried once.
pub(super) fn sets_quotas() -> bool {
    let mut found = SETS_QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    *found.get_or_insert_with(|| {
        let steps = quotas().chain([Step::Exit]).collect();
        let plan = Plan { namespaces: libc::CLONE_NEWUSER as u64, cgroup: None, steps };
        launch::start(&plan).is_ok_and(|child| launch::first_letter(&child).is_none())
    })
}

/// Takes for granted that the host sets quotas, unless it was tried; or lets the next question try it.
pub(super) fn assume_quotas(is_assumed: bool) {
    let mut found = SETS_QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    *found = if is_assumed { found.or(Some(true)) } else { None };
}

/// The same, made anew: for a pool, whose zygote has rights over it that no run may have over another.
pub(super) fn fresh_namespace(owner: Owner, program: u32) -> io::Result<OwnedFd> {
    let mut steps = Vec::new();
    if sets_quotas() {
        steps.extend(quotas());
    }
    // The descriptor is of no use: the message says that the quotas are set.
    steps.extend([Step::SendFolder(c"/".to_owned()), Step::Await, Step::Exit]);
    let plan = Plan { namespaces: libc::CLONE_NEWUSER as u64, cgroup: None, steps };
    let child = launch::start(&plan)?;
    if launch::first_letter(&child) != Some(b'W') {
        return Err(io::Error::other("the user namespace could not be set up"));
    }
    let own = format!("/proc/{}", child.pid);
    std::fs::write(format!("{own}/uid_map"), format!("{} {program} 1", owner.user))?;
    std::fs::write(format!("{own}/gid_map"), format!("{} {program} 1", owner.group))?;
    let namespace =
        rustix::fs::open(format!("{own}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    high(namespace)
}

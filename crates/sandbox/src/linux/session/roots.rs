//! A private root for each fork: the same paths, with other files in the workspace and `/tmp`.
//!
//! When a shared sandbox starts, a host helper enters its mount namespace, copies it several times, mounts
//! empty file systems over both directories of each copy and sends the directories to the host. So Landlock
//! rules can include them before any code runs. A fork changes its root to one of the copies, from which no
//! path leads to the files of another member. After the fork's end its files are removed, and the next fork
//! reuses the root.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::super::child_steps::Step;
use super::super::files;
use super::super::launch::{self, Plan, high};
use super::super::plan::is_dumpable;
use super::super::prepare::setup;
use super::super::root::{self, path};
use super::super::temporary;
use super::super::tree;
use super::copy;
use super::member::{Member, kill_all};
use super::shared_sandbox::{SharedSandbox, wait_for};
use crate::Error;

/// The time that a helper has.
const HELPER_TIMEOUT: Duration = Duration::from_secs(5);
const TMP: &str = "/tmp";

/// The root of a fork. Dropping it kills the processes in it, empties it and makes it reusable.
#[derive(Debug)]
pub(super) struct Root {
    /// The root directory itself.
    pub(super) directory: OwnedFd,
    pub(super) workspace: OwnedFd,
    tmp: OwnedFd,
    /// The namespace that keeps the mounts alive.
    mounts: Arc<OwnedFd>,
    shared: Arc<SharedSandbox>,
}

impl Root {
    /// Whether its `/tmp` is private.
    fn owns_tmp(&self) -> bool {
        !shows_paths_in_tmp(&self.shared)
    }

    /// The processes of the sandbox with this root, found by their workspace.
    fn users(&self) -> Vec<i32> {
        users(&self.shared, self.workspace.as_fd(), &BTreeSet::new())
    }

    /// Empties the root. Returns whether nothing is left.
    fn clear(&self) -> bool {
        kill_all(&|| self.users());
        let mut directories = vec![(&self.workspace, 0o755)];
        if self.owns_tmp() {
            directories.push((&self.tmp, 0o1777));
        }
        self.users().is_empty()
            && directories.into_iter().all(|(directory, mode)| {
                // First the mode, without which an ordinary user cannot empty it.
                let has_rights = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode)).is_ok();
                temporary::empty(directory.as_fd());
                has_rights && files::list(directory.as_fd()).files.is_empty()
            })
    }
}

/// The processes of a sandbox with this workspace, except `without` and their descendants.
pub(super) fn users(shared: &SharedSandbox, workspace: BorrowedFd<'_>, without: &BTreeSet<i32>) -> Vec<i32> {
    let Ok(own) = rustix::fs::fstat(workspace) else { return Vec::new() };
    let inner = shared.workspace.strip_prefix("/").unwrap_or(&shared.workspace);
    let mut found = tree::descendants_without(shared.pid, without);
    found.retain(|pid| {
        let place = Path::new("/proc").join(pid.to_string()).join("root").join(inner);
        rustix::fs::stat(&place).is_ok_and(|stat| stat.st_dev == own.st_dev)
    });
    found
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.shared.termination().is_none() && self.clear() {
            let mut free_roots = self.shared.free_roots.lock().unwrap_or_else(PoisonError::into_inner);
            free_roots.push(Arc::clone(&self.mounts));
        }
    }
}

fn open(path: &str) -> io::Result<OwnedFd> {
    high(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The steps into a namespace of the sandbox's first process, with the right to change it.
fn enter(shared: &SharedSandbox, mounts: &Arc<OwnedFd>) -> io::Result<Vec<Step>> {
    let mut steps = Vec::new();
    if !shared.facts.is_root() {
        // The helper may share the host's memory, which entering marks as not dumpable.
        let users = open(&format!("/proc/{}/ns/user", shared.pid))?;
        steps.extend([Step::EnterUser(users), Step::Dumpable(is_dumpable())]);
    }
    steps.push(Step::EnterMounts(Arc::clone(mounts)));
    Ok(steps)
}

/// The mount namespace of the first member.
fn first(shared: &SharedSandbox) -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(open(&format!("/proc/{}/ns/mnt", shared.pid))?))
}

/// Whether a host path is mounted beneath `/tmp`. Then all members share `/tmp`, because an empty one would
/// hide it.
fn shows_paths_in_tmp(shared: &SharedSandbox) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", shared.pid)).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| point.strip_prefix(TMP).is_some_and(|rest| rest.starts_with('/')))
}

/// Runs a helper and returns the descriptors that it sends.
fn run(mut steps: Vec<Step>, count: usize) -> Result<Vec<OwnedFd>, Error> {
    steps.push(Step::Exit);
    let names: Vec<&'static str> = steps.iter().map(Step::name).collect();
    let plan = Plan { namespaces: 0, cgroup: None, steps };
    let child = launch::start(&plan).map_err(setup("start helper"))?;
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        if !wait_for(child.control.as_fd(), PollFlags::IN, HELPER_TIMEOUT) {
            return Err(setup("copy mounts")(io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = [0u8; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let size = rustix::net::recvmsg(&child.control, &mut parts, &mut ancillary, flags)
            .map_or(0, |message| message.bytes);
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        match descriptor {
            Some(descriptor) => found.push(high(descriptor).map_err(setup("copy mounts"))?),
            None => {
                let number = |place: usize| {
                    let part = bytes.get(place * 8..place * 8 + 8).filter(|_| size >= 24);
                    part.and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes)
                };
                let step = names.get(number(1) as usize).copied().unwrap_or("copy mounts");
                return Err(setup(step)(io::Error::from_raw_os_error(number(2) as i32)));
            }
        }
    }
    Ok(found)
}

/// The `/tmp` of a member.
pub(super) fn tmp(member: &Member) -> Result<OwnedFd, Error> {
    let fail = setup("find /tmp");
    if let Some(root) = &member.root {
        return launch::duplicate(root.tmp.as_fd()).map_err(fail);
    }
    let shared: &SharedSandbox = &member.shared;
    let steps = first(shared).and_then(|mounts| enter(shared, &mounts));
    let mut steps = steps.map_err(&fail)?;
    steps.push(Step::SendDirectory(path(TMP)));
    run(steps, 1)?.pop().ok_or_else(|| fail(io::ErrorKind::NotFound.into()))
}

/// Creates `count` namespaces for forks. Returns them and their writable directories.
pub(super) fn reserve(
    shared: &SharedSandbox,
    count: usize,
) -> Result<(Vec<Arc<OwnedFd>>, Vec<OwnedFd>), Error> {
    let fail = setup("copy mounts");
    let owns_tmp = !shows_paths_in_tmp(shared);
    let mounts = first(shared).map_err(&fail)?;
    let mut steps = enter(shared, &mounts).map_err(&fail)?;
    let owner =
        shared.owner.map_or(String::new(), |owner| format!(",uid={},gid={}", owner.user, owner.group));
    let (size, inodes) = (shared.limits.workspace_bytes, shared.limits.workspace_inodes);
    for number in 0..count {
        if number > 0 {
            steps.push(Step::EnterMounts(Arc::clone(&mounts)));
        }
        steps.push(Step::Unshare(libc::CLONE_NEWNS));
        steps.push(Step::Mount {
            kind: c"tmpfs",
            target: path(&shared.workspace),
            options: launch::c_string(format!("size={size},nr_inodes={inodes},mode=755{owner}")),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        });
        if owns_tmp {
            steps.push(root::temporary(TMP.as_ref(), size, inodes, false));
        }
        steps.push(Step::SendDirectory(path(&shared.workspace)));
        steps.push(Step::SendDirectory(path(TMP)));
        steps.push(Step::SendMounts(open("/proc").map_err(&fail)?));
    }
    let mut found = run(steps, count * 3)?.into_iter();
    let (mut free_roots, mut directories) = (Vec::with_capacity(count), Vec::with_capacity(2 * count));
    while let (Some(workspace), Some(tmp), Some(mounts)) = (found.next(), found.next(), found.next()) {
        free_roots.push(Arc::new(mounts));
        directories.extend([workspace, tmp]);
    }
    Ok((free_roots, directories))
}

/// Takes roots for forks of a member and copies its files into them.
pub(super) fn take(member: &Member, count: usize) -> Result<Vec<Root>, Error> {
    let shared = &member.shared;
    let reject = |reason: String, hint| Error::SessionRejected { action: "forking", reason, hint };
    if let Some(reason) = &shared.not_forkable {
        return Err(reject(
            reason.clone(),
            "start a Python session with a fresh workspace, at level `standard` or `strict`, with `forks` above 0",
        ));
    }
    if member.is_deepest() {
        return Err(reject("forks are nested at most 12 deep".into(), "fork an earlier session"));
    }
    let mut roots = Vec::with_capacity(count);
    for _ in 0..count {
        let room = shared.free_roots.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mounts) = room else {
            let most = shared.most_members;
            let reason = format!("the session and its forks are already {most} interpreters");
            return Err(reject(reason, "end some of them, or raise the limit `forks`"));
        };
        roots.push(open_root(shared, mounts)?);
    }
    let from_workspace = member.directory("fork")?;
    let from_scratch = tmp(member)?;
    for root in &roots {
        let workspaces = (from_workspace.descriptor.as_fd(), root.workspace.as_fd());
        let scratches = root.owns_tmp().then(|| (from_scratch.as_fd(), root.tmp.as_fd()));
        for (from, to) in [Some(workspaces), scratches].into_iter().flatten() {
            copy::tree(from, to, shared.owner).map_err(|reason| {
                reject(
                    format!("copying the files failed: {reason}"),
                    "delete files, or raise `workspace_bytes`",
                )
            })?;
        }
    }
    Ok(roots)
}

/// Opens the directories of an existing namespace.
fn open_root(shared: &Arc<SharedSandbox>, mounts: Arc<OwnedFd>) -> Result<Root, Error> {
    let fail = setup("enter mount namespace");
    let mut steps = enter(shared, &mounts).map_err(&fail)?;
    steps.push(Step::SendDirectory(path(&shared.workspace)));
    steps.push(Step::SendDirectory(path(TMP)));
    steps.push(Step::SendDirectory(path("/")));
    let mut found = run(steps, 3)?.into_iter();
    let (Some(workspace), Some(tmp), Some(directory)) = (found.next(), found.next(), found.next()) else {
        return Err(fail(io::ErrorKind::NotFound.into()));
    };
    Ok(Root { directory, workspace, tmp, mounts, shared: Arc::clone(shared) })
}

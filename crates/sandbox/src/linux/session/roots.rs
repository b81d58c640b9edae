//! A root of its own for each fork: the same folders at the same paths, with other files in the workspace and in
//! `/tmp`.
//!
//! At the start of a family a helper of the host enters its mount namespace, makes copies of it, mounts empty file
//! systems over the two folders of each and hands the copies out: so Landlock can know them before any code runs. A fork
//! changes its root to one of them: what it reaches from there is its own, and no path leads to the files of another
//! member. When it has ended, what it left is removed, and the next one gets the place.

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

use super::super::files;
use super::super::launch::{self, Plan, high};
use super::super::plan::is_dumpable;
use super::super::prepare::setup;
use super::super::root::{path, temporary};
use super::super::steps::Step;
use super::super::tree;
use super::copy;
use super::family::{Family, wait_for};
use super::member::{Member, kill_all};
use crate::Error;

/// A helper that has handed nothing out after this time never will.
const MADE_WITHIN: Duration = Duration::from_secs(5);
const SCRATCH: &str = "/tmp";

/// The root of a fork. Dropped, it kills what still lives there, empties it and gives it back.
#[derive(Debug)]
pub(super) struct Root {
    /// The root folder itself.
    pub(super) directory: OwnedFd,
    pub(super) workspace: OwnedFd,
    scratch: OwnedFd,
    /// The namespace that keeps the mounts.
    mounts: Arc<OwnedFd>,
    family: Arc<Family>,
}

impl Root {
    /// Whether its folder for short-lived files is its own.
    fn owns_scratch(&self) -> bool {
        !shows_in_scratch(&self.family)
    }

    /// The processes of the family that have it as their root: their workspace is this one.
    fn users(&self) -> Vec<i32> {
        users(&self.family, self.workspace.as_fd(), &BTreeSet::new())
    }

    /// Whether nothing of the last fork is left.
    fn clear(&self) -> bool {
        kill_all(&|| self.users());
        let mut folders = vec![(&self.workspace, 0o755)];
        if self.owns_scratch() {
            folders.push((&self.scratch, 0o1777));
        }
        self.users().is_empty()
            && folders.into_iter().all(|(folder, mode)| {
                // First its rights, without which an ordinary user cannot empty it.
                let has_rights = rustix::fs::fchmod(folder, Mode::from_raw_mode(mode)).is_ok();
                copy::empty(folder.as_fd());
                has_rights && files::list(folder.as_fd()).files.is_empty()
            })
    }
}

/// The processes of a family whose workspace is this one, without these processes and what descends from them.
pub(super) fn users(family: &Family, workspace: BorrowedFd<'_>, without: &BTreeSet<i32>) -> Vec<i32> {
    let Ok(own) = rustix::fs::fstat(workspace) else { return Vec::new() };
    let inner = family.workspace.strip_prefix("/").unwrap_or(&family.workspace);
    let mut found = tree::descendants_without(family.pid, without);
    found.retain(|pid| {
        let place = Path::new("/proc").join(pid.to_string()).join("root").join(inner);
        rustix::fs::stat(&place).is_ok_and(|stat| stat.st_dev == own.st_dev)
    });
    found
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.family.remains().is_none() && self.clear() {
            let mut rooms = self.family.rooms.lock().unwrap_or_else(PoisonError::into_inner);
            rooms.push(Arc::clone(&self.mounts));
        }
    }
}

fn open(path: &str) -> io::Result<OwnedFd> {
    high(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The steps into a namespace of the family's first process, with the right to change it.
fn enter(family: &Family, mounts: &Arc<OwnedFd>) -> io::Result<Vec<Step>> {
    let mut steps = Vec::new();
    if !family.facts.is_root() {
        // The memory may be the host's own, which entering marks as not to be looked into.
        let users = open(&format!("/proc/{}/ns/user", family.pid))?;
        steps.extend([Step::EnterUser(users), Step::Dumpable(is_dumpable())]);
    }
    steps.push(Step::EnterMounts(Arc::clone(mounts)));
    Ok(steps)
}

/// The mount namespace of the first member.
fn first(family: &Family) -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(open(&format!("/proc/{}/ns/mnt", family.pid))?))
}

/// Whether something of the host is shown beneath the folder for short-lived files: then all members share that folder,
/// because an empty one would hide it.
fn shows_in_scratch(family: &Family) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", family.pid)).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| point.strip_prefix(SCRATCH).is_some_and(|rest| rest.starts_with('/')))
}

/// Runs a helper and gives the descriptors that it hands out.
fn run(mut steps: Vec<Step>, count: usize) -> Result<Vec<OwnedFd>, Error> {
    steps.push(Step::Exit);
    let names: Vec<&'static str> = steps.iter().map(Step::name).collect();
    let plan = Plan { namespaces: 0, cgroup: None, steps };
    let child = launch::start(&plan).map_err(setup("start helper"))?;
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        if !wait_for(child.control.as_fd(), PollFlags::IN, MADE_WITHIN) {
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

/// The folder for short-lived files of a member.
pub(super) fn scratch(member: &Member) -> Result<OwnedFd, Error> {
    let fail = setup("find scratch");
    if let Some(root) = &member.root {
        return launch::duplicate(root.scratch.as_fd()).map_err(fail);
    }
    let family: &Family = &member.family;
    let steps = first(family).and_then(|mounts| enter(family, &mounts));
    let mut steps = steps.map_err(&fail)?;
    steps.push(Step::SendFolder(path(SCRATCH)));
    run(steps, 1)?.pop().ok_or_else(|| fail(io::ErrorKind::NotFound.into()))
}

/// Makes so many namespaces for forks, and gives them with the folders in them that can be written.
pub(super) fn reserve(family: &Family, count: usize) -> Result<(Vec<Arc<OwnedFd>>, Vec<OwnedFd>), Error> {
    let fail = setup("copy mounts");
    let owns_scratch = !shows_in_scratch(family);
    let mounts = first(family).map_err(&fail)?;
    let mut steps = enter(family, &mounts).map_err(&fail)?;
    let owner =
        family.owner.map_or(String::new(), |owner| format!(",uid={},gid={}", owner.user, owner.group));
    let (size, inodes) = (family.limits.workspace_bytes, family.limits.workspace_inodes);
    for number in 0..count {
        if number > 0 {
            steps.push(Step::EnterMounts(Arc::clone(&mounts)));
        }
        steps.push(Step::Unshare(libc::CLONE_NEWNS));
        steps.push(Step::Mount {
            kind: c"tmpfs",
            target: path(&family.workspace),
            options: launch::c_string(format!("size={size},nr_inodes={inodes},mode=755{owner}")),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        });
        if owns_scratch {
            steps.push(temporary(SCRATCH.as_ref(), size, inodes, false));
        }
        steps.push(Step::SendFolder(path(&family.workspace)));
        steps.push(Step::SendFolder(path(SCRATCH)));
        steps.push(Step::SendMounts(open("/proc").map_err(&fail)?));
    }
    let mut found = run(steps, count * 3)?.into_iter();
    let (mut rooms, mut folders) = (Vec::with_capacity(count), Vec::with_capacity(2 * count));
    while let (Some(workspace), Some(scratch), Some(mounts)) = (found.next(), found.next(), found.next()) {
        rooms.push(Arc::new(mounts));
        folders.extend([workspace, scratch]);
    }
    Ok((rooms, folders))
}

/// Takes roots for forks of a member, filled with its files.
pub(super) fn take(member: &Member, count: usize) -> Result<Vec<Root>, Error> {
    let family = &member.family;
    let refuse = |reason: String, hint| Error::SessionRejected { action: "fork", reason, hint };
    if let Some(reason) = &family.not_forkable {
        return Err(refuse(
            reason.clone(),
            "start a session of Python with a fresh workspace, at level `standard` or `strict`, with `forks` above 0",
        ));
    }
    if member.is_deepest() {
        return Err(refuse("it is the fork of a fork, 12 deep".into(), "fork an earlier session"));
    }
    let mut roots = Vec::with_capacity(count);
    for _ in 0..count {
        let room = family.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mounts) = room else {
            let most = family.most_members;
            let reason = format!("there are already {most} interpreters in its family");
            return Err(refuse(reason, "end some of them, or raise the limit `forks`"));
        };
        roots.push(open_root(family, mounts)?);
    }
    let from_workspace = member.folder("fork")?;
    let from_scratch = scratch(member)?;
    for root in &roots {
        let workspaces = (from_workspace.descriptor.as_fd(), root.workspace.as_fd());
        let scratches = root.owns_scratch().then(|| (from_scratch.as_fd(), root.scratch.as_fd()));
        for (from, to) in [Some(workspaces), scratches].into_iter().flatten() {
            copy::tree(from, to, family.owner).map_err(|reason| {
                refuse(
                    format!("the files could not be copied: {reason}"),
                    "remove files that are not needed, or raise `workspace_bytes`",
                )
            })?;
        }
    }
    Ok(roots)
}

/// Opens the folders of a namespace that was made before.
fn open_root(family: &Arc<Family>, mounts: Arc<OwnedFd>) -> Result<Root, Error> {
    let fail = setup("enter mount namespace");
    let mut steps = enter(family, &mounts).map_err(&fail)?;
    steps.push(Step::SendFolder(path(&family.workspace)));
    steps.push(Step::SendFolder(path(SCRATCH)));
    steps.push(Step::SendFolder(path("/")));
    let mut found = run(steps, 3)?.into_iter();
    let (Some(workspace), Some(scratch), Some(directory)) = (found.next(), found.next(), found.next()) else {
        return Err(fail(io::ErrorKind::NotFound.into()));
    };
    Ok(Root { directory, workspace, scratch, mounts, family: Arc::clone(family) })
}

//! A root of its own for each fork: the same folders at the same paths, with other files in the workspace and in
//! `/tmp`.
//!
//! A helper of the host enters the member's mount namespace, makes a copy of it, mounts empty file systems over the two
//! folders and hands the copy out. The fork changes its root to the copy's: what it reaches from there is its own, and
//! no path leads to the files of another member.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::super::launch::{self, Plan, high};
use super::super::plan::is_dumpable;
use super::super::prepare::setup;
use super::super::root::{path, temporary};
use super::super::steps::Step;
use super::copy;
use super::family::{Family, wait_for};
use super::member::Member;
use crate::Error;

/// A helper that has handed nothing out after this time never will.
const MADE_WITHIN: Duration = Duration::from_secs(5);
const SCRATCH: &str = "/tmp";

/// The root of a fork.
#[derive(Debug)]
pub(super) struct Root {
    /// The root folder itself.
    pub(super) directory: OwnedFd,
    pub(super) workspace: OwnedFd,
    scratch: OwnedFd,
    /// The namespace that keeps the mounts.
    mounts: Arc<OwnedFd>,
}

fn open(path: &str) -> io::Result<OwnedFd> {
    high(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The steps into a member's mount namespace, with the right to change it.
fn enter(member: &Member) -> io::Result<(Vec<Step>, Arc<OwnedFd>)> {
    let family: &Family = &member.family;
    let of_first = |kind: &str| open(&format!("/proc/{}/ns/{kind}", family.pid));
    let mut steps = Vec::new();
    if !family.facts.is_root() {
        // The memory may be the host's own, which entering marks as not to be looked into.
        steps.extend([Step::EnterUser(of_first("user")?), Step::Dumpable(is_dumpable())]);
    }
    let mounts = match &member.root {
        Some(root) => Arc::clone(&root.mounts),
        None => Arc::new(of_first("mnt")?),
    };
    steps.push(Step::EnterMounts(Arc::clone(&mounts)));
    Ok((steps, mounts))
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
    if let Some(root) = &member.root {
        return launch::duplicate(root.scratch.as_fd()).map_err(setup("find scratch"));
    }
    let (mut steps, _) = enter(member).map_err(setup("find scratch"))?;
    steps.push(Step::SendFolder(path(SCRATCH)));
    run(steps, 1)?.pop().ok_or_else(|| setup("find scratch")(io::ErrorKind::NotFound.into()))
}

/// Makes roots for forks of a member, filled with its files.
pub(super) fn make(member: &Member, count: usize) -> Result<Vec<Root>, Error> {
    let family: &Family = &member.family;
    let refuse = |reason: String, hint| Error::SessionRefused { action: "fork", reason, hint };
    if let Some(reason) = &family.not_forkable {
        return Err(refuse(
            reason.clone(),
            "start a session of Python with a fresh workspace, at level `standard` or `strict`, with `forks` above 0",
        ));
    }
    if member.is_deepest() {
        return Err(refuse("it is the fork of a fork, 12 deep".into(), "fork an earlier session"));
    }
    let shares_scratch = shows_in_scratch(family);
    let (enter, mounts) = enter(member).map_err(setup("enter mount namespace"))?;
    let mut steps = enter;
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
        if !shares_scratch {
            steps.push(temporary(SCRATCH.as_ref(), size, inodes, false));
        }
        steps.push(Step::SendFolder(path(&family.workspace)));
        steps.push(Step::SendFolder(path(SCRATCH)));
        steps.push(Step::SendFolder(path("/")));
        let processes = open("/proc").map_err(setup("hand over mount namespace"))?;
        steps.push(Step::SendMounts(processes));
    }
    let mut found = run(steps, count * 4)?.into_iter();
    let mut roots = Vec::with_capacity(count);
    while let (Some(workspace), Some(scratch), Some(directory), Some(mounts)) =
        (found.next(), found.next(), found.next(), found.next())
    {
        roots.push(Root { directory, workspace, scratch, mounts: Arc::new(mounts) });
    }
    let from_workspace = member.folder("fork")?;
    let from_scratch = scratch(member)?;
    for root in &roots {
        let workspaces = (from_workspace.descriptor.as_fd(), root.workspace.as_fd());
        let scratches = (!shares_scratch).then(|| (from_scratch.as_fd(), root.scratch.as_fd()));
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

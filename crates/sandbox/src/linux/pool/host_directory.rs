//! Attaches a host directory as the workspace of a worker.
//!
//! A host helper enters the worker's mount namespace, where the code will have no privileges. It does the
//! same as the child of a cold run: it mounts the directory, verifies that it is the one that the host
//! checked, and makes protected paths read-only. The mount hides the worker's own empty workspace.
//!
//! A Landlock rule holds for the directory that exists when the rule is created. So such a worker applies
//! Landlock only after the mount; until then its report lists no Landlock layer.

use std::io;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::super::child_steps::Step;
use super::super::landlock::Landlock;
use super::super::launch::{self, Plan};
use super::super::plan::{WORKSPACE, is_dumpable};
use super::super::prepare::setup;
use super::super::root::path;
use super::super::workspace::OpenedDirectory;
use super::base::Base;
use super::zygote::{receive, send};
use crate::Error;

/// The name of the failed step, after which the run is cold.
pub(super) const STEP: &str = "attach directory to worker";

/// The time that a worker has to apply Landlock.
const LANDLOCK_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Mounts the directory as the workspace of a process. `owner` is a process in the user namespace of its
/// mounts.
pub(super) fn attach(
    base: &Base,
    directory: &mut OpenedDirectory,
    process: BorrowedFd<'_>,
    owner: BorrowedFd<'_>,
) -> Result<(), Error> {
    let fail = setup(STEP);
    let mut steps = Vec::new();
    if !base.facts.is_root() {
        steps.extend([
            Step::EnterUser(launch::duplicate(owner).map_err(&fail)?),
            // The helper shares the host's memory, which entering may mark as not dumpable.
            Step::Dumpable(is_dumpable()),
            // The directory comes from a copy of the host's mounts, over which the helper has rights there.
            Step::Unshare(libc::CLONE_NEWNS),
        ]);
    }
    directory.plan_for(launch::duplicate(process).map_err(&fail)?, Path::new(WORKSPACE), &mut steps);
    // The helper sends the mounted directory as proof of success.
    steps.extend([Step::SendDirectory(path(WORKSPACE)), Step::Exit]);
    let plan = Plan { namespaces: 0, cgroup: None, steps };
    let mut helper = launch::start(&plan).map_err(&fail)?;
    // The helper shares this memory, so it has ended already.
    helper.reap();
    let mut bytes = [0u8; 64];
    let received = receive(&helper.control, &mut bytes);
    let number = |place: usize| {
        let part = bytes.get(place * 8..place * 8 + 8).and_then(|part| part.try_into().ok());
        part.map_or(0, u64::from_ne_bytes)
    };
    match received {
        Ok((48, Some(_))) if number(0) == u64::from(b'W') => Ok(()),
        Ok((48, None)) => {
            let step = plan.steps.get(number(1) as usize);
            let subject = step.and_then(Step::subject).map_or(String::new(), |subject| format!(" {subject}"));
            let name = step.map_or("set-up", Step::name);
            let error = io::Error::from_raw_os_error(number(2) as i32);
            Err(fail(io::Error::new(error.kind(), format!("{name}{subject}: {error}"))))
        }
        Ok(_) => Err(fail(io::Error::other("the helper ended early"))),
        Err(error) => Err(fail(error.into())),
    }
}

/// Makes a zygote's fork enter its workspace and apply Landlock, and waits for its answer.
pub(super) fn lock(order: &OwnedFd, landlock: &Landlock) -> Result<(), Error> {
    let fail = setup(STEP);
    let (attributes, rules) = landlock.parts();
    let mut message = vec![b'L'];
    message.extend(attributes.iter().flat_map(|part| part.to_ne_bytes()));
    for (path, allowed) in &rules {
        message.extend(allowed.to_ne_bytes());
        message.extend(path.as_bytes_with_nul());
    }
    send(order, &message, &[]).map_err(|error| fail(error.into()))?;
    let mut waiting = [PollFd::new(order, PollFlags::IN)];
    while matches!(poll(&mut waiting, Some(&LANDLOCK_TIMEOUT)), Err(Errno::INTR)) {}
    let mut bytes = [0u8; 16];
    match receive(order, &mut bytes) {
        Ok((1, None)) if bytes[0] == b'K' => Ok(()),
        Ok((5, None)) if bytes[0] == b'E' => {
            let number = bytes.get(1..5).and_then(|part| part.try_into().ok()).map_or(0, i32::from_ne_bytes);
            let error = io::Error::from_raw_os_error(number);
            Err(fail(io::Error::new(error.kind(), format!("enforce landlock: {error}"))))
        }
        Ok((0, _)) | Err(Errno::PIPE | Errno::CONNRESET) => {
            Err(setup("send landlock rules to worker")(io::Error::other("it ended early")))
        }
        Err(Errno::AGAIN) => {
            Err(fail(io::Error::new(io::ErrorKind::TimedOut, "enforce landlock: no answer")))
        }
        _ => Err(fail(io::Error::other("it sent an invalid message"))),
    }
}

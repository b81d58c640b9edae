//! A folder of the host as the workspace of a worker, attached when the worker gets its program.
//!
//! A helper of the host enters the worker's mount namespace, where the code will have no rights, and does there what the
//! child of a cold run does while it makes its root: it shows the folder, makes sure that it is the one that the host
//! saw, and makes its protected paths read-only. The worker's own empty workspace lies beneath from then on.
//!
//! Landlock's rule about the workspace is one about the folder that is there when the rule is made, so such a worker puts
//! Landlock in force when it has its folder: it is told the rules, and nothing else before it has said that they hold.

use std::io;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::super::landlock::Landlock;
use super::super::launch::{self, Plan};
use super::super::plan::{WORKSPACE, is_dumpable};
use super::super::prepare::setup;
use super::super::root::path;
use super::super::steps::Step;
use super::super::workspace::HostFolder;
use super::base::Base;
use super::zygote::{receive, send};
use crate::Error;

/// What a failure is called, after which the run is cold.
pub(super) const STEP: &str = "attach folder to worker";

/// A child that has not locked itself after this time never will.
const LOCKED_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Shows the folder as the workspace of a process. `owner` lives in the user namespace that its mounts belong to.
pub(super) fn attach(
    base: &Base,
    folder: &mut HostFolder,
    process: BorrowedFd<'_>,
    owner: BorrowedFd<'_>,
) -> Result<(), Error> {
    let fail = setup(STEP);
    let mut steps = Vec::new();
    if !base.facts.is_root() {
        steps.extend([
            Step::EnterUser(launch::duplicate(owner).map_err(&fail)?),
            // The memory is the host's own, which entering may mark as not to be looked into.
            Step::Dumpable(is_dumpable()),
            // The folder is taken from a copy of the host's mounts, over which it has rights there.
            Step::Unshare(libc::CLONE_NEWNS),
        ]);
    }
    folder.plan_for(launch::duplicate(process).map_err(&fail)?, Path::new(WORKSPACE), &mut steps);
    // Its word that nothing of it is missing.
    steps.extend([Step::SendFolder(path(WORKSPACE)), Step::Exit]);
    let plan = Plan { namespaces: 0, cgroup: None, steps };
    let mut helper = launch::start(&plan).map_err(&fail)?;
    // It borrows this memory, so it is at its end already.
    helper.reap();
    let mut bytes = [0u8; 64];
    let told = receive(&helper.control, &mut bytes);
    let number = |place: usize| {
        let part = bytes.get(place * 8..place * 8 + 8).and_then(|part| part.try_into().ok());
        part.map_or(0, u64::from_ne_bytes)
    };
    match told {
        Ok((48, Some(_))) if number(0) == u64::from(b'W') => Ok(()),
        Ok((48, None)) => {
            let step = plan.steps.get(number(1) as usize);
            let subject = step.and_then(Step::subject).map_or(String::new(), |subject| format!(" {subject}"));
            let name = step.map_or("set-up", Step::name);
            let error = io::Error::from_raw_os_error(number(2) as i32);
            Err(fail(io::Error::new(error.kind(), format!("{name}{subject}: {error}"))))
        }
        Ok(_) => Err(fail(io::Error::other("the helper was ended"))),
        Err(error) => Err(fail(error.into())),
    }
}

/// Has a child of a zygote enter its workspace and put Landlock in force, and waits for its word that this is done.
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
    while matches!(poll(&mut waiting, Some(&LOCKED_WITHIN)), Err(Errno::INTR)) {}
    let mut bytes = [0u8; 16];
    match receive(order, &mut bytes) {
        Ok((1, None)) if bytes[0] == b'K' => Ok(()),
        Ok((5, None)) if bytes[0] == b'E' => {
            let number = bytes.get(1..5).and_then(|part| part.try_into().ok()).map_or(0, i32::from_ne_bytes);
            let error = io::Error::from_raw_os_error(number);
            Err(fail(io::Error::new(error.kind(), format!("enforce landlock: {error}"))))
        }
        Ok((0, _)) | Err(Errno::PIPE | Errno::CONNRESET) => {
            Err(setup("tell worker to lock itself")(io::Error::other("it ended before it did")))
        }
        Err(Errno::AGAIN) => {
            Err(fail(io::Error::new(io::ErrorKind::TimedOut, "enforce landlock: no answer")))
        }
        _ => Err(fail(io::Error::other("it sent what no child sends"))),
    }
}

//! Persistent interpreters: the Linux implementation of [`crate::Session`].
//!
//! A session and its forks share one sandbox: one set of namespaces, one cgroup, one first process. In it run
//! a zygote, an interpreter that never runs code, and the members, which are forks of the zygote or of each
//! other. The host has a socket and a kernel-verified pidfd for each, and signals it only by the pidfd.

mod cell;
mod copy;
mod frame;
mod member;
mod roots;
mod shared_sandbox;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use libc::sock_filter;
use rustix::fd::{AsFd as _, OwnedFd};

use super::child_steps::Step;
use super::files::{self, Listing};
use super::plan::Confinement;
use crate::session::{CellLimits, SessionLimits};
use crate::{Cancel, Error, Language, Layer, MissingLayer, Outcome, Sandbox, SandboxEvent, Source};
use member::Member;

pub(crate) use cell::Calls;

/// Keeps `CAP_SYS_CHROOT` for the interpreter, with which a fork changes to its own workspace at the same
/// path.
///
/// It reaches only the sandbox's own mounts, and programs that the interpreter starts do not inherit it.
/// Returns the file rules, which the first interpreter applies to itself once the directories of its forks
/// exist.
pub(super) fn keep_root_change(confinement: &mut Confinement) -> Option<FileRules> {
    // The bounding set limits what can be kept.
    let place = confinement.steps.iter().position(|step| matches!(step, Step::DropBounding));
    confinement.steps.insert(place.unwrap_or(0), Step::InheritRootChange);
    let mut rules = None;
    for step in &mut confinement.steps {
        match step {
            Step::DropCapabilities => *step = Step::KeepRootChange,
            Step::Seccomp(filter) => *filter = allow(filter, &[libc::SYS_chroot]),
            Step::Landlock(landlock) => {
                let ([handled, ..], paths) = landlock.parts();
                let text = |path: CString| path.to_string_lossy().into_owned();
                rules = Some(FileRules {
                    handled,
                    paths: paths.into_iter().map(|(path, allowed)| (text(path), allowed)).collect(),
                    write: landlock.writing(),
                });
                landlock.allow_writing_everywhere();
            }
            _ => {}
        }
    }
    confinement.missing.push(MissingLayer {
        layer: Layer::NoCapabilities,
        reason: "a session that can be forked keeps the right to change its own root, not in effect and for no other \
                 program; `forks = 0` takes it away"
            .to_owned(),
    });
    let lost = [Layer::NoCapabilities, Layer::LandlockFiles];
    confinement.layers.retain(|layer| !lost.contains(layer));
    rules
}

/// The Landlock access rights of each directory, in the kernel's bits.
#[derive(Debug)]
pub(super) struct FileRules {
    handled: u64,
    paths: Vec<(String, u64)>,
    /// The rights beneath a writable directory.
    write: u64,
}

impl FileRules {
    /// Encodes the rules for the interpreter, with the number of writable directories that follow.
    fn describe(&self, directories: usize, is_last: bool) -> Vec<u8> {
        let Self { handled, paths, write } = self;
        let text = serde_json::json!({
            "handled": handled, "rules": paths, "write": write, "directories": directories, "last": is_last,
        });
        text.to_string().into_bytes()
    }
}

/// Allows the Landlock calls at level `maximum`, which blocks them for programs.
///
/// With them each interpreter isolates itself from the other members and the zygote.
pub(super) fn keep_own_domains(confinement: &mut Confinement) {
    const LANDLOCK: [libc::c_long; 3] =
        [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];
    for step in &mut confinement.steps {
        if let Step::Seccomp(filter) | Step::SeccompNotify(filter) = step {
            *filter = allow(filter, &LANDLOCK);
        }
    }
}

/// The filter with additional allowed calls. Its first four instructions load the call number.
fn allow(filter: &Arc<[sock_filter]>, calls: &[libc::c_long]) -> Arc<[sock_filter]> {
    let (first, rest) = filter.split_at(filter.len().min(4));
    let mut all = first.to_vec();
    for call in calls {
        all.push(sock_filter { code: 0x15, jt: 0, jf: 1, k: *call as u32 });
        all.push(sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7FFF_0000 });
    }
    all.extend_from_slice(rest);
    all.into()
}

/// A member, as the platform-independent code uses it.
#[derive(Debug)]
pub(crate) struct Interpreter(Member);

/// Interrupts a member from another thread.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pidfd: Arc<OwnedFd>,
    pid: i32,
    reads_interrupts: bool,
}

impl Handle {
    /// Sends the signal of `Ctrl+C`, unless the thread of the cell sends a packet.
    pub(crate) fn interrupt(&self) {
        if !self.reads_interrupts {
            super::tree::signal(self.pidfd.as_fd(), self.pid, rustix::process::Signal::INT);
        }
    }
}

impl Interpreter {
    pub(crate) fn start(
        sandbox: &Sandbox,
        language: Language,
        limits: &SessionLimits,
    ) -> Result<Self, Error> {
        shared_sandbox::start(sandbox, language, limits).map(Self)
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle {
            pidfd: Arc::clone(&self.0.pidfd),
            pid: self.0.pid,
            reads_interrupts: self.0.reads_interrupts(),
        }
    }

    /// Runs a cell. The second value is the reason if the interpreter ended.
    pub(crate) fn run(
        &mut self,
        number: u32,
        code: &str,
        limits: &CellLimits,
        calls: &Calls,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> (Outcome, Option<String>) {
        cell::run(&mut self.0, number, code, limits, calls, cancel, on_event)
    }

    /// Replaces the interpreter; with `fresh` also empties the workspace.
    pub(crate) fn reset(&mut self, fresh: bool) -> Result<(), Error> {
        self.0.reset(fresh)
    }

    /// Forks the interpreter with its files.
    pub(crate) fn fork(&mut self, count: usize) -> Result<Vec<Self>, Error> {
        let roots = roots::take(&self.0, count)?;
        roots.into_iter().map(|root| self.0.fork(root).map(Self)).collect()
    }

    pub(crate) fn freeze(&mut self) {
        self.0.freeze();
    }

    pub(crate) fn thaw(&mut self) {
        self.0.thaw();
    }

    /// The reason why it ended, if it did.
    pub(crate) fn ended(&self) -> Option<String> {
        self.0.ended()
    }

    /// Writes a file. It replaces a file or link, but not a directory.
    pub(crate) fn upload(&mut self, name: &str, source: &Source) -> Result<(), Error> {
        let directory = self.0.directory("upload")?;
        crate::sandbox::check_file_name(name)?;
        copy::remove(directory.descriptor.as_fd(), Path::new(name));
        let files = [(name.to_owned(), source.clone())];
        files::upload(directory.descriptor.as_fd(), &files, &self.0.shared.limits, self.0.shared.owner)?;
        self.0.before = self.0.list();
        Ok(())
    }

    /// Lists the regular files with their sizes, and why the list is incomplete.
    pub(crate) fn files(&self) -> Result<crate::session::Files, Error> {
        self.0.directory("list")?;
        let Listing { files, left_out } = self.0.list();
        let named = files
            .into_iter()
            .filter(|(_, entry)| entry.is_regular)
            .filter_map(|(path, entry)| Some((path.into_os_string().into_string().ok()?, entry.size())));
        Ok((named.collect(), left_out))
    }

    pub(crate) fn download(&self, name: &str, most: u64) -> Result<Vec<u8>, Error> {
        let directory = self.0.directory("download")?;
        crate::sandbox::check_file_name(name)?;
        let fail = |source| Error::File { action: "download", path: name.into(), source };
        let file = files::open_content(directory, Path::new(name)).map_err(fail)?;
        let size = file.metadata().map_err(fail)?.len();
        if size > most {
            return Err(Error::TooLarge {
                what: "file",
                size,
                maximum: most,
                hint: "raise the limit `artifact_bytes`",
            });
        }
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, size), &mut content).map_err(fail)?;
        Ok(content)
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), Error> {
        let directory = self.0.directory("remove")?;
        crate::sandbox::check_file_name(name)?;
        copy::remove(directory.descriptor.as_fd(), Path::new(name));
        self.0.before = self.0.list();
        Ok(())
    }

    /// The time that its fork took.
    pub(crate) fn fork_time(&self) -> std::time::Duration {
        self.0.fork_time
    }

    /// The layers that confine the shared sandbox.
    pub(crate) fn report(&self) -> crate::Report {
        self.0.shared.report.clone()
    }
}

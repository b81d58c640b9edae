//! A zygote: a Python interpreter that loads modules and then forks, each fork into its own sandbox.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::super::cgroup::Group;
use super::super::child_steps::{Pointers, Step};
use super::super::landlock::Landlock;
use super::super::launch::{self, Child, Plan, c_string, high};
use super::super::prepare::{Ends, arguments, descriptors, not_blocking, pipe, setup, variables};
use super::super::supervise::ProgramProcess;
use super::base::Base;
use super::call_list::{CallList, bytes};
use super::fork_image;
use crate::{Error, Report};

const ZYGOTE: &str = include_str!("../../../drivers/zygote.py");
/// Numeric libraries start threads on import unless these variables prevent it.
const ONE_THREAD: [(&str, &str); 7] = [
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    ("VECLIB_MAXIMUM_THREADS", "1"),
    ("BLIS_NUM_THREADS", "1"),
    // The allocator of pyarrow, which pandas loads.
    ("JE_ARROW_MALLOC_CONF", "background_thread:false"),
];
/// The maximum of captured output while a zygote loads.
const MAX_ERROR_TEXT: usize = 4096;

/// The modules and warm-up code of a zygote.
#[derive(Debug, Clone, Default)]
pub(super) struct Load {
    pub(super) modules: Vec<String>,
    pub(super) warm_up: Option<String>,
}

/// A zygote's message after it has loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) loaded: Vec<String>,
    pub(super) missing: Vec<(String, String)>,
    /// Modules that start threads; the zygote must restart without them.
    pub(super) threaded: Vec<String>,
}

/// A message of a zygote.
#[derive(Debug)]
pub(super) enum Message {
    Hello(Hello),
    /// It forked: the number of the request, and the process descriptor.
    Forked(u64, OwnedFd),
    /// A fork failed: the number of the request, and the kernel's error.
    ForkFailed(u64, i32),
    /// An invalid message.
    Invalid,
    End,
    None,
}

/// A running zygote. Dropping it kills it with all of its forks.
#[derive(Debug)]
pub(super) struct Zygote {
    running: ProgramProcess,
    channel: OwnedFd,
    errors: OwnedFd,
    joins: usize,
    waits: bool,
    /// The report of its forks.
    pub(super) report: Report,
    /// The names of the steps of its forks.
    pub(super) names: Vec<(&'static str, Option<String>)>,
    /// The Landlock rules of its forks, if they apply them only with their workspace.
    pub(super) landlock: Option<Landlock>,
    pub(super) born: Instant,
    pub(super) forked: AtomicU64,
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, child) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((host, high(child)?))
}

pub(super) fn null(flags: OFlags) -> io::Result<OwnedFd> {
    high(rustix::fs::open(c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Sends a message with descriptors.
pub(super) fn send(to: &OwnedFd, content: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[io::IoSlice::new(content)], &mut ancillary, flags).map(|_| ())
}

impl Zygote {
    /// Starts a zygote. It sends [`Message::Hello`] when it has loaded.
    pub(super) fn start(base: &Base, load: &Load, max_forks: usize) -> Result<Arc<Self>, Error> {
        let fail = setup("start zygote");
        // The settings of its forks are those of a cold run.
        let mut group = Group::create(&base.facts.cgroups, &base.limits, false);
        let (child, landlock) = base.child(&mut group)?;
        drop(group);
        let calls = CallList::new(&child.steps)
            .map_err(|step| fail(io::Error::other(format!("a zygote cannot do this step: {step}"))))?;
        let names = child.steps.iter().map(|step| (step.name(), step.subject())).collect();
        let report = base.report(&child);

        let mut own = base.limits.clone();
        own.cpu = None;
        own.cpu_quota = None;
        own.processes = u32::try_from(max_forks).unwrap_or(u32::MAX).saturating_mul(2).saturating_add(64);
        let mut group = Group::create(&base.facts.cgroups, &own, false);
        let mut confinement = base.zygote(&mut group)?;
        let (channel, theirs) = pair().map_err(&fail)?;
        let (errors, errors_child) = pipe()?;
        not_blocking(&errors)?;
        let mut arguments = arguments(&base.ready, &base.limits);
        let driver =
            arguments.pop().ok_or_else(|| fail(io::Error::other("the interpreter has no driver")))?;
        let (fork, size, entry) = fork_image::image().map_err(setup("load the fork program"))?;
        let config = Self::config(base, load, &calls, child.namespaces, driver.as_bytes(), (size, entry));
        let config = launch::sealed(c"zygote", config.as_bytes(), false).map_err(&fail)?;
        confinement.steps.push(descriptors(Ends {
            stdio: [
                null(OFlags::RDONLY).map_err(&fail)?,
                null(OFlags::WRONLY).map_err(&fail)?,
                high(errors_child).map_err(&fail)?,
            ],
            value: Some(theirs),
            code: Some(config),
        })?);
        let mut command = vec![c"p".to_owned(), super::super::root::path(&base.ready.path)];
        command.extend(arguments);
        command.push(c_string(ZYGOTE));
        let mut variables = variables(&base.sandbox, None, &base.ready, &confinement.workspace, true, None);
        variables.extend(ONE_THREAD.map(|(name, value)| c_string(format!("{name}={value}"))));
        confinement
            .steps
            .push(Step::Exec { arguments: Pointers::new(command), environment: Pointers::new(variables) });
        let plan = Plan {
            namespaces: confinement.namespaces,
            cgroup: group.take_born(),
            steps: std::mem::take(&mut confinement.steps),
        };
        let child_process = launch::start(&plan).map_err(&fail)?;
        let program = launch::first_process().map_err(setup("load first process"))?;
        send(&channel, b"P", &[program, fork]).map_err(|error| fail(error.into()))?;
        Ok(Arc::new(Self {
            running: ProgramProcess { child: child_process, own_namespaces: true, group, cleaner: None },
            channel,
            errors,
            joins: calls.joins(),
            waits: child.steps.iter().any(|step| matches!(step, Step::Await { .. })),
            report,
            names,
            landlock,
            born: Instant::now(),
            forked: AtomicU64::new(0),
        }))
    }

    /// The zygote's configuration as a Python literal.
    fn config(
        base: &Base,
        load: &Load,
        calls: &CallList,
        namespaces: u64,
        driver: &[u8],
        (size, entry): (usize, usize),
    ) -> String {
        let list = |names: &mut dyn Iterator<Item = &str>| {
            let mut list: Vec<String> = names.map(|name| bytes(name.as_bytes()) + ".decode()").collect();
            // A trailing comma is valid, and an empty list has none.
            list.push(String::new());
            list.join(",")
        };
        let flags = namespaces | (libc::CLONE_PARENT | libc::CLONE_VM | libc::CLONE_VFORK) as u64;
        let (calls, count) = calls.content();
        let warm_up = load
            .warm_up
            .as_ref()
            .map_or("None".to_owned(), |code| format!("{}.decode()", bytes(code.as_bytes())));
        let cpu = base.limits.cpu.map_or("None".to_owned(), |limit| limit.as_secs_f64().to_string());
        format!(
            "{{'preload':[{}],'environment':[{}],'driver':{}.decode(),'warm_up':{warm_up},'cpu':{cpu},'flags':{flags},\
             'prlimit':{},'madvise':{},'calls':{},'count':{count},'size':{size},'entry':{entry}}}",
            list(&mut load.modules.iter().map(String::as_str)),
            list(&mut ONE_THREAD.into_iter().map(|(name, _)| name)),
            bytes(driver),
            libc::SYS_prlimit64,
            libc::SYS_madvise,
            bytes(&calls),
        )
    }

    /// Requests a fork. Returns the host's ends of its control socket and its order socket, and its cgroup.
    pub(super) fn ask(&self, base: &Base, number: u64) -> Result<(OwnedFd, OwnedFd, Group), Error> {
        let fail = setup("ask zygote for a child");
        let mut group = Group::create(&base.facts.cgroups, &base.limits, false);
        let joins = group.take_joins();
        if joins.len() != self.joins || group.take_born().is_some() != self.waits {
            return Err(fail(io::Error::other("the host's cgroups have changed")));
        }
        let (control, control_child) = pair().map_err(&fail)?;
        let (order, order_child) = pair().map_err(&fail)?;
        let mut message = vec![b'F'];
        message.extend(number.to_ne_bytes());
        let mut handed = vec![control_child.as_fd(), order_child.as_fd()];
        handed.extend(joins.iter().map(|join| join.as_fd()));
        send(&self.channel, &message, &handed).map_err(|error| fail(error.into()))?;
        self.forked.fetch_add(1, Ordering::Relaxed);
        Ok((control, order, group))
    }

    /// Whether a fork waits until it is in its cgroup.
    pub(super) fn child_waits(&self) -> bool {
        self.waits
    }

    /// A process in the zygote's user namespace.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.running.child.pidfd.as_fd()
    }

    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// A descriptor that becomes readable when the zygote's first process reports its end.
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.running.child.control.as_fd()
    }

    pub(super) fn errors(&self) -> BorrowedFd<'_> {
        self.errors.as_fd()
    }

    /// Receives a message, if there is one.
    pub(super) fn receive_message(&self) -> Message {
        let mut content = vec![0u8; 128 << 10];
        let (size, descriptor) = match receive(&self.channel, &mut content) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Message::None,
            Err(_) => return Message::End,
        };
        let content = content.get(..size).unwrap_or_default();
        let number =
            content.get(1..9).and_then(|part| part.try_into().ok()).map_or(u64::MAX, u64::from_ne_bytes);
        match (content.first(), descriptor) {
            (None, _) => Message::End,
            (Some(b'C'), Some(pidfd)) => Message::Forked(number, pidfd),
            (Some(b'N'), _) => {
                let error = content.get(9..13).and_then(|part| part.try_into().ok());
                Message::ForkFailed(number, error.map_or(libc::EIO, i32::from_ne_bytes))
            }
            (Some(b'{'), _) => serde_json::from_slice::<serde_json::Value>(content)
                .map_or(Message::Invalid, |value| Message::Hello(hello(&value))),
            _ => Message::Invalid,
        }
    }

    /// Appends the zygote's error output, keeping the end.
    pub(super) fn read_errors(&self, before: &mut Vec<u8>) {
        let mut block = [0u8; 4096];
        while let Ok(size) = rustix::io::read(&self.errors, &mut block) {
            if size == 0 {
                break;
            }
            before.extend_from_slice(block.get(..size).unwrap_or_default());
            let excess = before.len().saturating_sub(MAX_ERROR_TEXT);
            before.drain(..excess);
        }
    }
}

fn hello(value: &serde_json::Value) -> Hello {
    let names = |key: &str| -> Vec<String> {
        let list = value.get(key).and_then(serde_json::Value::as_array);
        list.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let missing = value.get("missing").and_then(serde_json::Value::as_array);
    let missing = missing
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((entry.get(0)?.as_str()?.to_owned(), entry.get(1)?.as_str()?.to_owned())))
        .collect();
    Hello { loaded: names("loaded"), missing, threaded: names("threaded") }
}

/// Receives a message with at most one descriptor, without blocking.
pub(super) fn receive(from: &OwnedFd, content: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(content)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(from, &mut parts, &mut ancillary, flags)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

/// The host's pid of a process descriptor, if the process is alive.
pub(super) fn number_of(pidfd: &OwnedFd) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (number > 0).then_some(number)
}

/// Wraps a process that the zygote forked.
pub(super) fn adopt(pidfd: OwnedFd, control: OwnedFd) -> Option<Child> {
    Some(Child::adopt(number_of(&pidfd)?, pidfd, control))
}

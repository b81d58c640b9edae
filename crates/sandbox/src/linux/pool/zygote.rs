//! An interpreter that has loaded what it is told to and makes copies of itself, each in a sandbox of its own.

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
use super::super::landlock::Landlock;
use super::super::launch::{self, Child, Plan, c_string, high};
use super::super::prepare::{Ends, arguments, descriptors, not_blocking, pipe, setup, variables};
use super::super::steps::{Pointers, Step};
use super::super::supervise::Running;
use super::base::Base;
use super::fork;
use super::recipe::{Recipe, bytes};
use crate::{Error, Report};

const ZYGOTE: &str = include_str!("../../../drivers/zygote.py");
/// Libraries of arithmetic start threads when they are loaded, unless they are told how many.
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
/// What is kept of what a zygote prints while it loads.
const MOST_TEXT: usize = 4096;

/// What a zygote loads and does.
#[derive(Debug, Clone, Default)]
pub(super) struct Load {
    pub(super) modules: Vec<String>,
    pub(super) warm_up: Option<String>,
}

/// What a zygote says once it has loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) loaded: Vec<String>,
    pub(super) missing: Vec<(String, String)>,
    /// A module that starts threads, without which it has to be started again.
    pub(super) threaded: Vec<String>,
}

/// What a zygote tells.
#[derive(Debug)]
pub(super) enum Word {
    Hello(Hello),
    /// A child was made: its number, and the descriptor of its process.
    Made(u64, OwnedFd),
    /// It could not be made: the kernel's error.
    Refused(u64, i32),
    /// What nobody understands.
    Nonsense,
    End,
    None,
}

/// A zygote that runs. Dropped, it dies with all its children.
#[derive(Debug)]
pub(super) struct Zygote {
    running: Running,
    channel: OwnedFd,
    errors: OwnedFd,
    joins: usize,
    waits: bool,
    /// The report of its children.
    pub(super) report: Report,
    /// The names of the steps of its children.
    pub(super) names: Vec<(&'static str, Option<String>)>,
    /// What Landlock is to hold in its children, if they are told so when their workspace is there.
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
    /// Starts one. It says [`Word::Hello`] when it has loaded.
    pub(super) fn start(base: &Base, load: &Load, most: usize) -> Result<Arc<Self>, Error> {
        let fail = setup("start zygote");
        // What its children will be, as a cold run would be.
        let mut group = Group::create(&base.facts.cgroups, &base.limits, false);
        let (child, landlock) = base.child(&mut group)?;
        drop(group);
        let recipe = Recipe::new(&child.steps)
            .map_err(|step| fail(io::Error::other(format!("no zygote can do this step: {step}"))))?;
        let names = child.steps.iter().map(|step| (step.name(), step.subject())).collect();
        let report = base.report(&child);

        let mut own = base.limits.clone();
        own.cpu = None;
        own.cpu_quota = None;
        own.processes = u32::try_from(most).unwrap_or(u32::MAX).saturating_mul(2).saturating_add(64);
        let mut group = Group::create(&base.facts.cgroups, &own, false);
        let mut confinement = base.zygote(&mut group)?;
        let (channel, theirs) = pair().map_err(&fail)?;
        let (errors, errors_child) = pipe()?;
        not_blocking(&errors)?;
        let mut arguments = arguments(&base.ready, &base.limits);
        let driver =
            arguments.pop().ok_or_else(|| fail(io::Error::other("the interpreter has no driver")))?;
        let (fork, size, entry) = fork::image().map_err(setup("load what makes children"))?;
        let config = Self::config(base, load, &recipe, child.namespaces, driver.as_bytes(), (size, entry));
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
            running: Running { child: child_process, own_namespaces: true, group, cleaner: None },
            channel,
            errors,
            joins: recipe.joins(),
            waits: child.steps.iter().any(|step| matches!(step, Step::Await)),
            report,
            names,
            landlock,
            born: Instant::now(),
            forked: AtomicU64::new(0),
        }))
    }

    /// What the zygote is told, as a literal that it reads.
    fn config(
        base: &Base,
        load: &Load,
        recipe: &Recipe,
        namespaces: u64,
        driver: &[u8],
        (size, entry): (usize, usize),
    ) -> String {
        let list = |names: &mut dyn Iterator<Item = &str>| {
            let mut list: Vec<String> = names.map(|name| bytes(name.as_bytes()) + ".decode()").collect();
            // A list's last comma does no harm, and an empty list has none.
            list.push(String::new());
            list.join(",")
        };
        let flags = namespaces | (libc::CLONE_PARENT | libc::CLONE_VM | libc::CLONE_VFORK) as u64;
        let (calls, count) = recipe.content();
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

    /// Asks for a child. Gives the host's ends of its control socket and of the socket on which it waits, and its group.
    pub(super) fn ask(&self, base: &Base, number: u64) -> Result<(OwnedFd, OwnedFd, Group), Error> {
        let fail = setup("ask zygote for a child");
        let mut group = Group::create(&base.facts.cgroups, &base.limits, false);
        let joins = group.take_joins();
        if joins.len() != self.joins || group.take_born().is_some() != self.waits {
            return Err(fail(io::Error::other("the host's control groups have changed")));
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

    /// Whether a child waits until it was moved to its group.
    pub(super) fn child_waits(&self) -> bool {
        self.waits
    }

    /// A process that lives in the user namespace of the zygote.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.running.child.pidfd.as_fd()
    }

    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Becomes readable when the zygote's own first process says that it has ended.
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.running.child.control.as_fd()
    }

    pub(super) fn errors(&self) -> BorrowedFd<'_> {
        self.errors.as_fd()
    }

    /// What it says, if it says anything.
    pub(super) fn hear(&self) -> Word {
        let mut content = vec![0u8; 128 << 10];
        let (size, descriptor) = match receive(&self.channel, &mut content) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Word::None,
            Err(_) => return Word::End,
        };
        let content = content.get(..size).unwrap_or_default();
        let number =
            content.get(1..9).and_then(|part| part.try_into().ok()).map_or(u64::MAX, u64::from_ne_bytes);
        match (content.first(), descriptor) {
            (None, _) => Word::End,
            (Some(b'C'), Some(pidfd)) => Word::Made(number, pidfd),
            (Some(b'N'), _) => {
                let error = content.get(9..13).and_then(|part| part.try_into().ok());
                Word::Refused(number, error.map_or(libc::EIO, i32::from_ne_bytes))
            }
            (Some(b'{'), _) => serde_json::from_slice::<serde_json::Value>(content)
                .map_or(Word::Nonsense, |value| Word::Hello(hello(&value))),
            _ => Word::Nonsense,
        }
    }

    /// What it has printed, at most the end of it.
    pub(super) fn complaint(&self, before: &mut Vec<u8>) {
        let mut block = [0u8; 4096];
        while let Ok(size) = rustix::io::read(&self.errors, &mut block) {
            if size == 0 {
                break;
            }
            before.extend_from_slice(block.get(..size).unwrap_or_default());
            let excess = before.len().saturating_sub(MOST_TEXT);
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

/// Receives a message and at most one descriptor, without waiting.
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

/// The host's number of a process, if the descriptor is one of a living process.
pub(super) fn number_of(pidfd: &OwnedFd) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (number > 0).then_some(number)
}

/// A child that the zygote made, as any other.
pub(super) fn adopt(pidfd: OwnedFd, control: OwnedFd) -> Option<Child> {
    Some(Child::adopt(number_of(&pidfd)?, pidfd, control))
}

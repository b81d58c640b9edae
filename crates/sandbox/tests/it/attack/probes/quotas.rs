//! Rows 71 to 75: shared quotas of the user, and host resources that code sees and blocks.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, OFlags};
use toolpost_sandbox::{Cancel, Language, Program, SandboxEvent};

use crate::attack::expected::{ANY, Answers, NO_CALL, OK, REFUSED, all, of};
use crate::attack::modes::{answer_of, error_of};
use crate::attack::{Place, Probe, Who, host, inside};

/// A memory cgroup kills for it, or the kernel denies it, or the host's poll ends the run.
const COUNTED: Answers = &["verdict:memory", "ENOSYS", "ENOMEM", "EPERM", "EACCES", "ETOOMANYREFS"];
const STAYS: (Who, &str) = (Who::Level("minimal"), "allowed there, and the memory would stay on the host");
const OTHER_USER: (Who, &str) = (
    Who::Backend("docker"),
    "containers run as a user of their own, who has other quotas than the user of this process",
);

pub(crate) const PROBES: &[Probe] = &[
    host(71, "timers of the user", timers, all(OK)).cells().not_for(&[OTHER_USER]),
    host(71, "inotify instances of the user", instances, all(OK).minimal(ANY))
        .cells()
        .not_for(&[OTHER_USER]),
    host(71, "pages of the user's pipes", pipes, all(OK).minimal(ANY)).cells().not_for(&[OTHER_USER]),
    host(71, "descriptors of the user in flight", descriptors, all(OK)).cells().not_for(&[OTHER_USER]),
    inside(
        71,
        "asynchronous requests of the host",
        "call(206, 100, ctypes.create_string_buffer(8))",
        all(NO_CALL).minimal(ANY).in_own_kernel(ANY),
    ),
    inside(
        72,
        "socket buffers",
        "import time\nfor _ in range(6):\n    if os.fork() == 0:\n        held = []\n        try:\n            while True:\n                a, b = socket.socketpair()\n                held += [a, b]\n                a.setsockopt(1, 7, 1 << 24)\n                for s in (a, b):\n                    s.setblocking(False)\n                    try:\n                        while True: s.send(b'x' * 65536)\n                    except BlockingIOError: pass\n        except OSError: pass\n        time.sleep(5)\n        os._exit(0)\nos.wait()\nos._exit(1)",
        all(&["verdict:memory"]).in_own_kernel(ANY),
    )
    .not_for(&[(Who::UntracedRoot, "root without `CAP_SYS_PTRACE` does not see the sockets of its program")])
    .slow(),
    inside(
        72,
        "memory files in flight",
        "import time\ndef f():\n    a, b = socket.socketpair()\n    for _ in range(60):\n        fd = os.memfd_create('x')\n        os.write(fd, b'x' * (4 << 20))\n        socket.send_fds(a, [b'x'], [fd])\n        os.close(fd)\n    time.sleep(1)\nattempt(f)",
        all(COUNTED).in_own_kernel(ANY),
    )
    .not_for(&[STAYS]),
    inside(
        72,
        "shared memory that nobody has attached",
        "libc.shmat.restype = ctypes.c_void_p\ndef f():\n    for _ in range(20):\n        name = libc.shmget(0, 16 << 20, 0o1600)\n        if name < 0: raise OSError(ctypes.get_errno(), '')\n        at = libc.shmat(name, None, 0)\n        ctypes.memset(at, 1, 16 << 20)\n        libc.shmdt(ctypes.c_void_p(at))\nattempt(f)",
        all(COUNTED).in_own_kernel(ANY),
    )
    .not_for(&[STAYS]),
    inside(
        72,
        "page tables",
        "import time\nlibc.mmap.restype = ctypes.c_void_p\nat = libc.mmap(None, ctypes.c_size_t(1 << 38), 1, 0x4022, -1, 0)\nfor place in range(at, at + (1 << 38), 2 << 20): ctypes.string_at(place, 1)\ntime.sleep(2)\n'allowed'",
        all(&["verdict:memory"]).in_own_kernel(ANY),
    )
    .slow(),
    host(73, "programs that others start", started, all(&["ok", "ENOSYS"]).minimal(ANY)).cells(),
    inside(
        73,
        "directory notices",
        "import fcntl\nattempt(lambda: fcntl.fcntl(os.open('/usr/bin', os.O_RDONLY), 1026, 1))",
        all(REFUSED).minimal(ANY).in_own_kernel(ANY),
    ),
    host(73, "lock a file of the system", locked, of(ANY, OK, ANY, OK)).cells(),
    host(74, "core dumps", core, all(OK).in_own_kernel(ANY)).cells(),
    host(75, "directories above what is shown", above, of(ANY, REFUSED, REFUSED, REFUSED).in_container(ANY)),
    inside(
        75,
        "paths of the host in the table of mounts",
        "attempt(lambda: open('/proc/self/mountinfo').read())",
        all(ANY),
    ),
];

/// Runs code that takes all that it can, and meanwhile makes a call in this process, as the same user.
fn victim(place: &Place<'_>, attack: &str, attempt: &mut dyn FnMut() -> io::Result<()>) -> String {
    let code =
        format!("{}{attack}\nimport time\nprint('taken', flush=True)\ntime.sleep(20)", place.world.prelude());
    let cancel = Cancel::new();
    let (mut printed, mut answer) = (Vec::new(), None);
    let result =
        place.sandbox().run(&Program::code(Language::Python, code), &cancel, &mut |event: SandboxEvent<
            '_,
        >| {
            if let SandboxEvent::Stdout(bytes) = event {
                printed.extend_from_slice(bytes);
            }
            if answer.is_none() && printed.starts_with(b"taken") {
                answer = Some(attempt());
                cancel.cancel();
            }
        });
    match (answer, result) {
        (Some(Ok(())), _) => "ok".into(),
        (Some(Err(error)), _) => format!("the victim got: {error}"),
        (None, Ok(outcome)) => format!("{}: {}", answer_of(&outcome), outcome.stderr.text()),
        (None, Err(error)) => error_of(&error),
    }
}

fn timers(place: &Place<'_>) -> String {
    let attack = "at = ctypes.create_string_buffer(8)\nfor _ in range(200000):\n    if libc.syscall(222, 1, None, at): break";
    victim(place, attack, &mut make_timer)
}

#[expect(unsafe_code, reason = "no safe interface has timers of POSIX")]
fn make_timer() -> io::Result<()> {
    let mut timer = std::ptr::null_mut();
    // SAFETY: the kernel writes the timer's name to a variable that lives during the call.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, std::ptr::null_mut(), &raw mut timer) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the timer was made above, and nothing else uses it.
    unsafe { libc::timer_delete(timer) };
    Ok(())
}

fn instances(place: &Place<'_>) -> String {
    let attack = "while libc.inotify_init1(0) >= 0: pass";
    victim(place, attack, &mut || {
        rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)?;
        Ok(())
    })
}

fn pipes(place: &Place<'_>) -> String {
    let attack = "import fcntl\ntry:\n    while True:\n        try: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)\n        except PermissionError: pass\nexcept OSError: pass";
    victim(place, attack, &mut || {
        let (_reader, writer) = io::pipe()?;
        let size = rustix::pipe::fcntl_getpipe_size(&writer)?;
        if size < 65_536 { Err(io::Error::other(format!("a pipe of {size} bytes"))) } else { Ok(()) }
    })
}

fn descriptors(place: &Place<'_>) -> String {
    let attack = "a, b = socket.socketpair()\na.setblocking(False)\ntry:\n    while True: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('50i', *([0] * 50)))])\nexcept OSError: pass";
    victim(place, attack, &mut || {
        use rustix::fd::AsFd as _;
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let (one, _other) = std::os::unix::net::UnixStream::pair()?;
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let list = [one.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&list)));
        rustix::net::sendmsg(&one, &[io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty())?;
        Ok(())
    })
}

/// A system program that no concurrent probe uses: code at `minimal` locks the file itself.
fn program() -> PathBuf {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);

    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/bin")
        .unwrap()
        .flatten()
        .filter(|entry| {
            entry.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 4 != 0)
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    let first = (std::process::id() as usize).wrapping_mul(64);
    let place = first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % found.len();
    found.swap_remove(place)
}

/// Code names a program that this process starts while the code watches.
fn started(place: &Place<'_>) -> String {
    let attack = "import select\nfd = libc.inotify_init1(0)\nif fd < 0: r = errno.errorcode[ctypes.get_errno()]\nelse:\n    libc.inotify_add_watch(fd, b'/usr/bin', 0x20)\n    print('watching', flush=True)\n    seen = select.select([fd], [], [], 1.0)[0]\n    r = 'allowed' if seen and b'env' in os.read(fd, 65536) else 'ok'\nr";
    let code = format!("{}{attack}", place.world.prelude());
    let mut is_over = false;
    let result = place.sandbox().run(
        &Program::code(Language::Python, code),
        &Cancel::new(),
        &mut |event: SandboxEvent<'_>| {
            if matches!(event, SandboxEvent::Stdout(_)) && !std::mem::replace(&mut is_over, true) {
                #[expect(clippy::disallowed_methods, reason = "the program that is watched")]
                let status = std::process::Command::new("/usr/bin/env").arg("true").status();
                assert!(status.unwrap().success());
            }
        },
    );
    result.map_or_else(|error| error_of(&error), |outcome| answer_of(&outcome))
}

fn locked(place: &Place<'_>) -> String {
    let program = program();
    let attack = format!(
        // A container has its own programs.
        "import fcntl\ntry: fcntl.flock(os.open({:?}, os.O_RDONLY), fcntl.LOCK_EX)\nexcept FileNotFoundError: pass",
        program.display().to_string()
    );
    victim(place, &attack, &mut || {
        let file = rustix::fs::open(&program, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(())
    })
}

/// The limit at which the kernel writes no core dump and starts no helper.
fn core(place: &Place<'_>) -> String {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    if hard == Some(0) {
        return "not tried: the hard limit of this host is 0, which no run can raise".into();
    }
    let answer = answer_of(&place.attack("import resource\nstr(resource.getrlimit(resource.RLIMIT_CORE))"));
    if answer == "(1, 1)" { "ok".into() } else { answer }
}

fn above(place: &Place<'_>) -> String {
    let directory = crate::support::open_directory();
    let shown = directory.path().join("private").join("shown");
    std::fs::create_dir_all(&shown).unwrap();
    let code = format!("attempt(lambda: os.listdir({:?}))", directory.path().display().to_string());
    let code = format!("{}{code}", place.world.prelude());
    let sandbox = place.sandbox().read_only(shown);
    match crate::support::run(&sandbox, &Program::code(Language::Python, code)) {
        Ok(outcome) => answer_of(&outcome),
        Err(error) => error_of(&error),
    }
}

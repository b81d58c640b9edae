//! The first process of every sandbox: a static program without any library, a few kilobytes.
//!
//! It starts the program, reaps orphans, forwards signals, reports the program's end, and ends everything
//! when the host is gone. It runs under the same restrictions as the program, so the host does not trust it:
//! it reports, the host decides.
//!
//! Arguments: `argv[0]` has one letter per mode, then the program and its arguments follow. `s`: no process
//! namespace, act as subreaper; `k`: signals are scoped, so that `kill(-1)` reaches only this sandbox; `c`:
//! descriptor 7 is the `cgroup.kill` of this sandbox; `p`: live until the last child has ended; `a`: the
//! program exists, and `argv[1]` is its pid; `w`: wait for the host to send the program. Descriptor 3 is a
//! sequenced-packet socket to the host; its end means that the host is gone.
//!
//! The host's order to a waiting process is a message with descriptors: the program's input, a file that
//! describes it, its output, its errors, and for code its value pipe and the code. The file has the size of the
//! rest, the number of arguments, the number of variables, the offset of the directory, the offsets of all
//! arguments and variables, each list ended by 0, and then the texts, each ended by NUL.

#![no_std]
#![no_main]

#[macro_use]
mod bare;

use core::arch::asm;

use bare::{LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, call, exit, number};

const CONTROL: usize = 3;
const CGROUP_KILL: usize = 7;

/// CLONE_VM, CLONE_VFORK and SIGCHLD.
const VFORK: usize = 0x100 | 0x4000 | 17;

begin!(main);

#[repr(C)]
struct PollFd {
    descriptor: i32,
    events: i16,
    returned: i16,
}

/// A message to the host: a tag and five numbers.
#[repr(C)]
struct Message([u64; 6]);

fn send(message: &Message) {
    call(number::WRITE, [CONTROL, message as *const Message as usize, size_of::<Message>()]);
}

/// The data with which the child executes the program.
struct Start {
    arguments: *const usize,
    environment: *const usize,
    subreaper: bool,
    scoped: bool,
}

#[repr(C)]
struct Part {
    at: usize,
    size: usize,
}

#[repr(C)]
struct Header {
    name: usize,
    name_size: u32,
    parts: usize,
    count: usize,
    control: usize,
    control_size: usize,
    flags: i32,
}

/// The maximum number of descriptors in an order.
const ORDERED: usize = 6;

/// Waits for the host's order. Returns the path, arguments and environment of the program. Ends with the
/// host.
fn order() -> (*const usize, *const usize) {
    send(&Message([u64::from(b'S'), 0, 0, 0, 0, 0]));
    let mut byte = [0u8; 8];
    let mut control = [0u64; 2 + ORDERED.div_ceil(2)];
    let part = Part { at: byte.as_mut_ptr() as usize, size: byte.len() };
    let mut header = Header {
        name: 0,
        name_size: 0,
        parts: &raw const part as usize,
        count: 1,
        control: control.as_mut_ptr() as usize,
        control_size: size_of_val(&control),
        flags: 0,
    };
    let size = call(number::RECVMSG, [CONTROL, &raw mut header as usize, 0x4000_0000 /* MSG_CMSG_CLOEXEC */]);
    // A length, then SOL_SOCKET and SCM_RIGHTS.
    let count = (control[0] as usize).saturating_sub(16) / 4;
    if size <= 0 || control[1] != 1 | 1 << 32 || count < 4 {
        exit(0);
    }
    let descriptor = |index: usize| match control.get(2 + index / 2) {
        Some(two) => (*two >> (32 * (index % 2))) as u32 as usize,
        None => usize::MAX,
    };
    // The targets; the second descriptor is the file.
    for (index, target) in [(0, 0), (2, 1), (3, 2), (4, 4), (5, 5)] {
        if index < count {
            call(number::DUP3, [descriptor(index), target]);
        } else {
            // Placeholders kept the targets free until now.
            call(number::FCNTL, [target, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */]);
        }
    }
    let mut total = 0usize;
    if call(number::READ, [descriptor(1), &raw mut total as usize, 8]) != 8 {
        exit(4);
    }
    // Readable, writable, private.
    let at = call(number::MMAP, [0, total, 3, 2, descriptor(1)]);
    if at < 0 {
        refuse(-at);
    }
    let base = at as *mut usize;
    // SAFETY: the host wrote the file as described above, and nobody else can change it.
    unsafe {
        let (arguments, variables, directory) = (*base.add(1), *base.add(2), *base.add(3));
        for slot in 4..4 + arguments + 1 + variables {
            if *base.add(slot) != 0 {
                *base.add(slot) += base as usize;
            }
        }
        let error = call(number::CHDIR, [base as usize + directory]);
        if error < 0 {
            send(&Message([u64::from(b'E'), 0, (-error) as u64, 0, 0, 0]));
            exit(1);
        }
        (base.add(4), base.add(4 + arguments + 1))
    }
}

/// Reports a failed program start to the host.
fn refuse(error: isize) -> ! {
    send(&Message([u64::from(b'F'), error as u64, 0, 0, 0, 0]));
    exit(1);
}

/// Parses a decimal number.
fn decimal(mut text: *const u8) -> usize {
    let mut value = 0;
    // SAFETY: the text ends in a NUL.
    unsafe {
        while *text != 0 {
            value = value * 10 + (*text - b'0') as usize;
            text = text.add(1);
        }
    }
    value
}

/// Starts a child that runs [`become_program`] in this process's memory, on the stack that ends at `top`.
///
/// This process is suspended until the child executes or exits: nothing is copied, which halves the cost.
#[cfg(target_arch = "x86_64")]
fn borrow(start: *const Start, top: usize) -> isize {
    let result;
    // SAFETY: the child has a stack of its own and never comes back; the kernel clobbers only rcx and r11 besides the
    // result. What the child writes to is its stack.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") number::CLONE as isize => result, in("rdi") VFORK, in("rsi") top, in("rdx") 0,
            in("r10") 0, in("r8") 0, in("r12") start, in("r13") become_program as *const () as usize,
            lateout("rcx") _, lateout("r11") _
        );
    }
    result
}
/// Starts a child that runs [`become_program`] in this process's memory, on the stack that ends at `top`.
///
/// This process is suspended until the child executes or exits: nothing is copied, which halves the cost.
#[cfg(target_arch = "aarch64")]
fn borrow(start: *const Start, top: usize) -> isize {
    let result;
    // SAFETY: as above; the kernel keeps every other register.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            in("x8") number::CLONE, inlateout("x0") VFORK as isize => result, in("x1") top, in("x2") 0, in("x3") 0,
            in("x4") 0, in("x20") start, in("x21") become_program as *const () as usize, lateout("x30") _
        );
    }
    result
}

/// The child: only reads the parent's memory, then executes the program or exits.
extern "C" fn become_program(start: *const Start) -> ! {
    // SAFETY: the parent stands still, and what it points to stays.
    let Start { arguments, environment, subreaper, scoped } = unsafe { &*start };
    let none = 0u64;
    if *subreaper && *scoped {
        // A separate domain: the program cannot kill the first process, which would release its orphans.
        let attributes = [0u64, 0, 2 /* LANDLOCK_SCOPE_SIGNAL */];
        let rules = call(LANDLOCK_CREATE_RULESET, [attributes.as_ptr() as usize, 24]);
        if rules < 0 || call(LANDLOCK_RESTRICT_SELF, [rules as usize]) < 0 {
            send(&Message([u64::from(b'F'), 1, 0, 0, 0, 0]));
            exit(126);
        }
        call(number::FCNTL, [rules as usize, 2, 1]);
    }
    call(number::SIGPROCMASK, [2, &raw const none as usize, 0, 8]);
    // SAFETY: there is at least the program.
    let path = unsafe { **arguments };
    let error = call(number::EXECVE, [path, *arguments as usize, *environment as usize]);
    send(&Message([u64::from(b'F'), (-error) as u64, 0, 0, 0, 0]));
    exit(127)
}

/// Kills the children of this process that `/proc` shows, as the last one who can.
fn kill_children() {
    let path = c"/proc/thread-self/children";
    let list = call(number::OPENAT, [usize::MAX, path.as_ptr() as usize]);
    if list < 0 {
        return;
    }
    let mut text = [0u8; 4096];
    let size = call(number::READ, [list as usize, text.as_mut_ptr() as usize, text.len()]);
    call(number::CLOSE, [list as usize]);
    let mut pid = 0usize;
    // A number ends in a space; a truncated one is read next time.
    for letter in text.iter().take(if size > 0 { size as usize } else { 0 }) {
        match letter {
            b'0'..=b'9' => pid = pid * 10 + usize::from(letter - b'0'),
            _ => {
                if pid > 1 {
                    call(number::KILL, [pid, 9]);
                }
                pid = 0;
            }
        }
    }
}

/// `at` is the kernel's initial stack: argument count, arguments, 0, environment, 0.
extern "C" fn main(at: *const usize) -> ! {
    // SAFETY: the kernel put at least `argc` and `argc + 1` pointers there.
    let (count, arguments) = unsafe { (*at, at.add(1)) };
    if count < 1 {
        exit(2);
    }
    // SAFETY: the environment begins behind the arguments' end mark.
    let mut environment = unsafe { arguments.add(count + 1) };
    let (mut subreaper, mut scoped, mut grouped) = (false, false, false);
    let (mut keeper, mut attends, mut waits) = (false, false, false);
    // SAFETY: there is an argument, a string that ends in a NUL.
    unsafe {
        let mut letter = *arguments as *const u8;
        while *letter != 0 {
            subreaper |= *letter == b's';
            scoped |= *letter == b'k';
            keeper |= *letter == b'p';
            attends |= *letter == b'a';
            waits |= *letter == b'w';
            grouped |= *letter == b'c';
            letter = letter.add(1);
        }
    }
    if count < 2 && !waits {
        exit(2);
    }
    // SAFETY: the program follows, or the arguments' end mark.
    let mut program_arguments = unsafe { arguments.add(1) };
    call(number::FCNTL, [CONTROL, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */]);
    if grouped {
        call(number::FCNTL, [CGROUP_KILL, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */]);
    }
    // Not dumpable: no process inside can inspect this one.
    call(number::PRCTL, [4]);
    if subreaper {
        call(number::PRCTL, [36 /* PR_SET_CHILD_SUBREAPER */, 1]);
    }
    // The host may ignore signals, which exec would inherit.
    let default_action = [0u64; 4];
    for signal in 1..=64 {
        call(number::SIGACTION, [signal, default_action.as_ptr() as usize, 0, 8]);
    }
    let (all, child_signal) = (!0u64, 1u64 << 16);
    call(number::SIGPROCMASK, [2, &raw const all as usize, 0, 8]);
    let signals = call(number::SIGNALFD4, [usize::MAX, &raw const child_signal as usize, 8, 0o2004000]);
    if waits {
        (program_arguments, environment) = order();
    }
    let start = Start { arguments: program_arguments, environment, subreaper, scoped };
    let mut stack = core::mem::MaybeUninit::<[u128; 512]>::uninit();
    // SAFETY: one past the end of the array, which belongs to the child alone while this process stands still.
    let top = unsafe { stack.as_mut_ptr().add(1) } as usize;
    let program = if attends {
        // SAFETY: there is a second argument, a string that ends in a NUL.
        let pid = decimal(unsafe { *program_arguments } as *const u8);
        send(&Message([u64::from(b'S'), 0, 0, 0, 0, 0]));
        pid as isize
    } else {
        borrow(&raw const start, top)
    };
    if program < 0 || signals < 0 {
        let error = if program < 0 { program } else { signals };
        send(&Message([u64::from(b'F'), (-error) as u64, 0, 0, 0, 0]));
        exit(1);
    }
    let mut ended = false;
    let mut host_gone = false;
    // An existing program may have ended before its end could be noticed.
    let mut heard = !attends;
    let now = [0u64; 2];
    loop {
        let mut waiting = [
            PollFd { descriptor: signals as i32, events: 1, returned: 0 },
            PollFd { descriptor: if host_gone { -1 } else { CONTROL as i32 }, events: 1, returned: 0 },
        ];
        // Seconds and nanoseconds: orphans become children of this process, and the search repeats.
        let soon = [0usize, 1_000_000];
        let wait = match heard {
            false => now.as_ptr() as usize,
            true if host_gone && subreaper && !scoped => soon.as_ptr() as usize,
            true => 0,
        };
        heard = true;
        call(number::PPOLL, [waiting.as_mut_ptr() as usize, 2, wait, 0, 8]);
        let mut buffer = [0u8; 128];
        if waiting[1].returned != 0 {
            let size = call(number::READ, [CONTROL, buffer.as_mut_ptr() as usize, buffer.len()]);
            if size > 0 {
                call(number::KILL, [program as usize, buffer[0] as usize]);
            } else {
                host_gone = true;
                if !subreaper {
                    // The kernel kills every process of the namespace with its first one.
                    exit(0);
                }
                if grouped {
                    // Everything in the cgroup dies, this process too.
                    call(number::WRITE, [CGROUP_KILL, b"1".as_ptr() as usize, 1]);
                }
                call(number::KILL, [program as usize, 9]);
            }
        }
        while call(number::READ, [signals as usize, buffer.as_mut_ptr() as usize, buffer.len()]) > 0 {}
        loop {
            let mut status = 0i32;
            let mut usage = [0u64; 18];
            let status_at = &raw mut status as usize;
            let pid =
                call(number::WAIT4, [usize::MAX, status_at, 1 | 0x4000_0000, usage.as_mut_ptr() as usize]);
            if pid <= 0 {
                // No child is left to wait for.
                if pid < 0 && (ended || host_gone) {
                    exit(0);
                }
                break;
            }
            if pid == program && !ended {
                ended = true;
                let micros = |at: usize| usage[at] * 1_000_000 + usage[at + 1];
                send(&Message([u64::from(b'X'), status as u32 as u64, micros(0), micros(2), usage[4], 0]));
                if !subreaper && !keeper {
                    exit(0);
                }
            }
        }
        if (ended || host_gone) && scoped {
            call(number::KILL, [usize::MAX, 9]);
        } else if host_gone && subreaper {
            kill_children();
        }
    }
}

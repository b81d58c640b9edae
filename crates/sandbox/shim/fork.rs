//! Forks a zygote's children. Loaded into a Python that has imported its modules, and called once. It serves
//! the host's orders, and returns only in a fork that is in its sandbox, or when the host is gone.
//!
//! The first process of the sandbox shares the zygote's memory, as after `vfork`. It performs the host's
//! calls, starts the process that will run the code with libc's own `fork`, and executes the first process's
//! program. So the zygote's memory is copied once, and the zygote is suspended meanwhile.
//!
//! The code is position-independent and has no data of its own: its state is in [`Order`], and every address
//! in [`Call`] is relative to the list of calls.

#![no_std]
#![no_main]

mod bare;

use core::arch::{asm, global_asm};

use bare::{CLOSE_RANGE, PIDFD_OPEN, call, exit, number};

/// The maximum number of descriptors in an order: two sockets and those of the cgroups.
const DESCRIPTORS: usize = 8;
/// The number of registers for results of calls.
const REGISTERS: usize = 16;
/// The descriptors of both processes.
const CONTROL: usize = 3;
const WAITING: usize = 5;
const PROGRAM: usize = 6;

/// The zygote's settings. The zygote fills them in before the call, and `stack` points to its end.
#[repr(C)]
struct Order {
    /// The caller's stack pointer, to which the child returns.
    caller: usize,
    /// The flags of clone, and the end of a stack for the first process.
    flags: usize,
    stack: usize,
    /// The socket to the host, the first process's program, and `/dev/null`.
    channel: usize,
    program: usize,
    null: usize,
    /// The list of calls, and its length.
    calls: usize,
    count: usize,
    /// libc's `fork`.
    fork: extern "C" fn() -> i32,
    /// The offset of libc's rseq area from the thread pointer, or 0 without one. A process in shared memory
    /// loses the area, and so does its copy.
    sequences: usize,
    /// The highest possible descriptor, where the kernel cannot close a range.
    highest: usize,
    /// The number of the child, as the host sent it.
    number: [u8; 8],
    descriptors: [i32; DESCRIPTORS],
}

/// A system call of the host's list.
#[repr(C)]
struct Call {
    step: usize,
    /// Or one of [`SEND_DIRECTORY`], [`AWAIT`], [`PATCH`], [`POINT`].
    number: isize,
    /// The register for the result plus one, or 0.
    register: usize,
    kinds: [u8; 8],
    arguments: [usize; 6],
}

/// Sends the directory at the first argument.
const SEND_DIRECTORY: isize = -1;
/// Waits for the host.
const AWAIT: isize = -2;
/// Writes a descriptor, the second argument, to the address in the first one.
const PATCH: isize = -3;
/// Writes a pointer, the second argument, to the address in the first one.
const POINT: isize = -4;

/// Arguments that are an address in the list, a result, or a descriptor of the order; others are numbers.
const ADDRESS: u8 = 1;
const RESULT: u8 = 2;
const DESCRIPTOR: u8 = 3;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov rbx, rdi",
    "mov [rbx], rsp",
    "2:",
    "mov rdi, rbx",
    "call {next}",
    "test eax, eax",
    "jz 3f",
    "mov eax, 56",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 4f",
    "mov rdi, rbx",
    "mov rsi, rax",
    "call {made}",
    "jmp 2b",
    // In the first process, on its own stack; only its child returns.
    "4:",
    "xor ebp, ebp",
    "mov rdi, rbx",
    "call {first_process}",
    "mov rsp, [rbx]",
    "mov eax, 1",
    "3:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    next = sym next, made = sym made, first_process = sym first_process,
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "stp x29, x30, [sp, #-160]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "mov x19, x0",
    "mov x9, sp",
    "str x9, [x19]",
    "2:",
    "mov x0, x19",
    "bl {next}",
    "cbz w0, 3f",
    "mov x8, #220",
    "ldr x0, [x19, #8]",
    "ldr x1, [x19, #16]",
    "mov x2, #0",
    "mov x3, #0",
    "mov x4, #0",
    "svc #0",
    "cbz x0, 4f",
    "mov x1, x0",
    "mov x0, x19",
    "bl {made}",
    "b 2b",
    // In the first process, on its own stack; only its child returns.
    "4:",
    "mov x29, xzr",
    "mov x0, x19",
    "bl {first_process}",
    "ldr x9, [x19]",
    "mov sp, x9",
    "mov w0, #1",
    "3:",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160",
    "ret",
    next = sym next, made = sym made, first_process = sym first_process,
);

fn close(descriptor: usize) {
    call(number::CLOSE, [descriptor]);
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

/// `SOL_SOCKET` and `SCM_RIGHTS`, as two consecutive 32-bit numbers.
const RIGHTS: u64 = 1 | 1 << 32;

/// Sends bytes with a descriptor.
fn send(to: usize, content: &[u8], descriptor: usize) -> isize {
    let part = Part { at: content.as_ptr() as usize, size: content.len() };
    let control = [20u64, RIGHTS, descriptor as u64];
    let header = Header {
        name: 0,
        name_size: 0,
        parts: &raw const part as usize,
        count: 1,
        control: control.as_ptr() as usize,
        control_size: size_of_val(&control),
        flags: 0,
    };
    call(number::SENDMSG, [to, &raw const header as usize, 0x4000 /* MSG_NOSIGNAL */])
}

/// Reports the failed step to the host and exits.
fn fail(control: usize, step: usize, error: isize) -> ! {
    let message = [u64::from(b'E'), step as u64, -error as u64, 0, 0, 0];
    call(number::WRITE, [control, message.as_ptr() as usize, size_of_val(&message)]);
    exit(1)
}

/// In the zygote: waits for the host's next order. Returns 0 when the host is gone.
extern "C" fn next(order: &mut Order) -> i32 {
    let mut content = [0u8; 16];
    let mut control = [0u64; 2 + DESCRIPTORS.div_ceil(2)];
    loop {
        let part = Part { at: content.as_mut_ptr() as usize, size: content.len() };
        let mut header = Header {
            name: 0,
            name_size: 0,
            parts: &raw const part as usize,
            count: 1,
            control: control.as_mut_ptr() as usize,
            control_size: size_of_val(&control),
            flags: 0,
        };
        let flags = 0x4000_0000; // MSG_CMSG_CLOEXEC
        let size = call(number::RECVMSG, [order.channel, &raw mut header as usize, flags]);
        if size == -4 {
            continue;
        }
        let count = (control[0] as usize).saturating_sub(16) / 4;
        if size != 9 || control[1] != RIGHTS || count < 2 {
            return 0;
        }
        for (at, descriptor) in order.descriptors.iter_mut().enumerate() {
            let two = control.get(2 + at / 2).copied().unwrap_or(0);
            *descriptor = if at < count { (two >> (32 * (at % 2))) as i32 } else { -1 };
        }
        for (to, from) in order.number.iter_mut().zip(content.iter().skip(1)) {
            *to = *from;
        }
        return 1;
    }
}

/// In the zygote: the first process has executed its program, has ended, or could not start.
extern "C" fn made(order: &mut Order, process: isize) {
    if process < 0 {
        let mut content = [0u8; 13];
        content[0] = b'N';
        let error = (-process as u32).to_ne_bytes();
        for (to, from) in content.iter_mut().skip(1).zip(order.number.iter().chain(error.iter())) {
            *to = *from;
        }
        call(number::WRITE, [order.channel, content.as_ptr() as usize, content.len()]);
    }
    for descriptor in order.descriptors.iter().filter(|descriptor| **descriptor >= 0) {
        close(*descriptor as usize);
    }
}

/// In the first process, which shares the zygote's memory: returns in the process that will run code.
extern "C" fn first_process(order: &mut Order) {
    let socket = order.descriptors[0] as usize;
    // Failures before or after the host's steps.
    let own = 1 << 20;
    let process = call(number::GETPID, []);
    let descriptor = call(PIDFD_OPEN, [process as usize]);
    if descriptor < 0 {
        fail(socket, own, descriptor);
    }
    let mut content = [b'C'; 9];
    for (to, from) in content.iter_mut().skip(1).zip(order.number.iter()) {
        *to = *from;
    }
    let sent = send(order.channel, &content, descriptor as usize);
    if sent < 0 {
        fail(socket, own, sent);
    }
    confine(order, socket);
    arrange(order, socket);
    let child = (order.fork)();
    if child == 0 {
        close(CONTROL);
        close(PROGRAM);
        restart_sequences(order);
        return;
    }
    if child < 0 {
        fail(CONTROL, own, -12);
    }
    for descriptor in [0, 1, 2, 4, WAITING, PROGRAM] {
        call(number::FCNTL, [descriptor, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */]);
    }
    let name = *b"a\0";
    let mut text = [0u8; 12];
    let mut at = text.len() - 1;
    let mut rest = child as usize;
    while rest > 0 && at > 0 {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let arguments = [name.as_ptr() as usize, text.as_ptr() as usize + at, 0];
    let variables = [0usize];
    let nothing = [0u8];
    let error = call(
        number::EXECVEAT,
        [
            PROGRAM,
            nothing.as_ptr() as usize,
            arguments.as_ptr() as usize,
            variables.as_ptr() as usize,
            0x1000, /* AT_EMPTY_PATH */
        ],
    );
    fail(CONTROL, own, error)
}

/// Performs the host's calls.
fn confine(order: &Order, socket: usize) {
    let mut registers = [0usize; REGISTERS];
    let base = order.calls;
    for index in 0..order.count {
        // SAFETY: the host wrote so many calls there.
        let entry = unsafe { &*(base as *const Call).add(index) };
        let mut values = [0usize; 6];
        for (at, value) in values.iter_mut().enumerate() {
            let given = entry.arguments[at];
            *value = match entry.kinds[at] {
                ADDRESS => base + given,
                RESULT => registers.get(given).copied().unwrap_or(usize::MAX),
                DESCRIPTOR => order.descriptors.get(2 + given).map_or(usize::MAX, |number| *number as usize),
                _ => given,
            };
        }
        let result = match entry.number {
            SEND_DIRECTORY => {
                // Read-only, a directory, not a link, closed on exec.
                let directory = call(number::OPENAT, [usize::MAX - 99, values[0], DIRECTORY]);
                if directory < 0 {
                    directory
                } else {
                    let message = [u64::from(b'W').to_ne_bytes(), [0; 8], [0; 8], [0; 8], [0; 8], [0; 8]];
                    let sent = send(socket, message.as_flattened(), directory as usize);
                    close(directory as usize);
                    sent
                }
            }
            AWAIT => {
                let mut byte = [0u8];
                match call(number::READ, [socket, byte.as_mut_ptr() as usize, 1]) {
                    // The host is gone or has cancelled.
                    0 => exit(0),
                    result => result,
                }
            }
            PATCH => {
                // SAFETY: a place in the host's list with room for a descriptor; nobody else looks at it meanwhile.
                unsafe { (values[0] as *mut u32).write_unaligned(values[1] as u32) };
                0
            }
            POINT => {
                // SAFETY: as above, with room for a pointer.
                unsafe { (values[0] as *mut usize).write_unaligned(values[1]) };
                0
            }
            number => call(number as usize, values),
        };
        if result < 0 {
            fail(socket, entry.step, result);
        }
        if let Some(register) = registers.get_mut(entry.register.wrapping_sub(1)) {
            *register = result as usize;
        }
    }
}

/// `O_RDONLY`, `O_DIRECTORY`, `O_NOFOLLOW` and `O_CLOEXEC`.
#[cfg(target_arch = "x86_64")]
const DIRECTORY: usize = 0o200_000 | 0o400_000 | 0o2_000_000;
/// `O_RDONLY`, `O_DIRECTORY`, `O_NOFOLLOW` and `O_CLOEXEC`.
#[cfg(target_arch = "aarch64")]
const DIRECTORY: usize = 0o40_000 | 0o100_000 | 0o2_000_000;

/// Places every descriptor and closes all others.
fn arrange(order: &Order, socket: usize) {
    let waiting = order.descriptors[1] as usize;
    let places = [
        (order.null, 0),
        (order.null, 1),
        (order.null, 2),
        (socket, CONTROL),
        (order.null, 4),
        (waiting, WAITING),
        (order.program, PROGRAM),
    ];
    for (source, target) in places {
        let result = call(number::DUP3, [source, target]);
        if result < 0 {
            fail(socket, 1 << 20, result);
        }
    }
    if call(CLOSE_RANGE, [PROGRAM + 1, u32::MAX as usize]) < 0 {
        // This kernel closes one at a time.
        for descriptor in PROGRAM + 1..=order.highest {
            close(descriptor);
        }
    }
}

/// Registers this thread's rseq area with the kernel again.
fn restart_sequences(order: &Order) {
    if order.sequences == 0 {
        return;
    }
    let here: usize;
    // SAFETY: reads the register, or the place, in which the libc keeps the thread's own address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, fs:0", out(reg) here, options(nostack, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) here, options(nostack, nomem));
    }
    let area = here.wrapping_add(order.sequences);
    if call(number::RSEQ, [area, 32, 0, SIGNATURE]) < 0 {
        // SAFETY: the area's second number is that of the processor; below 0 the libc asks the kernel instead.
        unsafe { (area as *mut i32).add(1).write_volatile(-2) };
    }
}

/// The signature that libc puts before a sequence's abort handler.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: usize = 0x5305_3053;
/// The signature that libc puts before a sequence's abort handler.
#[cfg(target_arch = "aarch64")]
const SIGNATURE: usize = 0xd428_bc00;

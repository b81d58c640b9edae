//! Makes the children of a zygote: loaded into a Python that has read its modules, and called once. It serves the host's
//! orders, and comes back only in a child that is in its sandbox, or when the host is gone.
//!
//! The first process of the sandbox borrows the zygote's memory, as after `vfork`: it carries out the host's calls, makes
//! the process that will run the code with the libc's own `fork`, and becomes the first process's program. The zygote's
//! memory is so copied once, and the zygote stands still meanwhile.
//!
//! Its code stands anywhere in memory, and it has no data of its own: what it needs is in [`Order`], and everything that
//! [`Call`] points to is a place relative to the list of calls.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const GETPID: usize = 39;
    pub const SENDMSG: usize = 46;
    pub const RECVMSG: usize = 47;
    pub const FCNTL: usize = 72;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const DUP3: usize = 292;
    pub const EXECVEAT: usize = 322;
    pub const RSEQ: usize = 334;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const GETPID: usize = 172;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const FCNTL: usize = 25;
    pub const EXIT_GROUP: usize = 94;
    pub const OPENAT: usize = 56;
    pub const DUP3: usize = 24;
    pub const EXECVEAT: usize = 281;
    pub const RSEQ: usize = 293;
}
const PIDFD_OPEN: usize = 434;
const CLOSE_RANGE: usize = 436;

/// The most descriptors that come with an order: two sockets and those of the control groups.
const DESCRIPTORS: usize = 8;
/// Results of calls that later ones take.
const REGISTERS: usize = 16;
/// Where the descriptors of both processes lie.
const CONTROL: usize = 3;
const WAITING: usize = 5;
const PROGRAM: usize = 6;

/// What the zygote is told to work with. The zygote fills it in before the call, and `stack` points to its end.
#[repr(C)]
struct Order {
    /// The stack pointer of the caller, to which the child comes back.
    caller: usize,
    /// The flags of clone, and the end of a stack for the first process.
    flags: usize,
    stack: usize,
    /// The socket to the host, the program of the first process, and `/dev/null`.
    channel: usize,
    program: usize,
    null: usize,
    /// The list of calls, and how many they are.
    calls: usize,
    count: usize,
    /// The libc's `fork`.
    fork: extern "C" fn() -> i32,
    /// Where the libc has the area of restartable sequences, from the thread's own place, or 0 if it has none: a process
    /// that borrows memory loses it, and so does its copy.
    sequences: usize,
    /// The highest descriptor that may be open, where the kernel cannot close all above a number.
    highest: usize,
    /// The number of the child, as the host sent it.
    number: [u8; 8],
    descriptors: [i32; DESCRIPTORS],
}

/// A system call of the host's list.
#[repr(C)]
struct Call {
    step: usize,
    /// Or one of [`SEND_FOLDER`], [`AWAIT`], [`PATCH`], [`POINT`].
    number: isize,
    /// Where the result is kept, and one more, or 0.
    register: usize,
    kinds: [u8; 8],
    arguments: [usize; 6],
}

/// Sends the folder that the first argument points to.
const SEND_FOLDER: isize = -1;
/// Waits for the host.
const AWAIT: isize = -2;
/// Puts a descriptor, the second argument, at the place that the first one points to.
const PATCH: isize = -3;
/// Puts a pointer, the second argument, at the place that the first one points to.
const POINT: isize = -4;

/// Arguments that are a place in the list, a result, or a descriptor of the order; all others are numbers.
const PLACE: u8 = 1;
const RESULT: u8 = 2;
const HANDED: u8 = 3;

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
    // In the first process, on its own stack; it comes back in its child alone.
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
    // In the first process, on its own stack; it comes back in its child alone.
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

/// One system call. Gives a negative error number, as the kernel does.
#[cfg(target_arch = "x86_64")]
fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel clobbers only rcx and r11 besides the result; pointers are checked by the callers.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
/// One system call. Gives a negative error number, as the kernel does.
#[cfg(target_arch = "aarch64")]
fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: as above; the kernel keeps every other register.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") a[0] as isize => result, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

fn close(descriptor: usize) {
    call(number::CLOSE, [descriptor, 0, 0, 0, 0, 0]);
}

fn exit(status: usize) -> ! {
    loop {
        call(number::EXIT_GROUP, [status, 0, 0, 0, 0, 0]);
    }
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

/// `SOL_SOCKET` and `SCM_RIGHTS`, as two numbers of 32 bits in a row.
const RIGHTS: u64 = 1 | 1 << 32;

/// Sends bytes, with a descriptor.
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
    call(number::SENDMSG, [to, &raw const header as usize, 0x4000 /* MSG_NOSIGNAL */, 0, 0, 0])
}

/// Tells the host in which step the child failed, and ends.
fn fail(control: usize, step: usize, error: isize) -> ! {
    let message = [u64::from(b'E'), step as u64, -error as u64, 0, 0, 0];
    call(number::WRITE, [control, message.as_ptr() as usize, size_of_val(&message), 0, 0, 0]);
    exit(1)
}

/// In the zygote: waits for the host's next order. Gives 0 when the host is gone.
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
        let size = call(number::RECVMSG, [order.channel, &raw mut header as usize, flags, 0, 0, 0]);
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

/// In the zygote: the first process has become its program, or has ended, or could not be made.
extern "C" fn made(order: &mut Order, process: isize) {
    if process < 0 {
        let mut content = [0u8; 13];
        content[0] = b'N';
        let error = (-process as u32).to_ne_bytes();
        for (to, from) in content.iter_mut().skip(1).zip(order.number.iter().chain(error.iter())) {
            *to = *from;
        }
        call(number::WRITE, [order.channel, content.as_ptr() as usize, content.len(), 0, 0, 0]);
    }
    for descriptor in order.descriptors.iter().filter(|descriptor| **descriptor >= 0) {
        close(*descriptor as usize);
    }
}

/// In the first process, which has the zygote's memory: comes back in the process that will run code.
extern "C" fn first_process(order: &mut Order) {
    let socket = order.descriptors[0] as usize;
    // What failed before or after the host's steps.
    let own = 1 << 20;
    let process = call(number::GETPID, [0; 6]);
    let descriptor = call(PIDFD_OPEN, [process as usize, 0, 0, 0, 0, 0]);
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
        call(number::FCNTL, [descriptor, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */, 0, 0, 0]);
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
            0x1000, // AT_EMPTY_PATH
            0,
        ],
    );
    fail(CONTROL, own, error)
}

/// Carries out the host's calls.
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
                PLACE => base + given,
                RESULT => registers.get(given).copied().unwrap_or(usize::MAX),
                HANDED => order.descriptors.get(2 + given).map_or(usize::MAX, |number| *number as usize),
                _ => given,
            };
        }
        let result = match entry.number {
            SEND_FOLDER => {
                // Read-only, a folder, no link, closed on exec.
                let folder = call(number::OPENAT, [usize::MAX - 99, values[0], FOLDER, 0, 0, 0]);
                if folder < 0 {
                    folder
                } else {
                    let message = [u64::from(b'W').to_ne_bytes(), [0; 8], [0; 8], [0; 8], [0; 8], [0; 8]];
                    let sent = send(socket, message.as_flattened(), folder as usize);
                    close(folder as usize);
                    sent
                }
            }
            AWAIT => {
                let mut byte = [0u8];
                match call(number::READ, [socket, byte.as_mut_ptr() as usize, 1, 0, 0, 0]) {
                    // The host is gone, or does not want it any more.
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
const FOLDER: usize = 0o200_000 | 0o400_000 | 0o2_000_000;
/// `O_RDONLY`, `O_DIRECTORY`, `O_NOFOLLOW` and `O_CLOEXEC`.
#[cfg(target_arch = "aarch64")]
const FOLDER: usize = 0o40_000 | 0o100_000 | 0o2_000_000;

/// Puts every descriptor in its place, and closes all others.
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
        let result = call(number::DUP3, [source, target, 0, 0, 0, 0]);
        if result < 0 {
            fail(socket, 1 << 20, result);
        }
    }
    if call(CLOSE_RANGE, [PROGRAM + 1, u32::MAX as usize, 0, 0, 0, 0]) < 0 {
        // This kernel closes one at a time.
        for descriptor in PROGRAM + 1..=order.highest {
            close(descriptor);
        }
    }
}

/// Gives this thread's area of restartable sequences to the kernel again.
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
    if call(number::RSEQ, [area, 32, 0, SIGNATURE, 0, 0]) < 0 {
        // SAFETY: the area's second number is that of the processor; below 0 the libc asks the kernel instead.
        unsafe { (area as *mut i32).add(1).write_volatile(-2) };
    }
}

/// What the libc puts before the end of a sequence.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: usize = 0x5305_3053;
/// What the libc puts before the end of a sequence.
#[cfg(target_arch = "aarch64")]
const SIGNATURE: usize = 0xd428_bc00;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(3)
}

/// The compiler calls it for large copies. Volatile, so that it does not become a call of itself.
#[unsafe(no_mangle)]
extern "C" fn memcpy(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    for index in 0..size {
        // SAFETY: the compiler's contract: both areas have `size` bytes.
        unsafe { target.add(index).write_volatile(source.add(index).read()) };
    }
    target
}

/// The compiler calls it for large initialisations.
#[unsafe(no_mangle)]
extern "C" fn memset(target: *mut u8, value: i32, size: usize) -> *mut u8 {
    for index in 0..size {
        // SAFETY: the compiler's contract: the area has `size` bytes.
        unsafe { target.add(index).write_volatile(value as u8) };
    }
    target
}

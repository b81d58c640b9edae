//! What the first process of a container needs of the system: calls by number, and what the compiler takes for granted.

use core::arch::asm;

#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const SIGPROCMASK: usize = 14;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const STATFS: usize = 137;
    pub(crate) const KILL: usize = 62;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const FCHMOD: usize = 91;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const SETSID: usize = 112;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const GETDENTS64: usize = 217;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const MKDIRAT: usize = 258;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PIPE2: usize = 293;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const MEMFD_CREATE: usize = 319;
}
#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const FSTAT: usize = 80;
    pub(crate) const LSEEK: usize = 62;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const SIGPROCMASK: usize = 135;
    pub(crate) const CLONE: usize = 220;
    pub(crate) const EXECVE: usize = 221;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const STATFS: usize = 43;
    pub(crate) const KILL: usize = 129;
    pub(crate) const FCNTL: usize = 25;
    pub(crate) const FCHMOD: usize = 52;
    pub(crate) const CHDIR: usize = 49;
    pub(crate) const SETSID: usize = 157;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const GETDENTS64: usize = 61;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const MKDIRAT: usize = 34;
    pub(crate) const NEWFSTATAT: usize = 79;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const SIGNALFD4: usize = 74;
    pub(crate) const DUP3: usize = 24;
    pub(crate) const PIPE2: usize = 59;
    pub(crate) const PRLIMIT64: usize = 261;
    pub(crate) const MEMFD_CREATE: usize = 279;
}
pub(crate) const CLOSE_RANGE: usize = 436;

#[cfg(target_arch = "x86_64")]
pub(crate) mod flag {
    pub(crate) const DIRECTORY: usize = 0o200_000;
    pub(crate) const NOFOLLOW: usize = 0o400_000;
}
#[cfg(target_arch = "aarch64")]
pub(crate) mod flag {
    pub(crate) const DIRECTORY: usize = 0o40_000;
    pub(crate) const NOFOLLOW: usize = 0o100_000;
}
pub(crate) const WRITE_ONLY: usize = 1;
pub(crate) const CREATE_NEW: usize = 0o100 | 0o200;
pub(crate) const NONBLOCK: usize = 0o4_000;
pub(crate) const CLOEXEC: usize = 0o2_000_000;
pub(crate) const HERE: usize = -100isize as usize;

/// One system call. Gives a negative error number, as the kernel does.
#[cfg(target_arch = "x86_64")]
pub(crate) fn call(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result;
    // SAFETY: every caller passes descriptors, numbers, or pointers to memory that outlives the call; the kernel
    // clobbers only rcx and r11 besides the result.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
/// One system call. Gives a negative error number, as the kernel does.
#[cfg(target_arch = "aarch64")]
pub(crate) fn call(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result;
    // SAFETY: as above; the kernel keeps every other register.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") e, in("x5") f, options(nostack));
    }
    result
}

pub(crate) fn exit(status: usize) -> ! {
    loop {
        call(number::EXIT_GROUP, status, 0, 0, 0, 0, 0);
    }
}

pub(crate) fn close(descriptor: isize) {
    if descriptor >= 0 {
        call(number::CLOSE, descriptor as usize, 0, 0, 0, 0, 0);
    }
}

pub(crate) fn read(descriptor: isize, buffer: &mut [u8]) -> isize {
    call(number::READ, descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0)
}

/// `path` must end in a NUL.
pub(crate) fn open(folder: usize, path: &[u8], flags: usize) -> isize {
    call(number::OPENAT, folder, path.as_ptr() as usize, flags | CLOEXEC, 0o644, 0, 0)
}

/// Moves a descriptor above those that the program gets.
pub(crate) fn high(descriptor: isize) -> isize {
    if descriptor < 0 {
        return descriptor;
    }
    let moved = call(number::FCNTL, descriptor as usize, 1030 /* F_DUPFD_CLOEXEC */, 10, 0, 0, 0);
    close(descriptor);
    moved
}

/// Memory of its own; the size is what may be touched, not what is used.
pub(crate) fn memory(size: usize) -> &'static mut [u8] {
    let at = call(number::MMAP, 0, size, 3, 0x22, usize::MAX, 0);
    if at < 0 {
        exit(4);
    }
    // SAFETY: the kernel has just mapped `size` bytes there, zeroed, for this process alone and for good.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) }
}

/// Writes everything, or ends: nobody listens any more.
pub(crate) fn write(descriptor: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let size = call(number::WRITE, descriptor, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0);
        if size == -4 {
            continue;
        }
        if size <= 0 {
            exit(5);
        }
        bytes = &bytes[size as usize..];
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(3)
}

/// The compiler's own library refers to it; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The compiler calls it for large copies. Volatile, so that it does not become a call of itself.
#[unsafe(no_mangle)]
extern "C" fn memcpy(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    for index in 0..size {
        // SAFETY: the compiler's contract: both areas have `size` bytes.
        unsafe { target.add(index).write_volatile(source.add(index).read()) };
    }
    target
}

/// The compiler calls it for copies within one area.
#[unsafe(no_mangle)]
extern "C" fn memmove(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    if (target as usize) <= source as usize {
        return memcpy(target, source, size);
    }
    for index in (0..size).rev() {
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

/// The compiler calls it for comparisons.
#[unsafe(no_mangle)]
extern "C" fn bcmp(left: *const u8, right: *const u8, size: usize) -> i32 {
    for index in 0..size {
        // SAFETY: the compiler's contract: both areas have `size` bytes.
        if unsafe { left.add(index).read_volatile() != right.add(index).read_volatile() } {
            return 1;
        }
    }
    0
}

/// The compiler calls it for comparisons; here only equality matters.
#[unsafe(no_mangle)]
extern "C" fn memcmp(left: *const u8, right: *const u8, size: usize) -> i32 {
    bcmp(left, right, size)
}

//! The replacement of a standard library for the static programs: system calls, exit, and compiler
//! intrinsics. The linker drops unused parts.

use core::arch::asm;

/// The system call numbers of this architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const SIGACTION: usize = 13;
    pub(crate) const SIGPROCMASK: usize = 14;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const SHUTDOWN: usize = 48;
    pub(crate) const BIND: usize = 49;
    pub(crate) const LISTEN: usize = 50;
    pub(crate) const SETSOCKOPT: usize = 54;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const KILL: usize = 62;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const FCHMOD: usize = 91;
    pub(crate) const SETSID: usize = 112;
    pub(crate) const STATFS: usize = 137;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const GETDENTS64: usize = 217;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const MKDIRAT: usize = 258;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const ACCEPT4: usize = 288;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PIPE2: usize = 293;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const MEMFD_CREATE: usize = 319;
    pub(crate) const EXECVEAT: usize = 322;
    pub(crate) const RSEQ: usize = 334;
}
/// The system call numbers of this architecture.
#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const DUP3: usize = 24;
    pub(crate) const FCNTL: usize = 25;
    pub(crate) const MKDIRAT: usize = 34;
    pub(crate) const STATFS: usize = 43;
    pub(crate) const CHDIR: usize = 49;
    pub(crate) const FCHMOD: usize = 52;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const PIPE2: usize = 59;
    pub(crate) const GETDENTS64: usize = 61;
    pub(crate) const LSEEK: usize = 62;
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const SIGNALFD4: usize = 74;
    pub(crate) const NEWFSTATAT: usize = 79;
    pub(crate) const FSTAT: usize = 80;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const KILL: usize = 129;
    pub(crate) const SIGACTION: usize = 134;
    pub(crate) const SIGPROCMASK: usize = 135;
    pub(crate) const SETSID: usize = 157;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const BIND: usize = 200;
    pub(crate) const LISTEN: usize = 201;
    pub(crate) const SETSOCKOPT: usize = 208;
    pub(crate) const SHUTDOWN: usize = 210;
    pub(crate) const SENDMSG: usize = 211;
    pub(crate) const RECVMSG: usize = 212;
    pub(crate) const CLONE: usize = 220;
    pub(crate) const EXECVE: usize = 221;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const ACCEPT4: usize = 242;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const PRLIMIT64: usize = 261;
    pub(crate) const MEMFD_CREATE: usize = 279;
    pub(crate) const EXECVEAT: usize = 281;
    pub(crate) const RSEQ: usize = 293;
}
/// Newer calls have the same number everywhere.
pub(crate) const PIDFD_OPEN: usize = 434;
pub(crate) const CLOSE_RANGE: usize = 436;
pub(crate) const LANDLOCK_CREATE_RULESET: usize = 444;
pub(crate) const LANDLOCK_RESTRICT_SELF: usize = 446;

/// The entry point: calls `$main` with the address of the arguments. It never returns.
#[cfg(target_arch = "x86_64")]
macro_rules! begin {
    ($main:ident) => {
        core::arch::global_asm!(
            ".globl _start",
            "_start:",
            "xor ebp, ebp",
            "mov rdi, rsp",
            "and rsp, -16",
            "call {main}",
            "ud2",
            main = sym $main
        );
    };
}
/// The entry point: calls `$main` with the address of the arguments. It never returns.
#[cfg(target_arch = "aarch64")]
macro_rules! begin {
    ($main:ident) => {
        core::arch::global_asm!(".globl _start", "_start:", "mov x0, sp", "bl {main}", "brk #1", main = sym $main);
    };
}

/// A system call; omitted arguments are 0. Returns a negative error number, as the kernel does.
#[inline(always)]
pub(crate) fn call<const COUNT: usize>(number: usize, named: [usize; COUNT]) -> isize {
    const { assert!(COUNT <= 6, "no system call takes more") };
    let mut all = [0; 6];
    all[..COUNT].copy_from_slice(&named);
    let [a, b, c, d, e, f] = all;
    let result;
    // SAFETY: every caller passes descriptors, numbers, or pointers to memory that outlives the call; the kernel
    // clobbers only rcx and r11 besides the result.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: as above; the kernel keeps every other register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") e, in("x5") f, options(nostack));
    }
    result
}

pub(crate) fn exit(status: usize) -> ! {
    loop {
        call(number::EXIT_GROUP, [status]);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(3)
}

/// The core library refers to it; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The compiler calls it for large copies. Volatile, so that it is not compiled into a call of itself.
#[unsafe(no_mangle)]
extern "C" fn memcpy(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    for index in 0..size {
        // SAFETY: the compiler's contract: both areas have `size` bytes.
        unsafe { target.add(index).write_volatile(source.add(index).read()) };
    }
    target
}

/// The compiler calls it for overlapping copies.
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

/// The compiler calls it for large initializations.
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

/// The compiler calls it for comparisons; only equality matters here.
#[unsafe(no_mangle)]
extern "C" fn memcmp(left: *const u8, right: *const u8, size: usize) -> i32 {
    bcmp(left, right, size)
}

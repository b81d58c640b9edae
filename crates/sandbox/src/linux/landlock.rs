//! Landlock through its three system calls. The child fills the rule set, because the private root's paths
//! exist only there; hence no allocation.

use std::ffi::{CStr, CString};

use rustix::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::kernel::check;

/// The file access rights, by the kernel's bits.
mod file {
    pub(super) const EXECUTE: u64 = 1 << 0;
    pub(super) const WRITE: u64 = 1 << 1;
    pub(super) const READ: u64 = 1 << 2;
    pub(super) const READ_DIRECTORY: u64 = 1 << 3;
    pub(super) const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
    pub(super) const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
    pub(super) const REFER: u64 = 1 << 13;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    pub(super) const DEVICE_IOCTL: u64 = 1 << 15;
    /// The rights of version 1.
    pub(super) const FIRST: u64 = (1 << 13) - 1;
    /// The rights that a rule for a single file can have.
    pub(super) const OF_A_FILE: u64 = EXECUTE | WRITE | READ | TRUNCATE | DEVICE_IOCTL;
}

const TCP: u64 = 0b11;
const TCP_CONNECT: u64 = 0b10;
const SCOPE_ABSTRACT_SOCKETS: u64 = 1;
const SCOPE_SIGNALS: u64 = 2;

/// The first version with rules for truncation.
pub(super) const TRUNCATION_SINCE: u32 = 3;
/// The first version with rules for TCP.
pub(super) const TCP_SINCE: u32 = 4;
/// The first version with scopes.
pub(super) const SCOPES_SINCE: u32 = 6;

/// The access beneath a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read and execute.
    Read,
    /// Everything except creating device files.
    Write,
    /// Read and write without creating: for device nodes.
    Device,
}

/// A path and the access beneath it.
#[derive(Debug)]
pub(super) struct PathRule {
    pub(super) path: CString,
    pub(super) access: Access,
    pub(super) is_directory: bool,
}

#[repr(C)]
struct Attributes {
    files: u64,
    network: u64,
    scopes: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

#[repr(C)]
struct NetworkPort {
    allowed: u64,
    port: u64,
}

/// A rule set, ready to be enforced.
#[derive(Debug)]
pub(super) struct Landlock {
    version: u32,
    rules: Vec<PathRule>,
    /// The only TCP port to which connections are allowed.
    port: Option<u16>,
}

impl Landlock {
    pub(super) fn new(version: u32, rules: Vec<PathRule>) -> Self {
        Self { version, rules, port: None }
    }

    /// Allows TCP connections to a port.
    pub(super) fn with_port(self, port: Option<u16>) -> Self {
        Self { port: port.filter(|_| self.version >= TCP_SINCE), ..self }
    }

    /// Allows writing everywhere that mounts and owners permit: for file systems that do not exist yet.
    pub(super) fn allow_writing_everywhere(&mut self) {
        for rule in self.rules.iter_mut().filter(|rule| rule.path.as_c_str() == c"/") {
            rule.access = Access::Write;
        }
    }

    /// The rights beneath a writable directory.
    pub(super) fn writing(&self) -> u64 {
        self.allowed(Access::Write)
    }

    /// The version of the running kernel; 0 without Landlock.
    pub(super) fn kernel_version() -> u32 {
        // SAFETY: with the version flag the kernel reads no memory.
        let version =
            unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
        u32::try_from(version).unwrap_or(0)
    }

    fn handled(&self) -> u64 {
        let mut handled = file::FIRST;
        if self.version >= 2 {
            handled |= file::REFER;
        }
        if self.version >= TRUNCATION_SINCE {
            handled |= file::TRUNCATE;
        }
        if self.version >= 5 {
            handled |= file::DEVICE_IOCTL;
        }
        handled
    }

    fn allowed(&self, access: Access) -> u64 {
        let read = file::EXECUTE | file::READ | file::READ_DIRECTORY;
        let devices = file::MAKE_CHARACTER_DEVICE | file::MAKE_BLOCK_DEVICE | file::DEVICE_IOCTL;
        self.handled()
            & match access {
                Access::Read => read,
                Access::Write => !devices,
                Access::Device => file::READ | file::WRITE | file::READ_DIRECTORY | file::TRUNCATE,
            }
    }

    /// The attributes of the rule set and the rights of each path, as the kernel expects them, for a child of
    /// another process.
    pub(super) fn parts(&self) -> ([u64; 3], Vec<(CString, u64)>) {
        let attributes = self.attributes();
        let allowed = |rule: &PathRule| {
            self.allowed(rule.access) & if rule.is_directory { u64::MAX } else { file::OF_A_FILE }
        };
        let rules = self.rules.iter().map(|rule| (rule.path.clone(), allowed(rule))).collect();
        ([attributes.files, attributes.network, attributes.scopes], rules)
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            files: self.handled(),
            network: if self.version >= TCP_SINCE { TCP } else { 0 },
            scopes: if self.version >= SCOPES_SINCE { SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS } else { 0 },
        }
    }

    /// Opens the paths and creates the rule set. Called in the child: no allocation, no lock.
    pub(super) fn build(&self) -> Result<OwnedFd, Errno> {
        let attributes = self.attributes();
        // Older kernels accept a larger structure only if the unknown fields are zero: they are.
        let size = size_of::<Attributes>();
        // SAFETY: the structure lives during the call and has the given size.
        let result =
            unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0u32) };
        let number = check(result)?;
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        let rules = unsafe { OwnedFd::from_raw_fd(number) };
        for rule in &self.rules {
            self.add(&rules, &rule.path, rule)?;
        }
        if let Some(port) = self.port {
            let port = NetworkPort { allowed: TCP_CONNECT, port: port.into() };
            // SAFETY: the descriptor is open and the structure lives during the call.
            let result = unsafe {
                libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), 2u32, &raw const port, 0u32)
            };
            check(result)?;
        }
        Ok(rules)
    }

    fn add(&self, rules: &OwnedFd, path: &CStr, rule: &PathRule) -> Result<(), Errno> {
        let parent = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mut allowed = self.allowed(rule.access);
        if !rule.is_directory {
            allowed &= file::OF_A_FILE;
        }
        let beneath = PathBeneath { allowed, parent: parent.as_raw_fd() };
        // SAFETY: both descriptors are open and the structure lives during the call.
        let result = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), 1u32, &raw const beneath, 0u32)
        };
        check(result).map(|_| ())
    }

    /// Enforces a rule set on the calling thread, permanently.
    pub(super) fn enforce(rules: &OwnedFd) -> Result<(), Errno> {
        // SAFETY: the descriptor is open; no memory is read.
        check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0u32) }).map(|_| ())
    }
}

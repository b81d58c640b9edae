//! Encodes steps as raw system calls for a zygote's fork.
//!
//! Each call has a number, arguments and the memory that they point to, in the format of `shim/fork.rs`.

use std::ffi::CStr;
use std::fmt::Write as _;

use super::super::child_steps::Step;

/// Sends a directory to the host.
const SEND_DIRECTORY: i64 = -1;
/// Waits for the host.
const AWAIT: i64 = -2;

/// An argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Argument {
    Number(i64),
    Bytes(Vec<u8>),
    Filter(Vec<u8>),
    /// The result of an earlier call.
    Register(usize),
    /// A descriptor from the fork's order.
    Join(usize),
    /// Bytes with the result of an earlier call inserted.
    Patched {
        content: Vec<u8>,
        at: usize,
        register: usize,
    },
}

/// A system call, its step, and the register for its result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    step: usize,
    number: i64,
    arguments: Vec<Argument>,
    register: Option<usize>,
}

/// The calls of a list of steps.
#[derive(Debug, Default)]
pub(super) struct CallList {
    calls: Vec<Call>,
    joins: usize,
    trees: usize,
}

const OPEN_TREE_CLONE: i32 = 1;
const MOVE_EMPTY_PATH: i32 = 4;
/// The first register for mounted directories; lower ones are for short-lived descriptors.
const FIRST_TREE: usize = 2;
const MAX_TREES: usize = 14;

fn text(text: &CStr) -> Argument {
    Argument::Bytes(text.to_bytes_with_nul().to_vec())
}

fn number(value: impl Into<i64>) -> Argument {
    Argument::Number(value.into())
}

impl CallList {
    /// Translates steps. A step that only a child of this process can perform is rejected by name.
    pub(super) fn new(steps: &[Step]) -> Result<Self, &'static str> {
        let mut list = Self::default();
        // Paths that a later mount hides are opened before it and mounted above it.
        for (index, step) in steps.iter().enumerate() {
            if let Step::Bind { source, .. } = step {
                let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC | libc::AT_RECURSIVE;
                let arguments = vec![number(libc::AT_FDCWD), text(source), number(flags)];
                let register = Some(FIRST_TREE + list.trees);
                list.trees += 1;
                list.calls.push(Call { step: index, number: libc::SYS_open_tree, arguments, register });
            }
        }
        if list.trees > MAX_TREES {
            return Err("show more paths in temporary directories than a zygote supports");
        }
        list.trees = 0;
        for (index, step) in steps.iter().enumerate() {
            list.add(index, step)?;
        }
        Ok(list)
    }

    /// The number of cgroup descriptors in each order.
    pub(super) fn joins(&self) -> usize {
        self.joins
    }

    fn call(&mut self, step: usize, call: libc::c_long, arguments: Vec<Argument>) {
        self.calls.push(Call { step, number: call, arguments, register: None });
    }

    fn open(&mut self, step: usize, path: &CStr, flags: i32, register: usize) {
        let arguments = vec![number(libc::AT_FDCWD), text(path), number(flags | libc::O_CLOEXEC), number(0)];
        self.calls.push(Call { step, number: libc::SYS_openat, arguments, register: Some(register) });
    }

    fn prctl(&mut self, step: usize, option: i32, value: i64) {
        let arguments = [i64::from(option), value, 0, 0, 0].map(Argument::Number).to_vec();
        self.call(step, libc::SYS_prctl, arguments);
    }

    fn add(&mut self, index: usize, step: &Step) -> Result<(), &'static str> {
        match step {
            Step::Join(_) => {
                let arguments = vec![Argument::Join(self.joins), Argument::Bytes(b"0".to_vec()), number(1)];
                self.joins += 1;
                self.call(index, libc::SYS_write, arguments);
            }
            Step::Write { path, text } => {
                self.open(index, path, libc::O_WRONLY, 0);
                let arguments =
                    vec![Argument::Register(0), Argument::Bytes(text.clone()), number(text.len() as i64)];
                self.call(index, libc::SYS_write, arguments);
                self.call(index, libc::SYS_close, vec![Argument::Register(0)]);
            }
            Step::Unshare(flags) => self.call(index, libc::SYS_unshare, vec![number(*flags)]),
            Step::HostName(name) => {
                let arguments = vec![Argument::Bytes(name.to_vec()), number(name.len() as i64)];
                self.call(index, libc::SYS_sethostname, arguments);
            }
            Step::Mount { kind, target, options, flags } => {
                let arguments = vec![
                    text(kind),
                    text(target),
                    text(kind),
                    Argument::Number(flags.bits().into()),
                    text(options),
                ];
                self.call(index, libc::SYS_mount, arguments);
            }
            Step::Directory { path, mode } => {
                let arguments = vec![number(libc::AT_FDCWD), text(path), number(*mode)];
                self.call(index, libc::SYS_mkdirat, arguments);
            }
            Step::Bind { target, .. } => {
                let tree = Argument::Register(FIRST_TREE + self.trees);
                self.trees += 1;
                let arguments = vec![
                    tree,
                    Argument::Bytes(vec![0]),
                    number(libc::AT_FDCWD),
                    text(target),
                    number(MOVE_EMPTY_PATH),
                ];
                self.call(index, libc::SYS_move_mount, arguments);
            }
            Step::SendDirectory(path) => {
                self.calls.push(Call {
                    step: index,
                    number: SEND_DIRECTORY,
                    arguments: vec![text(path)],
                    register: None,
                });
            }
            Step::Await { .. } => {
                self.calls.push(Call { step: index, number: AWAIT, arguments: vec![], register: None });
            }
            Step::Enter(path) => self.call(index, libc::SYS_chdir, vec![text(path)]),
            Step::Limit { resource, soft, hard } => {
                let limit = [soft.to_ne_bytes(), hard.to_ne_bytes()].concat();
                let arguments = vec![number(0), number(*resource), Argument::Bytes(limit), number(0)];
                self.call(index, libc::SYS_prlimit64, arguments);
            }
            Step::DropBounding => {
                for capability in 0..=last_capability() {
                    self.prctl(index, libc::PR_CAPBSET_DROP, capability);
                }
                self.prctl(index, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL.into());
            }
            Step::DropCapabilities => {
                let header = [0x2008_0522u32.to_ne_bytes(), [0; 4]].concat();
                let arguments = vec![Argument::Bytes(header), Argument::Bytes(vec![0; 24])];
                self.call(index, libc::SYS_capset, arguments);
            }
            Step::NoNewPrivileges => self.prctl(index, libc::PR_SET_NO_NEW_PRIVS, 1),
            Step::Landlock(landlock) => {
                let (attributes, rules) = landlock.parts();
                let attributes: Vec<u8> = attributes.iter().flat_map(|part| part.to_ne_bytes()).collect();
                let size = attributes.len() as i64;
                let arguments = vec![Argument::Bytes(attributes), number(size), number(0)];
                let call = libc::SYS_landlock_create_ruleset;
                self.calls.push(Call { step: index, number: call, arguments, register: Some(0) });
                for (path, allowed) in rules {
                    self.open(index, &path, libc::O_PATH, 1);
                    let content = [&allowed.to_ne_bytes()[..], &[0; 4]].concat();
                    let rule = Argument::Patched { content, at: 8, register: 1 };
                    let arguments = vec![Argument::Register(0), number(1), rule, number(0)];
                    self.call(index, libc::SYS_landlock_add_rule, arguments);
                    self.call(index, libc::SYS_close, vec![Argument::Register(1)]);
                }
                self.call(index, libc::SYS_landlock_restrict_self, vec![Argument::Register(0), number(0)]);
                self.call(index, libc::SYS_close, vec![Argument::Register(0)]);
            }
            Step::Seccomp(filter) => {
                let bytes = filter.iter().flat_map(|line| {
                    let code = line.code.to_ne_bytes();
                    let k = line.k.to_ne_bytes();
                    [code[0], code[1], line.jt, line.jf, k[0], k[1], k[2], k[3]]
                });
                let arguments = vec![number(1), number(0), Argument::Filter(bytes.collect())];
                self.call(index, libc::SYS_seccomp, arguments);
            }
            Step::Session { dies_with_host } => {
                self.call(index, libc::SYS_setsid, vec![]);
                if *dies_with_host {
                    self.prctl(index, libc::PR_SET_PDEATHSIG, libc::SIGKILL.into());
                }
            }
            other => return Err(other.name()),
        }
        Ok(())
    }

    /// The encoded calls followed by their data, and the number of calls.
    pub(super) fn content(&self) -> (Vec<u8>, usize) {
        let mut written = Encoder::default();
        for call in &self.calls {
            written.add(call);
        }
        let mut content = Vec::with_capacity(written.calls.len() * CALL + written.data.len());
        let places = written.calls.len() * CALL;
        for line in &written.calls {
            content.extend((line.step as u64).to_ne_bytes());
            content.extend(line.number.to_ne_bytes());
            content.extend(line.register.map_or(0, |register| register as u64 + 1).to_ne_bytes());
            content.extend(line.arguments.map(|(kind, _)| kind));
            content.extend([0; 2]);
            for (kind, value) in line.arguments {
                let value = if kind == ADDRESS { value + places as i64 } else { value };
                content.extend(value.to_ne_bytes());
            }
        }
        content.extend(written.data);
        (content, written.calls.len())
    }
}

/// The encoded size of a call.
const CALL: usize = 80;
/// Inserts a descriptor into the data.
const PATCH: i64 = -3;
/// Inserts a pointer into the data.
const POINT: i64 = -4;
/// The kinds of non-numeric arguments: an address, a result, a descriptor of the order.
const ADDRESS: u8 = 1;
const RESULT: u8 = 2;
const DESCRIPTOR: u8 = 3;

/// An encoded call.
#[derive(Debug)]
struct Line {
    step: usize,
    number: i64,
    register: Option<usize>,
    arguments: [(u8, i64); 6],
}

#[derive(Debug, Default)]
struct Encoder {
    calls: Vec<Line>,
    data: Vec<u8>,
}

impl Encoder {
    /// Appends bytes and returns their offset, in units of 8 bytes.
    fn append(&mut self, content: &[u8]) -> (u8, i64) {
        let at = self.data.len();
        self.data.extend_from_slice(content);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        (ADDRESS, at as i64)
    }

    fn add(&mut self, call: &Call) {
        let mut arguments = [(0u8, 0i64); 6];
        for (written, argument) in arguments.iter_mut().zip(&call.arguments) {
            *written = match argument {
                Argument::Number(value) => (0, *value),
                Argument::Bytes(content) => self.append(content),
                Argument::Register(register) => (RESULT, *register as i64),
                Argument::Join(join) => (DESCRIPTOR, *join as i64),
                Argument::Filter(content) => {
                    // The kernel's struct sock_fprog.
                    let (_, filter) = self.append(content);
                    let length = (content.len() / 8) as u64;
                    let (_, head) = self.append(&[length.to_ne_bytes(), [0; 8]].concat());
                    self.put(call.step, POINT, head + 8, (ADDRESS, filter));
                    (ADDRESS, head)
                }
                Argument::Patched { content, at, register } => {
                    let (_, place) = self.append(content);
                    self.put(call.step, PATCH, place + *at as i64, (RESULT, *register as i64));
                    (ADDRESS, place)
                }
            };
        }
        self.calls.push(Line { step: call.step, number: call.number, register: call.register, arguments });
    }

    /// A call that writes to the list itself before the next call.
    fn put(&mut self, step: usize, number: i64, at: i64, what: (u8, i64)) {
        let none = (0, 0);
        let arguments = [(ADDRESS, at), what, none, none, none, none];
        self.calls.push(Line { step, number, register: None, arguments });
    }
}

/// The highest capability number of this kernel.
fn last_capability() -> i64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    // Without /proc: the last named one. No new privileges means that a newer one cannot be regained either.
    text.trim().parse().unwrap_or(40)
}

/// Formats bytes as a Python literal.
pub(super) fn bytes(content: &[u8]) -> String {
    let mut out = String::with_capacity(content.len() * 4 + 3);
    out.push_str("b'");
    for byte in content {
        match byte {
            b'\\' | b'\'' => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips() {
        assert_eq!(bytes(b"a'b\\c\n\0\xff"), "b'a\\'b\\\\c\\x0a\\x00\\xff'");
    }

    #[test]
    fn unsupported_steps_are_rejected_by_name() {
        assert_eq!(CallList::new(&[Step::Freeze]).unwrap_err(), "make root read-only");
        let list =
            CallList::new(&[Step::Enter(c"/workspace".to_owned()), Step::Await { host: None }]).unwrap();
        let (content, count) = list.content();
        assert_eq!(count, 2);
        let number = |at: usize| i64::from_ne_bytes(content[at..at + 8].try_into().unwrap());
        assert_eq!((number(0), number(8), number(16), content[24]), (0, libc::SYS_chdir, 0, ADDRESS));
        assert_eq!((number(CALL), number(CALL + 8), content[CALL + 24]), (1, AWAIT, 0));
        assert_eq!(&content[number(32) as usize..], b"/workspace\0\0\0\0\0\0");
    }
}

//! The first process of a container: a static program without any library, a few kilobytes.
//!
//! It exchanges frames with the host over its standard input and output, which the daemon forwards: a kind
//! (one byte), the size of the content (four bytes, little-endian), the content. It reports the container's
//! confinement, receives files, starts one program, forwards its output, kills and reaps everything at its
//! end, and sends files back. The end of its input means the end of the host: then it exits, and the kernel
//! kills the whole container.
//!
//! From the host: `F` opens an upload (its path), `D` writes to it, `X` makes it executable, `C` appends to
//! the code, `S` starts the program, `I` is input for it (only after `i`), `E` ends the input, `K` kills
//! everything, `T` requests the processor time, `L` a list of the workspace, `G` the content of a file (its
//! path), `H` pauses output (1), errors (2) or both, `B` closes one of them. `N`, `W`, `M`, `Q` and `J`
//! belong to the tunnel, and so do `p`, `k`, `w`, `m`, `q` and `j`.
//!
//! To the host: `a` is a fact (its number, its text), `R` ready, `n` a failed program start (stage and
//! error), `s` a successful one, `o`, `e` and `v` are output, errors and value, `i` requests input, `c`
//! reports the processor-time limit, `x` that everything is dead (numbers), `f` is an entry of the list, `l`
//! the end of the list (why it is incomplete; whether bytes or inodes are exhausted), `d` a piece of a file,
//! `g` its end (0 or the error), `z` a failed upload (the error), `t` the processor time.

#![no_std]
#![no_main]

#[macro_use]
mod bare;
#[path = "container_system.rs"]
mod system;
#[path = "container_tunnel.rs"]
mod tunnel;

use bare::{CLOSE_RANGE, call, exit, number};
use system::*;
use tunnel::Tunnel;

/// The maximum content of a frame from the host: fits a program's arguments and environment.
const MAX_FRAME: usize = 1_400_000;
/// The maximum content of a frame to the host.
const PIECE: usize = 32 << 10;
const MAX_DEPTH: usize = 48;
const MAX_ENTRIES: u64 = 20_000;
const MAX_PATH: usize = 4096;

begin!(main);

/// Sends a frame. Its content is at `frame[5..5 + size]`, so that one call writes all.
fn send(kind: u8, frame: &mut [u8], size: usize) {
    frame[0] = kind;
    frame[1..5].copy_from_slice(&(size as u32).to_le_bytes());
    write(1, &frame[..5 + size]);
}

fn send_numbers(kind: u8, numbers: &[u64]) {
    let mut frame = [0u8; 5 + 8 * 12];
    for (index, number) in numbers.iter().enumerate() {
        frame[5 + 8 * index..13 + 8 * index].copy_from_slice(&number.to_le_bytes());
    }
    send(kind, &mut frame, numbers.len() * 8);
}

/// Files that show the container's confinement; the index is the number of the fact.
const FACTS: [&[u8]; 12] = [
    b"/proc/self/status\0",
    b"/proc/self/mountinfo\0",
    b"/proc/net/dev\0",
    b"/sys/fs/cgroup/memory/memory.limit_in_bytes\0",
    b"/sys/fs/cgroup/memory.max\0",
    b"/sys/fs/cgroup/pids/pids.max\0",
    b"/sys/fs/cgroup/pids.max\0",
    b"/proc/version\0",
    b"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes\0",
    b"/sys/fs/cgroup/memory.swap.max\0",
    b"/sys/fs/cgroup/cpu/cpu.cfs_quota_us\0",
    b"/sys/fs/cgroup/cpu.max\0",
];

/// The kernel's counters, of either cgroup version.
#[derive(Clone, Copy)]
struct Counters {
    events: isize,
    peak: isize,
    processes: isize,
    time: isize,
}

impl Counters {
    fn find() -> Self {
        let either = |one: &[u8], two: &[u8]| {
            let first = open(HERE, one, 0);
            high(if first >= 0 { first } else { open(HERE, two, 0) })
        };
        Self {
            events: either(b"/sys/fs/cgroup/memory/memory.oom_control\0", b"/sys/fs/cgroup/memory.events\0"),
            peak: either(
                b"/sys/fs/cgroup/memory/memory.max_usage_in_bytes\0",
                b"/sys/fs/cgroup/memory.peak\0",
            ),
            processes: either(b"/sys/fs/cgroup/pids/pids.events\0", b"/sys/fs/cgroup/pids.events\0"),
            time: either(b"/sys/fs/cgroup/cpuacct/cpuacct.usage\0", b"/sys/fs/cgroup/cpu.stat\0"),
        }
    }

    /// The number after a word in a file, or the first number in the file. `u64::MAX` means unknown.
    fn value(descriptor: isize, word: &[u8]) -> u64 {
        let mut text = [0u8; 1024];
        if descriptor < 0 || call(number::LSEEK, [descriptor as usize]) < 0 {
            return u64::MAX;
        }
        let size = read(descriptor, &mut text);
        if size <= 0 {
            return u64::MAX;
        }
        let text = &text[..size as usize];
        let parse = |text: &[u8]| {
            text.iter()
                .take_while(|byte| byte.is_ascii_digit())
                .fold(0u64, |sum, byte| sum.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')))
        };
        if text[0].is_ascii_digit() {
            return parse(text);
        }
        for line in text.split(|byte| *byte == b'\n') {
            if line.len() > word.len() && line.starts_with(word) && line[word.len()] == b' ' {
                return parse(&line[word.len() + 1..]);
            }
        }
        u64::MAX
    }

    fn kills(self) -> u64 {
        Self::value(self.events, b"oom_kill")
    }

    fn refused(self) -> u64 {
        Self::value(self.processes, b"max")
    }

    /// Processor time in microseconds.
    fn micros(self) -> u64 {
        let mut first = [0u8; 1];
        if self.time < 0 || call(number::LSEEK, [self.time as usize]) < 0 {
            return u64::MAX;
        }
        let is_plain = read(self.time, &mut first) == 1 && first[0].is_ascii_digit();
        let value = Self::value(self.time, b"usage_usec");
        if is_plain && value != u64::MAX { value / 1000 } else { value }
    }
}

/// The program and this process's ends of its streams; -1 is closed.
struct Program {
    pid: isize,
    output: isize,
    errors: isize,
    value: isize,
    input: isize,
    ended: bool,
    dead: bool,
    status: u64,
    usage: [u64; 3],
    /// Counters at the start, and the processor-time limit; 0 means none.
    kills: u64,
    refused: u64,
    micros: u64,
    limit: u64,
    told: bool,
}

/// Reads a little-endian number and advances.
fn take_number(bytes: &mut &[u8]) -> u64 {
    if bytes.len() < 8 {
        exit(6);
    }
    let (first, rest) = bytes.split_at(8);
    *bytes = rest;
    let mut number = [0u8; 8];
    number.copy_from_slice(first);
    u64::from_le_bytes(number)
}

/// Splits off a string with its NUL.
fn take_text<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { exit(7) };
    let (first, rest) = bytes.split_at(end + 1);
    *bytes = rest;
    first
}

fn pipe() -> [isize; 2] {
    let mut ends = [0i32; 2];
    if call(number::PIPE2, [ends.as_mut_ptr() as usize, CLOEXEC]) < 0 {
        exit(8);
    }
    [high(ends[0] as isize), high(ends[1] as isize)]
}

fn not_blocking(descriptor: isize) {
    call(number::FCNTL, [descriptor as usize, 4 /* F_SETFL */, NONBLOCK]);
}

/// Starts the program of a frame `S`.
///
/// The frame has the limits (count, then resource, soft, hard), the processor-time limit in microseconds,
/// whether there is input and code, the counts of arguments and variables, then texts: directory, search
/// path, arguments, variables.
fn start(mut content: &[u8], code: isize, counters: Counters) -> Option<Program> {
    let mut limits = [[0u64; 3]; 16];
    let count = take_number(&mut content) as usize;
    for limit in &mut limits[..count] {
        *limit = [take_number(&mut content), take_number(&mut content), take_number(&mut content)];
    }
    let limit = take_number(&mut content);
    let has_input = take_number(&mut content) != 0;
    let has_code = take_number(&mut content) != 0;
    let arguments = take_number(&mut content) as usize;
    let variables = take_number(&mut content) as usize;
    if arguments == 0 || arguments.saturating_add(variables) > MAX_FRAME {
        exit(9);
    }
    let directory = take_text(&mut content);
    let search = take_text(&mut content);
    let table = memory((arguments + variables + 2) * 8);
    let mut place = 0;
    let mut first: &[u8] = b"\0";
    for index in 0..arguments + variables {
        if index == arguments {
            place += 8;
        }
        let text = take_text(&mut content);
        if index == 0 {
            first = text;
        }
        table[place..place + 8].copy_from_slice(&(text.as_ptr() as usize).to_ne_bytes());
        place += 8;
    }
    let argument_table = table.as_ptr() as usize;
    let variable_table = argument_table + (arguments + 1) * 8;
    let [output, output_child] = pipe();
    let [errors, errors_child] = pipe();
    let [value, value_child] = if has_code { pipe() } else { [-1, -1] };
    let [input_child, input] = if has_input { pipe() } else { [high(open(HERE, b"/dev/null\0", 0)), -1] };
    let [report, report_child] = pipe();
    let (kills, refused, micros) = (counters.kills(), counters.refused(), counters.micros());
    let pid = call(number::CLONE, [17]);
    if pid == 0 {
        let fail = |stage: u8, error: isize| -> ! {
            write(report_child as usize, &[stage, (-error) as u8]);
            exit(127)
        };
        call(number::SETSID, []);
        let duplicate = |from: isize, to: usize| {
            if from >= 0 {
                call(number::DUP3, [from as usize, to]);
            } else {
                call(number::CLOSE, [to]);
            }
        };
        duplicate(input_child, 0);
        duplicate(output_child, 1);
        duplicate(errors_child, 2);
        duplicate(-1, 3);
        duplicate(value_child, 4);
        duplicate(if has_code { code } else { -1 }, 5);
        // Other descriptors are closed on exec; mark those that are not.
        call(CLOSE_RANGE, [6, u32::MAX as usize, 4 /* CLOSE_RANGE_CLOEXEC */]);
        let error = call(number::CHDIR, [directory.as_ptr() as usize]);
        if error < 0 {
            fail(b'd', error);
        }
        for limit in &limits[..count] {
            let error = call(number::PRLIMIT64, [0, limit[0] as usize, limit[1..].as_ptr() as usize]);
            if error < 0 {
                fail(b'l', error);
            }
        }
        let none = 0u64;
        call(number::SIGPROCMASK, [2, &raw const none as usize, 0, 8]);
        let execute =
            |path: &[u8]| call(number::EXECVE, [path.as_ptr() as usize, argument_table, variable_table]);
        if first.contains(&b'/') {
            fail(b'p', execute(first));
        }
        let mut error = -2;
        for directory in search[..search.len() - 1].split(|byte| *byte == b':') {
            let mut path = [0u8; MAX_PATH];
            let size = directory.len() + 1 + first.len();
            if size > path.len() {
                continue;
            }
            path[..directory.len()].copy_from_slice(directory);
            path[directory.len()] = b'/';
            path[directory.len() + 1..size].copy_from_slice(first);
            let here = execute(&path[..size]);
            if here != -2 && here != -20 {
                error = here;
            }
        }
        fail(b'p', error);
    }
    for descriptor in [output_child, errors_child, value_child, input_child, report_child, code] {
        close(descriptor);
    }
    let mut failure = [0u8; 2];
    let failed = pid < 0 || read(report, &mut failure) > 0;
    close(report);
    if failed {
        for descriptor in [output, errors, value, input] {
            close(descriptor);
        }
        let error = if pid < 0 { -pid as u64 } else { u64::from(failure[1]) };
        let stage = if pid < 0 { b'f' } else { failure[0] };
        send_numbers(b'n', &[u64::from(stage), error]);
        return None;
    }
    for descriptor in [output, errors, value, input] {
        if descriptor >= 0 {
            not_blocking(descriptor);
        }
    }
    send_numbers(b's', &[]);
    if input >= 0 {
        send_numbers(b'i', &[]);
    }
    let (dead, told) = (false, false);
    let (ended, status, usage) = (false, 0, [0; 3]);
    Some(Program {
        pid,
        output,
        errors,
        value,
        input,
        ended,
        dead,
        status,
        usage,
        kills,
        refused,
        micros,
        limit,
        told,
    })
}

/// Forwards at most one piece of a stream. Closes it at its end.
fn hand_on(stream: &mut isize, kind: u8, frame: &mut [u8]) {
    let size = read(*stream, &mut frame[5..5 + PIECE]);
    if size > 0 {
        send(kind, frame, size as usize);
    } else if size == 0 || (size != -11 && size != -4) {
        close(*stream);
        *stream = -1;
    }
}

fn kill_all() {
    // From the first process: all processes but itself.
    call(number::KILL, [usize::MAX, 9]);
}

/// Reaps dead processes.
fn reap(program: &mut Option<Program>) {
    loop {
        let mut status = 0i32;
        let mut usage = [0u64; 18];
        let (at, usage_at) = (&raw mut status as usize, usage.as_mut_ptr() as usize);
        let pid = call(number::WAIT4, [usize::MAX, at, 1 | 0x4000_0000, usage_at]);
        let Some(program) = program else {
            if pid <= 0 {
                return;
            }
            continue;
        };
        if pid == program.pid && !program.ended {
            program.ended = true;
            program.status = u64::from(status as u32);
        }
        if pid > 0 {
            // A child's usage includes that of its own reaped children.
            program.usage[0] += usage[0] * 1_000_000 + usage[1];
            program.usage[1] += usage[2] * 1_000_000 + usage[3];
            program.usage[2] = program.usage[2].max(usage[4]);
            continue;
        }
        if program.ended {
            if pid == -10 {
                program.dead = true;
            } else {
                kill_all();
            }
        }
        return;
    }
}

/// The state of a file that reveals changes.
fn stat(directory: usize, name: *const u8) -> Option<[u64; 18]> {
    let mut bytes = [0u64; 18];
    let at = bytes.as_mut_ptr() as usize;
    (call(number::NEWFSTATAT, [directory, name as usize, at, 0x100]) >= 0).then_some(bytes)
}

#[cfg(target_arch = "x86_64")]
const MODE_AND_LINKS: fn(&[u64; 18]) -> (u32, u64) = |stat| (stat[3] as u32, stat[2]);
#[cfg(target_arch = "aarch64")]
const MODE_AND_LINKS: fn(&[u64; 18]) -> (u32, u64) = |stat| (stat[2] as u32, stat[2] >> 32);

/// The state of listing the workspace: the count of entries, and why it is incomplete.
struct List<'a> {
    seen: u64,
    left_out: u64,
    path: [u8; MAX_PATH],
    frame: &'a mut [u8],
}

/// Sends an entry for each file beneath a directory, and closes it. Links are not followed.
fn walk(list: &mut List<'_>, directory: isize, length: usize, depth: usize) {
    let mut entries = [0u64; 512];
    loop {
        let at = entries.as_mut_ptr() as usize;
        let size = call(number::GETDENTS64, [directory as usize, at, size_of_val(&entries)]);
        if size <= 0 {
            break;
        }
        // SAFETY: the kernel has written `size` bytes there, which are at most those of the array.
        let bytes = unsafe { core::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), size as usize) };
        let mut place = 0;
        while place + 19 < bytes.len() {
            let record = usize::from(bytes[place + 16]) | usize::from(bytes[place + 17]) << 8;
            let name = &bytes[place + 19..place + record];
            place += record;
            let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(0)];
            if name.is_empty() || name == b"." || name == b".." {
                continue;
            }
            list.seen += 1;
            if list.seen > MAX_ENTRIES {
                list.left_out = 1;
                close(directory);
                return;
            }
            let end = length + name.len();
            if end + 1 >= MAX_PATH - 64 {
                list.left_out = 3;
                continue;
            }
            list.path[length..end].copy_from_slice(name);
            list.path[end] = 0;
            let Some(found) = stat(directory as usize, list.path[length..].as_ptr()) else { continue };
            let (mode, links) = MODE_AND_LINKS(&found);
            if mode & 0o170_000 == 0o040_000 {
                if depth + 1 >= MAX_DEPTH {
                    list.left_out = 2;
                    continue;
                }
                let flags = flag::DIRECTORY | flag::NOFOLLOW | NONBLOCK;
                let inner = open(directory as usize, &list.path[length..], flags);
                if inner < 0 {
                    list.left_out = 3;
                    continue;
                }
                list.path[end] = b'/';
                walk(list, inner, end + 1, depth + 1);
                if list.seen > MAX_ENTRIES {
                    close(directory);
                    return;
                }
                continue;
            }
            // Inode, type, links, size, modification time and change time.
            let numbers = [
                found[1],
                // Plus the owner's execute bit.
                u64::from(mode & 0o170_100),
                links,
                found[6],
                found[11],
                found[12],
                found[13],
                found[14],
            ];
            for (index, number) in numbers.iter().enumerate() {
                list.frame[5 + 8 * index..13 + 8 * index].copy_from_slice(&number.to_le_bytes());
            }
            list.frame[69..69 + end].copy_from_slice(&list.path[..end]);
            send(b'f', list.frame, 64 + end);
        }
    }
    close(directory);
}

/// Opens a workspace file component by component, without following links. Creates it with its directories if
/// `new`.
fn open_inside(path: &[u8], new: bool) -> isize {
    let mut directory = open(HERE, b"/workspace\0", flag::DIRECTORY);
    let mut part = [0u8; 256];
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = parts.next() {
        if directory < 0 || name.is_empty() || name.len() > 255 || name == b".." || name.contains(&0) {
            close(directory);
            return -22;
        }
        part[..name.len()].copy_from_slice(name);
        part[name.len()] = 0;
        let is_last = parts.peek().is_none();
        if !is_last && new {
            call(number::MKDIRAT, [directory as usize, part.as_ptr() as usize, 0o755]);
        }
        let flags = match (is_last, new) {
            (false, _) => flag::DIRECTORY | flag::NOFOLLOW,
            (true, true) => WRITE_ONLY | CREATE_NEW | flag::NOFOLLOW,
            (true, false) => flag::NOFOLLOW | NONBLOCK,
        };
        let inner = open(directory as usize, &part, flags);
        close(directory);
        directory = inner;
        if inner < 0 {
            return inner;
        }
    }
    directory
}

/// Sends the content of a regular file with one link.
fn give(path: &[u8], frame: &mut [u8]) {
    let file = high(open_inside(path, false));
    if file < 0 {
        send_numbers(b'g', &[(-file) as u64]);
        return;
    }
    let mut found = [0u64; 18];
    let stated = call(number::FSTAT, [file as usize, found.as_mut_ptr() as usize]);
    let (mode, links) = MODE_AND_LINKS(&found);
    let mut error = if stated < 0 || mode & 0o170_000 != 0o100_000 || links != 1 { 22 } else { 0 };
    // Nothing runs any more, so its size is final; the host bounds sparse files.
    while error == 0 {
        let size = read(file, &mut frame[5..5 + PIECE]);
        if size <= 0 {
            error = (-size) as u64;
            break;
        }
        send(b'd', frame, size as usize);
    }
    close(file);
    send_numbers(b'g', &[error]);
}

/// Writes a piece of an upload or of the code. Returns 0 or an error.
fn store(descriptor: isize, mut bytes: &[u8]) -> isize {
    while !bytes.is_empty() {
        let size = call(number::WRITE, [descriptor as usize, bytes.as_ptr() as usize, bytes.len()]);
        if size < 0 {
            return size;
        }
        bytes = &bytes[size as usize..];
    }
    0
}

extern "C" fn main(_at: *const usize) -> ! {
    // Not dumpable: no process inside can inspect this one.
    call(number::PRCTL, [4]);
    let (all, child_signal) = (!0u64, 1u64 << 16);
    call(number::SIGPROCMASK, [2, &raw const all as usize, 0, 8]);
    let signals =
        high(call(number::SIGNALFD4, [usize::MAX, &raw const child_signal as usize, 8, CLOEXEC | NONBLOCK]));
    let buffer = memory(MAX_FRAME + 5);
    let frame = memory(PIECE + 5 + MAX_PATH);
    let pending = memory(64 << 10);
    let (mut waiting_from, mut waiting_to) = (0usize, 0usize);
    let mut input_ends = false;
    let counters = Counters::find();
    for (index, path) in FACTS.iter().enumerate() {
        let file = open(HERE, path, 0);
        if file < 0 {
            continue;
        }
        let mut size = 1;
        while size < PIECE {
            let more = read(file, &mut frame[5 + size..5 + PIECE]);
            if more <= 0 {
                break;
            }
            size += more as usize;
        }
        close(file);
        frame[5] = index as u8;
        send(b'a', frame, size);
    }
    send_numbers(b'R', &[1]);
    let mut upload = -1isize;
    let mut code = -1isize;
    let mut program: Option<Program> = None;
    let mut tunnel = Tunnel::new();
    let mut held = 0u64;
    let mut filled = 0usize;
    loop {
        let mut waiting = [PollFd::NONE; 6 + tunnel::WAITING];
        waiting[0] = PollFd { descriptor: 0, events: 1, returned: 0 };
        waiting[1] = PollFd { descriptor: signals as i32, events: 1, returned: 0 };
        let mut patience = [i64::from(i32::MAX), 0];
        if let Some(program) = &program {
            let wanted = |bit: u64, stream: isize| if held & bit == 0 { stream } else { -1 };
            let streams = [wanted(1, program.output), wanted(2, program.errors), program.value];
            for (entry, stream) in waiting[2..5].iter_mut().zip(streams) {
                *entry = PollFd { descriptor: stream as i32, events: 1, returned: 0 };
            }
            if program.input >= 0 && waiting_from < waiting_to {
                waiting[5] = PollFd { descriptor: program.input as i32, events: 4, returned: 0 };
            }
            if !program.dead && (program.limit > 0 || program.ended) {
                patience = [0, 20_000_000];
            }
        }
        tunnel.waits(&mut waiting[6..]);
        call(number::PPOLL, [waiting.as_mut_ptr() as usize, waiting.len(), patience.as_ptr() as usize, 0, 8]);
        if waiting[1].returned != 0 {
            let mut ignored = [0u8; 128];
            while read(signals, &mut ignored) > 0 {}
        }
        reap(&mut program);
        tunnel.serve(&waiting[6..], frame);
        if let Some(running) = &mut program {
            if waiting[2].returned != 0 || running.dead && held & 1 == 0 {
                hand_on(&mut running.output, b'o', frame);
            }
            if waiting[3].returned != 0 || running.dead && held & 2 == 0 {
                hand_on(&mut running.errors, b'e', frame);
            }
            if waiting[4].returned != 0 || running.dead {
                hand_on(&mut running.value, b'v', frame);
            }
            if waiting[5].returned != 0 {
                let at = pending[waiting_from..].as_ptr() as usize;
                let size = waiting_to - waiting_from;
                let written = call(number::WRITE, [running.input as usize, at, size]);
                if written > 0 {
                    waiting_from += written as usize;
                    if waiting_from == waiting_to && !input_ends {
                        send_numbers(b'i', &[]);
                    }
                } else if written != -11 && written != -4 {
                    close(running.input);
                    running.input = -1;
                }
            }
            if input_ends && waiting_from == waiting_to && running.input >= 0 {
                close(running.input);
                running.input = -1;
            }
            let now = counters.micros();
            if running.limit > 0
                && !running.told
                && now != u64::MAX
                && now.wrapping_sub(running.micros) >= running.limit
            {
                running.told = true;
                send_numbers(b'c', &[]);
                kill_all();
            }
            // Their writers are dead, so every stream ends.
            if running.dead && running.output < 0 && running.errors < 0 && running.value < 0 {
                close(running.input);
                let since = |now: u64, then: u64| if now == u64::MAX { now } else { now.wrapping_sub(then) };
                send_numbers(
                    b'x',
                    &[
                        running.status,
                        running.usage[0],
                        running.usage[1],
                        running.usage[2],
                        since(counters.kills(), running.kills),
                        since(counters.refused(), running.refused),
                        Counters::value(counters.peak, b""),
                        since(now, running.micros),
                    ],
                );
                program = None;
            }
        }
        if waiting[0].returned == 0 {
            continue;
        }
        let size = read(0, &mut buffer[filled..]);
        if size <= 0 {
            if size == -4 || size == -11 {
                continue;
            }
            // The kernel kills every process of the container with its first one.
            exit(0);
        }
        filled += size as usize;
        let mut from = 0;
        while filled - from >= 5 {
            let size =
                u32::from_le_bytes([buffer[from + 1], buffer[from + 2], buffer[from + 3], buffer[from + 4]])
                    as usize;
            if size > MAX_FRAME {
                exit(10);
            }
            if filled - from < 5 + size {
                break;
            }
            let kind = buffer[from];
            let content = &buffer[from + 5..from + 5 + size];
            from += 5 + size;
            match kind {
                b'F' => {
                    close(upload);
                    upload = high(open_inside(content, true));
                    if upload < 0 {
                        send_numbers(b'z', &[(-upload) as u64]);
                    }
                }
                b'D' if upload >= 0 => {
                    let result = store(upload, content);
                    if result < 0 {
                        close(upload);
                        upload = -1;
                        send_numbers(b'z', &[(-result) as u64]);
                    }
                }
                b'X' if upload >= 0 => {
                    call(number::FCHMOD, [upload as usize, 0o755]);
                }
                b'C' => {
                    if code < 0 {
                        code = high(call(number::MEMFD_CREATE, [c"code".as_ptr() as usize, 1]));
                    }
                    if code < 0 {
                        // Level `maximum` blocks memory files, so use an unnamed file.
                        code = high(open(HERE, b"/tmp\0", 2 | 0o20_000_000 | flag::DIRECTORY));
                    }
                    let result = store(code, content);
                    if result < 0 {
                        send_numbers(b'z', &[(-result) as u64]);
                    }
                }
                b'S' if program.is_none() => {
                    close(upload);
                    upload = -1;
                    if code >= 0 {
                        call(number::LSEEK, [code as usize]);
                    }
                    (waiting_from, waiting_to, input_ends, held) = (0, 0, false, 0);
                    program = start(content, code, counters);
                    code = -1;
                }
                b'I' if size <= pending.len() && waiting_from == waiting_to => {
                    pending[..size].copy_from_slice(content);
                    (waiting_from, waiting_to) = (0, size);
                }
                b'E' => {
                    input_ends = true;
                    if let Some(running) = &mut program
                        && waiting_from == waiting_to
                    {
                        close(running.input);
                        running.input = -1;
                    }
                }
                b'K' => kill_all(),
                b'H' => held = take_number(&mut &*content),
                b'B' => {
                    if let Some(running) = &mut program {
                        let is_output = take_number(&mut &*content) == 1;
                        let stream = if is_output { &mut running.output } else { &mut running.errors };
                        close(*stream);
                        *stream = -1;
                    }
                }
                b'N' => tunnel.listen(take_number(&mut &*content) as u16),
                b'W' | b'M' | b'Q' | b'J' => tunnel.take(kind, content),
                b'T' => send_numbers(b't', &[counters.micros()]),
                b'L' => {
                    close(upload);
                    upload = -1;
                    let mut list = List { seen: 0, left_out: 0, path: [0; MAX_PATH], frame };
                    let directory = open(HERE, b"/workspace\0", flag::DIRECTORY);
                    if directory >= 0 {
                        walk(&mut list, directory, 0, 0);
                    }
                    let left_out = list.left_out;
                    let mut space = [0u64; 32];
                    let (at, path) = (space.as_mut_ptr() as usize, c"/workspace".as_ptr() as usize);
                    let known = call(number::STATFS, [path, at]) >= 0;
                    // A file system without counting reports 0 for all.
                    let is_none = |left: u64, all: u64| u64::from(known && left == 0 && all > 0);
                    send_numbers(b'l', &[left_out, is_none(space[4], space[2]), is_none(space[6], space[5])]);
                }
                b'G' => give(content, frame),
                _ => {}
            }
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
    }
}

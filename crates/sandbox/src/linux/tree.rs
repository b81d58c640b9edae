//! Processes seen from the host: the descendants of one, and their processor time. Needed only where no process
//! namespace holds them together.

use std::collections::BTreeSet;
use std::fs;

use rustix::fd::BorrowedFd;
use rustix::process::{Pid, Signal};

/// More processes than any limit allows: bounds a walk while a program forks.
const MAXIMUM: usize = 100_000;

/// All living descendants of a process, without itself.
pub(super) fn descendants(root: i32) -> Vec<i32> {
    descendants_without(root, &BTreeSet::new())
}

/// The same without these processes and what descends from them.
pub(super) fn descendants_without(root: i32, others: &BTreeSet<i32>) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                if found.len() < MAXIMUM && !found.contains(&child) && !others.contains(&child) {
                    found.push(child);
                }
            }
        }
    }
    found.remove(0);
    found
}

/// Whether a process is dead and only its number is left.
pub(super) fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, numbers)| numbers.starts_with('Z'))
}

/// Whether a process has ended or is about to: the first process of a namespace is at its end before the others are killed,
/// and is a zombie only after them.
pub(super) fn is_ending(pid: i32) -> bool {
    const EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return true };
    let mut fields = rest.split(' ');
    let is_zombie = fields.next().is_none_or(|state| state.starts_with(['Z', 'X']));
    let flags: u32 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    is_zombie || flags & EXITING != 0 || is_being_killed(pid)
}

/// Whether the signal that kills waits for a process.
fn is_being_killed(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .any(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << 8 != 0))
}

/// Sends a signal to a process by its descriptor. Old kernels and the filters of some containers refuse that: then by its
/// number, which is its own as long as it lives, or as long as nobody has collected it.
pub(super) fn signal(pidfd: BorrowedFd<'_>, pid: i32, signal: Signal) {
    let sent = rustix::process::pidfd_send_signal(pidfd, signal);
    // A process that has ended has a number that may belong to another one.
    let has_ended = || {
        let mut waiting = [rustix::event::PollFd::from_borrowed_fd(pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut waiting, Some(&now)).is_ok_and(|count| count > 0)
    };
    if matches!(sent, Err(error) if error != rustix::io::Errno::SRCH)
        && !has_ended()
        && let Some(pid) = Pid::from_raw(pid)
    {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Kills the descendants of a process until there is none. All are stopped first, so that they cannot fork away.
pub(super) fn kill_descendants(root: i32) {
    for _ in 0..200 {
        let found = descendants(root);
        let alive: Vec<Pid> = found.iter().filter_map(|pid| Pid::from_raw(*pid)).collect();
        if alive.is_empty() {
            return;
        }
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &alive {
                let _ = rustix::process::kill_process(*pid, signal);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The processor time of a process and all its descendants in microseconds, ended children included.
pub(super) fn processor_micros(root: i32) -> u64 {
    times(root).iter().sum()
}

/// The same spent in the kernel alone.
pub(super) fn system_micros(root: i32) -> u64 {
    let [_, system] = times(root);
    system
}

/// The processor time in programs and in the kernel.
fn times(root: i32) -> [u64; 2] {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let mut total = [0; 2];
    for pid in descendants(root).into_iter().chain([root]) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything; the numbers come behind the last one: own time, that of children.
        let Some((_, numbers)) = stat.rsplit_once(") ") else { continue };
        for (place, text) in numbers.split(' ').skip(11).take(4).enumerate() {
            if let Some(sum) = total.get_mut(place % 2) {
                *sum += text.parse::<u64>().unwrap_or(0);
            }
        }
    }
    total.map(|time| time * 1_000_000 / ticks)
}

/// The bytes of files without a name that the descendants of a process keep open, on the file system of a folder.
pub(super) fn deleted_bytes(root: i32, folder: BorrowedFd<'_>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(own) = rustix::fs::fstat(folder) else { return 0 };
    let mut counted = BTreeSet::new();
    let mut bytes = 0u64;
    for pid in descendants(root) {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // The link leads to the open file itself, whether or not it has a name.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            let is_deleted = metadata.is_file() && metadata.nlink() == 0 && metadata.dev() == own.st_dev;
            if is_deleted && counted.insert(metadata.ino()) {
                bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            }
        }
    }
    bytes
}

/// Sockets that a run has without a charge: their buffers are rarely full.
const FREE_SOCKETS: u64 = 64;

/// The memory of all descendants of a process together, in bytes. Pages that several share are counted once, except for
/// processes that cannot be looked into, of which everything is counted. Sockets are charged with full buffers, because
/// the kernel shows their number alone: of the network namespace, those in flight included, or else as descriptors.
pub(super) fn memory(root: i32, own_network: bool) -> u64 {
    let (mut own, mut shared, mut nameless) = (0u64, 0u64, 0u64);
    let mut counted = BTreeSet::new();
    let mut sockets = BTreeSet::new();
    for pid in descendants(root) {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        if rollup.is_empty() {
            let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
            own = own.saturating_add(resident.saturating_mul(rustix::param::page_size() as u64));
        } else {
            let kibibytes = |key: &str| {
                let value = rollup.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next());
                value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
            };
            own = own.saturating_add(kibibytes("Pss_Anon:"));
            shared = shared.saturating_add(kibibytes("Pss_Shmem:"));
        }
        own = own.saturating_add(page_tables(pid));
        nameless = nameless.saturating_add(memory_files(pid, &mut counted, &mut sockets));
    }
    let sockets = if own_network { sockets_of_namespace(root) } else { sockets.len() as u64 };
    let buffers = sockets.saturating_sub(FREE_SOCKETS).saturating_mul(socket_bytes());
    // What is mapped of a file in memory stands in both.
    own.saturating_add(shared.max(nameless)).saturating_add(buffers)
}

/// The most that one socket holds: its send buffer, and one packet of the same size that begins while there is room.
fn socket_bytes() -> u64 {
    const USUAL: u64 = 212_992;
    static BYTES: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *BYTES.get_or_init(|| {
        let buffer = fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap_or_default();
        buffer.trim().parse().unwrap_or(USUAL).saturating_mul(2)
    })
}

/// How many sockets there are in the network namespace of a process.
fn sockets_of_namespace(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/sockstat")).unwrap_or_default();
    text.strip_prefix("sockets: used ")
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The bytes of the tables that map the memory of a process. They grow without pages of its own, too.
fn page_tables(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")?.split_whitespace().next());
    line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

/// The bytes of the files in memory that a process has open, each counted once. Its sockets are collected besides.
fn memory_files(pid: i32, counted: &mut BTreeSet<u64>, sockets: &mut BTreeSet<std::ffi::OsString>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let in_memory = entries.filter(|entry| {
        let Ok(link) = fs::read_link(entry.path()) else { return false };
        let name = link.as_os_str().as_encoded_bytes();
        if name.starts_with(b"socket:") {
            sockets.insert(link.into_os_string());
            return false;
        }
        name.starts_with(b"/memfd:")
    });
    let found = in_memory.filter_map(|entry| fs::metadata(entry.path()).ok());
    found
        .filter(|metadata| counted.insert(metadata.ino()))
        .map(|metadata| metadata.blocks().saturating_mul(512))
        .sum()
}

/// How many processes and threads a user has.
pub(super) fn count_of_user(user: u32) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let mut count = 0;
    for entry in entries.flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        if is_process && entry.metadata().is_ok_and(|metadata| metadata.uid() == user) {
            count += fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_counted_and_killed() {
        #[expect(clippy::disallowed_methods, reason = "this crate starts processes")]
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let own = std::process::id() as i32;
        assert!(descendants(own).contains(&pid));
        assert!(count_of_user(rustix::process::getuid().as_raw()) >= 2);
        assert!(!descendants(pid).contains(&own));
        assert!(!is_ending(pid));
        child.kill().unwrap();
        // Not collected yet: it is there, and at its end.
        while !is_ending(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!descendants(own).contains(&pid));
    }
}

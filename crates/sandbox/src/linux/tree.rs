//! The descendants of a process and their usage, read from `/proc`. Needed only without a process namespace.

use std::collections::BTreeSet;
use std::fs;

use rustix::fd::BorrowedFd;
use rustix::process::{Pid, Signal};

use super::files::Measured;

/// Bounds a walk while a program forks; above any process limit.
const MAX_PROCESSES: usize = 100_000;

/// All living descendants of a process.
pub(super) fn descendants(root: i32) -> Vec<i32> {
    descendants_without(root, &BTreeSet::new())
}

/// A variant without `others` and their descendants.
pub(super) fn descendants_without(root: i32, others: &BTreeSet<i32>) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                if found.len() < MAX_PROCESSES && !found.contains(&child) && !others.contains(&child) {
                    found.push(child);
                }
            }
        }
    }
    found.remove(0);
    found
}

/// Whether a process is a zombie.
pub(super) fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, numbers)| numbers.starts_with('Z'))
}

/// Whether a process is dead or dying.
///
/// The first process of a namespace starts to die before the others are killed, and is a zombie only after
/// them.
pub(super) fn is_ending(pid: i32) -> bool {
    const EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return true };
    let mut fields = rest.split(' ');
    let is_zombie = fields.next().is_none_or(|state| state.starts_with(['Z', 'X']));
    let flags: u32 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    is_zombie || flags & EXITING != 0 || is_being_killed(pid)
}

/// Whether a SIGKILL is pending for a process.
fn is_being_killed(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .any(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << 8 != 0))
}

/// Sends a signal by pidfd, or by pid where an old kernel or a container's filter denies that. The pid stays
/// valid until the process is reaped.
pub(super) fn signal(pidfd: BorrowedFd<'_>, pid: i32, signal: Signal) {
    let sent = rustix::process::pidfd_send_signal(pidfd, signal);
    // The pid of a reaped process may belong to another one.
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

/// Kills the descendants of a process until none is left. Stops all of them first, so that they cannot fork.
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

/// The processor time of a process and its descendants in microseconds, ended children included.
pub(super) fn processor_micros(root: i32) -> u64 {
    times(root).iter().sum()
}

/// The time in kernel mode only.
pub(super) fn system_micros(root: i32) -> u64 {
    let [_, system] = times(root);
    system
}

/// The processor time in user and kernel mode.
fn times(root: i32) -> [u64; 2] {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let mut total = [0; 2];
    for pid in descendants(root).into_iter().chain([root]) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may contain anything; the numbers follow its last parenthesis: own time,
        // then children's.
        let Some((_, numbers)) = stat.rsplit_once(") ") else { continue };
        for (place, text) in numbers.split(' ').skip(11).take(4).enumerate() {
            if let Some(sum) = total.get_mut(place % 2) {
                *sum += text.parse::<u64>().unwrap_or(0);
            }
        }
    }
    total.map(|time| time * 1_000_000 / ticks)
}

/// The size of unnamed files that the descendants of a process keep open, on the file systems of these directories.
pub(super) fn deleted_bytes(root: i32, measured: &[Measured<'_>]) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let devices: Vec<u64> = measured
        .iter()
        .filter_map(|measured| rustix::fs::fstat(measured.directory).ok())
        .map(|stat| stat.st_dev)
        .collect();
    let mut counted = BTreeSet::new();
    let mut bytes = 0u64;
    for pid in descendants(root) {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // The link leads to the open file itself, named or not.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            let is_deleted = metadata.is_file() && metadata.nlink() == 0 && devices.contains(&metadata.dev());
            if is_deleted && counted.insert(metadata.ino()) {
                bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            }
        }
    }
    bytes
}

/// The number of sockets that are not charged; their buffers are rarely full.
const FREE_SOCKETS: u64 = 64;

/// The memory of all descendants of a process in bytes. Shared pages count once, except for unreadable
/// processes, which count in full. Sockets count with full buffers, because the kernel reports only their
/// number: that of the network namespace, or of open descriptors.
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
    // Mapped pages of memory files are in both.
    own.saturating_add(shared.max(nameless)).saturating_add(buffers)
}

/// The maximum memory of a socket: its send buffer, and one packet of that size beyond it.
fn socket_bytes() -> u64 {
    const USUAL: u64 = 212_992;
    static BYTES: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *BYTES.get_or_init(|| {
        let buffer = fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap_or_default();
        buffer.trim().parse().unwrap_or(USUAL).saturating_mul(2)
    })
}

/// The number of sockets in a process's network namespace.
fn sockets_of_namespace(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/sockstat")).unwrap_or_default();
    text.strip_prefix("sockets: used ")
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The size of a process's page tables, which can grow without its own pages.
fn page_tables(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")?.split_whitespace().next());
    line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

/// The size of the memory files that a process has open, each counted once. Also collects its sockets.
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

/// The number of processes and threads of a user.
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
        // Not reaped yet: a zombie.
        while !is_ending(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!descendants(own).contains(&pid));
    }
}

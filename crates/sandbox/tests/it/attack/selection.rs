//! Selects which probes run where.
//!
//! `cargo xtask attack` runs everything. Every change must pass the core, listed here: for each row that is
//! not slow its cheapest and most significant probes, at every level, and on three limited hosts.

use std::collections::BTreeSet;

use super::hosts::HOSTS;
use super::lines::is_complete;
use super::rows::ROWS;
use super::{Mode, Place, Probe, probes};

/// The host on which the tests run.
pub(crate) const HERE: &str = "this host";
/// Names one backend of this host, or one limited host: nothing else runs.
const PLACE: &str = "TOOLPOST_ATTACK_PLACE";

/// Where a probe of the core runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// As a cold run on this host, at every level.
    Cold,
    /// On every backend but Docker, at every level, and on the core's limited hosts.
    Everywhere,
}

use Extent::{Cold, Everywhere};

/// The core: row and name of each probe.
const CORE: &[(u32, &str, Extent)] = &[
    (1, "read /etc/shadow", Cold),
    (1, "read settings of the host in /etc", Everywhere),
    (2, "list packages in /opt", Everywhere),
    (2, "read a file of the host outside", Everywhere),
    (3, "secrets in the own environment", Everywhere),
    (4, "environment of a host process", Cold),
    (4, "maps of the parent", Cold),
    (5, "ptrace attach", Everywhere),
    (6, "write /proc/1/mem", Cold),
    (7, "kill a host process", Cold),
    (7, "pidfd_open and signal", Cold),
    (12, "sparse artefact", Cold),
    (12, "sparse file of 1 TiB", Cold),
    (13, "descriptor exhaustion", Cold),
    (15, "one stream full while the other is read", Cold),
    (16, "input that nobody reads", Cold),
    (17, "bytes that are not text, and a forged report", Cold),
    (18, "a grandchild keeps the stream open", Cold),
    (21, "zombie flood", Cold),
    (23, "clone with CLONE_PARENT", Cold),
    (24, "SCHED_FIFO", Cold),
    (25, "raise a limit", Everywhere),
    (25, "oom_score_adj", Cold),
    (26, "TCP", Everywhere),
    (27, "UDP", Cold),
    (28, "netlink", Cold),
    (28, "packet socket", Cold),
    (29, "vsock", Cold),
    (30, "io_uring", Cold),
    (31, "unix socket of the host by path", Everywhere),
    (32, "abstract socket of the host", Cold),
    (33, "inherited descriptors", Cold),
    (34, "round the proxy", Cold),
    (35, "a secret reaches its host alone", Cold),
    (36, "keyctl", Cold),
    (37, "bpf", Cold),
    (37, "userfaultfd", Cold),
    (38, "mount", Cold),
    (38, "chroot", Cold),
    (38, "write to the root", Cold),
    (39, "unshare a user namespace", Everywhere),
    (39, "clone a user namespace", Cold),
    (40, "clone3", Cold),
    (41, "x32 call", Cold),
    (41, "int 0x80", Cold),
    (42, "control groups", Cold),
    (43, "core pattern", Cold),
    (44, "devices", Cold),
    (44, "mknod", Cold),
    (45, "TIOCSTI with high bits", Cold),
    (46, "overwrite the running program", Cold),
    (47, "out of the working directory", Cold),
    (49, "root by another name", Cold),
    (50, "a program from memory has the same lock", Cold),
    (51, "no new privileges", Cold),
    (51, "set-user-id programs left in a directory of the host", Cold),
    (52, "links to files of the host as artefacts", Cold),
    (52, "export onto links", Cold),
    (53, "second names", Everywhere),
    (54, "names of uploads", Cold),
    (54, "names of artefacts", Cold),
    (55, "artefacts that are not files", Cold),
    (56, "set-user-id bits", Cold),
    (57, "shared temporary directory", Cold),
    (57, "temporary names cannot be guessed or prepared", Cold),
    (58, "artifacts that programs of the host obey", Cold),
    (58, "start files and settings", Cold),
    (58, "a repository in two halves", Cold),
    (58, "hooks, settings and a rebase in a repository", Cold),
    (58, "a host directory without masks is copied", Cold),
    (59, "arguments that start something", Cold),
    (59, "working directory and variables widen nothing", Cold),
    (60, "variables that redirect programs", Cold),
    (61, "huge code, code with NUL", Cold),
    (62, "set the clock", Cold),
    (64, "exit status and signals of limits", Cold),
    (66, "write to the control descriptor", Everywhere),
    (67, "cancelled in the middle", Cold),
    (70, "a level that the host cannot give", Cold),
    (70, "what is reported as active is active", Everywhere),
    (71, "timers of the user", Cold),
    (71, "inotify instances of the user", Cold),
    (71, "pages of the user's pipes", Cold),
    (71, "asynchronous requests of the host", Cold),
    (72, "memory files in flight", Cold),
    (72, "shared memory that nobody has attached", Cold),
    (73, "directory notices", Cold),
    (73, "lock a file of the system", Everywhere),
    (74, "core dumps", Everywhere),
    (75, "directories above what is shown", Cold),
];

/// The core's limited hosts: without namespaces, without all features, and the features of a container, in a
/// process that is really limited.
const CORE_HOSTS: [&str; 3] =
    ["no namespaces", "no namespaces, Landlock or control groups", "an unprivileged container"];

/// Rows without a probe in the core, with the reason.
const NOT_IN_CORE: &[(u32, &str)] = &[
    (8, "every probe is slow; `limits` has a fork bomb"),
    (9, "every probe is slow; `limits` has memory bombs"),
    (10, "every probe is slow; `limits` fills the workspace"),
    (11, "every probe is slow; `limits` makes too many files"),
    (14, "every probe is slow; `limits` has a flood"),
    (19, "every probe is slow; `limits` has orphans"),
    (20, "every probe is slow; `limits` has programs that ignore signals"),
    (22, "every probe is slow; `limits` and `starts` kill the host"),
    (48, "every probe is slow"),
    (63, "every probe is slow; `limits` spreads processor time"),
    (65, "every probe is slow; `pools` and `sessions` look for what a run leaves"),
    (68, "the image of the containers takes minutes; `docker` attests each container"),
    (69, "as row 68; `docker` ends and silences the daemon"),
];

fn place() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "`cargo xtask attack` says which part it wants")]
    std::env::var(PLACE).ok()
}

/// Whether a mode on a host is selected.
pub(crate) fn is_mode_wanted(mode: &Mode, host: &str) -> bool {
    host != HERE || place().is_none_or(|place| place == mode.backend)
}

/// Whether a limited host is selected.
pub(crate) fn is_host_wanted(host: &str) -> bool {
    if is_complete() { place().is_none_or(|place| place == host) } else { CORE_HOSTS.contains(&host) }
}

/// Whether a probe runs at a place.
///
/// The complete table is everything on this host. On limited hosts it is the core on every backend, and
/// everything quick in cold runs: pools and sessions do not depend on the host.
pub(crate) fn is_wanted(probe: &Probe, place: &Place<'_>, host: &str) -> bool {
    let extent =
        CORE.iter().find(|(row, name, _)| (*row, *name) == (probe.row, probe.name)).map(|entry| entry.2);
    let is_cold = place.mode.backend == "process";
    match (is_complete(), host == HERE) {
        (true, true) => true,
        (true, false) => extent == Some(Everywhere) || (is_cold && !probe.is_slow),
        (false, true) => extent == Some(Everywhere) || (is_cold && extent == Some(Cold)),
        (false, false) => extent == Some(Everywhere),
    }
}

#[test]
fn the_core_has_a_quick_probe_of_every_row_or_a_reason() {
    let probes = probes::all();
    for (row, name, _) in CORE {
        let probe = probes.iter().find(|probe| (probe.row, probe.name) == (*row, *name));
        assert!(probe.is_some_and(|probe| !probe.is_slow), "{row} `{name}` is unknown or slow");
    }
    let named: BTreeSet<_> = CORE.iter().map(|(row, name, _)| (row, name)).collect();
    assert_eq!(named.len(), CORE.len(), "a probe is named twice");
    for row in &ROWS {
        let is_there = CORE.iter().any(|(number, ..)| *number == row.number);
        let is_out = NOT_IN_CORE.iter().any(|(number, reason)| *number == row.number && !reason.is_empty());
        assert!(is_there != is_out, "row {} is in the core, or has a reason why not", row.number);
        let claims_slow = NOT_IN_CORE
            .iter()
            .any(|(number, reason)| *number == row.number && reason.starts_with("every probe is slow"));
        let is_slow = probes.iter().filter(|probe| probe.row == row.number).all(|probe| probe.is_slow);
        assert!(!claims_slow || is_slow, "row {} has a quick probe", row.number);
    }
    for name in CORE_HOSTS {
        assert!(HOSTS.iter().any(|host| host.name == name), "{name}");
    }
}

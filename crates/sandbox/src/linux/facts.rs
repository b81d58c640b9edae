//! The features of this host, probed once with an empty sandbox.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd};

use super::cgroup::{Cgroups, Group};
use super::child_steps::Step;
use super::files::Owner;
use super::identity;
use super::kernel::{Calls, Resource, hard_limits, has_seccomp};
use super::landlock::{Landlock, SCOPES_SINCE};
use super::launch::{self, INIT, INIT_MISSING, Plan};
use super::plan::{self, BackendRequest};
use super::root;
use crate::host::{Capability, LevelAvailability};
use crate::{Level, Limits};

/// The user id for code when the host program is root: outside every range that distributions, systemd or
/// `subuid` assign.
const UNUSED_USER: u32 = 1_900_000_000;
const NOBODY: u32 = 65_534;

/// A set-up step that the kernel denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) step: String,
    pub(super) error: i32,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.step, std::io::Error::from_raw_os_error(self.error))
    }
}

impl Refusal {
    fn fix(&self) -> &'static str {
        match self.error {
            libc::ENOSPC | libc::EUSERS => {
                "raise the limit: `sysctl user.max_user_namespaces=15000` (and its siblings for other namespaces)"
            }
            libc::ENOSYS | libc::EINVAL => "use Linux 5.12 or later",
            _ if self.step.starts_with("start") => {
                "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1` on Debian, an AppArmor profile or \
                 `sysctl kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu; in a container allow them in its \
                 seccomp profile"
            }
            _ => {
                "the kernel created namespaces but denies their use: on Ubuntu give this program an AppArmor profile \
                 with `userns,` or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`; in a container allow \
                 mounts and an unmasked /proc"
            }
        }
    }
}

/// The facts.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    kernel: String,
    pub(super) user: u32,
    pub(super) group: u32,
    identity: Identity,
    /// The user for code when this process is root.
    pub(super) unprivileged: u32,
    pub(super) user_namespaces: bool,
    pub(super) namespaces: Result<(), Refusal>,
    /// Whether `/proc` can be mounted.
    pub(super) process_files: Result<(), Refusal>,
    /// System directories that overlays can cover.
    pub(super) covered: Vec<PathBuf>,
    /// Whether a user namespace can have its own quotas.
    pub(super) quotas: bool,
    /// Calls with an alternative.
    pub(super) calls: Calls,
    pub(super) landlock: u32,
    pub(super) seccomp: bool,
    pub(super) cgroups: Cgroups,
    hard_limits: Vec<(Resource, u64)>,
    /// The cache file that vouches for namespaces, mounts and quotas; none if they were probed.
    pub(super) hint: Option<PathBuf>,
}

/// The first version of Linux whose overlays take mounts with mapped identities.
const MAPPED_LOWER: (u32, u32) = (5, 19);
/// File systems that an overlay can cover, by the numbers of `statfs`: ext, XFS, Btrfs, tmpfs, overlayfs, ZFS, F2FS,
/// bcachefs, NFS, FUSE, EROFS, `SquashFS`, 9P.
const LOWER: [u64; 13] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0x794C_7630,
    0x2FC1_2FC1,
    0xF2F5_2010,
    0xCA45_1A4E,
    0x6969,
    0x6573_5546,
    0xE0F5_E1E2,
    0x7371_7368,
    0x0102_1997,
];

impl Facts {
    pub(crate) fn probe() -> Self {
        let mut facts = Self::read();
        if facts.can_try_namespaces() {
            if facts.is_root() {
                let inside = Owner { user: plan::INSIDE, group: plan::INSIDE };
                facts.user_namespaces = identity::namespace(inside, facts.unprivileged).is_ok();
            }
            facts.quotas = identity::sets_quotas();
            facts.try_level(Level::Strict);
            if facts.namespaces.is_ok() {
                // For its additional system directories.
                facts.try_level(Level::Standard);
                facts.namespaces = Ok(());
            }
        }
        facts
    }

    /// The facts of a host with all features, without a probe; none if it lacks one.
    ///
    /// A denied step then fails the run; the report lists only what the run did.
    pub(super) fn assume(hint: &Path) -> Option<Self> {
        let facts = Self::read();
        if !facts.can_try_namespaces() {
            return None;
        }
        identity::assume_quotas(true);
        Some(Self { namespaces: Ok(()), quotas: true, hint: Some(hint.to_owned()), ..facts })
    }

    /// Whether the host has every feature that [`Facts::assume`] assumes.
    pub(super) fn is_everything(&self) -> bool {
        self.user_namespaces
            && self.namespaces.is_ok()
            && self.process_files.is_ok()
            && self.quotas
            && self.covered == root::coverable()
    }

    fn can_try_namespaces(&self) -> bool {
        self.seccomp && !INIT.is_empty() && self.identity != Identity::None
    }

    /// The facts that need no child.
    fn read() -> Self {
        let name = rustix::system::uname();
        let user = rustix::process::geteuid().as_raw();
        let identity = Identity::read();
        Self {
            kernel: name.release().to_string_lossy().into_owned(),
            user,
            identity,
            group: rustix::process::getegid().as_raw(),
            unprivileged: if let Identity::Other(user) = identity { user } else { NOBODY },
            user_namespaces: true,
            // Probed later, with a filter and a first process.
            namespaces: Err(Refusal { step: "not tried".into(), error: libc::ENOSYS }),
            process_files: Ok(()),
            covered: root::coverable(),
            quotas: false,
            calls: Calls::probe(),
            landlock: Landlock::kernel_version(),
            seccomp: has_seccomp(),
            cgroups: Cgroups::discover(),
            hard_limits: hard_limits(),
            hint: None,
        }
    }

    /// Probes a level, then again without the denied features.
    fn try_level(&mut self, level: Level) {
        loop {
            // Plan as if the host had it.
            self.namespaces = Ok(());
            self.namespaces = try_namespaces(self, level);
            let Err(refusal) = &self.namespaces else { return };
            let refused = refusal.step.strip_prefix("mount ").map(PathBuf::from);
            if self.process_files.is_ok() && refused.as_deref() == Some(Path::new("/proc")) {
                self.process_files = Err(refusal.clone());
            } else if let Some(place) = refused.filter(|place| self.covered.contains(place)) {
                self.covered.retain(|covered| *covered != place);
            } else {
                return;
            }
        }
    }

    /// Whether a read-only overlay can cover a shown directory, so that no socket in it answers.
    pub(super) fn covers(&self, path: &Path, directory: BorrowedFd<'_>, is_mapped: bool) -> bool {
        !self.covered.is_empty()
            && (!is_mapped || self.is_since(MAPPED_LOWER))
            && rustix::fs::fstatfs(directory).is_ok_and(|found| LOWER.contains(&(found.f_type as u64)))
            && !root::has_mount_beneath(path)
    }

    /// Whether the kernel has at least this version.
    fn is_since(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.kernel.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= version)
    }

    /// Whether code must run as another user, because this process is root.
    pub(super) fn is_root(&self) -> bool {
        self.identity != Identity::Own
    }

    /// A directory for mounting the new root temporarily; nothing beneath it stays hidden.
    #[expect(clippy::unused_self, reason = "a fact about the host")]
    pub(super) fn mount_point(&self) -> &'static Path {
        let candidates = ["/tmp", "/mnt", "/var", "/usr"];
        candidates
            .into_iter()
            .map(Path::new)
            .find(|directory| directory.is_dir())
            .unwrap_or(Path::new("/proc"))
    }

    /// The hard limit of a resource.
    pub(super) fn hard_limit(&self, resource: Resource) -> u64 {
        self.hard_limits.iter().find(|(number, _)| *number == resource).map_or(u64::MAX, |(_, hard)| *hard)
    }

    pub(crate) fn system(&self) -> String {
        format!("Linux {}", self.kernel)
    }

    pub(crate) fn without_namespaces(&self) -> Self {
        let refusal = Refusal { step: "start child in namespaces".into(), error: libc::EPERM };
        Self { namespaces: Err(refusal), user_namespaces: false, ..self.clone() }
    }

    pub(crate) fn with_landlock(&self, abi: u32) -> Self {
        Self { landlock: abi.min(self.landlock), ..self.clone() }
    }

    pub(crate) fn without_overlays(&self) -> Self {
        Self { covered: Vec::new(), ..self.clone() }
    }

    pub(crate) fn without_process_files(&self) -> Self {
        let refusal = Refusal { step: "mount /proc".into(), error: libc::EPERM };
        Self { process_files: Err(refusal), ..self.clone() }
    }

    pub(crate) fn without_cgroups(&self) -> Self {
        Self { cgroups: Cgroups::default(), ..self.clone() }
    }

    pub(crate) fn availability(&self, level: Level) -> LevelAvailability {
        let missing = |reason: String, fix: &str| LevelAvailability::unavailable(level, reason, fix);
        if INIT.is_empty() {
            return missing(
                INIT_MISSING.to_owned(),
                "build with a linker for this target installed (`cc` or `rust-lld`)",
            );
        }
        if self.identity == Identity::None && level.is_boundary() {
            return missing(
                "this process is root in a user namespace without another user".into(),
                "run as an ordinary user, or map more users into the namespace",
            );
        }
        if !self.seccomp {
            return missing(
                "this kernel has no seccomp filters".into(),
                "use a kernel with CONFIG_SECCOMP_FILTER",
            );
        }
        match (&self.namespaces, level) {
            (Err(refusal), Level::Strict | Level::Maximum) => missing(refusal.to_string(), refusal.fix()),
            (Err(refusal), Level::Standard) if self.landlock == 0 => missing(
                format!("neither namespaces ({refusal}) nor Landlock"),
                "enable Landlock (`lsm=landlock,…` on the kernel's command line, Linux 5.13 or later) or namespaces",
            ),
            _ => LevelAvailability::available(level),
        }
    }

    pub(crate) fn capabilities(&self) -> Vec<Capability> {
        let mut list = Vec::new();
        let mut add = |name: &'static str, available: bool, reason: String, fix: &'static str| {
            list.push(Capability { name, available, reason, fix: (!available).then_some(fix) });
        };
        add(
            "first_process",
            !INIT.is_empty(),
            if INIT.is_empty() { INIT_MISSING.to_owned() } else { format!("{} bytes, embedded", INIT.len()) },
            "build with a linker for this target installed",
        );
        match &self.namespaces {
            Ok(()) => add("namespaces", true, "an empty sandbox started".into(), ""),
            Err(refusal) => add("namespaces", false, refusal.to_string(), refusal.fix()),
        }
        if let Some(restricted) = apparmor_restricts() {
            add(
                "apparmor_userns",
                !restricted || self.namespaces.is_ok(),
                if restricted {
                    "programs without a profile cannot use user namespaces"
                } else {
                    "not restricted"
                }
                .into(),
                "give this program an AppArmor profile that allows user namespaces",
            );
        }
        match &self.process_files {
            Ok(()) => add(
                "process_files",
                self.namespaces.is_ok(),
                "`/proc` can be mounted".into(),
                "allow namespaces",
            ),
            Err(refusal) => add(
                "process_files",
                false,
                format!("{refusal}; sandboxes have no `/proc`"),
                "in a container unmask `/proc` (`docker run --security-opt systempaths=unconfined`)",
            ),
        }
        for (name, available, without) in [
            ("clone3", self.calls.clone3, "cgroups are joined after the start"),
            ("pidfd", self.calls.pidfd, "processes are signaled by pid"),
            ("pidfd_open", self.calls.pidfd_open, "no pools and no sessions"),
            ("close_range", self.calls.close_range, "descriptors are closed one by one"),
        ] {
            let reason = if available { "is there" } else { without };
            let fix = "use Linux 5.9 or later, and allow the call in a container";
            add(name, available, reason.into(), fix);
        }
        if self.is_root() {
            let reason = format!("the host program is root; code runs as user {}", self.unprivileged);
            add(
                "user_namespaces",
                self.user_namespaces && self.namespaces.is_ok(),
                reason,
                "not needed as root",
            );
        }
        add("seccomp", self.seccomp, "filters".into(), "use a kernel with CONFIG_SECCOMP_FILTER");
        add(
            "landlock",
            self.landlock > 0,
            format!("version {}", self.landlock),
            "add `landlock` to the kernel's `lsm=` list (Linux 5.13 or later)",
        );
        add(
            "signal_scope",
            self.landlock >= SCOPES_SINCE,
            format!("Landlock version {}, needed {SCOPES_SINCE}", self.landlock),
            "use Linux 6.12 or later",
        );
        for (name, controller) in [
            ("cgroup_memory", "memory"),
            ("cgroup_pids", "pids"),
            ("cgroup_cpu", "cpu"),
            ("cgroup_kill", "kill"),
        ] {
            let found = self.cgroups.describe(controller);
            add(
                name,
                found.is_some(),
                found.unwrap_or_else(|| "this process cannot create cgroups".into()),
                "run inside a delegated group, for example `systemd-run --user --scope -p Delegate=yes PROGRAM`",
            );
        }
        let swap = self.cgroups.swap();
        let reason = swap.as_ref().map_or_else(Clone::clone, |found| (*found).to_owned());
        add(
            "swap_off",
            swap.is_ok(),
            reason,
            "count swap as memory (`swapaccount=1` on the kernel's command line), delegate the memory controller, or \
             switch swap off",
        );
        list
    }
}

/// The number of descriptors to close one by one; none where the kernel can close a range.
pub(super) fn one_by_one() -> Option<u32> {
    const MAX_CLOSED: u64 = 1 << 20;
    let hard = || rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    (!Calls::probe().close_range).then(|| hard().min(MAX_CLOSED) as u32)
}

fn apparmor_restricts() -> Option<bool> {
    let switch = std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").ok()?;
    Some(switch.trim() != "0")
}

/// The user for code, derived from the id map of this user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// The user of this process, who is unprivileged at least outside of this namespace.
    Own,
    /// Another user, because this process is root.
    Other(u32),
    /// None: this process is root without another user.
    None,
}

/// The user of sandboxed programs, if this process is root; `None` if they run as the user of this process.
///
/// A directory that belongs to this user works as a workspace on each file system. Others need a file system that can
/// map identities, which overlay file systems, as in containers, and `tmpfs` before Linux 6.3 cannot.
pub fn program_user() -> Option<u32> {
    match Identity::read() {
        Identity::Other(user) => Some(user),
        Identity::Own | Identity::None => None,
    }
}

impl Identity {
    fn read() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::choose(rustix::process::geteuid().as_raw(), &map)
    }

    fn choose(user: u32, map: &str) -> Self {
        if user != 0 {
            return Self::Own;
        }
        let ranges: Vec<[u32; 3]> = map
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u32>().ok());
                Some([fields.next()?, fields.next()?, fields.next()?])
            })
            .collect();
        let last = |range: &[u32; 3]| range[0].saturating_add(range[2].saturating_sub(1));
        let exists = |user: &u32| ranges.iter().any(|range| (range[0]..=last(range)).contains(user));
        let other = [UNUSED_USER, NOBODY].into_iter().find(exists);
        let other = other.or_else(|| ranges.iter().map(last).max().filter(|user| *user != 0));
        match other {
            Some(user) => Self::Other(user),
            // Root in an ordinary user's namespace has only that user's permissions.
            None if ranges.iter().any(|range| range[0] == 0 && range[1] != 0) => Self::Own,
            None => Self::None,
        }
    }
}

/// Starts an empty sandbox of a level and returns the failed step.
fn try_namespaces(facts: &Facts, level: Level) -> Result<(), Refusal> {
    let limits = Limits::default();
    let mut group = Group::default();
    let request = BackendRequest {
        level,
        limits: &limits,
        facts,
        host: None,
        original: None,
        home: None,
        directory: None,
        fresh: None,
        visible: Vec::new(),
        writable: Vec::new(),
        waits: false,
        hands_over: false,
        group: &mut group,
        egress_port: None,
        network: None,
        code: None,
        template: None,
    };
    let mut confinement = plan::confinement(request);
    confinement.steps.push(Step::Exit);
    let plan = Plan { namespaces: confinement.namespaces, cgroup: None, steps: confinement.steps };
    let refuse = |step: String, error: i32| Refusal { step, error };
    let mut child = launch::start(&plan).map_err(|error| {
        refuse("start child in namespaces".into(), error.raw_os_error().unwrap_or(libc::EIO))
    })?;
    let mut result = Ok(());
    let mut bytes = [0u8; 64];
    loop {
        match rustix::net::recv(child.control.as_fd(), &mut bytes, rustix::net::RecvFlags::empty()) {
            Ok((size, _)) if size >= 24 => {
                let number = |index: usize| {
                    bytes
                        .get(index * 8..index * 8 + 8)
                        .and_then(|part| part.try_into().ok())
                        .map_or(0, u64::from_ne_bytes)
                };
                if number(0) == u64::from(b'E') {
                    let step = plan.steps.get(number(1) as usize);
                    let name = step.map_or("set-up", Step::name);
                    let subject = step.and_then(Step::subject).map(|subject| format!(" {subject}"));
                    result = Err(refuse(format!("{name}{}", subject.unwrap_or_default()), number(2) as i32));
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    child.reap();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_identity_exists_and_is_not_root() {
        let cases = [
            (0, "0 0 4294967295\n", Identity::Other(UNUSED_USER)),
            (0, "0 100000 65536\n", Identity::Other(NOBODY)),
            (0, "0 1000 1\n1 100000 1000\n", Identity::Other(1000)),
            (0, "0 1000 1\n", Identity::Own),
            (0, "0 0 1\n", Identity::None),
            (0, "", Identity::None),
            (1000, "0 0 4294967295\n", Identity::Own),
        ];
        for (user, map, expected) in cases {
            assert_eq!(Identity::choose(user, map), expected, "{map:?}");
        }
    }

    #[test]
    fn poor_hosts_report_reason_and_fix() {
        let facts = Facts::probe();
        let poor = facts.without_namespaces();
        let strict = poor.availability(Level::Strict);
        assert!(!strict.available && strict.fix.unwrap().contains("sysctl"));
        assert!(!poor.with_landlock(0).availability(Level::Standard).available);
        let names: Vec<_> =
            poor.capabilities().iter().filter(|entry| !entry.available).map(|entry| entry.name).collect();
        assert!(names.contains(&"namespaces"), "{names:?}");
    }
}

//! Control groups of version 1, version 2 and hybrids: each controller is used where the host has it.
//!
//! The tests cover version 1 and hybrids on a real host, and version 2 in a simulated directory. `cargo xtask machine`
//! covers version 2 on a kernel of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

use super::kernel::clones_with_arguments;
use super::launch::high;
use crate::{Layer, Limits, MissingLayer};

/// Makes the names of groups unique across processes and runs.
static COUNTER: AtomicU64 = AtomicU64::new(0);
const PREFIX: &str = "toolpost-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The place where groups of a controller can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    parent: PathBuf,
}

/// The host's cgroups in which this process can create groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Cgroups {
    /// By controller: `memory`, `pids`, `cpu`, `cpuacct`; and `kill` for the version 2 mount.
    controllers: BTreeMap<&'static str, Hierarchy>,
}

const CONTROLLERS: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "freezer"];

impl Cgroups {
    /// Finds them, and removes leftover groups of dead processes.
    pub(super) fn discover() -> Self {
        let mut found = Self::find();
        let has_limits = ["memory", "pids"].iter().all(|name| found.controllers.contains_key(name));
        if !has_limits
            && let Some(own) = found.controllers.get("kill")
            && delegate(&own.parent)
        {
            found = Self::find();
        }
        for hierarchy in found.controllers.values() {
            remove_stale(&hierarchy.parent);
        }
        found
    }

    fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::from_tables(&mounts, &own, |path| {
            rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        })
    }

    /// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
    fn from_tables(mounts: &str, own: &str, writable: impl Fn(&Path) -> bool) -> Self {
        let mut controllers = BTreeMap::new();
        for line in mounts.lines() {
            let Some((place, kind)) = line.split_once(" - ") else { continue };
            let fields: Vec<&str> = place.split(' ').collect();
            let kind: Vec<&str> = kind.split(' ').collect();
            let (Some(root), Some(point), Some(options)) = (fields.get(3), fields.get(4), kind.get(2)) else {
                continue;
            };
            match kind.first() {
                Some(&"cgroup") => {
                    for controller in CONTROLLERS {
                        if options.split(',').any(|option| option == controller)
                            && let Some(parent) = own_directory(own, Some(controller), root, point)
                            && writable(&parent)
                        {
                            controllers.insert(controller, Hierarchy { version: Version::One, parent });
                        }
                    }
                }
                Some(&"cgroup2") => {
                    let Some(directory) = own_directory(own, None, root, point) else { continue };
                    Self::version_two(&mut controllers, &directory, Path::new(point), &writable);
                }
                _ => {}
            }
        }
        Self { controllers }
    }

    /// Finds the nearest ancestor group that delegates controllers and is writable; a group with processes
    /// cannot delegate.
    fn version_two(
        controllers: &mut BTreeMap<&'static str, Hierarchy>,
        own: &Path,
        top: &Path,
        writable: &impl Fn(&Path) -> bool,
    ) {
        for directory in own.ancestors().take_while(|directory| directory.starts_with(top)) {
            if !writable(directory) || !writable(&directory.join("cgroup.procs")) {
                break;
            }
            let handed = fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
            let hierarchy = || Hierarchy { version: Version::Two, parent: directory.to_owned() };
            for controller in CONTROLLERS {
                if handed.split_whitespace().any(|name| name == controller) {
                    controllers.entry(controller).or_insert_with(hierarchy);
                }
            }
            controllers.entry("kill").or_insert_with(hierarchy);
            if controllers
                .values()
                .any(|found| found.version == Version::Two && controllers_at(controllers, directory))
            {
                break;
            }
        }
    }

    /// Whether the memory of runs stays out of swap, and the reason.
    pub(super) fn swap(&self) -> Result<&'static str, String> {
        if !has_swap(&fs::read_to_string("/proc/swaps").unwrap_or_default()) {
            return Ok("the host has no swap space");
        }
        let Some(hierarchy) = self.controllers.get("memory") else {
            return Err("the host has swap space, and this process cannot create memory cgroups".into());
        };
        let counted = hierarchy.version == Version::Two
            || hierarchy.parent.join("memory.memsw.limit_in_bytes").exists();
        if counted { Ok("swap counts as memory") } else { Err("the kernel does not count swap".into()) }
    }

    /// Describes a controller in one line.
    pub(super) fn describe(&self, controller: &str) -> Option<String> {
        let hierarchy = self.controllers.get(controller)?;
        let version = if hierarchy.version == Version::One { 1 } else { 2 };
        Some(format!("version {version}, groups in {}", hierarchy.parent.display()))
    }
}

/// Whether a directory delegates a controller, so that groups can be created and killed there.
fn controllers_at(controllers: &BTreeMap<&'static str, Hierarchy>, directory: &Path) -> bool {
    controllers.iter().any(|(name, hierarchy)| *name != "kill" && hierarchy.parent == directory)
}

/// The directory of this process's group in a hierarchy, relative to the mount's root.
fn own_directory(own: &str, controller: Option<&str>, root: &str, point: &str) -> Option<PathBuf> {
    let line = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match controller {
            Some(controller) => names.split(',').any(|name| name == controller),
            None => number == "0" && names.is_empty(),
        };
        matches.then_some(path)
    })?;
    let inner = Path::new(line).strip_prefix(root).ok()?;
    Some(Path::new(point).join(inner))
}

/// Delegates the controllers of a version 2 group to its subgroups. Returns whether the kernel did.
///
/// A group other than the root cannot delegate while it has processes. This process moves into a subgroup if it is the
/// only one, as in a service or a scope with `Delegate=yes`. It moves no other process.
fn delegate(group: &Path) -> bool {
    let available = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let controllers: Vec<String> = ["memory", "pids", "cpu"]
        .iter()
        .filter(|name| available.split_whitespace().any(|found| found == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if controllers.is_empty() {
        return false;
    }
    let enable = || fs::write(group.join("cgroup.subtree_control"), controllers.join(" "));
    match enable() {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        enabled => return enabled.is_ok(),
    }
    let own = std::process::id().to_string();
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    if processes.trim() != own {
        return false;
    }
    let subgroup = group.join(format!("{PREFIX}{own}-main"));
    let moved = fs::create_dir(&subgroup).and_then(|()| fs::write(subgroup.join("cgroup.procs"), &own));
    moved.is_ok() && enable().is_ok()
}

/// Removes empty groups of dead processes. The kernel keeps groups in use.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The cgroups of one run.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The unique directories.
    directories: Vec<PathBuf>,
    places: BTreeMap<&'static str, (Version, PathBuf)>,
    failures: Vec<(&'static str, String)>,
    joins: Vec<OwnedFd>,
    born: Option<OwnedFd>,
    /// Whether the kernel keeps the group out of swap.
    holds_swap: bool,
}

impl Group {
    /// Creates groups for the limits. Records missing controllers instead of failing.
    pub(super) fn create(cgroups: &Cgroups, limits: &Limits, without_namespaces: bool) -> Self {
        Self::create_with(cgroups, limits, if without_namespaces { &["kill"] } else { &[] })
    }

    /// A variant with more controllers: `kill` for the version 2 mount, `freezer`, `cpuacct`.
    pub(super) fn create_with(cgroups: &Cgroups, limits: &Limits, further: &[&'static str]) -> Self {
        let mut group = Self::default();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut wanted = vec!["memory", "pids"];
        if limits.cpu_quota.is_some() {
            wanted.push("cpu");
        }
        if limits.cpu.is_some() {
            wanted.push("cpuacct");
            wanted.push("cpu");
        }
        wanted.extend(further.iter().filter(|further| !wanted.contains(further)).collect::<Vec<_>>());
        for controller in wanted {
            let Some(hierarchy) = cgroups.controllers.get(controller) else {
                group.failures.push((controller, "this process cannot create cgroups for it".into()));
                continue;
            };
            if let Err(error) = group.add(controller, hierarchy, &name, limits) {
                group.failures.push((controller, format!("{}: {error}", hierarchy.parent.display())));
            }
        }
        group
    }

    fn add(
        &mut self,
        controller: &'static str,
        hierarchy: &Hierarchy,
        name: &str,
        limits: &Limits,
    ) -> io::Result<()> {
        let directory = hierarchy.parent.join(name);
        if !self.directories.contains(&directory) {
            fs::create_dir(&directory)?;
            self.directories.push(directory.clone());
            match hierarchy.version {
                Version::One => {
                    // Writing "0" to `tasks` moves only the writer, which is much cheaper than
                    // `cgroup.procs`.
                    let tasks = rustix::fs::open(
                        directory.join("tasks"),
                        OFlags::WRONLY | OFlags::CLOEXEC,
                        Mode::empty(),
                    )?;
                    self.joins.push(high(tasks)?);
                }
                // A container may block `clone3`: then the child joins after its start.
                Version::Two if !clones_with_arguments() => {
                    let processes = rustix::fs::open(
                        directory.join("cgroup.procs"),
                        OFlags::WRONLY | OFlags::CLOEXEC,
                        Mode::empty(),
                    )?;
                    self.joins.push(high(processes)?);
                }
                Version::Two => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    self.born = Some(rustix::fs::open(&directory, flags, Mode::empty())?);
                }
            }
        }
        let write = |file: &str, text: String| fs::write(directory.join(file), text);
        // One more than the program's limit: the first process.
        let processes = u64::from(limits.processes) + 1;
        match (hierarchy.version, controller) {
            (Version::One, "memory") => {
                write("memory.limit_in_bytes", limits.memory.to_string())?;
                // Memory plus swap. The file is missing without swap accounting.
                self.holds_swap = write("memory.memsw.limit_in_bytes", limits.memory.to_string()).is_ok();
            }
            (Version::Two, "memory") => {
                write("memory.max", limits.memory.to_string())?;
                self.holds_swap = write("memory.swap.max", "0".into()).is_ok();
                // If one process is killed, kill all: the rest of the program is useless.
                let _ = write("memory.oom.group", "1".into());
            }
            (_, "pids") => write("pids.max", processes.to_string())?,
            (version, "cpu") => {
                if let Some(quota) = limits.cpu_quota {
                    let period = 100_000u64;
                    let share = ((f64::from(quota) * period as f64) as u64).max(1_000);
                    match version {
                        Version::One => {
                            write("cpu.cfs_period_us", period.to_string())?;
                            write("cpu.cfs_quota_us", share.to_string())?;
                        }
                        Version::Two => write("cpu.max", format!("{share} {period}"))?,
                    }
                }
            }
            _ => {}
        }
        self.places.insert(controller, (hierarchy.version, directory));
        Ok(())
    }

    /// These groups for observers: dropping this value removes none.
    pub(super) fn view(&self) -> Self {
        let mut view = Self::default();
        view.places.clone_from(&self.places);
        view
    }

    /// The descriptors for joining.
    pub(super) fn take_joins(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.joins)
    }

    /// The group in which the child starts.
    pub(super) fn take_born(&mut self) -> Option<OwnedFd> {
        self.born.take()
    }

    /// Moves a waiting process into the group, if it could not start there.
    pub(super) fn adopt(&self, pid: i32) -> io::Result<()> {
        for (version, directory) in self.places.values() {
            if *version == Version::Two {
                fs::write(directory.join("cgroup.procs"), pid.to_string())?;
            }
        }
        Ok(())
    }

    /// Whether the memory of all processes together is limited.
    pub(super) fn limits_memory(&self) -> bool {
        self.places.contains_key("memory")
    }

    /// Whether the number of processes of this run is limited.
    pub(super) fn limits_processes(&self) -> bool {
        self.places.contains_key("pids")
    }

    /// A descriptor that kills everything in the group, also for processes that could not open it.
    pub(super) fn open_kill(&self) -> Option<OwnedFd> {
        let mut directories = self.places.values().filter(|(version, _)| *version == Version::Two);
        directories.find_map(|(_, directory)| {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::open(directory.join("cgroup.kill"), flags, Mode::empty()).ok()?;
            high(file).ok()
        })
    }

    /// Whether everything in the group can be killed at once.
    pub(super) fn kills(&self) -> bool {
        self.places
            .values()
            .any(|(version, directory)| *version == Version::Two && directory.join("cgroup.kill").exists())
    }

    /// Kills everything in the group. Without `cgroup.kill`, by pid, which the caller must repeat.
    pub(super) fn kill(&self) {
        for (version, directory) in self.places.values() {
            if *version == Version::Two && fs::write(directory.join("cgroup.kill"), "1").is_ok() {
                return;
            }
        }
        if let Some((_, directory)) = self.places.values().next() {
            for pid in fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }

    /// Freezes or thaws the group. Returns whether the kernel did: it needs a version 1 freezer or a version
    /// 2 group.
    pub(super) fn freeze(&self, frozen: bool) -> bool {
        let two = self.places.values().filter(|(version, _)| *version == Version::Two);
        if two.into_iter().any(|(_, directory)| {
            fs::write(directory.join("cgroup.freeze"), if frozen { "1" } else { "0" }).is_ok()
        }) {
            return true;
        }
        self.places.get("freezer").is_some_and(|(_, directory)| {
            fs::write(directory.join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" }).is_ok()
        })
    }

    /// Adds the limits of the groups to the lists of layers.
    pub(super) fn describe(&self, limits: &Limits, layers: &mut Vec<Layer>, missing: &mut Vec<MissingLayer>) {
        let mut parts = vec![("memory", Layer::MemoryLimit), ("pids", Layer::ProcessLimit)];
        if limits.cpu_quota.is_some() {
            parts.push(("cpu", Layer::CpuQuota));
        }
        for (controller, layer) in parts {
            if self.places.contains_key(controller) {
                layers.push(layer);
            } else if let Some((_, reason)) = self.failures.iter().find(|(name, _)| *name == controller) {
                let mut reason = format!("cgroup `{controller}`: {reason}");
                if layer == Layer::MemoryLimit {
                    reason.push_str("; only single processes are limited, not their sum");
                }
                missing.push(MissingLayer { layer, reason });
            }
        }
        if self.holds_swap || !has_swap(&fs::read_to_string("/proc/swaps").unwrap_or_default()) {
            layers.push(Layer::NoSwap);
        } else {
            missing.push(MissingLayer {
                layer: Layer::NoSwap,
                reason: "the host has swap space and no cgroup keeps the run out of it (`swapaccount=1`)"
                    .into(),
            });
        }
    }

    fn read(&self, controller: &str, one: &str, two: &str) -> Option<String> {
        let (version, directory) = self.places.get(controller)?;
        fs::read_to_string(directory.join(if *version == Version::One { one } else { two })).ok()
    }

    /// The number of processes that the kernel killed for memory.
    pub(super) fn memory_kills(&self) -> u64 {
        self.read("memory", "memory.oom_control", "memory.events").map_or(0, |text| keyed(&text, "oom_kill"))
    }

    /// The number of processes that the kernel denied.
    pub(super) fn refused_processes(&self) -> u64 {
        self.read("pids", "pids.events", "pids.events").map_or(0, |text| keyed(&text, "max"))
    }

    /// The peak memory in bytes.
    pub(super) fn peak_memory(&self) -> Option<u64> {
        self.read("memory", "memory.max_usage_in_bytes", "memory.peak")?.trim().parse().ok()
    }

    /// The number of processes in the group, zombies included.
    pub(super) fn processes(&self) -> Option<u64> {
        self.read("pids", "pids.current", "pids.current")?.trim().parse().ok()
    }

    /// The processor time in microseconds.
    pub(super) fn processor_micros(&self) -> Option<u64> {
        if let Some((Version::One, directory)) = self.places.get("cpuacct") {
            let nanos: u64 = fs::read_to_string(directory.join("cpuacct.usage")).ok()?.trim().parse().ok()?;
            return Some(nanos / 1000);
        }
        let (Version::Two, directory) = self.places.get("cpu")? else { return None };
        Some(keyed(&fs::read_to_string(directory.join("cpu.stat")).ok()?, "usage_usec"))
    }

    /// The processor time in the kernel, in microseconds.
    pub(super) fn system_micros(&self) -> Option<u64> {
        if let Some((Version::One, directory)) = self.places.get("cpuacct") {
            let nanos = fs::read_to_string(directory.join("cpuacct.usage_sys")).ok()?;
            return Some(nanos.trim().parse::<u64>().ok()? / 1000);
        }
        let (Version::Two, directory) = self.places.get("cpu")? else { return None };
        Some(keyed(&fs::read_to_string(directory.join("cpu.stat")).ok()?, "system_usec"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for directory in &self.directories {
            // The last process may need a moment to leave.
            for attempt in 0..50 {
                match fs::remove_dir(directory) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(std::time::Duration::from_micros(100 << (attempt / 10)));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Whether `/proc/swaps` has an entry below its heading.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().count() > 1
}

/// The number after a key in lines `key number`.
fn keyed(text: &str, key: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
32 31 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
36 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
40 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
41 31 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_hybrid_host_uses_each_controller_where_it_is() {
        let own = "8:pids:/\n4:memory:/jobs/7\n1:cpu:/\n0::/\n";
        let found = Cgroups::from_tables(HYBRID, own, |_| true);
        assert_eq!(found.describe("memory").unwrap(), "version 1, groups in /sys/fs/cgroup/memory/jobs/7");
        assert_eq!(found.describe("kill").unwrap(), "version 2, groups in /sys/fs/cgroup/unified/");
        assert!(found.describe("cpuacct").is_none());
        assert!(Cgroups::from_tables(HYBRID, own, |_| false).controllers.is_empty());
    }

    #[test]
    fn version_two_takes_the_nearest_delegating_group() {
        let directory = tempfile::tempdir().unwrap();
        let user = directory.path().join("user");
        let scope = user.join("app.scope");
        fs::create_dir_all(&scope).unwrap();
        fs::write(user.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        fs::write(scope.join("cgroup.subtree_control"), "\n").unwrap();
        let mounts = format!("30 1 0:26 / {} rw - cgroup2 cgroup2 rw\n", directory.path().display());
        let found = Cgroups::from_tables(&mounts, "0::/user/app.scope\n", |_| true);
        assert!(found.describe("memory").unwrap().ends_with("/user"), "{found:?}");

        let limits = Limits::default().with_cpu_quota(0.5).with_memory(64 << 20).with_processes(9);
        let group = Group::create(&found, &limits, false);
        let place = group.places["memory"].1.clone();
        let read = |file: &str| fs::read_to_string(place.join(file)).unwrap();
        assert_eq!(read("memory.max"), (64 << 20).to_string());
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("pids.max"), "10");
        assert_eq!(read("cpu.max"), "50000 100000");
        assert!(group.limits_memory());
        fs::write(place.join("memory.events"), "low 0\noom 3\noom_kill 2\n").unwrap();
        fs::write(place.join("pids.events"), "max 4\n").unwrap();
        fs::write(place.join("memory.peak"), "12345\n").unwrap();
        fs::write(place.join("cpu.stat"), "usage_usec 77\nuser_usec 5\n").unwrap();
        assert_eq!((group.memory_kills(), group.refused_processes()), (2, 4));
        assert_eq!((group.peak_memory(), group.processor_micros()), (Some(12345), Some(77)));
    }

    #[test]
    fn a_missing_controller_is_reported_and_never_claimed() {
        let group = Group::create(&Cgroups::default(), &Limits::default(), false);
        let (mut layers, mut missing) = (Vec::new(), Vec::new());
        group.describe(&Limits::default(), &mut layers, &mut missing);
        assert!(layers.is_empty() || layers == [Layer::NoSwap], "{layers:?}");
        assert!(!has_swap("Filename Type Size Used Priority\n") && !has_swap(""));
        assert!(has_swap("Filename Type Size Used Priority\n/dev/vdb partition 1 0 -2\n"));
        assert!(missing[0].reason.contains("not their sum"), "{missing:?}");
    }
}

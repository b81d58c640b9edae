//! The plan of a run: which steps give a level on this host, and which layers they are.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::mount::MountFlags;

use super::cgroup::Group;
use super::files::Owner;
use super::landlock::{Access, Landlock, PathRule, SCOPES_SINCE, TCP_SINCE};
use super::launch::c_string;
use super::links::Link;
use super::root::{DEVICES, READ_ONLY, SCRATCH, Tree, is_shown, path, readable_system, temporary, under_old};
use super::seccomp::{self, Circumstances};
use super::steps::Step;
use super::template::TEMPLATE_SHOWS;
use super::workspace::HostFolder;
use super::{Facts, identity};
use crate::{Layer, Level, Limits, MissingLayer};

/// The identity inside a user namespace.
pub(super) const INSIDE: u32 = 1000;
/// Where a fresh workspace, and at level `strict` every workspace, is.
pub(super) const WORKSPACE: &str = "/workspace";

/// Queued signals and timers of a run. The kernel counts them for the host's user too, who has many more.
const MAX_PENDING_SIGNALS: u64 = 1024;

/// What the plan is made from.
pub(super) struct Request<'a> {
    pub(super) level: Level,
    pub(super) limits: &'a Limits,
    pub(super) facts: &'a Facts,
    /// A host folder as workspace; none is a fresh one.
    pub(super) host: Option<&'a mut HostFolder>,
    /// Where the program starts, beneath the workspace.
    pub(super) directory: Option<&'a str>,
    /// Without namespaces: the folder that the host made as fresh workspace.
    pub(super) fresh: Option<PathBuf>,
    /// Folders and files to show read-only: canonical, with the identity that the host saw.
    pub(super) visible: Vec<Visible>,
    /// Folders of the host that the program writes to itself, at their own paths.
    pub(super) writable: Vec<HostFolder>,
    /// Whether the child must wait for the host to fill the workspace.
    pub(super) waits: bool,
    /// Whether the host gets a private layer as the program sees it.
    pub(super) hands_over: bool,
    pub(super) group: &'a mut Group,
    /// An empty network namespace that was made before.
    pub(super) network: Option<OwnedFd>,
    /// The port of the run's own loopback on which its proxy listens; none is no network.
    pub(super) way_out: Option<u16>,
    /// The code, which stands in the place of `/proc` where none can be mounted.
    pub(super) code: Option<Code<'a>>,
    /// A mount namespace with a private root that was made before, if [`fits_template`].
    pub(super) template: Option<Arc<OwnedFd>>,
}

/// What a program reads as its code or runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code<'a> {
    pub(super) content: &'a [u8],
    pub(super) is_executable: bool,
}

/// Whether a run shows nothing but what every run of level `strict` shows.
pub(super) fn fits_template(level: Level, facts: &Facts, has_host_folder: bool, visible: &[Visible]) -> bool {
    level >= Level::Strict
        && facts.is_root()
        && facts.namespaces.is_ok()
        && !has_host_folder
        && visible.iter().all(|entry| entry.path.starts_with(TEMPLATE_SHOWS) && entry.links.is_empty())
}

/// A folder or file of the host that is shown read-only at its own path.
#[derive(Debug)]
pub(super) struct Visible {
    pub(super) path: PathBuf,
    pub(super) is_folder: bool,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// A detached mount that shows the host user's files as the program's own.
    pub(super) tree: Option<rustix::fd::OwnedFd>,
    /// The symbolic links of the host by which it was named, where no level shows them.
    pub(super) links: Vec<Link>,
}

/// The steps up to the arrangement of descriptors, and what they amount to.
pub(super) struct Confinement {
    pub(super) level: Level,
    pub(super) namespaces: u64,
    pub(super) steps: Vec<Step>,
    pub(super) layers: Vec<Layer>,
    pub(super) missing: Vec<MissingLayer>,
    /// Where the program works, as it sees it.
    pub(super) workspace: PathBuf,
    /// Whether everything lives in a process namespace.
    pub(super) own_namespaces: bool,
    /// Whether signals of the program stay inside.
    pub(super) scoped_signals: bool,
    /// The port of the run's proxy.
    pub(super) way_out: Option<u16>,
}

/// Plans the confinement of a run.
pub(super) fn confinement(request: Request<'_>) -> Confinement {
    if request.facts.namespaces.is_ok() { with_namespaces(request) } else { without_namespaces(request) }
}

/// What a person should know about the level on this host, besides what is missing.
pub(super) fn notes(level: Level, facts: &Facts, limits: &Limits) -> Vec<String> {
    let mut notes = Vec::new();
    match level {
        Level::Minimal => {
            notes.push(
                "level `minimal` promises no boundary: the program has the files and the network of the host's user"
                    .into(),
            );
            if facts.is_root() {
                notes.push(
                    "the program runs as root without capabilities: what belongs to root it can read and change"
                        .into(),
                );
            }
            if limits.connections.is_some() || limits.requests.is_some() || limits.network_bytes.is_some() {
                notes.push(
                    "`connections`, `requests` and `network_bytes` are not limited: level `minimal` has the host's \
                     network"
                        .into(),
                );
            }
        }
        Level::Maximum => notes.push(
            "level `maximum` on the process backend has no second kernel: program and host share one".into(),
        ),
        _ => {}
    }
    if level.is_boundary()
        && facts.namespaces.is_ok()
        && let Err(refusal) = &facts.process_files
    {
        notes.push(format!(
            "this host refuses a `/proc` of one's own ({refusal}): there is none in the sandbox"
        ));
    }
    if level.is_boundary() && facts.namespaces.is_ok() {
        if facts.covered.is_empty() {
            notes.push(
                "this host mounts no overlays in the sandbox: code can watch and lock files of the system that it sees"
                    .into(),
            );
        }
        // Without user namespaces root's code is a user of its own, with quotas of its own.
        if !facts.quotas && (facts.user_namespaces || !facts.is_root()) {
            notes.push(
                "this host sets no quotas in the sandbox: code can take all `inotify` instances of the user"
                    .into(),
            );
        }
    }
    if facts.hard_limit(libc::RLIMIT_CORE) < 1 {
        notes.push(
            "the hard limit of core dumps is 0 here, which does not keep a helper of the host from taking them by a \
             pipe; 1 does"
                .into(),
        );
    }
    for (is_there, what) in [
        (facts.calls.close_range, "descriptors are closed one by one: this host has no `close_range`"),
        (facts.calls.pidfd, "processes are signalled by number: this host has no `pidfd_send_signal`"),
        (facts.calls.clone3, "control groups are joined after the start: this host has no `clone3`"),
    ] {
        if !is_there {
            notes.push(what.into());
        }
    }
    notes
}

/// A private root in namespaces of its own.
fn with_namespaces(request: Request<'_>) -> Confinement {
    let Request {
        code,
        level,
        limits,
        facts,
        host,
        directory,
        visible,
        writable,
        waits,
        hands_over,
        group,
        network,
        way_out,
        template,
        ..
    } = request;
    let is_writable = host.as_ref().is_none_or(|folder| !folder.is_read_only());
    let as_root = facts.is_root();
    let user_namespace = if as_root && facts.user_namespaces {
        let inside = Owner { user: INSIDE, group: INSIDE };
        identity::namespace(inside, facts.unprivileged).ok()
    } else {
        None
    };
    let mut namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let mut layers = vec![
        Layer::MountNamespace,
        Layer::PidNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::NetworkNamespace,
        Layer::PrivateRoot,
        Layer::TreeKill,
        Layer::UnprivilegedUser,
    ];
    let mut missing = Vec::new();
    let mut tree = Tree::default();
    if as_root {
        // Real root sets up with its own rights, and enters a user namespace at the end: then even a capability gained
        // there has no power over these mounts, which belong to the namespace above.
    } else {
        namespaces |= libc::CLONE_NEWUSER;
        let inside = Owner { user: INSIDE, group: INSIDE };
        tree.steps.extend(identity_map(inside, facts.user, facts.group));
        if facts.quotas {
            tree.steps.extend(identity::quotas());
        }
        layers.push(Layer::UserNamespace);
    }
    match network {
        Some(network) => tree.steps.push(Step::EnterNetwork(network)),
        None => namespaces |= libc::CLONE_NEWNET,
    }
    if let Some(port) = way_out {
        // While there is the right to: the network belongs to the namespace of users that the child is in now.
        tree.steps.push(Step::Listen { port });
    }
    for tasks in group.take_joins() {
        tree.steps.push(Step::Join(tasks));
    }
    layers.push(Layer::CgroupNamespace);
    let workspace = match &host {
        Some(folder) if level == Level::Standard => folder.shown(),
        _ => PathBuf::from(WORKSPACE),
    };
    let scratch = (limits.workspace_bytes, limits.workspace_inodes);
    let is_from_template = template.is_some();
    let mut shown = Vec::new();
    if let Some(template) = template {
        tree.steps.push(Step::EnterMounts(template));
        tree.steps.push(Step::Unshare(libc::CLONE_NEWCGROUP | libc::CLONE_NEWNS));
        shown.push(PathBuf::from(TEMPLATE_SHOWS));
    } else {
        namespaces |= libc::CLONE_NEWNS;
        tree.steps.push(Step::Unshare(libc::CLONE_NEWCGROUP));
        tree.begin(facts.mount_point());
        tree.scratch();
    }
    tree.steps.push(Step::HostName(b"sandbox"));
    // First, because what is shown may lie beneath.
    for (folder, no_execute) in SCRATCH {
        tree.steps.push(temporary(Path::new(folder), scratch.0, scratch.1, no_execute));
    }
    if !is_from_template {
        shown = tree.system(level);
    }
    tree.overlays(&facts.covered);
    let mut links = Vec::new();
    for Visible { path: wanted, is_folder, device, inode, tree: detached, links: named } in visible {
        links.extend(named);
        if is_shown(&shown, &wanted) {
            continue;
        }
        tree.passage(&wanted);
        if is_folder {
            tree.folder(&wanted);
        } else {
            tree.file(&wanted, Vec::new());
        }
        match detached {
            Some(detached) => tree.steps.push(Step::Attach { tree: detached, target: path(&wanted) }),
            None => tree.steps.push(Step::Bind {
                source: under_old(&wanted),
                target: path(&wanted),
                attributes: READ_ONLY,
            }),
        }
        tree.steps.push(Step::Verify { path: path(&wanted), device, inode });
        shown.push(wanted);
    }
    for (link, target) in links {
        tree.link(&shown, &link, &target);
    }
    if !is_from_template {
        tree.devices();
        tree.places(&workspace, &shown);
    }
    if facts.process_files.is_ok() {
        tree.steps.push(Step::Mount {
            kind: c"proc",
            target: c_string("/proc"),
            options: c_string("subset=pid"),
            flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        });
    } else {
        tree.steps.extend(stand_in(code));
    }
    match host {
        Some(folder) => {
            folder.plan(&workspace, &|inner| under_old(inner), &mut tree.steps);
            if hands_over && folder.layer().is_some() {
                tree.steps.push(Step::SendFolder(path(&workspace)));
            }
            describe(folder, &mut layers, &mut missing);
        }
        None => {
            let owner = if as_root { format!(",uid={0},gid={0}", facts.unprivileged) } else { String::new() };
            let options = format!("size={},nr_inodes={},mode=755{owner}", scratch.0, scratch.1);
            tree.steps.push(Step::Mount {
                kind: c"tmpfs",
                target: path(&workspace),
                options: c_string(options),
                flags: MountFlags::NOSUID | MountFlags::NODEV,
            });
            layers.push(Layer::WorkspaceQuota);
            tree.steps.push(Step::SendFolder(path(&workspace)));
        }
    }
    let mut rules = private_root_rules(is_writable.then_some(workspace.as_path()));
    for mut folder in writable {
        let place = folder.path().to_owned();
        // What lies in the workspace is there already.
        if !place.starts_with(&workspace) {
            tree.passage(&place);
            tree.folder(&place);
        }
        folder.plan(&place, &|inner| under_old(inner), &mut tree.steps);
        rules.push(PathRule { path: path(&place), access: Access::Write, is_folder: true });
    }
    if !is_from_template {
        tree.finish();
    }
    if waits {
        tree.steps.push(Step::Await);
    }
    let mut steps = tree.steps;
    if as_root {
        let dumpable = is_dumpable();
        match user_namespace {
            Some(namespace) => {
                steps.push(Step::EnterUser(namespace));
                steps.push(Step::Identity { user: INSIDE, group: INSIDE, dumpable });
                layers.push(Layer::UserNamespace);
            }
            None => {
                let user = facts.unprivileged;
                // While there still is the right to; in the other case the new namespace gives it again.
                steps.push(Step::DropBounding);
                steps.push(Step::Identity { user, group: user, dumpable });
                missing.push(MissingLayer {
                    layer: Layer::UserNamespace,
                    reason:
                        "this host refuses user namespaces; the program runs as an unprivileged user instead"
                            .into(),
                });
            }
        }
    }
    steps.push(Step::Enter(path(start(&workspace, directory))));
    let counted = if as_root {
        // One user runs all code, so its processes are counted only where no cgroup counts those of this run.
        (!group.limits_processes()).then(|| super::tree::count_of_user(facts.unprivileged))
    } else {
        // In a user namespace of its own the kernel counts the processes of this run alone.
        Some(0)
    };
    let own_namespaces = true;
    let mut confinement = Confinement {
        level,
        namespaces: namespaces as u64,
        steps,
        layers,
        missing,
        workspace,
        own_namespaces,
        scoped_signals: true,
        way_out,
    };
    confinement.lock(facts, limits, group, counted, rules);
    confinement
}

/// What a folder of the host as workspace amounts to.
pub(super) fn describe(folder: &HostFolder, layers: &mut Vec<Layer>, missing: &mut Vec<MissingLayer>) {
    // What cannot be written at all is protected with everything in it.
    if folder.layer().is_some() {
        layers.extend([Layer::ProtectedPaths, Layer::PrivateLayer]);
        missing.push(MissingLayer {
            layer: Layer::WorkspaceQuota,
            reason: "the host measures the private layer; the kernel does not limit it".into(),
        });
        return;
    }
    match folder.missed() {
        None => layers.push(Layer::ProtectedPaths),
        Some(reason) => missing.push(MissingLayer {
            layer: Layer::ProtectedPaths,
            reason: format!("what is at the top is protected, not every repository beneath: {reason}"),
        }),
    }
    missing.push(MissingLayer {
        layer: Layer::WorkspaceQuota,
        reason: "a folder of the host is limited by its file system; only each file has a limit".into(),
    });
}

/// What stands at `/proc` where the kernel refuses to mount one: nothing but the code at the path by which programs read
/// it. The host's own is never shown.
fn stand_in(code: Option<Code<'_>>) -> Vec<Step> {
    let Some(Code { content, is_executable }) = code else { return Vec::new() };
    let file = c_string(format!("/proc/self/fd/{}", super::steps::CODE));
    let mut steps = vec![
        Step::Mount {
            kind: c"tmpfs",
            target: c_string("/proc"),
            options: c_string(format!("size={},nr_inodes=16,mode=755", content.len() + (64 << 10))),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        },
        Step::Folder { path: c_string("/proc/self"), mode: 0o755 },
        Step::Folder { path: c_string("/proc/self/fd"), mode: 0o755 },
        Step::File { path: file.clone(), content: content.to_vec() },
    ];
    if is_executable {
        steps.push(Step::Executable(file));
    }
    steps.push(Step::Attributes { path: c_string("/proc"), attributes: READ_ONLY });
    steps
}

/// Whether this process may be looked into, which a change of identity in its memory would alter.
pub(super) fn is_dumpable() -> bool {
    !matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::NotDumpable))
}

/// Maps the host's user to an identity inside.
pub(super) fn identity_map(inside: Owner, user: u32, group: u32) -> [Step; 3] {
    let write = |file: &str, text: String| Step::Write { path: c_string(file), text: text.into_bytes() };
    [
        write("/proc/self/setgroups", "deny".into()),
        write("/proc/self/uid_map", format!("{} {user} 1", inside.user)),
        write("/proc/self/gid_map", format!("{} {group} 1", inside.group)),
    ]
}

/// Where the program starts.
pub(super) fn start(workspace: &Path, directory: Option<&str>) -> PathBuf {
    directory.map_or_else(|| workspace.to_owned(), |directory| workspace.join(directory))
}

fn private_root_rules(writable: Option<&Path>) -> Vec<PathRule> {
    let rule = |place: &Path, access, is_folder| PathRule { path: path(place), access, is_folder };
    let mut rules = vec![rule(Path::new("/"), Access::Read, true)];
    for folder in ["/tmp", "/dev/shm"] {
        rules.push(rule(Path::new(folder), Access::Write, true));
    }
    rules.extend(writable.map(|workspace| rule(workspace, Access::Write, true)));
    rules.push(rule(Path::new("/dev"), Access::Device, true));
    rules
}

/// The host's root, of which Landlock leaves the system folders and the workspace.
fn without_namespaces(request: Request<'_>) -> Confinement {
    let Request { level, limits, facts, host, directory, fresh, visible, writable, group, .. } = request;
    let is_writable = host.as_ref().is_none_or(|folder| !folder.is_read_only());
    let refusal =
        facts.namespaces.as_ref().err().map_or_else(|| "not available".to_owned(), ToString::to_string);
    let mut missing: Vec<MissingLayer> = [
        Layer::UserNamespace,
        Layer::MountNamespace,
        Layer::PidNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::CgroupNamespace,
        Layer::NetworkNamespace,
        Layer::PrivateRoot,
    ]
    .into_iter()
    .map(|layer| MissingLayer { layer, reason: refusal.clone() })
    .collect();
    let mut layers = Vec::new();
    let mut steps = Vec::new();
    for tasks in group.take_joins() {
        steps.push(Step::Join(tasks));
    }
    let rule = |place: &Path, access| PathRule { path: path(place), access, is_folder: place.is_dir() };
    let mut rules = Vec::new();
    for entry in readable_system() {
        if let Ok(real) = std::fs::canonicalize(entry) {
            rules.push(rule(&real, Access::Read));
        }
    }
    for Visible { path: wanted, .. } in &visible {
        rules.push(rule(wanted, Access::Read));
    }
    rules.extend(writable.iter().map(|folder| rule(folder.path(), Access::Write)));
    for name in DEVICES {
        let device = Path::new("/dev").join(name);
        if device.exists() {
            rules.push(rule(&device, Access::Device));
        }
    }
    let workspace = match (&host, fresh) {
        (Some(folder), _) => folder.path().to_owned(),
        (None, Some(folder)) => folder,
        (None, None) => PathBuf::from("/"),
    };
    rules.push(rule(&workspace, if is_writable { Access::Write } else { Access::Read }));
    match host {
        Some(_) if !is_writable => {}
        Some(_) => missing.push(MissingLayer {
            layer: Layer::ProtectedPaths,
            reason: "without a mount namespace no path inside the workspace can be masked".into(),
        }),
        None => missing.push(MissingLayer {
            layer: Layer::WorkspaceQuota,
            reason: "without a mount namespace the workspace is measured, not limited".into(),
        }),
    }
    let scoped_signals = facts.landlock >= SCOPES_SINCE;
    if scoped_signals || group.kills() {
        layers.push(Layer::TreeKill);
    } else {
        missing.push(MissingLayer {
            layer: Layer::TreeKill,
            reason: "without a process namespace, a cgroup or a signal scope (Linux 6.12) an orphan could outlive \
                     the host program's own sudden end"
                .into(),
        });
    }
    if facts.is_root() {
        steps.push(Step::DropBounding);
        let user = facts.unprivileged;
        steps.push(Step::Identity { user, group: user, dumpable: is_dumpable() });
    }
    layers.push(Layer::UnprivilegedUser);
    steps.push(Step::Enter(path(start(&workspace, directory))));
    let mut confinement = Confinement {
        level,
        namespaces: 0,
        steps,
        layers,
        missing,
        workspace,
        own_namespaces: false,
        scoped_signals,
        way_out: None,
    };
    // The kernel counts all processes of the user here; where a cgroup counts those of this run, that is enough.
    let user = if facts.is_root() { facts.unprivileged } else { facts.user };
    let counted = (!group.limits_processes()).then(|| super::tree::count_of_user(user));
    confinement.lock(facts, limits, group, counted, rules);
    confinement
}

impl Confinement {
    /// The steps that every level ends with: limits, capabilities, Landlock, seccomp.
    ///
    /// `counted` is how many processes the kernel already counts against the limit, none if it would count strangers.
    fn lock(
        &mut self,
        facts: &Facts,
        limits: &Limits,
        group: &Group,
        counted: Option<u64>,
        rules: Vec<PathRule>,
    ) {
        self.limits(facts, limits, group, counted);
        self.lock_resources(facts);
        self.steps.push(Step::Session { dies_with_host: self.own_namespaces });
        self.steps.push(Step::DropBounding);
        self.steps.push(Step::DropCapabilities);
        self.steps.push(Step::NoNewPrivileges);
        self.layers.extend([Layer::NoCapabilities, Layer::NoNewPrivileges]);
        self.landlock(facts, rules);
        let tells = self.level == Level::Maximum && seccomp::can_tell();
        let filter = seccomp::filter(Circumstances {
            level: self.level,
            own_namespaces: self.own_namespaces,
            scoped_signals: self.scoped_signals,
            tells,
            way_out: self.way_out.is_some(),
            watched_memory: !group.limits_memory(),
        });
        self.steps.push(if tells { Step::SeccompTelling(filter) } else { Step::Seccomp(filter) });
        self.layers.push(Layer::Seccomp);
        if self.level == Level::Maximum {
            self.layers.push(Layer::SeccompAllowlist);
        }
        self.finish(facts, limits);
    }

    /// The limits that no caller sets.
    pub(super) fn lock_resources(&mut self, facts: &Facts) {
        let at_most = |resource: u32, most: u64| {
            let most = most.min(facts.hard_limit(resource));
            Step::Limit { resource, soft: most, hard: most }
        };
        self.steps.extend([
            // Too small for a file, and the one value at which the kernel starts no helper that takes core dumps by a
            // pipe: 0 does not keep it from that.
            at_most(libc::RLIMIT_CORE, 1),
            at_most(libc::RLIMIT_SIGPENDING, MAX_PENDING_SIGNALS),
            at_most(libc::RLIMIT_MEMLOCK, 64 << 10),
            at_most(libc::RLIMIT_RTPRIO, 0),
            at_most(libc::RLIMIT_NICE, 0),
            at_most(libc::RLIMIT_MSGQUEUE, 64 << 10),
        ]);
    }

    /// The last step but for the descriptors: their number. Copies of the host's are still open before it, and Landlock
    /// has to open more.
    pub(super) fn finish(&mut self, facts: &Facts, limits: &Limits) {
        let descriptors = u64::from(limits.descriptors).min(facts.hard_limit(libc::RLIMIT_NOFILE));
        self.steps.push(Step::Limit { resource: libc::RLIMIT_NOFILE, soft: descriptors, hard: descriptors });
        self.layers.sort_unstable();
    }

    /// The limits that the caller set, as far as the kernel holds them.
    pub(super) fn limits(&mut self, facts: &Facts, limits: &Limits, group: &Group, counted: Option<u64>) {
        let mut limit = |resource: u32, soft: u64, hard: u64| {
            let most = facts.hard_limit(resource);
            self.steps.push(Step::Limit { resource, soft: soft.min(most), hard: hard.min(most) });
        };
        if let Some(cpu) = limits.cpu {
            let seconds = cpu.as_secs() + u64::from(cpu.subsec_nanos() > 0);
            limit(libc::RLIMIT_CPU, seconds, seconds + 1);
        }
        limit(libc::RLIMIT_FSIZE, limits.file_size, limits.file_size);
        if let Some(counted) = counted {
            // One more: the first process.
            let most = counted + u64::from(limits.processes) + 1;
            limit(libc::RLIMIT_NPROC, most, most);
        }
        if !group.limits_memory() {
            // The most that an ordinary user has for a single process; the host adds all of them up.
            limit(libc::RLIMIT_DATA, limits.memory, limits.memory);
        }
        self.layers.push(Layer::ResourceLimits);
        group.describe(limits, &mut self.layers, &mut self.missing);
        if !group.limits_memory() && self.level != Level::Unconfined {
            self.layers.push(Layer::MemoryWatch);
        }
        if !self.layers.contains(&Layer::ProcessLimit) {
            if self.layers.contains(&Layer::UserNamespace) && !facts.is_root() {
                self.layers.push(Layer::ProcessLimit);
                self.missing.retain(|missing| missing.layer != Layer::ProcessLimit);
            } else if !self.missing.iter().any(|missing| missing.layer == Layer::ProcessLimit) {
                self.missing.push(MissingLayer {
                    layer: Layer::ProcessLimit,
                    reason: "the limit counts all processes of the user".into(),
                });
            }
        }
    }

    fn landlock(&mut self, facts: &Facts, rules: Vec<PathRule>) {
        let parts = [
            (Layer::LandlockFiles, 1, "Landlock (Linux 5.13)"),
            (Layer::LandlockTcp, TCP_SINCE, "Landlock version 4 (Linux 6.7)"),
            (Layer::LandlockAbstractSockets, SCOPES_SINCE, "Landlock version 6 (Linux 6.12)"),
            (Layer::LandlockSignals, SCOPES_SINCE, "Landlock version 6 (Linux 6.12)"),
        ];
        for (layer, since, what) in parts {
            if facts.landlock >= since {
                self.layers.push(layer);
            } else {
                let reason = format!("needs {what}; this kernel offers version {}", facts.landlock);
                self.missing.push(MissingLayer { layer, reason });
            }
        }
        if facts.landlock > 0 {
            let landlock = Landlock::new(facts.landlock, rules).with_port(self.way_out);
            self.steps.push(Step::Landlock(landlock));
        }
    }
}

/// The variables of the clean environment, then the caller's, which win.
pub(super) fn environment(
    home: &Path,
    search: &OsStr,
    own: &[(String, std::ffi::OsString)],
    scratch: &Path,
) -> Vec<CString> {
    let mut variables: Vec<(&str, &OsStr)> = vec![
        ("PATH", search),
        ("HOME", home.as_os_str()),
        ("LANG", OsStr::new("C.UTF-8")),
        ("TMPDIR", scratch.as_os_str()),
        ("USER", OsStr::new("sandbox")),
        ("TERM", OsStr::new("dumb")),
    ];
    for (name, value) in own {
        variables.retain(|(other, _)| other != name);
        variables.push((name, value));
    }
    variables
        .into_iter()
        .map(|(name, value)| {
            let mut text = name.as_bytes().to_vec();
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
            c_string(text)
        })
        .collect()
}

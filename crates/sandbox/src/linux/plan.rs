//! The plan of a run: the steps for a level on this host, and the resulting layers.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::mount::MountFlags;

use super::cgroup::Group;
use super::child_steps::Step;
use super::files::Owner;
use super::kernel::Resource;
use super::landlock::{Access, Landlock, PathRule, SCOPES_SINCE, TCP_SINCE, TRUNCATION_SINCE};
use super::launch::c_string;
use super::layer::is_passable;
use super::links::Link;
use super::root::{DEVICES, READ_ONLY, SCRATCH, Tree, is_shown, path, readable_system, temporary, under_old};
use super::seccomp::{self, Circumstances};
use super::template::TEMPLATE_SHOWS;
use super::workspace::{OpenedDirectory, hide};
use super::{Facts, identity};
use crate::{Layer, Level, Limits, MissingLayer};

/// The user id inside a user namespace.
pub(super) const INSIDE: u32 = 1000;
/// The path of a fresh workspace, and at level `strict` of every workspace.
pub(super) const WORKSPACE: &str = "/workspace";

/// The maximum of queued signals and timers. The kernel also counts them for the host's user, who has a
/// higher limit.
const MAX_PENDING_SIGNALS: u64 = 1024;

/// The input of a plan.
pub(super) struct BackendRequest<'a> {
    pub(super) level: Level,
    pub(super) limits: &'a Limits,
    pub(super) facts: &'a Facts,
    /// The host directory as workspace; none for a fresh one.
    pub(super) host: Option<&'a mut OpenedDirectory>,
    /// Without a mount namespace: the host directory of a private copy, which stays readable.
    pub(super) original: Option<&'a Path>,
    /// Without a mount namespace: the host's directory for the program's own files.
    pub(super) home: Option<&'a Path>,
    /// The start directory, relative to the workspace.
    pub(super) directory: Option<&'a str>,
    /// The host's directory for a fresh workspace, if there are no namespaces.
    pub(super) fresh: Option<PathBuf>,
    /// Read-only paths: canonical, with the identity that the host saw.
    pub(super) visible: Vec<Visible>,
    /// Host directories that the program writes directly, at their own paths.
    pub(super) writable: Vec<OpenedDirectory>,
    /// Whether the child waits until the host has filled the workspace.
    pub(super) waits: bool,
    /// Whether the child sends the host its view of the private layer.
    pub(super) hands_over: bool,
    pub(super) group: &'a mut Group,
    /// A prewarmed empty network namespace.
    pub(super) network: Option<OwnedFd>,
    /// The loopback port of the egress proxy; none for no network.
    pub(super) egress_port: Option<u16>,
    /// The code to show in place of `/proc` where none can be mounted.
    pub(super) code: Option<Code<'a>>,
    /// A prepared mount namespace with a private root, if [`fits_template`].
    pub(super) template: Option<Arc<OwnedFd>>,
}

/// The file with the code of a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code<'a> {
    pub(super) content: &'a [u8],
    pub(super) is_executable: bool,
}

/// Whether a run mounts only what every run of level `strict` mounts.
pub(super) fn fits_template(
    level: Level,
    facts: &Facts,
    has_host_directory: bool,
    visible: &[Visible],
) -> bool {
    level >= Level::Strict
        && facts.is_root()
        && facts.namespaces.is_ok()
        && !has_host_directory
        && visible.iter().all(|entry| entry.path.starts_with(TEMPLATE_SHOWS) && entry.links.is_empty())
}

/// A read-only host path, shown at its own path.
#[derive(Debug)]
pub(super) struct Visible {
    pub(super) path: PathBuf,
    pub(super) is_directory: bool,
    /// Whether a read-only overlay covers it, so that no socket in it answers.
    pub(super) is_covered: bool,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// A detached mount that maps the host user's files to the program's user.
    pub(super) tree: Option<rustix::fd::OwnedFd>,
    /// The host's symbolic links in its name, where no level shows them.
    pub(super) links: Vec<Link>,
    /// The files of Toolpost beneath it, and whether each is a directory.
    pub(super) hidden: Vec<(PathBuf, bool)>,
}

/// The steps up to the placement of descriptors, and the resulting layers.
pub(super) struct Confinement {
    pub(super) level: Level,
    pub(super) namespaces: u64,
    pub(super) steps: Vec<Step>,
    pub(super) layers: Vec<Layer>,
    pub(super) missing: Vec<MissingLayer>,
    /// The workspace as the program sees it.
    pub(super) workspace: PathBuf,
    /// Whether everything is in a process namespace.
    pub(super) own_namespaces: bool,
    /// Whether the program's signals stay inside.
    pub(super) scoped_signals: bool,
    /// The port of the egress proxy.
    pub(super) egress_port: Option<u16>,
    /// Whether a shown directory may contain sockets of the host that answer.
    pub(super) has_sockets: bool,
}

/// Plans the confinement of a run.
pub(super) fn confinement(request: BackendRequest<'_>) -> Confinement {
    if request.facts.namespaces.is_ok() { with_namespaces(request) } else { without_namespaces(request) }
}

/// Notes for a person about the level on this host, besides missing layers.
pub(super) fn notes(level: Level, facts: &Facts, limits: &Limits) -> Vec<String> {
    let mut notes = Vec::new();
    match level {
        Level::Minimal => {
            notes.push(
                "level `minimal` is not a boundary: the program has the files and the network of the host's user"
                    .into(),
            );
            if facts.is_root() {
                notes.push(
                    "the program runs as root without capabilities: it can read and change root's files"
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
        Level::Maximum => {
            notes.push("level `maximum` on the process backend shares the host's kernel".into());
        }
        _ => {}
    }
    if level.is_boundary()
        && facts.namespaces.is_ok()
        && let Err(refusal) = &facts.process_files
    {
        notes.push(format!("this host denies mounting `/proc` ({refusal}): the sandbox has none"));
    }
    if level.is_boundary() && facts.namespaces.is_ok() {
        if facts.covered.is_empty() {
            notes.push("this host denies overlays: code can watch and lock visible system files".into());
        }
        // Without user namespaces, root's code runs as a separate user with separate quotas.
        if !facts.quotas && (facts.user_namespaces || !facts.is_root()) {
            notes.push(
                "this host denies quotas in user namespaces: code can use up the user's `inotify` instances"
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
        (facts.calls.close_range, "descriptors are closed one by one: this host lacks `close_range`"),
        (facts.calls.pidfd, "processes are signaled by pid: this host lacks `pidfd_send_signal`"),
        (facts.calls.clone3, "cgroups are joined after the start: this host lacks `clone3`"),
    ] {
        if !is_there {
            notes.push(what.into());
        }
    }
    notes
}

/// Plans a private root in its own namespaces.
fn with_namespaces(request: BackendRequest<'_>) -> Confinement {
    let BackendRequest {
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
        egress_port,
        template,
        ..
    } = request;
    let is_writable = host.as_ref().is_none_or(|directory| !directory.is_read_only());
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
        // Real root sets up with its own capabilities and enters a user namespace last. So even a capability
        // gained there has no power over these mounts, which belong to the parent namespace.
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
    if let Some(port) = egress_port {
        // While it has the capability: the network namespace belongs to the child's current user namespace.
        tree.steps.push(Step::Listen { port });
    }
    for tasks in group.take_joins() {
        tree.steps.push(Step::Join(tasks));
    }
    layers.push(Layer::CgroupNamespace);
    let workspace = match &host {
        Some(directory) if level == Level::Standard => directory.shown(),
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
    // First, because shown paths may be beneath.
    for (directory, no_execute) in SCRATCH {
        tree.steps.push(temporary(Path::new(directory), scratch.0, scratch.1, no_execute));
    }
    if !is_from_template {
        shown = tree.system(level);
    }
    tree.overlays(&facts.covered);
    let (mut links, mut masks) = (Vec::new(), Vec::new());
    let has_sockets = visible.iter().any(|entry| entry.is_directory && !entry.is_covered);
    for entry in visible {
        let Visible {
            path: wanted,
            is_directory,
            is_covered,
            device,
            inode,
            tree: detached,
            links: named,
            hidden,
        } = entry;
        links.extend(named);
        if is_shown(&shown, &wanted) {
            continue;
        }
        tree.passage(&wanted);
        if is_directory {
            tree.directory(&wanted);
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
        if is_covered {
            tree.cover(&wanted);
        }
        masks.extend(hidden.iter().map(|(path, is_directory)| hide(&wanted.join(path), *is_directory)));
        shown.push(wanted);
    }
    for (link, target) in links {
        tree.link(&shown, &link, &target);
    }
    if !is_from_template {
        tree.devices();
        tree.places(&workspace, &shown);
    }
    // The masks of files need the devices.
    tree.steps.extend(masks);
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
        Some(directory) => {
            directory.plan(&workspace, &|inner| under_old(inner), &mut tree.steps);
            if hands_over && directory.layer().is_some() {
                tree.steps.push(Step::SendDirectory(path(&workspace)));
            }
            describe(directory, &mut layers, &mut missing);
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
            tree.steps.push(Step::SendDirectory(path(&workspace)));
        }
    }
    let mut rules = private_root_rules(is_writable.then_some(workspace.as_path()));
    for mut directory in writable {
        let place = directory.path().to_owned();
        // Paths in the workspace exist already.
        if !place.starts_with(&workspace) {
            tree.passage(&place);
            tree.directory(&place);
        }
        directory.plan(&place, &|inner| under_old(inner), &mut tree.steps);
        rules.push(PathRule { path: path(&place), access: Access::Write, is_directory: true });
    }
    if !is_from_template {
        tree.finish();
    }
    if waits {
        tree.steps.push(Step::wait_for_host());
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
                // While the capability is left; otherwise the new namespace restores it.
                steps.push(Step::DropBounding);
                steps.push(Step::Identity { user, group: user, dumpable });
                missing.push(MissingLayer {
                    layer: Layer::UserNamespace,
                    reason: "this host denies user namespaces; the program runs as an unprivileged user"
                        .into(),
                });
            }
        }
    }
    steps.push(Step::Enter(path(start(&workspace, directory))));
    let counted = if as_root {
        // One user runs all code, so its processes are counted only without a cgroup for this run.
        (!group.limits_processes()).then(|| super::tree::count_of_user(facts.unprivileged))
    } else {
        // In its own user namespace the kernel counts only this run's processes.
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
        egress_port,
        has_sockets,
    };
    confinement.lock(facts, limits, group, counted, rules);
    confinement
}

/// Adds the layers of a host directory as workspace.
pub(super) fn describe(
    directory: &OpenedDirectory,
    layers: &mut Vec<Layer>,
    missing: &mut Vec<MissingLayer>,
) {
    // A read-only path is protected with its descendants.
    if directory.layer().is_some() {
        layers.extend([Layer::ProtectedPaths, Layer::PrivateLayer]);
        missing.push(MissingLayer {
            layer: Layer::WorkspaceQuota,
            reason: "the host measures the private layer; the kernel does not limit it".into(),
        });
        return;
    }
    if directory.original().is_some() {
        layers.extend([Layer::ProtectedPaths, Layer::PrivateCopy]);
        missing.push(MissingLayer {
            layer: Layer::WorkspaceQuota,
            reason: "the host measures the private copy; the kernel does not limit it".into(),
        });
        return;
    }
    match directory.missed() {
        None => layers.push(Layer::ProtectedPaths),
        Some(reason) => missing.push(MissingLayer {
            layer: Layer::ProtectedPaths,
            reason: format!("the top level is protected, but not every repository beneath: {reason}"),
        }),
    }
    missing.push(MissingLayer {
        layer: Layer::WorkspaceQuota,
        reason: "only its file system limits a host directory; single files have a limit".into(),
    });
}

/// The replacement of `/proc` where the kernel denies the mount: only the code, at the path by which programs
/// read it. Never the host's own.
fn stand_in(code: Option<Code<'_>>) -> Vec<Step> {
    let Some(Code { content, is_executable }) = code else { return Vec::new() };
    let file = c_string(format!("/proc/self/fd/{}", super::child_steps::CODE));
    let mut steps = vec![
        Step::Mount {
            kind: c"tmpfs",
            target: c_string("/proc"),
            options: c_string(format!("size={},nr_inodes=16,mode=755", content.len() + (64 << 10))),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        },
        Step::Directory { path: c_string("/proc/self"), mode: 0o755 },
        Step::Directory { path: c_string("/proc/self/fd"), mode: 0o755 },
        Step::File { path: file.clone(), content: content.to_vec() },
    ];
    if is_executable {
        steps.push(Step::Executable(file));
    }
    steps.push(Step::Attributes { path: c_string("/proc"), attributes: READ_ONLY });
    steps
}

/// Whether this process is dumpable, which an identity change in shared memory would alter.
pub(super) fn is_dumpable() -> bool {
    !matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::NotDumpable))
}

/// Maps the host's user to an id inside.
pub(super) fn identity_map(inside: Owner, user: u32, group: u32) -> [Step; 3] {
    let write = |file: &str, text: String| Step::Write { path: c_string(file), text: text.into_bytes() };
    [
        write("/proc/self/setgroups", "deny".into()),
        write("/proc/self/uid_map", format!("{} {user} 1", inside.user)),
        write("/proc/self/gid_map", format!("{} {group} 1", inside.group)),
    ]
}

/// The start directory.
pub(super) fn start(workspace: &Path, directory: Option<&str>) -> PathBuf {
    directory.map_or_else(|| workspace.to_owned(), |directory| workspace.join(directory))
}

fn private_root_rules(writable: Option<&Path>) -> Vec<PathRule> {
    let rule = |place: &Path, access, is_directory| PathRule { path: path(place), access, is_directory };
    let mut rules = vec![rule(Path::new("/"), Access::Read, true)];
    for directory in ["/tmp", "/dev/shm"] {
        rules.push(rule(Path::new(directory), Access::Write, true));
    }
    rules.extend(writable.map(|workspace| rule(workspace, Access::Write, true)));
    rules.push(rule(Path::new("/dev"), Access::Device, true));
    rules
}

/// Plans a run in the host's root, of which Landlock allows the system directories and the workspace.
fn without_namespaces(request: BackendRequest<'_>) -> Confinement {
    let BackendRequest {
        level,
        limits,
        facts,
        host,
        original,
        home,
        directory,
        fresh,
        visible,
        writable,
        group,
        ..
    } = request;
    let is_writable = host.as_ref().is_none_or(|directory| !directory.is_read_only());
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
    let rule = |place: &Path, access| PathRule { path: path(place), access, is_directory: place.is_dir() };
    let mut rules = Vec::new();
    for entry in readable_system() {
        if let Ok(real) = std::fs::canonicalize(entry) {
            rules.push(rule(&real, Access::Read));
        }
    }
    // The program's user may not reach root's own paths, and the child opens them as that user.
    let is_reached = |wanted: &&Path| !facts.is_root() || wanted.parent().is_none_or(is_passable);
    let shown = visible.iter().map(|entry| entry.path.as_path()).filter(is_reached);
    rules.extend(shown.chain(original).map(|wanted| rule(wanted, Access::Read)));
    rules.extend(home.map(|home| rule(home, Access::Write)));
    rules.extend(writable.iter().map(|directory| rule(directory.path(), Access::Write)));
    for name in DEVICES {
        let device = Path::new("/dev").join(name);
        if device.exists() {
            rules.push(rule(&device, Access::Device));
        }
    }
    let workspace = match (&host, fresh) {
        (Some(directory), _) => directory.path().to_owned(),
        (None, Some(directory)) => directory,
        (None, None) => PathBuf::from("/"),
    };
    rules.push(rule(&workspace, if is_writable { Access::Write } else { Access::Read }));
    match &host {
        Some(_) if !is_writable => {}
        Some(directory) if directory.original().is_some() => describe(directory, &mut layers, &mut missing),
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
        egress_port: None,
        // Without namespaces no unix socket connects anyway.
        has_sockets: false,
    };
    // The kernel counts all processes of the user here; a cgroup for this run is enough.
    let user = if facts.is_root() { facts.unprivileged } else { facts.user };
    let counted = (!group.limits_processes()).then(|| super::tree::count_of_user(user));
    confinement.lock(facts, limits, group, counted, rules);
    confinement
}

impl Confinement {
    /// The steps at the end of every level: limits, capabilities, Landlock, seccomp.
    ///
    /// `counted` is the number of processes that the kernel already counts against the limit; none if it
    /// would include other processes of the user.
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
            has_egress: self.egress_port.is_some(),
            has_sockets: self.has_sockets,
            truncates: !self.own_namespaces && facts.landlock < TRUNCATION_SINCE,
            watched_memory: !group.limits_memory(),
        });
        self.steps.push(if tells { Step::SeccompNotify(filter) } else { Step::Seccomp(filter) });
        self.layers.push(Layer::Seccomp);
        if self.level == Level::Maximum {
            self.layers.push(Layer::SeccompAllowlist);
        }
        self.finish(facts, limits);
    }

    /// The limits that no caller sets.
    pub(super) fn lock_resources(&mut self, facts: &Facts) {
        let at_most = |resource: Resource, most: u64| {
            let most = most.min(facts.hard_limit(resource));
            Step::Limit { resource, soft: most, hard: most }
        };
        self.steps.extend([
            // Too small for a file. 1 is the only value at which the kernel also starts no core dump helper;
            // with 0 it does.
            at_most(libc::RLIMIT_CORE, 1),
            at_most(libc::RLIMIT_SIGPENDING, MAX_PENDING_SIGNALS),
            at_most(libc::RLIMIT_MEMLOCK, 64 << 10),
            at_most(libc::RLIMIT_RTPRIO, 0),
            at_most(libc::RLIMIT_NICE, 0),
            at_most(libc::RLIMIT_MSGQUEUE, 64 << 10),
        ]);
    }

    /// Limits the number of descriptors, as the last step before their placement. Before it, copies of the
    /// host's are still open, and Landlock opens more.
    pub(super) fn finish(&mut self, facts: &Facts, limits: &Limits) {
        let descriptors = u64::from(limits.descriptors).min(facts.hard_limit(libc::RLIMIT_NOFILE));
        self.steps.push(Step::Limit { resource: libc::RLIMIT_NOFILE, soft: descriptors, hard: descriptors });
        self.layers.sort_unstable();
    }

    /// The caller's limits, as far as the kernel enforces them.
    pub(super) fn limits(&mut self, facts: &Facts, limits: &Limits, group: &Group, counted: Option<u64>) {
        let mut limit = |resource: Resource, soft: u64, hard: u64| {
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
            // The maximum for a single process of an ordinary user; the host adds them up.
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
            let landlock = Landlock::new(facts.landlock, rules).with_port(self.egress_port);
            self.steps.push(Step::Landlock(landlock));
        }
    }
}

/// The variables of the clean environment, overridden by the caller's.
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

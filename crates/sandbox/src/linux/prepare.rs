//! The first half of a run: computes, resolves and opens everything before the start.

use std::ffi::{CStr, CString, OsString};
use std::io::PipeWriter;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::admission::{Admission, Admitted, Workspaces};
use super::attend::Started;
use super::cgroup::Group;
use super::child_steps::{Pointers, Step};
use super::files::{self, Listing, Measure, Owner};
use super::interpreter::{Reach, is_system};
use super::launch::{self, Plan, c_string, high};
use super::layer::{self, LiveDirectory, PrivateCopy};
use super::plan::{self, BackendRequest, Visible};
use super::root::HOME;
use super::session::FileRules;
use super::supervise::{Feed, ProgramProcess, Streams};
use super::temporary::TemporaryDirectory;
use super::workspace::{Opened, OpenedDirectory, hidden, hidden_beneath};
use super::{Facts, facts, identity, links, network, own_directory, template, toolchain, unconfined};
use crate::language::HEAP;
use crate::ready::Payload;
use crate::running::Pipes;
use crate::{
    ApplyMode, DirectoryRules, Error, Host, Language, Level, Limits, Need, Origin, Program, ProtectedPath,
    Ready, Report, SYSTEM_SEARCH_PATH, Sandbox, SandboxHint, Workspace,
};
use toolpost_egress::PORT;
use toolpost_egress::PreparedProxy;

/// The variable with the path of a private copy.
const WORKDIR: &str = "TOOLPOST_WORKDIR";

/// Controllers besides those of the limits: kill and freeze all, and count the time of single cells.
const SESSION_CONTROLLERS: [&str; 4] = ["kill", "freezer", "cpuacct", "cpu"];

pub(super) fn setup(step: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Setup { step, source }
}

/// The level in force, and whether it is lower than the required one.
pub(super) fn choose(sandbox: &Sandbox, host: &Host) -> Result<(Level, bool), Error> {
    let wanted = sandbox.level.unwrap_or(Level::Strict);
    if wanted == Level::Unconfined {
        return Ok((wanted, false));
    }
    let available = |level: Level| host.availability(level).is_some_and(|entry| entry.available);
    if available(wanted) {
        return Ok((wanted, false));
    }
    // Never the level without a boundary: that must be named.
    let lower = Level::ALL
        .into_iter()
        .rev()
        .find(|level| *level < wanted && level.is_boundary() && available(*level));
    if let Some(level) = lower
        && (sandbox.level.is_none() || sandbox.allow_degraded)
    {
        return Ok((level, sandbox.level.is_some()));
    }
    let entry = host.availability(wanted);
    Err(Error::LevelUnavailable {
        level: wanted,
        reason: entry.and_then(|entry| entry.reason.clone()).unwrap_or_default(),
        fix: entry.and_then(|entry| entry.fix.clone()).unwrap_or_default(),
    })
}

/// The level in force for a request.
pub(super) fn level(sandbox: &Sandbox) -> Result<Level, Error> {
    choose(sandbox, sandbox.host.as_ref().unwrap_or_else(|| Host::probe())).map(|(level, _)| level)
}

/// The reach of a request's program.
pub(super) fn reach(sandbox: &Sandbox) -> Result<Reach, Error> {
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    Ok(reach_at(sandbox, choose(sandbox, host)?.0, &host.facts))
}

fn reach_at(sandbox: &Sandbox, level: Level, facts: &Facts) -> Reach {
    Reach {
        with_package: level < Level::Strict,
        as_other_user: level.is_boundary() && facts.namespaces.is_err() && facts.is_root(),
        is_confined: level.is_boundary(),
        workspaces: Workspaces::from_sandbox(sandbox),
    }
}

/// The workspace on the host before the start.
#[expect(clippy::large_enum_variant, reason = "there is one for each run, and it is not moved about")]
pub(super) enum Place {
    /// The child creates it.
    Private,
    Temporary(TemporaryDirectory),
    Host(OpenedDirectory),
    /// A private copy of a host directory.
    Copy(Box<CopiedWorkspace>),
    /// A host directory without protection.
    Plain(PathBuf),
}

/// A private copy of a host directory as workspace.
pub(super) struct CopiedWorkspace {
    pub(super) copy: PrivateCopy,
    /// The copy as the program gets it.
    pub(super) directory: OpenedDirectory,
    /// Its content before the start.
    pub(super) measure: Measure,
    /// The reason why there is no layer.
    reason: String,
    /// Notes on leftovers of earlier runs.
    notes: Vec<String>,
}

impl Place {
    /// The limits of a run there: layer limits replace those of a fresh workspace.
    pub(super) fn limits(&self, limits: &Limits) -> Limits {
        match self {
            Self::Host(directory) if directory.layer().is_none() => limits.clone(),
            Self::Host(_) | Self::Copy(_) => Limits {
                workspace_bytes: limits.layer_bytes,
                workspace_inodes: limits.layer_inodes,
                ..limits.clone()
            },
            _ => limits.clone(),
        }
    }

    /// The host directory or its copy.
    fn directory(&self) -> Option<&OpenedDirectory> {
        match self {
            Self::Host(directory) => Some(directory),
            Self::Copy(copied) => Some(&copied.directory),
            Self::Private | Self::Temporary(_) | Self::Plain(_) => None,
        }
    }
}

/// A run that has not started.
pub(super) struct Prepared {
    /// The child's steps.
    plan: Plan,
    /// The host's ends of the streams.
    streams: Streams,
    /// The host's ends for the caller of a live run.
    pipes: Option<Pipes>,
    /// The state that the end of the run needs.
    kept: Kept,
    group: Group,
    own_namespaces: bool,
}

/// The state of a run from its preparation to its end.
pub(super) struct Kept {
    pub(super) place: Place,
    /// The workspace before the start.
    pub(super) before: Listing,
    /// Whether the child waits for the host to fill the workspace.
    pub(super) child_waits: bool,
    /// The owner of files that the host creates for the program, if it is another user.
    pub(super) owner: Option<Owner>,
    /// The report, as far as it is known before the start.
    pub(super) report: Report,
    /// Whether the caller reads the output.
    pub(super) is_live: bool,
    /// The program.
    pub(super) program: PathBuf,
    /// The language of its code.
    pub(super) language: Option<Language>,
    /// The limits in force.
    pub(super) limits: Limits,
    /// The egress proxy, waiting for its socket, if the run has one.
    pub(super) egress: Option<PreparedProxy>,
    /// The layer of a live run, for its caller.
    pub(super) live_directory: LiveDirectory,
    /// The private copy of a program with live streams, and its size at the start.
    pub(super) live_copy: Option<(OwnedFd, Measure)>,
    /// A home directory on the host, removed at the end.
    pub(super) home: Option<TemporaryDirectory>,
    /// The workspace, if the child sent it before the run began.
    pub(super) workspace: Option<OwnedFd>,
}

/// The additions of a session: its interpreter stays.
pub(super) struct Stay<'a> {
    /// The interpreter's end of the socket to the host.
    pub(super) control: OwnedFd,
    /// The interpreter's arguments instead of code, made from its workspace path.
    pub(super) arguments: &'a mut dyn FnMut(&Path) -> Vec<OsString>,
    /// Receives the file rules for a forkable interpreter.
    pub(super) rules: &'a mut Option<FileRules>,
    /// Keeps `CAP_SYS_CHROOT`, which a fork needs for its own workspace.
    pub(super) forkable: bool,
}

/// Computes, resolves and opens everything that a run needs. Uploads into a host directory happen now.
pub(super) fn prepare(sandbox: &Sandbox, program: &Program, is_live: bool) -> Result<Prepared, Error> {
    prepare_with(sandbox, program, is_live, None)
}

/// Whether this process has prepared a run before: a template and prewarmed network namespaces pay off from
/// the second run.
fn is_repeated() -> bool {
    static BEFORE: AtomicBool = AtomicBool::new(false);
    BEFORE.swap(true, Ordering::Relaxed)
}

/// A variant for a persistent interpreter.
pub(super) fn prepare_with(
    sandbox: &Sandbox,
    program: &Program,
    is_live: bool,
    mut stay: Option<Stay<'_>>,
) -> Result<Prepared, Error> {
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    let facts = &host.facts;
    let (level, degraded) = choose(sandbox, host)?;
    let limits = &sandbox.limits_at(level);
    let namespaces = facts.namespaces.is_ok();
    let confined = level.is_boundary();
    let egress = egress_proxy(sandbox, level, facts, limits)?;
    let reach = reach_at(sandbox, level, facts);
    let mut ready = toolchain::ready(sandbox, program, &reach)?;
    let (visible, not_shown) = if confined {
        visible(sandbox, &ready.needs, reach.workspaces, facts)?
    } else {
        (Vec::new(), Vec::new())
    };
    let shown = visible.iter().map(|entry| entry.path.clone()).collect();
    let mut place = place(sandbox, facts, level)?;

    // Uploads into a host directory happen now; a private workspace exists only in the child.
    let owner = program_owner(facts, level);
    let mut before = Listing::default();
    match &place {
        Place::Private | Place::Plain(_) => {}
        Place::Temporary(directory) => {
            files::upload(directory.descriptor(), &sandbox.files, limits, owner)?;
            before = files::list(directory.descriptor());
        }
        Place::Host(directory) if directory.is_read_only() => {}
        Place::Host(directory) => {
            let host_owner = (confined && facts.is_root()).then(|| directory.owner());
            before = fill(directory, sandbox, limits, host_owner, owner, !is_live)?;
        }
        Place::Copy(copied) => {
            fill(&copied.directory, sandbox, limits, owner, owner, false)?;
            before = files::listed(copied.copy.directory(), sandbox.files.iter().map(|(name, _)| name));
        }
    }
    let child_waits = matches!(place, Place::Private) && !sandbox.files.is_empty();

    let mut group = match &stay {
        Some(_) => Group::create_with(&facts.cgroups, limits, &SESSION_CONTROLLERS),
        None => Group::create(&facts.cgroups, limits, !namespaces),
    };
    let writable = if confined { writable(sandbox, facts)? } else { Vec::new() };
    let has_host_directory = place.directory().is_some() || !writable.is_empty();
    // Without a mount namespace, caches and temporary files must not become changes of the directory.
    let has_home = level == Level::Minimal || confined && !namespaces && place.directory().is_some();
    let home = has_home.then(|| TemporaryDirectory::create(owner)).transpose();
    let home = home.map_err(setup("create home directory"))?;
    let original = place.directory().and_then(|directory| directory.readable_original(sandbox, facts));
    let copy = place
        .directory()
        .filter(|directory| directory.original().is_some())
        .map(|directory| directory.path().to_owned());
    if let (Some(copy), Some(hidden), None, false) =
        (&copy, place.directory().and_then(OpenedDirectory::original), &original, namespaces)
    {
        ready.relocate(hidden, copy);
    }
    if confined && !namespaces && facts.is_root() {
        check_reachable(&ready, &visible, facts)?;
    }
    let is_repeated = is_repeated();
    let template = (is_repeated && plan::fits_template(level, facts, has_host_directory, &visible))
        .then(|| template::namespace(facts))
        .flatten();
    let request = BackendRequest {
        level,
        limits,
        facts,
        directory: sandbox.directory.as_deref(),
        fresh: match &place {
            Place::Temporary(directory) => Some(directory.path()),
            Place::Plain(path) => Some(path.as_path()),
            Place::Host(directory) if !confined => Some(directory.path()),
            _ => None,
        }
        .map(Path::to_owned),
        host: match &mut place {
            Place::Host(directory) => Some(directory),
            Place::Copy(copied) => Some(&mut copied.directory),
            _ => None,
        },
        original: original.as_deref(),
        home: home.as_ref().map(TemporaryDirectory::path),
        visible,
        writable,
        waits: child_waits,
        hands_over: stay.is_some() || is_live,
        group: &mut group,
        code: ready
            .payload
            .as_ref()
            .map(|payload| plan::Code { content: &payload.content, is_executable: payload.is_executable }),
        egress_port: egress.as_ref().map(|_| PORT),
        network: (is_repeated && confined && namespaces && facts.is_root()).then(network::take).flatten(),
        template,
    };
    let mut confinement =
        if confined { plan::confinement(request) } else { unconfined::confinement(request) };
    if let Some(stay) = stay.as_mut().filter(|stay| stay.forkable) {
        *stay.rules = super::session::keep_root_change(&mut confinement);
    }
    if stay.is_some() && level == Level::Maximum {
        super::session::keep_own_domains(&mut confinement);
    }
    let plan::Confinement {
        namespaces: flags,
        mut steps,
        layers,
        missing,
        workspace,
        own_namespaces,
        scoped_signals,
        ..
    } = confinement;
    let mut notes = plan::notes(level, facts, limits);
    if let Place::Host(directory) = &place {
        match directory.layer() {
            Some(layer) => layer.attend_to_others(sandbox.layers.as_deref(), &mut notes),
            None if level == Level::Minimal => notes.push(
                "level `minimal` has no private layer: the program writes to the host directory itself"
                    .into(),
            ),
            None if directory.is_lent() => notes.push(format!(
                "this host maps no identities: user {} owned the files of the directory during the run",
                facts.unprivileged
            )),
            None => {}
        }
    }
    if let Some(copy) = &copy {
        let named = if namespaces {
            String::new()
        } else {
            format!(", which `{WORKDIR}` named: `{}`", copy.display())
        };
        let mut note = format!("the program worked in a private copy of the directory{named}");
        if let Place::Copy(copied) = &mut place {
            note = format!("{note}; no layer is possible: {}", copied.reason);
            notes.append(&mut copied.notes);
        }
        notes.push(note);
    }
    let report = Report {
        degraded,
        layers,
        missing,
        shown,
        not_shown,
        notes,
        ..Report::new("process", sandbox.level, level)
    };

    let control = stay.map(|stay| {
        ready.arguments = (stay.arguments)(&workspace);
        stay.control
    });
    let kill = if own_namespaces { None } else { group.open_kill() };
    let mode = match (own_namespaces, scoped_signals, kill.is_some()) {
        (true, ..) => c"-",
        (false, true, true) => c"skc",
        (false, true, false) => c"sk",
        (false, false, true) => c"sc",
        (false, false, false) => c"s",
    };
    let live_directory = LiveDirectory::default();
    if is_live && matches!(&place, Place::Host(directory) if directory.layer().is_some()) {
        live_directory.expect();
    }
    let (streams, mut pipes, ends) = streams(sandbox, ready.payload.as_ref(), is_live, control)?;
    if let Some(pipes) = &mut pipes {
        pipes.directory = live_directory.clone();
        pipes.shown.clone_from(&report.shown);
        pipes.not_shown.clone_from(&report.not_shown);
    }
    steps.push(descriptors_with(ends, kill)?);
    let own_home = home.as_ref().map(TemporaryDirectory::path);
    let mut environment = variables(sandbox, egress.as_ref(), &ready, &workspace, own_namespaces, own_home);
    if let Some(copy) =
        copy.filter(|_| !namespaces && sandbox.environment.iter().all(|(name, _)| name != WORKDIR))
    {
        environment.push(c_string([WORKDIR.as_bytes(), b"=", copy.as_os_str().as_bytes()].concat()));
    }
    exec(environment, &ready, limits, mode, &mut steps);
    let plan = Plan { namespaces: flags, cgroup: group.take_born(), steps };
    let Ready { path: program, language, .. } = ready;
    let limits = place.limits(limits);
    let kept = Kept {
        place,
        before,
        child_waits,
        owner,
        report,
        is_live,
        program,
        language,
        limits,
        egress,
        live_directory,
        live_copy: None,
        home,
        workspace: None,
    };
    Ok(Prepared { plan, streams, pipes, kept, group, own_namespaces })
}

/// Checks that the program's user reaches the program and its script, where no mount shows them.
fn check_reachable(ready: &Ready, visible: &[Visible], facts: &Facts) -> Result<(), Error> {
    let script = ready.arguments.first().map(Path::new);
    let is_shown = |path: &&Path| visible.iter().any(|entry| path.starts_with(&entry.path));
    for path in [ready.path.as_path()].into_iter().chain(script).filter(is_shown) {
        if !path.parent().is_none_or(layer::is_passable) {
            let reason = format!(
                "without mount namespaces programs of root run as user {}, who cannot reach it; move it, or run as an \
                 ordinary user",
                facts.unprivileged
            );
            let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason);
            return Err(Error::File { action: "start", path: path.to_owned(), source });
        }
    }
    Ok(())
}

/// Whether a host path and its parents are free of files and links: a layer would hide a link.
fn is_free(host: BorrowedFd<'_>, path: &Path) -> bool {
    let mut above = PathBuf::new();
    for part in path {
        above.push(part);
        let is_last = above == path;
        match files::open_beneath(host, &above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return true,
            Ok(_) if !is_last => {}
            _ => return false,
        }
    }
    false
}

/// Uploads the request's files into a host directory or its layer, and lists the result. As root, host files
/// belong to `host_owner` and layer files to `program`.
pub(super) fn fill(
    directory: &OpenedDirectory,
    sandbox: &Sandbox,
    limits: &Limits,
    host_owner: Option<Owner>,
    program: Option<Owner>,
    lists: bool,
) -> Result<Listing, Error> {
    let Some(layer) = directory.layer() else {
        files::upload(directory.descriptor(), &sandbox.files, limits, host_owner)?;
        return Ok(if lists { files::list(directory.descriptor()) } else { Listing::default() });
    };
    for (name, _) in &sandbox.files {
        let path = Path::new(name);
        if !is_free(directory.descriptor(), path) {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(Error::File { action: "create upload", path: path.to_owned(), source });
        }
    }
    files::upload(layer.upper(), &sandbox.files, limits, program)?;
    Ok(files::list(layer.upper()))
}

impl Prepared {
    /// Starts the child. Returns the streams of a live run too.
    pub(super) fn start(self) -> Result<(Started, Option<Pipes>), Error> {
        let Self { plan, streams, pipes, kept, group, own_namespaces } = self;
        let child = launch::start(&plan).map_err(setup("start child in namespaces"))?;
        let names = plan.steps.iter().map(|step| (step.name(), step.subject())).collect();
        let running = ProgramProcess { child, own_namespaces, group, cleaner: None };
        Ok((Started { running, streams, names, kept }, pipes))
    }
}

/// The egress proxy of a run, if requested. Fails where the program could bypass it.
fn egress_proxy(
    sandbox: &Sandbox,
    level: Level,
    facts: &Facts,
    limits: &Limits,
) -> Result<Option<PreparedProxy>, Error> {
    let Some(egress) = &sandbox.egress else { return Ok(None) };
    let refuse = |reason: String, fix: &str| Err(Error::EgressUnavailable { reason, fix: fix.into() });
    if !level.is_boundary() {
        let reason =
            format!("at level `{level}` a program has the host's network, so no allowlist can be enforced");
        return refuse(reason, "use level `standard` or above");
    }
    if let Err(refusal) = &facts.namespaces {
        return refuse(
            format!("it needs a network namespace, which this host denies ({refusal})"),
            "allow namespaces, or use the Docker backend",
        );
    }
    PreparedProxy::new(&egress.capped(limits.connections, limits.requests))
        .map(Some)
        .map_err(setup("make placeholders"))
}

/// The owner of files that the host creates for the program, if it is another user.
pub(super) fn program_owner(facts: &Facts, level: Level) -> Option<Owner> {
    let other = facts.is_root() && level.is_boundary();
    other.then_some(Owner { user: facts.unprivileged, group: facts.unprivileged })
}

/// Opens the workspace on the host.
fn place(sandbox: &Sandbox, facts: &Facts, level: Level) -> Result<Place, Error> {
    let namespaces = facts.namespaces.is_ok();
    let owner = program_owner(facts, level);
    match &sandbox.workspace {
        Workspace::Fresh if !level.is_boundary() => {
            Ok(Place::Temporary(TemporaryDirectory::create(owner).map_err(setup("make workspace"))?))
        }
        Workspace::Host(path) | Workspace::LiveHost(path) if level == Level::Unconfined => {
            let refuse = |reason: String| Error::Workspace { path: path.clone(), reason };
            let directory = path.canonicalize().map_err(|error| refuse(error.to_string()))?;
            if !directory.is_dir() {
                return Err(refuse("it is not a directory".into()));
            }
            Ok(Place::Plain(directory))
        }
        Workspace::ReadOnlyHost(path) if !level.is_boundary() => Err(Error::Workspace {
            path: path.clone(),
            reason: format!(
                "at level `{level}` a program cannot be kept from writing there; name `standard` or above"
            ),
        }),
        Workspace::Host(path) if !level.is_boundary() && sandbox.apply != ApplyMode::Now => {
            Err(Error::Workspace {
                path: path.clone(),
                reason: format!(
                    "at level `{level}` a program writes to it directly, and no change can be held or discarded; name \
                     `standard` or above"
                ),
            })
        }
        Workspace::Host(path) | Workspace::LiveHost(path) if !level.is_boundary() => {
            Ok(Place::Host(OpenedDirectory::open_shared(path)?))
        }
        Workspace::Fresh if namespaces => Ok(Place::Private),
        Workspace::Fresh => {
            Ok(Place::Temporary(TemporaryDirectory::create(owner).map_err(setup("make workspace"))?))
        }
        Workspace::Host(path) => host_place(sandbox, path, facts, owner),
        Workspace::LiveHost(path) => open_live_workspace(sandbox, path, facts).map(Place::Host),
        Workspace::ReadOnlyHost(path) => {
            Ok(Place::Host(OpenedDirectory::open_read_only(path, facts, sandbox)?))
        }
    }
}

/// Opens a host directory behind a layer. Where none is possible, one of this process is used itself, and any other is
/// copied.
fn host_place(sandbox: &Sandbox, path: &Path, facts: &Facts, owner: Option<Owner>) -> Result<Place, Error> {
    let reason = match OpenedDirectory::open(path, facts, sandbox, owner)? {
        Opened::Layered(directory) => return Ok(Place::Host(directory)),
        Opened::Unlayered(reason) => reason,
    };
    let is_own = || own_directory::is_own(path) || layer::original_of(path).is_some();
    if sandbox.apply == ApplyMode::Now && is_own() {
        return Ok(Place::Host(OpenedDirectory::open_own(path, facts)?));
    }
    let mut notes = Vec::new();
    let copy = PrivateCopy::create(path, sandbox, owner, &SandboxHint::WriteLive, &mut notes)?;
    let directory = OpenedDirectory::open_own(copy.path(), facts)?;
    let measure = files::measure(copy.directory(), u64::MAX);
    Ok(Place::Copy(Box::new(CopiedWorkspace { copy, directory, measure, reason, notes })))
}

/// Opens the live workspace. A directory that is protected as a whole is rejected.
pub(super) fn open_live_workspace(
    sandbox: &Sandbox,
    path: &Path,
    facts: &Facts,
) -> Result<OpenedDirectory, Error> {
    let directory = open_live(sandbox, path, facts)?;
    let rules = DirectoryRules::of_host(
        directory.path(),
        sandbox.protected.iter().cloned(),
        sandbox.allowed.iter().cloned(),
    );
    match rules.protects_all() {
        None => Ok(directory),
        Some(protection) => Err(Error::Workspace {
            path: path.to_owned(),
            reason: format!(
                "it is protected, {protection}; a program that writes to it directly could change it"
            ),
        }),
    }
}

/// Opens a directory that the program writes directly.
fn open_live(sandbox: &Sandbox, path: &Path, facts: &Facts) -> Result<OpenedDirectory, Error> {
    let fail = |error: std::io::Error| Error::Workspace { path: path.to_owned(), reason: error.to_string() };
    layer::create_record_keys(&path.canonicalize().map_err(fail)?, sandbox).map_err(fail)?;
    let directory = OpenedDirectory::open_live(path, facts, sandbox)?;
    // The operator chose a writable directory beneath one with code, for the files of the program itself.
    let is_chosen = sandbox.read_write.iter().any(|chosen| chosen == path);
    let is_writable = |one: &&ProtectedPath| match one {
        // Code could create a missing file of Toolpost.
        ProtectedPath::Own(own) => own.starts_with(directory.path()) && !directory.hides(own),
        // Its programs stay; a missing one cannot be protected.
        ProtectedPath::SearchPath(_) => false,
        // Existing ones are read-only.
        one if one.is_allowable() => false,
        one => one.is_in(directory.path()) || !is_chosen && one.has_code_in(directory.path()),
    };
    let Some(protected) = sandbox.protected.iter().find(is_writable) else {
        return Ok(directory);
    };
    let place = protected.path().display();
    let reason = match protected {
        ProtectedPath::Own(_) => format!("Toolpost keeps its own files in `{place}`"),
        ProtectedPath::Code { .. } => format!("a trusted target loads code from `{place}`"),
        _ => format!("`{place}` in it decides what may run"),
    };
    Err(Error::Workspace {
        path: path.to_owned(),
        reason: format!("{reason}, and a program that writes to it directly could change it"),
    })
}

/// The granted writable directories.
fn writable(sandbox: &Sandbox, facts: &Facts) -> Result<Vec<OpenedDirectory>, Error> {
    let open = |path: &PathBuf| open_live(sandbox, path, facts);
    sandbox.read_write.iter().map(open).collect()
}

/// The paths that a sandbox shows besides those of its program.
pub(crate) fn shown(sandbox: &Sandbox) -> Result<Vec<PathBuf>, Error> {
    let mut admission = Admission::new(sandbox, Workspaces::from_sandbox(sandbox));
    let mut shown: Vec<PathBuf> = Vec::new();
    let fail = |path: &Path, source| Error::File { action: "show", path: path.to_owned(), source };
    for need in &sandbox.needs {
        let admitted = admission.judge(need).map_err(|source| fail(&need.path, source))?;
        shown.extend(admitted.into_iter().map(|entry| entry.path));
    }
    for path in &sandbox.read_only {
        admission.granted(path).map_err(|source| fail(path, source))?;
        shown.push(path.clone());
    }
    Ok(shown)
}

/// The shown paths besides the system directories, and the derived ones that are not shown.
pub(super) fn visible(
    sandbox: &Sandbox,
    needs: &[Need],
    workspaces: Workspaces,
    facts: &Facts,
) -> Result<(Vec<Visible>, Vec<PathBuf>), Error> {
    let mut list: Vec<Visible> = Vec::new();
    if needs.is_empty() && sandbox.read_only.is_empty() && sandbox.needs.is_empty() {
        return Ok((list, Vec::new()));
    }
    let mut admission = Admission::new(sandbox, workspaces);
    let mut show = |given: &Path, admitted: std::io::Result<Vec<Admitted>>, is_private: bool| {
        let fail = |source| Error::File { action: "show", path: given.to_owned(), source };
        for Admitted { path, mut links, descriptor } in admitted.map_err(fail)? {
            links.retain(|(link, _)| !is_system(link));
            match list.iter_mut().find(|seen| path.starts_with(&seen.path)) {
                Some(seen) => seen.links.append(&mut links),
                None => list.push(see(path, links, descriptor, is_private, facts).map_err(fail)?),
            }
        }
        Ok::<_, Error>(())
    };
    // Derived paths last: they may lie beneath the others.
    let (derived, named): (Vec<&Need>, Vec<&Need>) =
        needs.iter().chain(&sandbox.needs).partition(|need| need.origin == Origin::Derived);
    for need in named {
        show(&need.path, admission.judge(need), false)?;
    }
    for path in &sandbox.read_only {
        show(path, admission.granted(path), true)?;
    }
    for need in derived {
        show(&need.path, admission.judge(need), false)?;
    }
    let hidden = hidden(sandbox);
    for entry in &mut list {
        entry.hidden = hidden_beneath(&entry.path, &hidden);
    }
    // Parents first, so that a later mount hides no earlier one.
    list.sort_by(|left, right| left.path.cmp(&right.path));
    Ok((list, admission.into_hidden()))
}

/// Prepares the mount of an admitted path. `is_private` means that it may be readable only for the operator.
fn see(
    path: PathBuf,
    links: Vec<links::Link>,
    descriptor: OwnedFd,
    is_private: bool,
    facts: &Facts,
) -> std::io::Result<Visible> {
    use std::os::unix::fs::MetadataExt as _;
    if path == Path::new("/") || ["/proc", "/sys", "/dev"].iter().any(|kernel| path.starts_with(kernel)) {
        return Err(std::io::Error::other("`/` and the kernel's directories are never shown"));
    }
    let file = std::fs::File::from(descriptor);
    let metadata = file.metadata()?;
    // The operator's paths may be readable only for the operator, and the program is another user.
    let open_to_all =
        metadata.mode() & 0o005 == 0o005 || (metadata.is_file() && metadata.mode() & 0o004 != 0);
    let tree = if facts.is_root() && facts.namespaces.is_ok() && (is_private || !open_to_all) {
        let owner = Owner { user: metadata.uid(), group: metadata.gid() };
        identity::mapped_tree(file.as_fd(), owner, facts.unprivileged, true).ok()
    } else {
        None
    };
    Ok(Visible {
        is_directory: metadata.is_dir(),
        is_covered: metadata.is_dir() && facts.covers(&path, file.as_fd(), tree.is_some()),
        device: metadata.dev(),
        inode: metadata.ino(),
        path,
        tree,
        links,
        hidden: Vec::new(),
    })
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = setup("make pipes");
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
    Ok((read, write))
}

pub(super) fn not_blocking(descriptor: &OwnedFd) -> Result<(), Error> {
    rustix::fs::fcntl_setfl(descriptor, OFlags::NONBLOCK).map_err(|error| setup("make pipes")(error.into()))
}

/// The child's ends of its descriptors.
pub(super) struct Ends {
    pub(super) stdio: [OwnedFd; 3],
    pub(super) value: Option<OwnedFd>,
    pub(super) code: Option<OwnedFd>,
}

/// Creates the descriptors of both sides.
pub(super) fn streams(
    sandbox: &Sandbox,
    payload: Option<&Payload>,
    is_live: bool,
    control: Option<OwnedFd>,
) -> Result<(Streams, Option<Pipes>, Ends), Error> {
    let fail = setup("make pipes");
    let (stdout, stdout_child) = pipe()?;
    let (stderr, stderr_child) = pipe()?;
    if !is_live {
        not_blocking(&stdout)?;
        not_blocking(&stderr)?;
    }
    let mut live_stdin = None;
    let source = sandbox.stdin.open()?;
    let (stdin, stdin_child) = match source {
        None if is_live => {
            let (read, write) = pipe()?;
            live_stdin = Some(PipeWriter::from(write));
            (None, read)
        }
        None => {
            let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            (None, null.map_err(|error| fail(error.into()))?)
        }
        Some(source) => {
            let (read, write) = pipe()?;
            not_blocking(&write)?;
            (Some(Feed { pipe: write, source, block: Vec::new() }), read)
        }
    };
    let (value, value_child, code) = match (payload, control) {
        (_, Some(control)) => (None, Some(high(control).map_err(&fail)?), None),
        (None, None) => (None, None, None),
        (Some(payload), None) => {
            let (read, write) = pipe()?;
            not_blocking(&read)?;
            let code = launch::sealed(c"code", &payload.content, payload.is_executable).map_err(&fail)?;
            (Some(read), Some(high(write).map_err(&fail)?), Some(code))
        }
    };
    let ends = Ends {
        stdio: [
            high(stdin_child).map_err(&fail)?,
            high(stdout_child).map_err(&fail)?,
            high(stderr_child).map_err(&fail)?,
        ],
        value: value_child,
        code,
    };
    if is_live {
        let pipes = Pipes {
            stdin: live_stdin,
            stdout: stdout.into(),
            stderr: stderr.into(),
            container: None,
            directory: LiveDirectory::default(),
            shown: Vec::new(),
            not_shown: Vec::new(),
        };
        return Ok((Streams { stdout: None, stderr: None, value, stdin }, Some(pipes), ends));
    }
    Ok((Streams { stdout: Some(stdout), stderr: Some(stderr), value, stdin }, None, ends))
}

/// The step that places the child's descriptors.
pub(super) fn descriptors(ends: Ends) -> Result<Step, Error> {
    descriptors_with(ends, None)
}

/// A variant with the descriptor with which the first process kills everything.
fn descriptors_with(ends: Ends, kill: Option<OwnedFd>) -> Result<Step, Error> {
    let Ends { stdio, value, code } = ends;
    let one_by_one = facts::one_by_one();
    let program = launch::first_process().and_then(launch::duplicate).map_err(setup("load first process"))?;
    Ok(Step::Descriptors { stdio, value, code, program, kill, one_by_one })
}

/// The program's environment: the clean one, the caller's variables, and those of the proxy.
pub(super) fn variables(
    sandbox: &Sandbox,
    egress: Option<&PreparedProxy>,
    ready: &Ready,
    workspace: &Path,
    own_namespaces: bool,
    own_home: Option<&Path>,
) -> Vec<CString> {
    let scratch = match sandbox.level {
        Some(Level::Unconfined) => std::env::temp_dir(),
        Some(Level::Minimal) => workspace.to_owned(),
        _ if own_namespaces => PathBuf::from(HOME),
        _ => own_home.unwrap_or(workspace).to_owned(),
    };
    // Caches and settings are not artifacts. Without another private directory they stay in the workspace.
    let home = match own_home {
        Some(home) => home,
        None if scratch == Path::new(HOME) && own_namespaces => Path::new(HOME),
        None => workspace,
    };
    let mut own = sandbox.environment.clone();
    if let Some(egress) = egress {
        let inside = (std::net::Ipv4Addr::LOCALHOST, PORT).into();
        own.extend(egress.variables(inside).into_iter().map(|(name, value)| (name, value.into())));
    }
    plan::environment(home, &search_path(ready), &own, &scratch)
}

/// Adds the last step: the first process with the program's arguments.
fn exec(environment: Vec<CString>, ready: &Ready, limits: &Limits, mode: &CStr, steps: &mut Vec<Step>) {
    let mut all: Vec<CString> = vec![mode.to_owned(), c_string(ready.path.as_os_str().as_bytes())];
    all.extend(arguments(ready, limits));
    steps.push(Step::Exec { arguments: Pointers::new(all), environment: Pointers::new(environment) });
}

/// The arguments after the program's name.
pub(super) fn arguments(ready: &Ready, limits: &Limits) -> Vec<CString> {
    let argument = |argument: &OsString| match ready.language {
        // Not an argument of the code.
        Some(Language::Java) if argument.as_bytes().starts_with(b"-Xmx") => {
            c_string(argument.to_string_lossy().replace(HEAP, &toolchain::heap(limits)))
        }
        _ => c_string(argument.as_bytes()),
    };
    ready.arguments.iter().map(argument).collect()
}

/// The search path inside: the system directories, after those of an installation elsewhere.
fn search_path(ready: &Ready) -> OsString {
    let directory: Option<PathBuf> = ready
        .path
        .parent()
        .filter(|_| !ready.needs.is_empty() && ready.path.is_absolute())
        .map(Path::to_owned);
    let mut search = OsString::new();
    if let Some(directory) = directory.filter(|directory| directory.ends_with("bin")) {
        search.push(directory);
        search.push(":");
    }
    search.push(SYSTEM_SEARCH_PATH);
    search
}

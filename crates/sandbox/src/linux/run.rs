//! One run, from the request to the outcome.

use std::ffi::{CString, OsStr, OsString};
use std::io::PipeWriter;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::cgroup::Group;
use super::files::{self, Folder, Listing, Owner};
use super::interpreter::{self, Found, Reach};
use super::launch::{self, Plan, c_string, high};
use super::plan::{self, Request, Visible};
use super::steps::{CODE, Pointers, Step};
use super::supervise::{self, Ended, Failure, Feed, Finished, Running, Streams, Supervision};
use super::temporary::TemporaryFolder;
use super::workspace::HostFolder;
use super::{Facts, identity, network, template, unconfined};
use crate::running::Pipes;
use crate::{
    Cancel, Changes, Error, Event, Host, Language, Level, Limits, Outcome, Program, Reached, Report,
    SYSTEM_SEARCH_PATH, Sandbox, Stdin, Usage, Verdict, Workspace,
};

const PYTHON_DRIVER: &str = include_str!("../../drivers/python.py");
const JAVASCRIPT_DRIVER: &str = include_str!("../../drivers/javascript.js");

fn setup(step: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Setup { step, source }
}

/// The level that is given, and whether it is lower than asked for.
fn choose(sandbox: &Sandbox, host: &Host) -> Result<(Level, bool), Error> {
    let wanted = sandbox.level.unwrap_or(Level::Strict);
    if wanted == Level::Unconfined {
        return Ok((wanted, false));
    }
    let available = |level: Level| host.availability(level).is_some_and(|entry| entry.available);
    if available(wanted) {
        return Ok((wanted, false));
    }
    let lower = Level::ALL.into_iter().rev().find(|level| *level < wanted && available(*level));
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

/// Who gets the output.
pub(crate) enum Output<'a> {
    /// It is captured, and handed over while it comes.
    Captured(&'a mut dyn FnMut(Event<'_>)),
    /// The caller gets the streams themselves.
    Live(&'a SyncSender<Pipes>),
}

/// The workspace as the host holds it before the start.
enum Place {
    /// The child makes it.
    Private,
    Temporary(TemporaryFolder),
    Host(HostFolder),
    /// A folder of the host in which nothing is protected.
    Plain(PathBuf),
}

pub(crate) fn run(
    sandbox: &Sandbox,
    program: &Program,
    cancel: &Cancel,
    output: Output<'_>,
) -> Result<Outcome, Error> {
    let started = Instant::now();
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    let facts = &host.facts;
    let (level, degraded) = choose(sandbox, host)?;
    let limits = &sandbox.limits;
    let namespaces = facts.namespaces.is_ok();
    let confined = level != Level::Unconfined;
    let reach = Reach {
        etc_and_opt: level != Level::Strict,
        as_stranger: confined && !namespaces && facts.is_root(),
    };
    let search = sandbox.search_path.as_deref();
    let found = match program {
        Program::Argv(arguments) => interpreter::program(
            arguments.first().map_or(OsStr::new(""), OsString::as_os_str),
            search,
            reach,
        )?,
        Program::Code { language, .. } => interpreter::interpreter(*language, search, reach)?,
    };
    let visible = if confined { visible(sandbox, &found, facts)? } else { Vec::new() };
    let is_live = matches!(output, Output::Live(_));
    let mut place = place(sandbox, facts, level)?;

    // Files for a folder of the host are put there now; a private one exists only in the child.
    let owner = program_owner(facts, level);
    let mut before = Listing::default();
    let mut placeholders = Vec::new();
    match &place {
        Place::Private | Place::Plain(_) => {}
        Place::Temporary(folder) => {
            files::upload(folder.descriptor(), &sandbox.files, limits, owner)?;
            before = files::list(folder.descriptor());
        }
        Place::Host(folder) if folder.is_read_only() => {}
        Place::Host(folder) => {
            let owner = facts.is_root().then(|| folder.owner());
            files::upload(folder.descriptor(), &sandbox.files, limits, owner)?;
            if !is_live {
                before = files::list(folder.descriptor());
            }
            placeholders = folder.placeholders();
            before.leave_out(&placeholders);
        }
    }
    let child_waits = matches!(place, Place::Private) && !sandbox.files.is_empty();

    let mut group = Group::create(&facts.cgroups, limits, !namespaces);
    let has_host_folder = matches!(place, Place::Host(_));
    let template = plan::fits_template(level, facts, has_host_folder, &visible)
        .then(|| template::namespace(facts))
        .flatten();
    let request = Request {
        level,
        limits,
        facts,
        directory: sandbox.directory.as_deref(),
        fresh: match &place {
            Place::Temporary(folder) => Some(folder.path()),
            Place::Plain(path) => Some(path.as_path()),
            _ => None,
        }
        .map(Path::to_owned),
        host: match &mut place {
            Place::Host(folder) => Some(folder),
            _ => None,
        },
        visible,
        waits: child_waits,
        group: &mut group,
        network: (confined && namespaces && facts.is_root()).then(network::take).flatten(),
        template,
    };
    let confinement = if confined { plan::confinement(request) } else { unconfined::confinement(request) };
    let plan::Confinement {
        namespaces: flags,
        mut steps,
        layers,
        missing,
        workspace,
        own_namespaces,
        scoped_signals,
    } = confinement;
    let mut report = Report {
        requested: sandbox.level,
        effective: level,
        degraded,
        layers,
        missing,
        reached: Vec::new(),
        notes: Vec::new(),
    };

    let (streams, pipes) = streams(sandbox, program, is_live, &mut steps)?;
    exec(sandbox, program, &found, &workspace, own_namespaces, scoped_signals, &mut steps);
    let plan = Plan { namespaces: flags, cgroup: group.take_born(), steps };
    let child = launch::start(&plan).map_err(setup("start child in namespaces"))?;
    let names: Vec<(&'static str, Option<String>)> =
        plan.steps.iter().map(|step| (step.name(), step.subject())).collect();
    drop(plan);
    let mut nobody = |_: Event<'_>| {};
    let on_event: &mut dyn FnMut(Event<'_>) = match output {
        Output::Captured(on_event) => on_event,
        Output::Live(sender) => {
            // If nobody waits for them any more, the program was cancelled.
            let _ = pipes.map(|pipes| sender.send(pipes));
            &mut nobody
        }
    };

    let measured = match &place {
        Place::Temporary(folder) => Some(folder.descriptor()),
        _ => None,
    };
    let mut on_folder = |descriptor: rustix::fd::BorrowedFd<'_>| {
        if sandbox.files.is_empty() {
            return Ok(());
        }
        files::upload(descriptor, &sandbox.files, limits, owner)?;
        before = files::list(descriptor);
        Ok(())
    };
    let finished = supervise::supervise(Supervision {
        running: Running { child, own_namespaces, group: &group },
        streams,
        limits,
        cancel,
        on_event,
        started,
        on_folder: &mut on_folder,
        child_waits,
        measured,
    });
    let mut finished = match finished {
        Ok(finished) => finished,
        Err(failure) => return Err(explain(failure, &names, &found.path)),
    };
    let wall = started.elapsed();

    let private_folder = finished.folder.take();
    let is_full = private_folder.as_ref().is_some_and(is_full);
    let verdict = verdict(&finished, limits, &group, is_full, &mut report);
    let exit_code = match (&finished.ended, finished.status) {
        (None, Some(status)) if libc::WIFEXITED(status.wait) => Some(libc::WEXITSTATUS(status.wait)),
        _ => None,
    };
    let usage = Usage {
        wall,
        user: Duration::from_micros(finished.usage.user_micros),
        system: Duration::from_micros(finished.usage.system_micros),
        largest_process: finished.status.map_or(0, |status| status.largest),
        peak_memory: group.peak_memory(),
    };
    let value = value(&finished, &mut report);
    if finished.stdout.dropped > 0 {
        report.reached.push(Reached::Stdout);
    }
    if finished.stderr.dropped > 0 {
        report.reached.push(Reached::Stderr);
    }
    let folder = match place {
        _ if is_live => None,
        Place::Plain(_) => None,
        Place::Private => private_folder.map(|descriptor| Folder { descriptor, _temporary: None }),
        Place::Temporary(temporary) => launch::duplicate(temporary.descriptor())
            .ok()
            .map(|descriptor| Folder { descriptor, _temporary: Some(temporary) }),
        Place::Host(folder) if folder.is_read_only() => None,
        Place::Host(folder) => launch::duplicate(folder.descriptor())
            .ok()
            .map(|descriptor| Folder { descriptor, _temporary: None }),
        // `folder` is dropped here: the placeholders go before the listing is made.
    };
    let mut changes = Changes::default();
    let mut artifacts = Vec::new();
    if let Some(folder) = folder {
        let mut after = files::list(folder.descriptor.as_fd());
        // Another run in the same folder may still need them.
        after.leave_out(&placeholders);
        changes = files::compare(&before, &after);
        if let Some(reason) = after.left_out {
            report.reached.push(Reached::Changes);
            report.notes.push(format!("not every file is listed: {reason}"));
        }
        artifacts = files::collect(folder, &changes, &after, limits, &mut report);
    }
    Ok(Outcome {
        verdict,
        exit_code,
        stdout: finished.stdout,
        stderr: finished.stderr,
        value,
        artifacts,
        changes,
        usage,
        report,
    })
}

/// Who owns what the host makes for the program, if that is another user.
fn program_owner(facts: &Facts, level: Level) -> Option<Owner> {
    let other = facts.is_root() && level != Level::Unconfined;
    other.then_some(Owner { user: facts.unprivileged, group: facts.unprivileged })
}

/// Opens the workspace of the host's side.
fn place(sandbox: &Sandbox, facts: &Facts, level: Level) -> Result<Place, Error> {
    let namespaces = facts.namespaces.is_ok();
    let owner = program_owner(facts, level);
    match &sandbox.workspace {
        Workspace::Fresh if level == Level::Unconfined => {
            Ok(Place::Temporary(TemporaryFolder::create(owner).map_err(setup("make workspace"))?))
        }
        Workspace::Host(path) if level == Level::Unconfined => {
            let refuse = |reason: String| Error::Workspace { path: path.clone(), reason };
            let folder = path.canonicalize().map_err(|error| refuse(error.to_string()))?;
            if !folder.is_dir() {
                return Err(refuse("it is no folder".into()));
            }
            Ok(Place::Plain(folder))
        }
        Workspace::ReadOnlyHost(path) if level == Level::Unconfined => Err(Error::Workspace {
            path: path.clone(),
            reason: "an unconfined program cannot be kept from writing there; name a level".into(),
        }),
        Workspace::Fresh if namespaces => Ok(Place::Private),
        Workspace::Fresh => {
            Ok(Place::Temporary(TemporaryFolder::create(owner).map_err(setup("make workspace"))?))
        }
        Workspace::Host(_) if !namespaces && !sandbox.allow_degraded => Err(Error::LevelUnavailable {
            level,
            reason: "without mount namespaces the protected paths of a host folder cannot be made read-only"
                .into(),
            fix: "allow namespaces, use a fresh workspace, or allow a degraded level".into(),
        }),
        Workspace::Host(path) => Ok(Place::Host(HostFolder::open(path, facts, namespaces)?)),
        Workspace::ReadOnlyHost(path) => Ok(Place::Host(HostFolder::open_read_only(path, facts)?)),
    }
}

/// What is shown besides the system folders.
fn visible(sandbox: &Sandbox, found: &Found, facts: &Facts) -> Result<Vec<Visible>, Error> {
    use std::os::unix::fs::MetadataExt as _;
    let mut list: Vec<Visible> = Vec::new();
    let wanted =
        found.needs.iter().map(|path| (path, false)).chain(sandbox.read_only.iter().map(|path| (path, true)));
    for (path, is_private) in wanted {
        let fail = |source| Error::File { action: "show", path: path.clone(), source };
        let path = path.canonicalize().map_err(fail)?;
        if list.iter().any(|seen| path.starts_with(&seen.path)) {
            continue;
        }
        if path == Path::new("/") || ["/proc", "/sys", "/dev"].iter().any(|kernel| path.starts_with(kernel)) {
            let error = std::io::Error::other("the root and the kernel's own folders are never shown");
            return Err(fail(error));
        }
        let descriptor =
            rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| fail(error.into()))?;
        let file = std::fs::File::from(descriptor);
        let metadata = file.metadata().map_err(fail)?;
        // What the operator named may be the operator's alone; the program is another user.
        let open_to_all =
            metadata.mode() & 0o005 == 0o005 || (metadata.is_file() && metadata.mode() & 0o004 != 0);
        let tree = if facts.is_root() && facts.namespaces.is_ok() && (is_private || !open_to_all) {
            let owner = Owner { user: metadata.uid(), group: metadata.gid() };
            identity::mapped_tree(file.as_fd(), owner, facts.unprivileged, true).ok()
        } else {
            None
        };
        list.push(Visible {
            is_folder: metadata.is_dir(),
            device: metadata.dev(),
            inode: metadata.ino(),
            path,
            tree,
        });
    }
    // Folders above others first, so that a later one is not hidden by an earlier one.
    list.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(list)
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = setup("make pipes");
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
    Ok((read, write))
}

fn not_blocking(descriptor: &OwnedFd) -> Result<(), Error> {
    rustix::fs::fcntl_setfl(descriptor, OFlags::NONBLOCK).map_err(|error| setup("make pipes")(error.into()))
}

/// Makes the descriptors of both sides and adds the step that arranges the child's.
fn streams(
    sandbox: &Sandbox,
    program: &Program,
    is_live: bool,
    steps: &mut Vec<Step>,
) -> Result<(Streams, Option<Pipes>), Error> {
    let fail = setup("make pipes");
    let (stdout, stdout_child) = pipe()?;
    let (stderr, stderr_child) = pipe()?;
    if !is_live {
        not_blocking(&stdout)?;
        not_blocking(&stderr)?;
    }
    let mut live_stdin = None;
    let source: Option<Box<dyn std::io::Read>> = match &sandbox.stdin {
        Stdin::Empty => None,
        Stdin::Bytes(bytes) => Some(Box::new(std::io::Cursor::new(bytes.clone()))),
        Stdin::File(path) => Some(Box::new(files::open_regular(path).map_err(|source| Error::File {
            action: "read input",
            path: path.clone(),
            source,
        })?)),
    };
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
    let (value, value_child, code) = match program {
        Program::Argv(_) => (None, None, None),
        Program::Code { source, .. } => {
            let (read, write) = pipe()?;
            not_blocking(&read)?;
            let code = launch::sealed(c"code", source.as_bytes(), false).map_err(&fail)?;
            (Some(read), Some(high(write).map_err(&fail)?), Some(code))
        }
    };
    let program = launch::first_process().and_then(launch::duplicate).map_err(setup("load first process"))?;
    steps.push(Step::Descriptors {
        stdio: [
            high(stdin_child).map_err(&fail)?,
            high(stdout_child).map_err(&fail)?,
            high(stderr_child).map_err(&fail)?,
        ],
        value: value_child,
        code,
        program,
    });
    if is_live {
        let pipes = Pipes { stdin: live_stdin, stdout: stdout.into(), stderr: stderr.into() };
        return Ok((Streams { stdout: None, stderr: None, value, stdin }, Some(pipes)));
    }
    Ok((Streams { stdout: Some(stdout), stderr: Some(stderr), value, stdin }, None))
}

/// Adds the last step: the first process with the program's arguments.
fn exec(
    sandbox: &Sandbox,
    program: &Program,
    found: &Found,
    workspace: &Path,
    own_namespaces: bool,
    scoped_signals: bool,
    steps: &mut Vec<Step>,
) {
    let text = |path: &Path| c_string(path.as_os_str().as_bytes());
    let mode = match (own_namespaces, scoped_signals) {
        (true, _) => c"-",
        (false, true) => c"sk",
        (false, false) => c"s",
    };
    let mut arguments: Vec<CString> = vec![mode.to_owned(), text(&found.path)];
    match program {
        Program::Argv(all) => {
            arguments.extend(all.iter().skip(1).map(|argument| c_string(argument.as_bytes())));
        }
        Program::Code { language, .. } => {
            let code = format!("/proc/self/fd/{CODE}");
            let options: [&str; 3] = match language {
                Language::Python => ["-I", "-c", PYTHON_DRIVER],
                Language::Bash => ["--noprofile", "--norc", &code],
                Language::JavaScript => ["--no-warnings", "-e", JAVASCRIPT_DRIVER],
            };
            arguments.extend(options.into_iter().map(c_string));
        }
    }
    let scratch = match sandbox.level {
        Some(Level::Unconfined) => std::env::temp_dir(),
        _ if own_namespaces => PathBuf::from("/tmp"),
        _ => workspace.to_owned(),
    };
    let search = search_path(found);
    let environment = plan::environment(workspace, &search, &sandbox.environment, &scratch);
    steps.push(Step::Exec { arguments: Pointers::new(arguments), environment: Pointers::new(environment) });
}

/// The search path inside: the system folders, and first that of an installation elsewhere.
fn search_path(found: &Found) -> OsString {
    let folder: Option<PathBuf> = found
        .path
        .parent()
        .filter(|_| !found.needs.is_empty() && found.path.is_absolute())
        .map(Path::to_owned);
    let mut search = OsString::new();
    if let Some(folder) = folder.filter(|folder| folder.ends_with("bin")) {
        search.push(folder);
        search.push(":");
    }
    search.push(SYSTEM_SEARCH_PATH);
    search
}

fn explain(failure: Failure, names: &[(&'static str, Option<String>)], program: &Path) -> Error {
    match failure {
        Failure::Host(error) => error,
        Failure::Program(error) => Error::ProgramNotStarted {
            program: program.display().to_string(),
            source: std::io::Error::from_raw_os_error(error),
        },
        Failure::Step(index, error) => {
            let (step, subject) = names.get(index).cloned().unwrap_or(("set-up", None));
            let system = std::io::Error::from_raw_os_error(error);
            let source = match subject {
                Some(subject) => std::io::Error::new(system.kind(), format!("{subject}: {system}")),
                None => system,
            };
            Error::Setup { step, source }
        }
    }
}

/// Whether a fresh workspace has no byte or no inode left.
fn is_full(folder: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(folder).is_ok_and(|space| space.f_bavail == 0 || space.f_ffree == 0)
}

fn verdict(
    finished: &Finished,
    limits: &Limits,
    group: &Group,
    is_full: bool,
    report: &mut Report,
) -> Verdict {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (killed, refused) = (group.memory_kills() > 0, group.refused_processes() > 0);
    for (reached, limit) in
        [(killed, Reached::Memory), (refused, Reached::Processes), (is_full, Reached::Disk)]
    {
        if reached {
            report.reached.push(limit);
        }
    }
    let cpu = limits.cpu.map(|limit| Verdict::Cpu { limit_ms: millis(limit) });
    match finished.ended {
        Some(Ended::Cancelled) => return Verdict::Cancelled,
        Some(Ended::Timeout) => return Verdict::Timeout { limit_ms: millis(limits.wall) },
        Some(Ended::Output) => return Verdict::Output { limit: limits.output_total },
        Some(Ended::Disk) => return Verdict::Disk { limit: limits.workspace_bytes },
        Some(Ended::Cpu) => return cpu.unwrap_or(Verdict::Cancelled),
        None => {}
    }
    let Some(status) = finished.status else {
        if killed {
            return Verdict::Memory { limit: limits.memory };
        }
        report.notes.push("the first process of the sandbox was killed from outside".into());
        return Verdict::Signal { signal: libc::SIGKILL };
    };
    if libc::WIFEXITED(status.wait) {
        return match libc::WEXITSTATUS(status.wait) {
            0 => Verdict::Ok,
            _ if killed => Verdict::Memory { limit: limits.memory },
            _ if refused => Verdict::Processes { limit: limits.processes },
            _ if is_full => Verdict::Disk { limit: limits.workspace_bytes },
            code => Verdict::Exit { code },
        };
    }
    let signal = libc::WTERMSIG(status.wait);
    let used = Duration::from_micros(finished.usage.user_micros + finished.usage.system_micros);
    match (signal, limits.cpu, cpu) {
        (libc::SIGXCPU | libc::SIGKILL, Some(limit), Some(verdict)) if used >= limit => verdict,
        (libc::SIGKILL, ..) if killed => Verdict::Memory { limit: limits.memory },
        (libc::SIGSYS, ..) => Verdict::Denied {
            rule: "system calls of another machine or interface (int 0x80, x32) are not allowed".into(),
        },
        _ => Verdict::Signal { signal },
    }
}

/// The value: an explicit result line, else what the interpreter found.
fn value(finished: &Finished, report: &mut Report) -> Option<serde_json::Value> {
    if finished.value_overflowed {
        report.reached.push(Reached::Value);
    }
    if let Some(line) = &finished.result_line {
        match serde_json::from_slice(line) {
            Ok(value) => return Some(value),
            Err(error) => report.notes.push(format!("the line `::result` is not JSON: {error}")),
        }
    }
    if finished.value.is_empty() || finished.value_overflowed {
        return None;
    }
    match serde_json::from_slice(&finished.value) {
        Ok(value) => Some(value),
        Err(error) => {
            report.notes.push(format!("the value is not JSON: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;

    #[test]
    fn layers_are_named_once_each() {
        let host = Host::probe();
        if !host.availability(Level::Strict).is_some_and(|entry| entry.available) {
            println!("SKIP layers_are_named_once_each: level strict is not available");
            return;
        }
        let outcome = Sandbox::new()
            .level(Level::Strict)
            .run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {})
            .unwrap();
        let mut layers = outcome.report.layers.clone();
        layers.dedup();
        assert_eq!(layers, outcome.report.layers);
        for missing in &outcome.report.missing {
            assert!(!layers.contains(&missing.layer), "{missing:?}");
        }
        assert!(outcome.report.has(Layer::Seccomp));
    }
}

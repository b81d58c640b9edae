//! One run in a container, from the request to the outcome.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use toolpost_egress::shorten;

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::Signal;

mod attend;
mod directory;
mod live;

use live::Live;

use super::Docker;
use super::build::Built;
use super::channel::{Channel, Frame, Waited};
use super::container::Prepared;
use super::error::DockerError;
use super::idle::{Ready, why_gone};
use super::tunnel::Tunnel;
use toolpost_sandbox::container::{
    CopiedDirectory, OutputCapture, check_file_name, code_text, differences, interpreters, open_regular,
    program_names,
};
use toolpost_sandbox::{
    BackendRequest, Changes, Error, Language, Limits, Outcome, Program, Reached, Report, ResourceUsage,
    SYSTEM_SEARCH_PATH, SandboxArtifact, SandboxEvent, Source, Stdin, Verdict,
};

/// The number of frames between checks of other descriptors.
const FRAMES_AT_ONCE: u32 = 16;
/// The size of pieces in which files and input are sent.
const PIECE: usize = 32 << 10;
const WORKSPACE: &str = "/workspace";
const ENOENT: i32 = Errno::NOENT.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const SIGKILL: i32 = Signal::KILL.as_raw();
const SIGXCPU: i32 = Signal::XCPU.as_raw();
const SIGSYS: i32 = Signal::SYS.as_raw();
/// The limits of the first process's protocol, numbered as in Linux.
const RLIMIT_CPU: u64 = 0;
const RLIMIT_FSIZE: u64 = 1;
const RLIMIT_NOFILE: u64 = 7;
const CODE: &str = "/proc/self/fd/5";

/// The reason why the host ended the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Cancelled,
    Timeout,
    Cpu,
    Idle,
    Output,
}

/// One workspace file, as the first process reports it: inode, kind, links, size, times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WorkspaceFile {
    numbers: [u64; 8],
}

impl WorkspaceFile {
    fn is_regular(self) -> bool {
        FileType::from_raw_mode(self.numbers[1] as u32) == FileType::RegularFile
    }

    fn is_executable(self) -> bool {
        self.numbers[1] & 0o100 != 0
    }

    fn names(self) -> u64 {
        self.numbers[2]
    }

    fn size(self) -> u64 {
        self.numbers[3]
    }
}

#[derive(Debug, Default)]
struct Listing {
    files: BTreeMap<PathBuf, WorkspaceFile>,
    left_out: Option<&'static str>,
    /// Whether the workspace has no free byte.
    is_full: bool,
    /// Has no free inode.
    is_crowded: bool,
}

/// A run with its container.
pub(super) struct Run<'a> {
    pub(super) docker: &'a Docker,
    pub(super) request: &'a BackendRequest<'a>,
    pub(super) ready: Ready,
    pub(super) limits: Limits,
    pub(super) report: Report,
    pub(super) image: Prepared,
    pub(super) started: Instant,
    /// The workspace, if it is a host directory.
    pub(super) directory: Option<CopiedDirectory>,
    /// The built program, if the language is compiled.
    pub(super) built: Option<Built>,
    /// The egress tunnel, if there is one.
    pub(super) tunnel: Option<Tunnel>,
}

/// The receiver of the program's output.
enum Sink<'a> {
    Captured(&'a mut dyn FnMut(SandboxEvent<'_>)),
    Live(&'a mut Live),
}

/// The results of the loop.
struct Finished {
    ended: Option<Ended>,
    /// The numbers of the frame `x`; none if the container died.
    end: Option<Frame>,
    output: OutputCapture,
}

impl Run<'_> {
    pub(super) fn finish(mut self, on_event: &mut dyn FnMut(SandboxEvent<'_>)) -> Result<Outcome, Error> {
        self.copy_in()?;
        self.upload()?;
        let is_empty = self.request.files().is_empty() && self.directory.is_none() && self.built.is_none();
        let before = if is_empty { Listing::default() } else { self.list()? };
        self.open_tunnel()?;
        self.start(!matches!(self.request.stdin(), Stdin::Empty))?;
        let mut finished = self.attend(&mut Sink::Captured(on_event))?;
        self.close_tunnel();
        let limits = self.limits.clone();
        let (verdict, exit_code) = self.verdict(&finished)?;
        let end = finished.end.take();
        let mut outcome = Outcome::new(verdict, self.report.clone());
        outcome.usage = self.usage(end.as_ref());
        outcome.exit_code = exit_code;
        finished.output.finish(self.request.program(), &mut outcome);
        if end.is_some() {
            let after = self.list()?;
            outcome.changes = differences(&before.files, &after.files, after.left_out.is_none());
            if let Some(reason) = after.left_out {
                outcome.report.reached.push(Reached::Changes);
                outcome.report.notes.push(format!("some files are not listed: {reason}"));
            }
            self.copy_back(&outcome.changes, &after, &mut outcome.report)?;
            outcome.artifacts = self.collect(&outcome.changes, &after, &mut outcome.report)?;
            let largest =
                after.files.values().any(|entry| entry.is_regular() && entry.size() == limits.file_size);
            let (bytes, entries) = (limits.workspace_bytes, limits.workspace_inodes);
            for (reached, limit, failed) in [
                (after.is_full, Reached::Disk, Verdict::Disk { limit: bytes }),
                (after.is_crowded, Reached::Inodes, Verdict::Inodes { limit: entries }),
            ] {
                if reached {
                    outcome.report.reached.push(limit);
                    if let Verdict::Exit { .. } = outcome.verdict {
                        outcome.verdict = failed;
                    }
                }
            }
            if largest {
                outcome.report.reached.push(Reached::FileSize);
                if outcome.verdict == (Verdict::Signal { signal: Signal::XFSZ.as_raw() }) {
                    outcome.verdict = Verdict::FileSize { limit: limits.file_size };
                }
            }
        }
        self.docker.used(self.ready.id);
        Ok(outcome)
    }

    fn usage(&self, end: Option<&Frame>) -> ResourceUsage {
        let micros = |index| known(end, index).unwrap_or_default();
        let mut usage = ResourceUsage::default();
        usage.wall = self.started.elapsed();
        usage.user = Duration::from_micros(micros(1));
        usage.system = Duration::from_micros(micros(2));
        usage.largest_process = micros(3).saturating_mul(1024);
        usage.peak_memory = known(end, 6);
        usage
    }

    fn gone(&self) -> Error {
        why_gone(self.docker.engine(), &self.ready.id, &self.ready.name).into()
    }

    fn timeout(&self, action: &str) -> Error {
        DockerError::Timeout {
            host: self.docker.engine().host().to_string(),
            action: format!("{action} container `{}`", self.ready.name),
            limit: self.docker.engine().answer_timeout(),
        }
        .into()
    }

    fn channel(&mut self) -> &mut Channel {
        &mut self.ready.channel
    }

    fn answer_deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.docker.engine().answer_timeout())
    }

    /// Waits for a frame within the daemon's time limit.
    fn answer(&mut self, action: &str) -> Result<Frame, Error> {
        let until = self.answer_deadline();
        match self.channel().wait(until, &[], false)? {
            Waited::Frame(frame) => Ok(frame),
            Waited::Nothing => Err(self.timeout(action)),
            Waited::End => Err(self.gone()),
        }
    }

    /// Waits until the queue has room.
    fn make_room(&mut self) -> Result<(), Error> {
        let until = self.answer_deadline();
        while self.channel().is_full() {
            match self.channel().wait(until, &[], true)? {
                Waited::Frame(frame) if frame.kind == b'z' => return Err(refused_upload(&frame, "upload")),
                Waited::Nothing if self.channel().is_full() => return Err(self.timeout("write to")),
                Waited::Frame(_) | Waited::Nothing => {}
                Waited::End => return Err(self.gone()),
            }
        }
        Ok(())
    }

    fn upload(&mut self) -> Result<(), Error> {
        let limits = self.limits.clone();
        for (name, source) in self.request.files() {
            let too_large = |size: u64| Error::TooLarge {
                what: "upload",
                size,
                maximum: limits.workspace_bytes,
                hint: "raise the limit `workspace_bytes`",
            };
            self.channel().send(b'F', name.as_bytes());
            match source {
                Source::Bytes(bytes) => {
                    if bytes.len() as u64 > limits.workspace_bytes {
                        return Err(too_large(bytes.len() as u64));
                    }
                    for piece in bytes.chunks(PIECE) {
                        self.make_room()?;
                        self.channel().send(b'D', piece);
                    }
                }
                Source::Path(path) => {
                    let fail = |source| Error::File { action: "read upload", path: path.clone(), source };
                    let file = open_regular(path).map_err(fail)?;
                    let size = file.metadata().map_err(fail)?.len();
                    if size > limits.workspace_bytes {
                        return Err(too_large(size));
                    }
                    // A file that grows meanwhile is copied at its old size.
                    self.send_content(file.take(size), path)?;
                }
            }
        }
        if let Some(built) = &self.built {
            let (name, content) = (built.name.clone(), std::sync::Arc::clone(&built.content));
            self.send_file(name.as_bytes(), &*content, Path::new(&name))?;
            self.channel().send(b'X', &[]);
        }
        Ok(())
    }

    /// Sends a file; `from` is its name in errors.
    fn send_file(&mut self, name: &[u8], content: impl Read, from: &Path) -> Result<(), Error> {
        self.make_room()?;
        self.channel().send(b'F', name);
        self.send_content(content, from)
    }

    fn send_content(&mut self, mut content: impl Read, from: &Path) -> Result<(), Error> {
        let mut block = vec![0u8; PIECE];
        loop {
            let fail = |source| Error::File { action: "read upload", path: from.to_owned(), source };
            let size = content.read(&mut block).map_err(fail)?;
            if size == 0 {
                return Ok(());
            }
            self.make_room()?;
            let piece = block.get(..size).unwrap_or_default();
            self.channel().send(b'D', piece);
        }
    }

    /// Lists the workspace files. Also proves that all uploads arrived.
    fn list(&mut self) -> Result<Listing, Error> {
        const MAX_FILES: usize = 20_000;
        let mut listing = Listing::default();
        self.channel().send(b'L', &[]);
        loop {
            let frame = self.answer("list the files of")?;
            match frame.kind {
                b'f' if listing.files.len() <= MAX_FILES => {
                    let numbers = std::array::from_fn(|index| frame.number(index));
                    let name = frame.content.get(64..).unwrap_or_default();
                    if self.built.as_ref().is_some_and(|built| built.name.as_bytes() == name) {
                        continue;
                    }
                    listing.files.insert(OsStr::from_bytes(name).into(), WorkspaceFile { numbers });
                }
                b'l' => {
                    listing.left_out = match frame.number(0) {
                        0 => None,
                        1 => Some("there are more than 20,000 files and directories"),
                        2 => Some("directories are nested deeper than 48 levels"),
                        _ => Some("opening a directory failed"),
                    };
                    listing.is_full = frame.number(1) == 1;
                    listing.is_crowded = frame.number(2) == 1;
                    return Ok(listing);
                }
                b'z' => return Err(refused_upload(&frame, "upload")),
                _ => {}
            }
        }
    }

    /// Starts the program, with its first interpreter in the image.
    fn start(&mut self, has_input: bool) -> Result<(), Error> {
        if let Some(built) = &self.built {
            let arguments = built.arguments.clone();
            let given = self.request.arguments();
            let arguments: Vec<&[u8]> =
                arguments.iter().chain(given).map(|argument| argument.as_bytes()).collect();
            return self
                .launch(&arguments, None, has_input)?
                .map_or(Ok(()), |error| Err(not_started(error, arguments[0])));
        }
        match self.request.program() {
            Program::Argv(arguments) => {
                let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
                self.launch(&arguments, None, has_input)?
                    .map_or(Ok(()), |error| Err(not_started(error, arguments[0])))
            }
            Program::Code { language, source } => {
                let text = code_text(*language, source);
                for command in interpreters(*language, CODE, self.request.arguments()) {
                    let arguments: Vec<&[u8]> = command.iter().map(|argument| argument.as_bytes()).collect();
                    match self.launch(&arguments, Some(&text), has_input)? {
                        None => return Ok(()),
                        Some(NotStarted { stage: b'p', error: ENOENT }) => {}
                        Some(error) => return Err(not_started(error, arguments[0])),
                    }
                }
                Err(self.no_language(*language))
            }
            // Other programs were built for this host.
            _ => Err(DockerError::Unsupported {
                what: "a program built on this host".into(),
                reason: "it may need files that the image lacks; use the backend `process`".into(),
            }
            .into()),
        }
    }

    fn no_language(&self, language: Language) -> Error {
        Error::LanguageMissing {
            language,
            program: program_names(language),
            searched: format!("the image `{}`", self.docker.image_name()),
            hint: "use an image with it",
        }
    }

    /// Requests a program start; returns why the kernel did not start it.
    fn launch(
        &mut self,
        arguments: &[&[u8]],
        code: Option<&[u8]>,
        has_input: bool,
    ) -> Result<Option<NotStarted>, Error> {
        let limits = self.limits.clone();
        let search = self.request.search_path().map_or_else(
            || self.image.search_path.clone().unwrap_or_else(|| SYSTEM_SEARCH_PATH.to_owned()).into(),
            OsStr::to_os_string,
        );
        for piece in code.unwrap_or_default().chunks(PIECE) {
            self.make_room()?;
            self.channel().send(b'C', piece);
        }
        if code.is_some_and(<[u8]>::is_empty) {
            self.channel().send(b'C', &[]);
        }
        let mut rows: Vec<[u64; 3]> = vec![
            [RLIMIT_FSIZE, limits.file_size, limits.file_size],
            [RLIMIT_NOFILE, u64::from(limits.descriptors), u64::from(limits.descriptors)],
        ];
        if let Some(cpu) = limits.cpu {
            // The first process checks the sum of all processes, and more often; this limit helps if it sees
            // no counter.
            let seconds = cpu.as_secs() + 1;
            rows.push([RLIMIT_CPU, seconds, seconds + 1]);
        }
        let own = self.image.directory.clone().filter(|_| self.docker.inner.options.start_in_image_directory);
        let directory = match (self.request.directory(), own) {
            (Some(directory), _) => format!("{WORKSPACE}/{directory}"),
            (None, Some(own)) => own,
            (None, None) => WORKSPACE.to_owned(),
        };
        let mut variables: Vec<(&str, &OsStr)> = vec![
            ("PATH", &search),
            ("HOME", OsStr::new("/tmp")),
            ("LANG", OsStr::new("C.UTF-8")),
            ("TMPDIR", OsStr::new("/tmp")),
            ("USER", OsStr::new("sandbox")),
            ("TERM", OsStr::new("dumb")),
        ];
        let leading = self.tunnel.iter().flat_map(Tunnel::variables);
        let leading: Vec<(String, String)> = leading.cloned().collect();
        let own = self.request.environment().iter().map(|(name, value)| (name.as_str(), value.as_os_str()));
        for (name, value) in own.chain(leading.iter().map(|(name, value)| (name.as_str(), OsStr::new(value))))
        {
            variables.retain(|(other, _)| *other != name);
            variables.push((name, value));
        }
        let cpu = limits.cpu.map_or(0, |cpu| u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX));
        let mut content = Vec::new();
        let mut numbers = vec![rows.len() as u64];
        numbers.extend(rows.into_iter().flatten());
        numbers.extend([
            cpu,
            u64::from(has_input),
            u64::from(code.is_some()),
            arguments.len() as u64,
            variables.len() as u64,
        ]);
        content.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
        let mut text = |bytes: &[u8]| {
            content.extend_from_slice(bytes);
            content.push(0);
        };
        text(directory.as_bytes());
        text(search.as_bytes());
        for argument in arguments {
            text(argument);
        }
        for (name, value) in variables {
            text(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        }
        self.channel().send(b'S', &content);
        let frame = loop {
            let frame = self.answer("start a program in")?;
            match frame.kind {
                b'n' | b's' => break frame,
                b'z' => return Err(refused_upload(&frame, "code")),
                _ => {}
            }
        };
        let stage = u8::try_from(frame.number(0)).unwrap_or_default();
        let error = i32::try_from(frame.number(1)).unwrap_or_default();
        Ok((frame.kind == b'n').then_some(NotStarted { stage, error }))
    }

    /// The verdict, from the container's own counters.
    fn verdict(&mut self, finished: &Finished) -> Result<(Verdict, Option<i32>), Error> {
        let limits = self.limits.clone();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let killed = known(finished.end.as_ref(), 4).is_some_and(|count| count > 0);
        let refused = known(finished.end.as_ref(), 5).is_some_and(|count| count > 0);
        if killed {
            self.report.reached.push(Reached::Memory);
        }
        if refused {
            self.report.reached.push(Reached::Processes);
        }
        let cpu = limits.cpu.map(|limit| Verdict::Cpu { limit_ms: millis(limit) });
        match finished.ended {
            Some(Ended::Cancelled) => return Ok((Verdict::Cancelled, None)),
            Some(Ended::Timeout) => {
                return Ok((Verdict::Timeout { limit_ms: millis(limits.wall) }, None));
            }
            Some(Ended::Idle) => {
                let limit_ms = limits.idle.map_or(0, millis);
                return Ok((Verdict::Idle { limit_ms }, None));
            }
            Some(Ended::Output) => return Ok((Verdict::Output { limit: limits.output_total }, None)),
            Some(Ended::Cpu) => return Ok((cpu.unwrap_or(Verdict::Cancelled), None)),
            None => {}
        }
        let Some(end) = &finished.end else {
            // The whole container died, with its first process.
            let state = self.docker.engine().state(&self.ready.id)?;
            if state.is_some_and(|state| state.was_out_of_memory) {
                self.report.reached.push(Reached::Memory);
                return Ok((Verdict::Memory { limit: limits.memory }, None));
            }
            return Err(self.gone());
        };
        let status = ExitStatus::from_raw(end.number(0) as i32);
        if let Some(code) = status.code() {
            let verdict = match code {
                0 => Verdict::Ok,
                _ if killed => Verdict::Memory { limit: limits.memory },
                _ if refused => Verdict::Processes { limit: limits.processes },
                code => Verdict::Exit { code },
            };
            return Ok((verdict, Some(code)));
        }
        let signal = status.signal().unwrap_or_default();
        let used = Duration::from_micros(end.number(1).saturating_add(end.number(2)));
        let verdict = match (signal, limits.cpu, cpu) {
            (SIGXCPU | SIGKILL, Some(limit), Some(verdict)) if used >= limit => verdict,
            (SIGKILL, ..) if killed => Verdict::Memory { limit: limits.memory },
            (SIGSYS, ..) => {
                Verdict::Denied { rule: "the container's seccomp policy ended the program".into() }
            }
            _ => Verdict::Signal { signal },
        };
        Ok((verdict, None))
    }

    fn collect(
        &mut self,
        changes: &Changes,
        after: &Listing,
        report: &mut Report,
    ) -> Result<Vec<SandboxArtifact>, Error> {
        let limits = self.limits.clone();
        let mut artifacts = Vec::new();
        let mut bytes = 0u64;
        for path in changes.new.iter().chain(&changes.changed) {
            let Some(entry) = after.files.get(path) else { continue };
            let left = limits.artifact_bytes.saturating_sub(bytes);
            let mut is_limit = false;
            let result = if !entry.is_regular() {
                Err("it is not a regular file".to_owned())
            } else if entry.names() != 1 {
                Err("it has several hard links".to_owned())
            } else if artifacts.len() >= limits.artifacts {
                is_limit = true;
                Err(format!("the limit of {} files is reached", limits.artifacts))
            } else if entry.size() > left {
                is_limit = true;
                Err(format!("it has {} bytes, {left} bytes are left of the limit", entry.size()))
            } else {
                match path.to_str().ok_or("its name is not valid UTF-8".to_owned()) {
                    Err(reason) => Err(reason),
                    Ok(name) => match check_file_name(name) {
                        Err(error) => Err(error.to_string()),
                        Ok(()) => self.fetch(name, entry.size())?,
                    },
                }
            };
            match result {
                Ok(artifact) => {
                    bytes += artifact.size;
                    artifacts.push(artifact);
                }
                Err(reason) => {
                    if is_limit && !report.reached.contains(&Reached::Artifacts) {
                        report.reached.push(Reached::Artifacts);
                    }
                    report.add_unreturned(&path.to_string_lossy(), &reason);
                }
            }
        }
        report.end_unreturned();
        Ok(artifacts)
    }

    /// Reads a file of exactly the listed size.
    fn fetch(&mut self, name: &str, size: u64) -> Result<Result<SandboxArtifact, String>, Error> {
        let content = self.fetch_bytes(name.as_bytes(), size)?;
        Ok(content.and_then(|content| {
            SandboxArtifact::from_bytes(name, content).map_err(|error| error.to_string())
        }))
    }

    fn fetch_bytes(&mut self, name: &[u8], size: u64) -> Result<Result<Vec<u8>, String>, Error> {
        self.channel().send(b'G', name);
        let mut content: Vec<u8> = Vec::new();
        let mut is_other = false;
        loop {
            let frame = self.answer("read a file of")?;
            match frame.kind {
                b'd' if content.len() as u64 + frame.content.len() as u64 <= size => {
                    content.extend_from_slice(&frame.content);
                }
                b'd' => is_other = true,
                b'g' if frame.number(0) != 0 => {
                    let error = std::io::Error::from_raw_os_error(frame.number(0) as i32);
                    return Ok(Err(error.to_string()));
                }
                b'g' if is_other || content.len() as u64 != size => {
                    return Ok(Err("its size changed while it was read".into()));
                }
                b'g' => return Ok(Ok(content)),
                _ => {}
            }
        }
    }
}

/// The reason why a program did not start: the stage and the kernel's error.
#[derive(Debug, Clone, Copy)]
struct NotStarted {
    stage: u8,
    error: i32,
}

fn not_started(failure: NotStarted, program: &[u8]) -> Error {
    let program = shorten(&String::from_utf8_lossy(program));
    let source = std::io::Error::from_raw_os_error(failure.error);
    match (failure.stage, failure.error) {
        (b'p', ENOENT) => Error::ProgramNotFound { program, reason: "the image lacks it".into() },
        (b'p', EACCES) => Error::NotExecutable { program },
        (b'p', _) => Error::ProgramNotStarted { program, source },
        (b'd', _) => Error::Setup { step: "enter the directory", source },
        (b'l', _) => Error::Setup { step: "set a limit", source },
        _ => Error::Setup { step: "start a process", source },
    }
}

fn refused_upload(frame: &Frame, what: &str) -> Error {
    let source = std::io::Error::from_raw_os_error(i32::try_from(frame.number(0)).unwrap_or_default());
    Error::File { action: "write upload", path: Path::new(what).to_owned(), source }
}

fn known(end: Option<&Frame>, index: usize) -> Option<u64> {
    end.map(|end| end.number(index)).filter(|number| *number != u64::MAX)
}

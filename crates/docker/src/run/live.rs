//! A run with live streams: host pipes, connected to the container's stream.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Channel, Frame, Listing, PIECE, Run, Sink};
use crate::error::DockerError;
use toolpost_sandbox::container::differences;
use toolpost_sandbox::{Error, LiveStreams, Outcome, Stdin};

/// The buffered bytes at which a stream is paused and resumed.
const PAUSE_AT: usize = 256 << 10;
const RESUME_AT: usize = 64 << 10;
/// The maximum of bytes after a pause; all buffers on the way are smaller.
const MAX_AFTER_PAUSE: usize = 8 << 20;

/// One output stream of the program.
#[derive(Debug)]
struct Stream {
    /// 1 is stdout, 2 is stderr.
    number: u64,
    /// None once the caller has closed it.
    pipe: Option<PipeWriter>,
    waiting: Vec<u8>,
}

impl Stream {
    /// Writes as much to the caller's pipe as it accepts at once.
    fn write(&mut self, channel: &mut Channel) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut done = 0;
        let is_gone = loop {
            let Some(rest) = self.waiting.get(done..).filter(|rest| !rest.is_empty()) else {
                break is_without_reader(pipe.as_fd());
            };
            match pipe.write(rest) {
                Ok(size) => done += size,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(_) => break true,
            }
        };
        self.waiting.drain(..done);
        if is_gone {
            self.pipe = None;
            self.waiting = Vec::new();
            // The program sees it as a pipe without a reader.
            channel.send(b'B', &self.number.to_le_bytes());
        }
    }

    /// The program is dead: the rest stays readable until the caller closes its end.
    fn finish(mut self) {
        let Some(mut pipe) = self.pipe.take().filter(|_| !self.waiting.is_empty()) else { return };
        let (waiting, name) = (self.waiting, "docker-output".to_owned());
        // Without a thread the rest is lost, as with a closed reader.
        let _ = std::thread::Builder::new().name(name).spawn(move || {
            if set_blocking(&pipe, true).is_ok() {
                let _ = pipe.write_all(&waiting);
            }
        });
    }
}

/// The host's ends.
#[derive(Debug)]
pub(super) struct Live {
    stdin: Option<PipeReader>,
    /// The program requested input, and there was none.
    is_hungry: bool,
    streams: [Stream; 2],
    /// The paused streams.
    held: u64,
    /// The program is being killed: its remaining output is drained and unread parts are lost.
    is_ending: bool,
}

impl Live {
    /// Creates the pipes and hands over the caller's ends.
    fn new(has_input: bool, streams: LiveStreams<'_>, container: &str) -> io::Result<Self> {
        let (stdin, given) = if has_input {
            let (ours, theirs) = io::pipe()?;
            set_blocking(&ours, false)?;
            (Some(ours), Some(theirs))
        } else {
            (None, None)
        };
        let (stdout, output) = io::pipe()?;
        let (stderr, errors) = io::pipe()?;
        set_blocking(&output, false)?;
        set_blocking(&errors, false)?;
        streams.hand_over(given, stdout, stderr, Some(container.to_owned()));
        let stream = |number, pipe| Stream { number, pipe: Some(pipe), waiting: Vec::new() };
        let streams = [stream(1, output), stream(2, errors)];
        Ok(Self { stdin, is_hungry: false, streams, held: 0, is_ending: false })
    }

    /// Processes a frame if it belongs to the streams.
    pub(super) fn take(&mut self, frame: &Frame, channel: &mut Channel) -> Result<bool, DockerError> {
        let index = match frame.kind {
            b'o' => 0,
            b'e' => 1,
            b'i' if self.stdin.is_some() => {
                self.is_hungry = true;
                self.feed(channel);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let Some(stream) = self.streams.get_mut(index) else { return Ok(true) };
        if stream.pipe.is_some() && !(self.is_ending && stream.waiting.len() > PAUSE_AT) {
            stream.waiting.extend_from_slice(&frame.content);
            if stream.waiting.len() > MAX_AFTER_PAUSE {
                let reason = "a stream of the program continues although it was held";
                return Err(DockerError::protocol("read from a container", reason));
            }
            stream.write(channel);
        }
        self.hold(channel);
        Ok(true)
    }

    /// Pauses unread streams and resumes read ones.
    fn hold(&mut self, channel: &mut Channel) {
        let before = self.held;
        for stream in &self.streams {
            match stream.waiting.len() {
                PAUSE_AT.. if !self.is_ending => self.held |= stream.number,
                0..=RESUME_AT => self.held &= !stream.number,
                _ => {}
            }
        }
        if self.held != before {
            channel.send(b'H', &self.held.to_le_bytes());
        }
    }

    /// Lets the streams end while the program is being killed.
    pub(super) fn drain(&mut self, channel: &mut Channel) {
        self.is_ending = true;
        self.held = 0;
        channel.send(b'H', &self.held.to_le_bytes());
    }

    /// Sends available input to the program.
    fn feed(&mut self, channel: &mut Channel) {
        let Some(stdin) = self.stdin.as_mut().filter(|_| self.is_hungry) else { return };
        let mut block = vec![0u8; PIECE];
        match stdin.read(&mut block) {
            Ok(size @ 1..) => {
                channel.send(b'I', block.get(..size).unwrap_or_default());
                self.is_hungry = false;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            _ => {
                channel.send(b'E', &[]);
                self.stdin = None;
            }
        }
    }

    /// Does all work that needs no wait.
    pub(super) fn pump(&mut self, channel: &mut Channel) {
        self.feed(channel);
        self.streams.iter_mut().for_each(|stream| stream.write(channel));
        self.hold(channel);
    }

    /// Adds the descriptors to poll. A closed reader is reported anyway.
    pub(super) fn waits<'a>(&'a self, others: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        let stdin = self.stdin.as_ref().filter(|_| self.is_hungry);
        others.extend(stdin.map(|stdin| (stdin.as_fd(), PollFlags::IN)));
        for stream in &self.streams {
            let wants = if stream.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            others.extend(stream.pipe.as_ref().map(|pipe| (pipe.as_fd(), wants)));
        }
    }
}

impl Run<'_> {
    /// Starts the program, hands over its streams and waits until everything is dead.
    pub(crate) fn live(mut self, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        self.copy_in()?;
        self.upload()?;
        let before = if self.directory.is_some() { self.list()? } else { Listing::default() };
        self.open_tunnel()?;
        let is_given = !matches!(self.request.stdin(), Stdin::Empty);
        // The streams exist even if the program does not start.
        let live = Live::new(!is_given, streams, &self.ready.id);
        let mut live = live.map_err(|source| Error::Setup { step: "make pipes", source })?;
        self.start(true)?;
        let mut finished = self.attend(&mut Sink::Live(&mut live))?;
        live.streams.into_iter().for_each(Stream::finish);
        drop(live.stdin);
        self.close_tunnel();
        let (verdict, exit_code) = self.verdict(&finished)?;
        let end = finished.end.take();
        let mut outcome = Outcome::new(verdict, self.report.clone());
        outcome.usage = self.usage(end.as_ref());
        outcome.exit_code = exit_code;
        if end.is_some() && self.directory.is_some() {
            let after = self.list()?;
            let changes = differences(&before.files, &after.files, after.left_out.is_none());
            self.copy_back(&changes, &after, &mut outcome.report)?;
        }
        self.docker.used(self.ready.id);
        Ok(outcome)
    }
}

fn set_blocking(pipe: impl AsFd, is_blocking: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(&pipe)?;
    flags.set(OFlags::NONBLOCK, !is_blocking);
    Ok(fcntl_setfl(&pipe, flags)?)
}

/// Whether the reader of a pipe is closed.
fn is_without_reader(pipe: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(pipe, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut waiting, Some(&now)).is_ok()
        && waiting.iter().any(|pipe| pipe.revents().contains(PollFlags::ERR))
}

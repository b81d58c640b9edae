//! The loop between a program's start and end: output, input, connections and limits.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;

use super::{Ended, FRAMES_AT_ONCE, Finished, PIECE, Run, Sink, refused_upload};
use crate::channel::Waited;
use crate::tunnel;
use toolpost_sandbox::container::OutputCapture;
use toolpost_sandbox::{Error, SandboxEvent};

impl Run<'_> {
    /// Makes the first process listen for the proxy.
    pub(super) fn open_tunnel(&mut self) -> Result<(), Error> {
        if self.tunnel.is_none() {
            return Ok(());
        }
        self.channel().send(b'N', &tunnel::PORT.to_le_bytes());
        loop {
            let frame = self.answer("open the egress port of")?;
            match frame.kind {
                b'p' if frame.number(0) == 0 => return Ok(()),
                b'p' => {
                    let source = std::io::Error::from_raw_os_error(frame.number(0) as i32);
                    return Err(Error::Setup { step: "listen for the proxy", source });
                }
                b'z' => return Err(refused_upload(&frame, "upload")),
                _ => {}
            }
        }
    }

    /// Closes the tunnel and stores its log.
    pub(super) fn close_tunnel(&mut self) {
        let Some(tunnel) = self.tunnel.take() else { return };
        self.report.record_egress(tunnel.finish());
    }

    /// Forwards output until everything is dead, and ends the program at a limit.
    pub(super) fn attend(&mut self, sink: &mut Sink<'_>) -> Result<Finished, Error> {
        let limits = self.limits.clone();
        let cancel = self.request.cancel();
        let deadline = Instant::now().checked_add(limits.wall);
        let mut input = self.request.stdin().open()?;
        let mut finished = Finished { ended: None, end: None, output: OutputCapture::new(&limits) };
        let mut dead_by: Option<Instant> = None;
        let mut idle = limits.idle.map(Idle::new);
        let mut frames = 0u32;
        loop {
            // Frames may arrive without a pause; other descriptors need attention too.
            if frames.is_multiple_of(FRAMES_AT_ONCE) {
                let channel = &mut self.ready.channel;
                if let Some(tunnel) = &mut self.tunnel {
                    tunnel.pump(channel);
                }
                if let Sink::Live(live) = sink {
                    live.pump(channel);
                }
            }
            frames = frames.wrapping_add(1);
            if let Some(idle) = &mut idle
                && idle.is_time_to_look()
            {
                self.channel().send(b'T', &[]);
            }
            if finished.ended.is_none() {
                let reason = if cancel.is_cancelled() {
                    Some(Ended::Cancelled)
                } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    Some(Ended::Timeout)
                } else if finished.output.total() > limits.output_total {
                    Some(Ended::Output)
                } else {
                    idle.as_ref().is_some_and(Idle::is_over).then_some(Ended::Idle)
                };
                if reason.is_some() {
                    finished.ended = reason;
                    self.channel().send(b'K', &[]);
                    if let Sink::Live(live) = sink {
                        live.drain(&mut self.ready.channel);
                    }
                    dead_by = self.answer_deadline();
                }
            }
            let (until, wake) = match finished.ended {
                Some(_) => (dead_by, None),
                None => {
                    let look = idle.as_ref().map(|idle| idle.next_look);
                    (deadline.into_iter().chain(look).min(), cancel.descriptor())
                }
            };
            let mut others: Vec<(BorrowedFd<'_>, PollFlags)> = Vec::new();
            others.extend(wake.map(|wake| (wake, PollFlags::IN)));
            let mut until = until;
            let is_full = self.ready.channel.is_full();
            if let Some(tunnel) = &self.tunnel {
                tunnel.waits(is_full, &mut others);
                until = until.into_iter().chain(tunnel.soon()).min();
            }
            if let Sink::Live(live) = sink {
                live.waits(&mut others);
            }
            let waited = self.ready.channel.wait(until, &others, is_full)?;
            if waited == Waited::Nothing {
                frames = 0;
            }
            let frame = match waited {
                Waited::Frame(frame) => frame,
                Waited::Nothing if dead_by.is_some_and(|by| Instant::now() >= by) => {
                    // Its first process does not answer, so the daemon must kill it.
                    self.docker.engine().remove(&self.ready.id)?;
                    return Ok(finished);
                }
                Waited::Nothing => continue,
                Waited::End => return Ok(finished),
            };
            if let Some(tunnel) = &mut self.tunnel
                && tunnel.take(&frame, &mut self.ready.channel)?
            {
                continue;
            }
            let bytes = frame.content.as_slice();
            if let Some(idle) = &mut idle {
                match frame.kind {
                    b'o' | b'e' => idle.since = Instant::now(),
                    b't' => idle.looked(frame.number(0)),
                    _ => {}
                }
            }
            if let Sink::Live(live) = sink
                && live.take(&frame, &mut self.ready.channel)?
            {
                continue;
            }
            match frame.kind {
                b'o' => {
                    finished.output.stdout(bytes);
                    if let Sink::Captured(on_event) = sink {
                        on_event(SandboxEvent::Stdout(bytes));
                    }
                }
                b'e' => {
                    finished.output.stderr(bytes);
                    if let Sink::Captured(on_event) = sink {
                        on_event(SandboxEvent::Stderr(bytes));
                    }
                }
                b'v' => finished.output.value(bytes),
                b'i' => {
                    let mut block = vec![0u8; PIECE];
                    let size = input.as_mut().and_then(|input| input.read(&mut block).ok()).unwrap_or(0);
                    if size == 0 {
                        self.channel().send(b'E', &[]);
                    } else {
                        self.channel().send(b'I', block.get(..size).unwrap_or_default());
                    }
                }
                b'c' => {
                    finished.ended.get_or_insert(Ended::Cpu);
                    dead_by = self.answer_deadline();
                }
                b'x' => {
                    finished.end = Some(frame);
                    return Ok(finished);
                }
                _ => {}
            }
        }
    }
}

/// The time since the last output or processor use.
struct Idle {
    limit: Duration,
    since: Instant,
    next_look: Instant,
    micros: u64,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self { limit, since: now, next_look: now, micros: 0 }
    }

    fn is_time_to_look(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next_look {
            return false;
        }
        self.next_look = now + (self.limit / 4).max(Duration::from_millis(10));
        true
    }

    /// Records the processor time from the first process. If unknown, the program counts as busy.
    fn looked(&mut self, micros: u64) {
        if micros == u64::MAX || micros.saturating_sub(self.micros) >= 1000 {
            self.since = Instant::now();
        }
        self.micros = micros;
    }

    fn is_over(&self) -> bool {
        self.since.elapsed() >= self.limit
    }
}

//! One run, from the request to the outcome.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::attend::attend;
use super::prepare::prepare;
use crate::running::Pipes;
use crate::{Cancel, Error, Event, Outcome, Program, Sandbox};

/// Who gets the output.
pub(crate) enum Output<'a> {
    /// It is captured, and handed over while it comes.
    Captured(&'a mut dyn FnMut(Event<'_>)),
    /// The caller gets the streams themselves.
    Live(&'a SyncSender<Pipes>),
}

pub(crate) fn run(
    sandbox: &Sandbox,
    program: &Program,
    cancel: &Cancel,
    output: Output<'_>,
) -> Result<Outcome, Error> {
    let since = Instant::now();
    let prepared = prepare(sandbox, program, matches!(output, Output::Live(_)))?;
    let (started, pipes) = prepared.start()?;
    let mut nobody = |_: Event<'_>| {};
    let on_event: &mut dyn FnMut(Event<'_>) = match output {
        Output::Captured(on_event) => on_event,
        Output::Live(sender) => {
            // If nobody waits for them any more, the program was cancelled.
            let _ = pipes.map(|pipes| sender.send(pipes));
            &mut nobody
        }
    };
    attend(started, sandbox, since, cancel, on_event)
}

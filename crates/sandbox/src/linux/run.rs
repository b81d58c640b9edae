//! One run, from the request to the outcome.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::attend::{attend, is_step_refused};
use super::prepare::prepare;
use super::remember;
use super::toolchain;
use crate::running::Pipes;
use crate::{Build, Cancel, Error, Event, Language, Outcome, Program, Sandbox};

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
    let is_live = matches!(output, Output::Live(_));
    let mut notes = Vec::new();
    let built;
    let program = match toolchain::build(sandbox, program, cancel)? {
        None => program,
        Some(Build::Ready { program, notes: remarks }) => {
            notes = remarks;
            built = program;
            &built
        }
        Some(Build::Failed(outcome)) if is_live => return Err(not_built(program, &outcome)),
        Some(Build::Failed(outcome)) => {
            if let Output::Captured(on_event) = output {
                on_event(Event::Stderr(&outcome.stderr.bytes()));
            }
            return Ok(*outcome);
        }
    };
    // From here: what a build takes has limits of its own.
    let since = Instant::now();
    let mut outcome = match output {
        Output::Captured(on_event) => match captured(sandbox, program, cancel, since, on_event) {
            Ok(outcome) => outcome?,
            // The host does not give what it was assumed to give.
            Err(refused @ Error::Setup { .. }) => match sandbox.host.as_ref().and_then(remember::corrected) {
                Some(host) => captured(&sandbox.clone().host(host), program, cancel, since, on_event)??,
                None => return Err(refused),
            },
            Err(error) => return Err(error),
        },
        Output::Live(sender) => {
            let (started, pipes) = prepare(sandbox, program, is_live)?.start()?;
            // If nobody waits for them any more, the program was cancelled.
            let _ = pipes.map(|pipes| sender.send(pipes));
            attend(started, sandbox, since, cancel, &mut |_| {})?
        }
    };
    outcome.report.notes.splice(0..0, notes);
    Ok(outcome)
}

/// Fails where the program was not started; what is inside fails after it.
fn captured(
    sandbox: &Sandbox,
    program: &Program,
    cancel: &Cancel,
    since: Instant,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Result<Outcome, Error>, Error> {
    let (started, _) = prepare(sandbox, program, false)?.start()?;
    match attend(started, sandbox, since, cancel, on_event) {
        Err(error) if is_step_refused(&error) => Err(error),
        ended => Ok(ended),
    }
}

/// A failed build of a program that was to be talked to: there is no outcome to hand over.
fn not_built(program: &Program, outcome: &Outcome) -> Error {
    const MAXIMUM: usize = 4096;
    let language = match program {
        Program::Code { language, .. } => *language,
        _ => Language::C,
    };
    let messages: String = outcome.stderr.text().chars().take(MAXIMUM).collect();
    Error::Build { language, reason: format!("{:?}: {messages}", outcome.verdict) }
}

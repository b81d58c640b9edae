//! One run, from the request to the outcome.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::attend::{attend, is_step_refused};
use super::prepare::prepare;
use super::remember;
use super::toolchain;
use crate::running::Pipes;
use crate::{Build, Cancel, Error, Language, Outcome, Program, Sandbox, SandboxEvent};

/// The receiver of the output.
pub(crate) enum Output<'a> {
    /// It is captured, and reported as it arrives.
    Captured(&'a mut dyn FnMut(SandboxEvent<'_>)),
    /// The caller gets the streams.
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
                on_event(SandboxEvent::Stderr(&outcome.stderr.bytes()));
            }
            return Ok(*outcome);
        }
    };
    // From here: a build has its own limits.
    let since = Instant::now();
    let mut outcome = match output {
        Output::Captured(on_event) => match captured(sandbox, program, cancel, since, on_event) {
            Ok(outcome) => outcome?,
            // The host lacks an assumed feature.
            Err(refused @ Error::Setup { .. }) => match sandbox.host.as_ref().and_then(remember::corrected) {
                Some(host) => captured(&sandbox.clone().host(host), program, cancel, since, on_event)??,
                None => return Err(refused),
            },
            Err(error) => return Err(error),
        },
        Output::Live(sender) => {
            let (mut started, pipes) = prepare(sandbox, program, is_live)?.start()?;
            started.begin_live_copy(sandbox)?;
            // Without a receiver, the program was cancelled.
            let _ = pipes.map(|pipes| sender.send(pipes));
            attend(started, sandbox, since, cancel, &mut |_| {})?
        }
    };
    outcome.report.notes.splice(0..0, notes);
    Ok(outcome)
}

/// Fails if the program did not start; the inner result covers later failures.
fn captured(
    sandbox: &Sandbox,
    program: &Program,
    cancel: &Cancel,
    since: Instant,
    on_event: &mut dyn FnMut(SandboxEvent<'_>),
) -> Result<Result<Outcome, Error>, Error> {
    let (started, _) = prepare(sandbox, program, false)?.start()?;
    match attend(started, sandbox, since, cancel, on_event) {
        Err(error) if is_step_refused(&error) => Err(error),
        ended => Ok(ended),
    }
}

/// The error of a failed build for a live program, which has no outcome.
fn not_built(program: &Program, outcome: &Outcome) -> Error {
    const MAX_MESSAGE: usize = 4096;
    let language = match program {
        Program::Code { language, .. } => *language,
        _ => Language::C,
    };
    let messages: String = outcome.stderr.text().chars().take(MAX_MESSAGE).collect();
    Error::Build { language, reason: format!("{:?}: {messages}", outcome.verdict) }
}

//! For another driver of runs: the machine, its commands, and the calls of steps.
//!
//! A driver holds a [`Machine`]. It obeys the commands of [`Machine::take_commands`], and gives each event that follows to
//! [`Machine::apply`], until [`Machine::ended`] has a value:
//!
//! - [`Command::Run`]: at [`Work::not_before`], check the values of the call with [`check_values`], make it with [`reply`],
//!   and apply [`attempt_event`]; for [`Task::Wait`], apply [`FlowEvent::StepSucceeded`] with null at that time.
//!   Calls that must wait do so in a [`CallQueue`].
//! - [`Command::Stop`]: stop the call or wait, and apply the event of its end, [`FlowEvent::StepCancelled`] in general.
//! - [`Command::Await`]: apply [`FlowEvent::Signal`] when a value of that name arrives, [`FlowEvent::Answered`] when a
//!   person answers, or [`FlowEvent::StepFailed`] at the end of the wait. Signals that no step waits for are applied too:
//!   the machine holds them.
//! - [`Command::Items`]: show the progress of a map. No event follows.
//!
//! Equal events with equal times give equal commands, so a driver that stores events resumes a run by applying
//! them again. [`Flows`](crate::Flows) is the driver of one machine.

mod heartbeat;
pub(crate) mod queue;
mod watch;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{Call, Code, Output, Reply, RunId, ToolError, Truncation};
use toolpost_toolbox::Toolbox;

pub use self::queue::CallQueue;
pub use self::watch::Watch;
pub use crate::evaluation::{ValuePlace, check_values};
use crate::event::FlowEvent;
pub use crate::machine::{AttemptSettings, Command, Ended, Machine, StepEnd, Task, Unexpected, Work};

/// The call of an attempt, with the idempotency key `RUN/STEP` and the limit that it shares; `None` for a wait. Its record
/// has the pool as metadata.
pub fn call(run: RunId, work: &Work) -> Option<Call> {
    let Task::Call { tool, arguments, settings, .. } = &work.task else { return None };
    let mut call = Call::new(&**tool, Arc::clone(arguments));
    call.options.timeout = work.timeout;
    call.options.whole_output = true;
    if let Some(settings) = settings {
        call.limit.clone_from(&settings.limit);
        let pool = settings.pool.as_deref().map(|pool| ("pool".to_owned(), Value::from(pool)));
        call.options.metadata.extend(pool);
    }
    call.priority = work.priority;
    call.idempotency_key = Some(format!("{run}/{}", work.step));
    Some(call)
}

/// Makes a call, and stops it if it shows no progress for the time of its heartbeat.
pub async fn reply(toolbox: &Toolbox, call: Call, heartbeat: Option<Duration>) -> Reply {
    match heartbeat {
        Some(limit) => heartbeat::reply(toolbox, call, limit).await,
        None => toolbox.call(call).await,
    }
}

/// The event of an attempt that has ended.
///
/// `is_program` and `uses` are those of the [`Task`]; `is_stopped` says whether the driver stopped the call.
pub fn attempt_event(
    step: &str,
    result: Result<Output, ToolError>,
    is_program: bool,
    uses: &[String],
    is_stopped: bool,
) -> FlowEvent {
    let step = step.to_owned();
    let whole = |mut output: Output| {
        let truncated = std::mem::take(&mut output.truncated);
        let value = output.result_value();
        let value = if is_program { program(value)? } else { value };
        let is_used = |part: &&Truncation| uses.iter().any(|used| part.affects(used));
        match truncated.iter().find(is_used) {
            Some(part) => Err(part.to_error()),
            None => Ok((value, truncated)),
        }
    };
    match result.and_then(whole) {
        Ok((output, truncated)) => FlowEvent::StepSucceeded { step, output, truncated },
        Err(error) if error.code() == Code::Cancelled && is_stopped => FlowEvent::StepCancelled { step },
        Err(error) => FlowEvent::StepFailed { step, error },
    }
}

/// The result of a tool that runs a program; an error if the program failed.
fn program(result: Value) -> Result<Value, ToolError> {
    let verdict = &result["verdict"];
    let kind = verdict["kind"].as_str().unwrap_or("ok");
    if kind == "ok" {
        return Ok(result);
    }
    let printed = || {
        let errors = head_and_tail(result["stderr"].as_str().unwrap_or_default().trim());
        match errors.lines().count() {
            0 => String::new(),
            1 => format!(": {errors}"),
            _ => format!(":\n{errors}"),
        }
    };
    Err(match kind {
        "exit" => {
            let status = &verdict["code"];
            let message = format!("the program ended with exit status {status}{}", printed());
            ToolError::dependency(message).with("exit_code", status.clone())
        }
        "signal" => {
            let signal = &verdict["signal"];
            let message = format!("the program was ended by signal {signal}{}", printed());
            ToolError::dependency(message).with("signal", signal.clone())
        }
        "timeout" => ToolError::timeout("the program reached its time limit"),
        other => ToolError::limit(format!("the sandbox stopped the program: `{other}`"))
            .with("verdict", verdict.clone()),
    })
}

/// The standard error of a program for an error: its head and tail, since it ends with the error or with a report of it.
fn head_and_tail(text: &str) -> Cow<'_, str> {
    /// The maximum size in bytes, that of a text for a model.
    const MAX: usize = 64 << 10;
    if text.len() <= MAX {
        return text.into();
    }
    let (head, _) = text.split_at(text.floor_char_boundary(MAX / 2));
    let (_, tail) = text.split_at(text.ceil_char_boundary(text.len() - MAX / 2));
    let omitted = text.len() - head.len() - tail.len();
    format!("{head}\n[… {omitted} of {} bytes omitted …]\n{tail}", text.len()).into()
}

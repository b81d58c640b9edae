//! The progress of a run, from its events.

use std::collections::HashMap;
use std::sync::Arc;

use toolpost_core::{RunId, Timestamp, ToolError};

use super::{Command, Machine, Task};
use crate::event::FlowEvent;
use crate::plan::Plan;
use crate::run::FlowProgress;

/// Follows the events of a run that another process drives, and gives its progress.
///
/// It gives [`FlowProgress`] as [`Flows`](crate::Flows) does, without the records of calls.
#[derive(Debug)]
pub struct Watch {
    run: RunId,
    machine: Option<Machine>,
    /// The tools of the steps that call one.
    tools: HashMap<Arc<str>, Arc<str>>,
}

impl Watch {
    /// Before the first event.
    pub fn new(run: RunId) -> Self {
        Self { run, machine: None, tools: HashMap::new() }
    }

    /// The progress that an event makes. An event that does not fit the run makes none.
    ///
    /// # Errors
    /// `DEPENDENCY` if the first event has an invalid plan.
    pub fn progress(&mut self, at: Timestamp, event: &FlowEvent) -> Result<Vec<FlowProgress>, ToolError> {
        let mut progress = Vec::new();
        match (event, &mut self.machine) {
            (FlowEvent::RunStarted { v, plan, input, .. }, None) => {
                let plan = Plan::of_run(plan).map_err(|error| {
                    ToolError::dependency(format!("the plan of the run `{}` is invalid: {error}", self.run))
                })?;
                self.machine = Some(Machine::new(&Arc::new(plan), self.run, input.clone(), at, *v));
            }
            (FlowEvent::StepStarted { step, attempt }, _) => {
                if let Some((step, tool)) = self.tools.get_key_value(step.as_str()) {
                    let (step, tool) = (Arc::clone(step), Arc::clone(tool));
                    progress.push(FlowProgress::Started { step, tool, attempt: *attempt });
                }
            }
            (event, Some(machine)) => {
                let is_applied = machine.apply(event.clone(), at).is_ok();
                if let (FlowEvent::StepFailed { step, error }, true) = (event, is_applied)
                    && let Some((step, _)) = self.tools.get_key_value(step.as_str())
                {
                    let (step, error) = (Arc::clone(step), error.clone());
                    progress.push(FlowProgress::AttemptFailed { step, error });
                }
            }
            (_, None) => {}
        }
        let Some(machine) = &mut self.machine else { return Ok(progress) };
        progress.extend(machine.take_changes().into_iter().map(FlowProgress::from));
        for command in machine.take_commands() {
            match command {
                Command::Run(work) => {
                    if let Task::Call { tool, .. } = work.task {
                        self.tools.insert(work.step, tool);
                    }
                }
                Command::Await { step, wait, .. } => progress.push(FlowProgress::Waiting { step, wait }),
                Command::Items { step, ended, count } => {
                    progress.push(FlowProgress::Items { step, ended, count });
                }
                Command::Stop { .. } | Command::Answered { .. } | Command::End => {}
            }
        }
        Ok(progress)
    }
}

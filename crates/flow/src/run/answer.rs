//! Answers to the approvals of stored runs.

use serde_json::Value;
use toolpost_core::{Hint, Timestamp, ToolError};

use super::StoredFlow;
use crate::event::{FlowEvent, OWN_ANSWERS, VERSION};
use crate::journal::FlowSummary;
use crate::outcome::RunStatus;
use crate::plan::types::Action;
use crate::report::{StepReport, StepWait};

impl StoredFlow {
    /// The step whose approval takes an answer at a time: the named one, or the only one that waits.
    ///
    /// # Errors
    /// `CONFLICT` if the step has an answer, and `PRECONDITION` if its deadline has passed, no approval waits or several
    /// do.
    pub fn approval(&self, step: Option<&str>, now: Timestamp) -> Result<String, ToolError> {
        let steps = self.steps();
        let mut approvals = Vec::new();
        collect(&steps, &mut approvals);
        let answer = |report: &StepReport| self.answer_to(&report.path);
        let open: Vec<&StepReport> = approvals
            .iter()
            .filter(|report| report.status.is_none() && answer(report).is_none())
            .copied()
            .collect();
        let found = match step {
            Some(step) => open.iter().find(|report| report.path == step),
            None if open.len() == 1 => open.first(),
            None => None,
        };
        let Some(found) = found else {
            let answered = approvals
                .iter()
                .rev()
                .filter(|report| step.map_or(open.is_empty(), |step| report.path == step))
                .find_map(|report| Some((&report.path, answer(report)?)));
            let is_running = self.summary.status == RunStatus::Running;
            if let Some((step, answer)) = answered.filter(|_| is_running) {
                let problem = format!("the step `{step}` already has an answer: {}", text(answer));
                return Err(ToolError::conflict(problem)
                    .suggest(Hint::ShowFlowRun { run: self.summary.id.to_string() }));
            }
            if open.is_empty() {
                return Err(ToolError::precondition("no step of the run waits for an approval"));
            }
            let names: Vec<&str> = open.iter().map(|report| report.path.as_str()).collect();
            let problem = format!("name one of the steps that wait: {}", names.join(", "));
            return Err(ToolError::precondition(problem));
        };
        match found.deadline {
            Some(deadline) if deadline < now => {
                let problem = format!("the deadline of the step `{}` was {deadline}", found.path);
                Err(ToolError::precondition(problem).suggest("Start a new run, with a longer `timeout`."))
            }
            _ => Ok(found.path.clone()),
        }
    }

    /// Checks that a signal may have a name.
    ///
    /// # Errors
    /// `INVALID_INPUT` for the name of an approval, which only [`Flows::answer`](crate::Flows::answer) answers, and
    /// `PRECONDITION` if the run has ended, if no step waits for this name, or if all that wait have their values.
    pub fn check_signal(&self, name: &str) -> Result<(), ToolError> {
        let FlowSummary { id, status, .. } = &self.summary;
        if *status != RunStatus::Running {
            return Err(ToolError::precondition(format!("the run has ended ({})", status.as_str())));
        }
        let is_approval =
            self.plan.step_at(name).is_some_and(|step| matches!(step.action, Action::Approve(_)));
        // In runs of earlier formats, the signal would be an answer.
        if is_approval && (self.format() < OWN_ANSWERS || !self.plan.may_await(name)) {
            return Err(ToolError::invalid_input(format!("the step `{name}` is an approval, not a signal"))
                .suggest(Hint::AnswerApproval { run: id.to_string(), step: name.to_owned() }));
        }
        let max = self.plan.max_signals(name);
        if max == 0 {
            return Err(ToolError::precondition(format!("no step waits for a signal `{name}`"))
                .suggest("Send a signal that the plan names."));
        }
        let is_it = |event: &FlowEvent| matches!(event, FlowEvent::Signal { name: sent, .. } if sent == name);
        if self.events.iter().chain(&self.unread).filter(|(_, event)| is_it(event)).count() >= max {
            return Err(ToolError::precondition(format!("the signal `{name}` was already sent")));
        }
        Ok(())
    }

    /// The event of an answer to the approval of a step.
    pub fn answer(&self, step: &str, answer: Value) -> FlowEvent {
        let step = step.to_owned();
        if self.format() < OWN_ANSWERS {
            // A process of an earlier version may still run it.
            FlowEvent::Signal { name: step, value: answer }
        } else {
            FlowEvent::Answered { step, answer }
        }
    }

    /// The version of the format in which the run began.
    fn format(&self) -> u8 {
        match self.events.first() {
            Some((_, FlowEvent::RunStarted { v, .. })) => *v,
            _ => VERSION,
        }
    }

    /// The first answer to an approval. In runs of earlier formats it is a signal with the path of its step.
    fn answer_to(&self, step: &str) -> Option<&Value> {
        let is_signal = self.format() < OWN_ANSWERS;
        self.events.iter().chain(&self.unread).find_map(|(_, event)| match event {
            FlowEvent::Answered { step: own, answer } if own == step => Some(answer),
            FlowEvent::Signal { name, value } if is_signal && name == step => Some(value),
            _ => None,
        })
    }
}

/// Collects the steps that wait or waited for an approval.
fn collect<'a>(steps: &'a [StepReport], approvals: &mut Vec<&'a StepReport>) {
    for step in steps {
        if matches!(step.wait, Some(StepWait::Approval(_))) {
            approvals.push(step);
        }
        collect(&step.steps, approvals);
    }
}

/// An answer, for an error.
fn text(answer: &Value) -> String {
    let is_approved = answer.get("approved").and_then(Value::as_bool) == Some(true);
    let verb = if is_approved { "approved" } else { "denied" };
    let member = |name: &str| answer.get(name).and_then(Value::as_str);
    let by = member("by").map(|by| format!(" by {by}")).unwrap_or_default();
    let comment = member("comment").map(|comment| format!(", {comment}")).unwrap_or_default();
    format!("{verb}{by}{comment}")
}

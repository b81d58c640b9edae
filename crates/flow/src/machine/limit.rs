//! The time limits of blocks: a wait beside the block, whose end stops it.

use std::sync::Arc;

use toolpost_core::ToolError;

use super::scope::{Place, State, Stop};
use super::{Command, Machine, Task, Work};
use crate::plan::Step;

/// The end of the path of a limit. No id of a step has a colon.
const SUFFIX: &str = ":timeout";

impl Machine {
    /// Whether a path is that of a limit.
    pub(super) fn is_limit(path: &str) -> bool {
        path.ends_with(SUFFIX)
    }

    /// Begins the limit of a block.
    pub(super) fn begin_limit(&mut self, place: Place, step: &Step, path: &str) {
        let Some(timeout) = step.timeout else { return };
        let path: Arc<str> = format!("{path}{SUFFIX}").into();
        self.working.insert(Arc::clone(&path), place);
        self.commands.push(Command::Run(Box::new(Work {
            step: path,
            attempt: 1,
            task: Task::Wait,
            not_before: self.after(timeout),
            timeout: None,
            priority: step.priority,
        })));
    }

    /// Stops the limit of a block that has ended. The driver then reports that its wait is cancelled.
    pub(super) fn end_limit(&mut self, place: Place) {
        let Some((block, path)) = self.step(place) else { return };
        if block.steps.get(place.step).is_some_and(|step| step.timeout.is_some()) {
            let path: Arc<str> = format!("{path}{SUFFIX}").into();
            if self.working.contains_key(&path) {
                self.commands.push(Command::Stop { step: path });
            }
        }
    }

    /// Fails a block at its limit.
    pub(super) fn limit_reached(&mut self, place: Place) {
        let state = self.instances.get(place.scope).and_then(|scope| scope.states.get(place.step));
        let Some(State::Inside(key)) = state else { return };
        let key = *key;
        let Some(scope) = self.instances.get_mut(key).filter(|scope| scope.stopping.is_none()) else {
            return;
        };
        scope.failed += 1;
        scope.error = Some(ToolError::timeout("the steps took longer than their `timeout`"));
        self.stop(key, Stop::Own);
    }
}

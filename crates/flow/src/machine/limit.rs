//! The time limits of blocks and of the run: a wait beside the block, whose end stops it.

use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Priority, ToolError};

use super::scope::{Key, Place, State, Stop};
use super::{Agenda, Command, Machine, Task, Work};
use crate::plan::types::Step;

/// The end of the path of a limit. No id of a step has a colon.
const SUFFIX: &str = ":timeout";
/// In the place of a step: the limit of the whole run.
const RUN: usize = usize::MAX;

impl Machine {
    /// Whether a path is that of a limit.
    pub(crate) fn is_limit(path: &str) -> bool {
        path.ends_with(SUFFIX)
    }

    /// Begins the limit of a block.
    pub(super) fn begin_limit(&mut self, place: Place, step: &Step, path: &str) {
        if let Some(timeout) = step.block_limit() {
            self.wait(place, path, timeout);
        }
    }

    /// Begins the limit of the run.
    pub(super) fn begin_run_limit(&mut self, root: Key) {
        if let Some(timeout) = self.plan.timeout {
            self.wait(Place { scope: root, step: RUN }, "", timeout);
        }
    }

    fn wait(&mut self, place: Place, path: &str, timeout: Duration) {
        let path: Arc<str> = format!("{path}{SUFFIX}").into();
        self.working.insert(Arc::clone(&path), place);
        self.commands.push(Command::Run(Box::new(Work {
            step: path,
            attempt: 1,
            task: Task::Wait,
            not_before: self.after(timeout),
            timeout: None,
            priority: Priority::default(),
        })));
    }

    /// Stops the limit of a step that has ended. The driver then reports that its wait is cancelled.
    pub(super) fn end_limit(&mut self, step: &Step, path: &str) {
        if step.block_limit().is_some() {
            let path: Arc<str> = format!("{path}{SUFFIX}").into();
            if self.working.contains_key(&path) {
                self.commands.push(Command::Stop { step: path });
            }
        }
    }

    /// Fails a block or the run at its limit.
    pub(super) fn limit_reached(&mut self, place: Place) {
        let error = ToolError::timeout("the steps took longer than their `timeout`");
        if place.step == RUN {
            return self
                .fail_scope(place.scope, ToolError::timeout("the run took longer than its `timeout`"));
        }
        let Some(scope) = self.instances.get_mut(place.scope) else { return };
        match scope.states.get_mut(place.step) {
            Some(State::Inside(key)) => {
                let key = *key;
                self.fail_scope(key, error);
            }
            Some(State::Map(map)) if !map.is_stopping => {
                map.is_stopping = true;
                map.is_late = true;
                map.failed += 1;
                map.error = Some(error);
                let running: Vec<Key> = map.running.iter().copied().collect();
                for key in running {
                    self.stop(key, Stop::Outside);
                }
                self.agenda.push_back(Agenda::NextItem(place));
            }
            _ => {}
        }
    }

    /// Stops a scope, which fails with an error whatever its policy.
    fn fail_scope(&mut self, key: Key, error: ToolError) {
        let Some(scope) = self.instances.get_mut(key).filter(|scope| scope.stopping.is_none()) else {
            return;
        };
        scope.failed += 1;
        scope.error = Some(error);
        scope.is_late = true;
        self.stop(key, Stop::Own);
    }
}

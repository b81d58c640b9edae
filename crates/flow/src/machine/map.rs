//! Maps: instances of a block for the items of a list.

use std::sync::Arc;

use serde_json::Value;
use toolpost_core::ToolError;

use super::scope::{Key, Owner, Place, State, Stop};
use super::{Agenda, Command, Machine, at_step};
use crate::names::Shared;
use crate::outcome::StepStatus;
use crate::plan::types::{Action, FailurePolicy, Step};

impl Machine {
    /// The maps that have not ended, as commands.
    pub(crate) fn open_maps(&self) -> Vec<Command> {
        let scopes = self.instances.iter();
        let states = scopes
            .flat_map(|scope| scope.states.iter().zip(&scope.known.block.steps).map(move |of| (scope, of)));
        states
            .filter_map(|(scope, (state, step))| {
                let State::Map(map) = state else { return None };
                let (step, count) = (scope.path_of(&step.id), map.items.len());
                Some(Command::Items { step, ended: map.next - map.running.len(), count })
            })
            .collect()
    }

    /// Begins instances of a map up to its limit; ends the map after the last one.
    pub(super) fn next_item(&mut self, place: Place) {
        let Some((block, path)) = self.step(place) else { return };
        let Some(Step { action: Action::Map { item, max_parallel, body, failure, .. }, .. }) =
            block.steps.get(place.step)
        else {
            return;
        };
        loop {
            let Some(scope) = self.instances.get_mut(place.scope) else { return };
            let (known, is_stopping) = (Arc::clone(&scope.known), scope.stopping.is_some());
            let Some(State::Map(map)) = scope.states.get_mut(place.step) else { return };
            let is_over = map.next >= map.items.len() || map.is_stopping || is_stopping;
            if is_over && map.running.is_empty() {
                return self.map_ended(place, *failure, is_stopping);
            }
            if is_over || map.running.len() >= *max_parallel {
                let (ended, count) = (map.next - map.running.len(), map.items.len());
                self.commands.push(Command::Items { step: path, ended, count });
                return;
            }
            let index = map.next;
            map.next += 1;
            let value = map.items.get_mut(index).map(std::mem::take).unwrap_or_default();
            let mut variables = self.variables(place);
            variables.extend([
                (Arc::clone(item), Shared::new(Arc::new(value))),
                ("index".into(), Shared::new(Arc::new(index.into()))),
            ]);
            let path = format!("{path}[{index}]").into();
            let key = self.open(body, variables, Some(known), Owner::Item { place, index }, path);
            if let Some(scope) = self.instances.get_mut(place.scope)
                && let Some(State::Map(map)) = scope.states.get_mut(place.step)
            {
                map.running.insert(key);
            }
        }
    }

    pub(super) fn item_closed(
        &mut self,
        place: Place,
        key: Key,
        index: usize,
        result: Result<Arc<Value>, Option<ToolError>>,
    ) {
        let Some((block, path)) = self.step(place) else { return };
        let Some(Step { action: Action::Map { failure, .. }, .. }) = block.steps.get(place.step) else {
            return;
        };
        let Some(scope) = self.instances.get_mut(place.scope) else { return };
        let Some(State::Map(map)) = scope.states.get_mut(place.step) else { return };
        map.running.remove(&key);
        match result {
            Ok(output) => {
                map.succeeded += 1;
                if let Some(slot) = map.items.get_mut(index) {
                    *slot = Arc::unwrap_or_clone(output);
                }
            }
            Err(Some(error)) => {
                map.failed += 1;
                map.error.get_or_insert_with(|| at_step(&format!("{path}[{index}]"), &error));
            }
            Err(None) => {}
        }
        let open = map.items.len() - map.next + map.running.len();
        let stop = match failure {
            FailurePolicy::FailFast => map.failed > 0,
            FailurePolicy::Quorum(count) => map.succeeded >= *count || map.succeeded + open < *count,
            FailurePolicy::Continue => false,
        };
        if stop && !map.is_stopping {
            map.is_stopping = true;
            let running: Vec<Key> = map.running.iter().copied().collect();
            for key in running {
                self.stop(key, Stop::Outside);
            }
        }
        self.agenda.push_back(Agenda::NextItem(place));
    }

    fn map_ended(&mut self, place: Place, failure: FailurePolicy, is_stopping: bool) {
        let Some(scope) = self.instances.get_mut(place.scope) else { return };
        let Some(State::Map(map)) = scope.states.get_mut(place.step) else { return };
        let is_enough = match failure {
            FailurePolicy::FailFast | FailurePolicy::Continue => map.succeeded == map.items.len(),
            FailurePolicy::Quorum(count) => map.succeeded >= count,
        } && !map.is_late;
        let error = map
            .error
            .take()
            .map(|error| if map.failed > 1 { error.with("failed_items", map.failed) } else { error });
        // Items without a result are null.
        let started = map.next;
        let mut outputs = std::mem::take(&mut map.items);
        outputs.iter_mut().skip(started).for_each(|item| *item = Value::Null);
        // Its items may have ended together, and each asked for the next one.
        self.set(place, State::Begun);
        if is_enough {
            self.finish(place, StepStatus::Succeeded, Arc::new(Value::Array(outputs)), None);
        } else if let Some(error) = error {
            self.step_failed(place, error);
        } else if is_stopping {
            self.finish(place, StepStatus::Cancelled, Arc::default(), None);
        } else {
            self.step_failed(place, ToolError::dependency("too few items succeeded"));
        }
    }
}

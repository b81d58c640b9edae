//! The provider's code execution: its price, which answers do not have, and its containers.

use toolpost_core::{Clock as _, SystemClock, Timestamp, Usage};
use toolpost_llm::{ModelCatalog, Request, Response, Turn};

use super::{ProviderState, Running};
use crate::spend::Spent;

impl Running<'_> {
    /// Meters the code that the provider ran for an answer. Returns the additional spending.
    pub(super) fn meter(&mut self, request: &Request, response: &Response, began: Timestamp) -> Spent {
        if request.hosted_tools.is_empty() && !request.provider_options.contains_key("tools") {
            return Spent::default();
        }
        let own = self.config.model.info().filter(|info| info.id.provider == response.origin.provider);
        // A fallback model is billed by its own provider.
        let other = own.is_none().then(|| ModelCatalog::built_in().find(&response.origin));
        let Some(info) = own.or(other.as_ref()) else { return Spent::default() };
        let Some(price) = &info.code_execution_price else { return Spent::default() };
        let (hours, cost) = (self.run.code_meter.hours(price), self.run.code_meter.cost(price));
        self.run.code_meter.observe(info, request, response, began, SystemClock.timestamp());
        let (more_hours, more_cost) =
            (self.run.code_meter.hours(price) - hours, self.run.code_meter.cost(price) - cost);
        Spent {
            usage: Usage {
                hosted_code_seconds: (more_hours.max(0.0) * 3_600.0).round() as u64,
                ..Usage::default()
            },
            cost_usd: Some(more_cost.max(0.0)),
        }
    }
}

/// Adds the provider state of the answers among the turns.
pub(super) fn collect(state: &mut ProviderState, turns: &[Turn]) {
    for turn in turns {
        if let Turn::Assistant(turn) = turn
            && !turn.provider_state.is_empty()
        {
            state.entry(turn.origin.provider.clone()).or_default().extend(turn.provider_state.clone());
        }
    }
}

/// The provider state that no answer among the turns has, for example because a summary replaced the answer.
pub(super) fn missing(state: &ProviderState, turns: &[Turn]) -> ProviderState {
    let mut known = ProviderState::new();
    collect(&mut known, turns);
    let mut rest = state.clone();
    rest.retain(|provider, values| {
        if let Some(known) = known.get(provider) {
            values.retain(|name, _| !known.contains_key(name));
        }
        !values.is_empty()
    });
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolpost_llm::{AssistantTurn, ModelId};

    use super::*;

    #[test]
    fn state_of_answers_is_not_sent_twice() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let state = ProviderState::from_iter([
            ("a".to_owned(), object(json!({"container": {"id": "a1"}}))),
            ("b".to_owned(), object(json!({"container": {"id": "b1"}, "other": 1}))),
        ]);
        assert_eq!(missing(&state, &[Turn::user("hello")]), state);
        let mut answer = AssistantTurn::new(ModelId::new("b", "m"), Vec::new());
        answer.provider_state = object(json!({"container": {"id": "b2"}}));
        let turns = [
            Turn::Assistant(answer),
            Turn::Assistant(AssistantTurn::new(ModelId::new("a", "m"), Vec::new())),
        ];
        let mut rest = state.clone();
        rest.insert("b".to_owned(), object(json!({"other": 1})));
        assert_eq!(missing(&state, &turns), rest);
        let mut all = state;
        collect(&mut all, &turns);
        assert_eq!(all["b"], object(json!({"container": {"id": "b2"}, "other": 1})));
    }
}

//! What the provider's code costs, which its answers do not say; and what a conversation carries on to it.

use toolpost_core::{Clock as _, SystemClock, Timestamp, Usage};
use toolpost_llm::{Catalog, Request, Response, Turn};

use super::{ProviderState, Running};
use crate::spend::Spent;

impl Running<'_> {
    /// Meters the code that the provider has run for an answer, and gives what that adds.
    pub(super) fn meter(&mut self, request: &Request, response: &Response, began: Timestamp) -> Spent {
        if request.hosted_tools.is_empty() && !request.provider_options.contains_key("tools") {
            return Spent::default();
        }
        let own = self.config.model.info().filter(|info| info.id.provider == response.origin.provider);
        // Another model that has answered in its place is billed by its own provider.
        let other = own.is_none().then(|| Catalog::built_in().find(&response.origin));
        let Some(info) = own.or(other.as_ref()) else { return Spent::default() };
        let Some(price) = &info.code_execution_price else { return Spent::default() };
        let (hours, cost) = (self.code_meter.hours(price), self.code_meter.cost(price));
        self.code_meter.observe(info, request, response, began, SystemClock.timestamp());
        let (more_hours, more_cost) =
            (self.code_meter.hours(price) - hours, self.code_meter.cost(price) - cost);
        Spent {
            usage: Usage {
                hosted_code_seconds: (more_hours.max(0.0) * 3_600.0).round() as u64,
                ..Usage::default()
            },
            cost_usd: Some(more_cost.max(0.0)),
        }
    }
}

/// Enters what the answers among the turns have left to carry on.
pub(super) fn gather(carry: &mut ProviderState, turns: &[Turn]) {
    for turn in turns {
        if let Turn::Assistant(turn) = turn
            && !turn.provider_state.is_empty()
        {
            carry.entry(turn.origin.provider.clone()).or_default().extend(turn.provider_state.clone());
        }
    }
}

/// What of it no answer among the turns has: a summary may have taken the place of the one that had.
pub(super) fn left_out(carry: &ProviderState, turns: &[Turn]) -> ProviderState {
    let mut there = ProviderState::new();
    gather(&mut there, turns);
    let mut rest = carry.clone();
    rest.retain(|provider, values| {
        if let Some(there) = there.get(provider) {
            values.retain(|name, _| !there.contains_key(name));
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
    fn what_answers_have_themselves_is_not_carried_beside_them() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let carry = ProviderState::from_iter([
            ("a".to_owned(), object(json!({"container": {"id": "a1"}}))),
            ("b".to_owned(), object(json!({"container": {"id": "b1"}, "other": 1}))),
        ]);
        assert_eq!(left_out(&carry, &[Turn::user("hello")]), carry);
        let mut answer = AssistantTurn::new(ModelId::new("b", "m"), Vec::new());
        answer.provider_state = object(json!({"container": {"id": "b2"}}));
        let turns = [
            Turn::Assistant(answer),
            Turn::Assistant(AssistantTurn::new(ModelId::new("a", "m"), Vec::new())),
        ];
        let mut rest = carry.clone();
        rest.insert("b".to_owned(), object(json!({"other": 1})));
        assert_eq!(left_out(&carry, &turns), rest);
        let mut all = carry;
        gather(&mut all, &turns);
        assert_eq!(all["b"], object(json!({"container": {"id": "b2"}, "other": 1})));
    }
}

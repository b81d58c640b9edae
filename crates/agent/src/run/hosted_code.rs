//! What the provider's code costs, which its answers do not say; and what a conversation carries on to it.

use serde_json::{Map, Value};
use toolpost_core::{Clock as _, SystemClock, Timestamp, Usage};
use toolpost_llm::{AssistantTurn, Catalog, Request, Response, Turn};

use super::{Running, Spent};

impl Running<'_> {
    /// Meters the code that the provider has run for an answer, and gives what that adds.
    pub(super) fn meter(&mut self, request: &Request, response: &Response, began: Timestamp) -> Spent {
        if request.hosted_tools.is_empty() && !request.provider_options.contains_key("tools") {
            return Spent::default();
        }
        let own = self.parts.model.info().filter(|info| info.id.provider == response.origin.provider);
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

/// Gives what a conversation carries on to its latest answer of a provider, where none of the answers that are left has
/// it: a summary may have taken the place of the one that had.
pub(super) fn carry_on(turns: &mut [Turn], provider: &str, carry: &Map<String, Value>) {
    let of_provider = turns.iter_mut().filter_map(|turn| match turn {
        Turn::Assistant(turn) if turn.origin.provider == provider => Some(turn),
        _ => None,
    });
    let mut answers: Vec<&mut AssistantTurn> = of_provider.collect();
    for (name, value) in carry {
        if answers.iter().any(|answer| answer.carry.contains_key(name)) {
            continue;
        }
        if let Some(latest) = answers.last_mut() {
            latest.carry.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolpost_llm::ModelId;

    use super::*;

    #[test]
    fn a_container_is_known_also_when_its_answer_became_a_summary() {
        let answer = |provider: &str| AssistantTurn::new(ModelId::new(provider, "m"), Vec::new());
        let carry = json!({"container": {"id": "c1"}}).as_object().unwrap().clone();
        let carried = |turns: &[Turn]| -> Vec<bool> {
            let of_answers = turns.iter().filter_map(|turn| match turn {
                Turn::Assistant(turn) => Some(turn.carry.contains_key("container")),
                _ => None,
            });
            of_answers.collect()
        };
        let mut turns =
            vec![answer("a"), answer("a"), answer("b")].into_iter().map(Turn::Assistant).collect::<Vec<_>>();
        carry_on(&mut turns, "a", &carry);
        assert_eq!(carried(&turns), [false, true, false]);
        // The answer that has it already is the one that counts.
        let mut own = answer("a");
        own.carry = json!({"container": {"id": "c2"}}).as_object().unwrap().clone();
        let mut turns = vec![Turn::Assistant(own), Turn::Assistant(answer("a"))];
        carry_on(&mut turns, "a", &carry);
        assert_eq!(carried(&turns), [true, false]);
        carry_on(&mut [Turn::user("hello")], "a", &carry);
    }
}

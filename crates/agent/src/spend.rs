//! Tokens and cost.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolpost_core::Usage;
use toolpost_llm::ModelId;

/// Computes the cost of an answer in US dollars; `None` if the price is unknown.
pub type Pricing = Arc<dyn Fn(&ModelId, &toolpost_llm::TokenUsage) -> Option<f64> + Send + Sync>;

/// Tokens and their cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spent {
    pub(crate) usage: Usage,
    /// In US dollars; `None` once a part of it is unknown.
    pub(crate) cost_usd: Option<f64>,
}

impl Default for Spent {
    fn default() -> Self {
        Self { usage: Usage::default(), cost_usd: Some(0.0) }
    }
}

impl Spent {
    pub(crate) fn add(&mut self, other: &Self) {
        self.usage.add(&other.usage);
        // A negative cost must not raise the budget.
        let theirs = other.cost_usd.filter(|cost| cost.is_finite()).map(|cost| cost.max(0.0));
        self.cost_usd = self.cost_usd.zip(theirs).map(|(ours, theirs)| ours + theirs);
    }
}

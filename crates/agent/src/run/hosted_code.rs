//! What code costs that the provider runs.

use toolpost_core::Timestamp;
use toolpost_llm::{CodeExecutionMeter, ModelInfo, Response};

use super::{Running, Spent};

/// The meter of a run, and when the request at hand was sent.
#[derive(Default)]
pub(super) struct HostedCode {
    meter: CodeExecutionMeter,
    asked: Timestamp,
}

impl HostedCode {
    /// A request is sent.
    pub(super) fn ask(&mut self, now: Timestamp) {
        self.asked = now;
    }
}

impl Running<'_> {
    /// Adds to an answer's cost what its code costs beyond what the run has been charged for already. Where the cost is
    /// not known it stays so.
    pub(super) fn charge_code(&mut self, response: &Response, spent: &mut Spent, now: Timestamp) {
        let has_hosted =
            !self.request.hosted_tools.is_empty() || self.request.provider_options.contains_key("tools");
        let Some(cost) = spent.cost_usd.as_mut().filter(|_| has_hosted) else { return };
        let info = ModelInfo::find(&response.origin);
        let Some(price) = &info.code_execution_price else { return };
        let before = self.hosted_code.meter.cost(price);
        self.hosted_code.meter.observe(&info, &self.request, response, self.hosted_code.asked, now);
        *cost += self.hosted_code.meter.cost(price) - before;
    }
}

//! Meters hosted code execution: providers bill its time and do not report it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use crate::catalog::{CODE_TOOLS, ModelInfo, SessionPrice};
use crate::foreign_files::without_foreign_files;
use crate::{HostedTool, ItemView, Part, Provider, Request, Response, Turn};

/// Maximum number of containers in a compacted meter.
const MAX_CONTAINERS: usize = 16;

/// One use of hosted code execution.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CodeUse {
    /// The container, if the provider names it. A use without a container is a session of its own.
    container: Option<String>,
    /// When the request was sent.
    started: Timestamp,
    /// When the answer was complete.
    ended: Timestamp,
    /// Whether code ran.
    ran: bool,
    /// Whether the container received files, which some providers bill even if no code runs.
    preloaded: bool,
    /// Whether another hosted tool of the request makes code execution free.
    free: bool,
}

/// Estimates the billed time of hosted code execution per container.
///
/// A container's time is the time of the requests in which code ran there. Pauses between requests do not count, and
/// overlapping requests count once. The provider's own clock decides the bill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeExecutionMeter {
    /// Disjoint time spans per container, in order, in microseconds since 1970.
    containers: BTreeMap<String, Vec<(u64, u64)>>,
    /// The sessions without a container.
    #[serde(skip)]
    unnamed: Vec<Duration>,
}

impl CodeExecutionMeter {
    /// An empty meter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a use by the rules of a price.
    fn add(&mut self, code_use: &CodeUse, price: &SessionPrice) {
        let is_billed = code_use.ran || (code_use.preloaded && price.files_start_billing);
        if !is_billed || code_use.free {
            return;
        }
        let (started, ended) =
            (code_use.started.as_micros(), code_use.ended.as_micros().max(code_use.started.as_micros()));
        match &code_use.container {
            None => self.unnamed.push(Duration::from_micros(ended - started)),
            Some(id) => insert_span(self.containers.entry(id.clone()).or_default(), (started, ended)),
        }
    }

    /// Counts the code execution of an answer, if the provider bills it.
    pub fn observe(
        &mut self,
        info: &ModelInfo,
        request: &Request,
        response: &Response,
        started: Timestamp,
        ended: Timestamp,
    ) {
        let Some(price) = &info.code_execution_price else { return };
        let (sent, _) = without_foreign_files(&info.id.provider, request);
        let tools = Provider::find(&info.id.provider)
            .map(|provider| provider.wire.hosted_tool_types(info, request))
            .unwrap_or_default();
        let container =
            response.provider_state.get("container").and_then(|container| container["id"].as_str());
        self.add(
            &CodeUse {
                container: container.map(str::to_owned),
                started,
                ended,
                ran: has_run_code(response),
                preloaded: has_container_files(&sent),
                free: tools.iter().any(|tool| price.free_with.contains(tool)),
            },
            price,
        );
    }

    /// The meter reduced to one span for each of the 16 latest containers, to store with a conversation.
    #[must_use]
    pub fn compacted(mut self) -> Self {
        self.unnamed.clear();
        let mut ends: Vec<u64> =
            self.containers.values().filter_map(|spans| spans.last().map(|(_, ended)| *ended)).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let oldest = ends.get(MAX_CONTAINERS - 1).copied().unwrap_or_default();
        self.containers.retain(|_, spans| spans.last().is_some_and(|(_, ended)| *ended >= oldest));
        for spans in self.containers.values_mut() {
            let time: u64 = spans.iter().map(|(began, ended)| ended - began).sum();
            let end = spans.last().map_or(0, |(_, ended)| *ended);
            *spans = vec![(end.saturating_sub(time), end)];
        }
        self
    }

    /// Whether the meter counted nothing.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.unnamed.is_empty()
    }

    /// The number of containers that ran code.
    pub fn sessions(&self) -> usize {
        self.containers.len() + self.unnamed.len()
    }

    /// The billed hours: each session counts at least the minimum of the price.
    ///
    /// Free hours of the account are not subtracted: only the provider knows how many are left.
    pub fn hours(&self, price: &SessionPrice) -> f64 {
        let minimum = price.minimum_minutes / 60.0;
        self.times().map(|time| (time.as_secs_f64() / 3_600.0).max(minimum)).sum()
    }

    /// The cost in US dollars.
    pub fn cost(&self, price: &SessionPrice) -> f64 {
        self.times().map(|time| price.cost(time)).sum()
    }

    fn times(&self) -> impl Iterator<Item = Duration> {
        let named = self
            .containers
            .values()
            .map(|spans| Duration::from_micros(spans.iter().map(|(began, ended)| ended - began).sum()));
        named.chain(self.unnamed.iter().copied())
    }
}

/// Inserts a span and merges it with the spans that it touches.
fn insert_span(spans: &mut Vec<(u64, u64)>, mut span: (u64, u64)) {
    spans.retain(|&(began, ended)| {
        let is_disjoint = ended < span.0 || began > span.1;
        if !is_disjoint {
            span = (span.0.min(began), span.1.max(ended));
        }
        is_disjoint
    });
    let position = spans.partition_point(|(began, _)| *began < span.0);
    spans.insert(position, span);
}

/// Whether the provider ran code for an answer.
fn has_run_code(response: &Response) -> bool {
    let counted = response.usage.hosted.iter().any(|(name, count)| {
        *count > 0
            && CODE_TOOLS.iter().any(|tool| name.strip_prefix(tool).is_some_and(|rest| rest == "_requests"))
    });
    counted
        || response.items.iter().any(|item| match item.view() {
            ItemView::ServerToolCall { name, .. } => CODE_TOOLS.contains(&name.as_str()),
            ItemView::ServerToolResult { kind, .. } => kind.contains("code_execution"),
            _ => false,
        })
}

/// Whether a request puts files into the container.
fn has_container_files(request: &Request) -> bool {
    let tools = request.hosted_tools.iter();
    let with_tool = tools
        .filter_map(|tool| match tool {
            HostedTool::CodeExecution { file_ids, .. } => Some(file_ids),
            _ => None,
        })
        .any(|file_ids| !file_ids.is_empty());
    with_tool
        || request.turns.iter().any(|turn| match turn {
            Turn::User(parts) => parts.iter().any(|part| matches!(part, Part::ContainerFile { .. })),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price() -> SessionPrice {
        SessionPrice {
            usd_per_hour: 0.05,
            minimum_minutes: 5.0,
            free_hours_per_month: 1_550.0,
            files_start_billing: true,
            free_with: vec!["web_search_20260209".into()],
        }
    }

    fn used(container: Option<&str>, from: u64, to: u64) -> CodeUse {
        let minute = |minute: u64| Timestamp::from_micros(minute * 60_000_000);
        CodeUse {
            container: container.map(str::to_owned),
            started: minute(from),
            ended: minute(to),
            ran: true,
            preloaded: false,
            free: false,
        }
    }

    fn minutes(uses: &[CodeUse]) -> f64 {
        let mut meter = CodeExecutionMeter::new();
        for code_use in uses {
            meter.add(code_use, &price());
        }
        let minutes = meter.hours(&price()) * 60.0;
        assert!((meter.cost(&price()) - minutes / 60.0 * 0.05).abs() < 1e-12);
        minutes
    }

    #[test]
    fn each_container_is_billed_for_its_time_and_at_least_the_minimum() {
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        close(minutes(&[]), 0.0);
        close(minutes(&[used(Some("a"), 0, 1)]), 5.0);
        close(minutes(&[used(Some("a"), 0, 12)]), 12.0);
        // The same container later: the pause is not billed, and the minimum counts once.
        close(minutes(&[used(Some("a"), 0, 1), used(Some("a"), 60, 61)]), 5.0);
        close(minutes(&[used(Some("a"), 0, 4), used(Some("a"), 60, 64)]), 8.0);
        // Overlapping requests count once, in any order.
        close(minutes(&[used(Some("a"), 5, 20), used(Some("a"), 0, 10), used(Some("a"), 30, 31)]), 21.0);
        close(
            minutes(&[used(Some("a"), 0, 1), used(Some("b"), 0, 1), used(None, 0, 1), used(None, 0, 9)]),
            24.0,
        );
        // A clock that runs backwards costs the minimum.
        close(minutes(&[used(Some("a"), 9, 1)]), 5.0);
    }

    #[test]
    fn a_compacted_meter_continues_its_sum() {
        let mut meter = CodeExecutionMeter::new();
        for number in 0..40 {
            meter.add(&used(Some(&format!("c{number}")), number, number + 1), &price());
        }
        for from in [100, 110, 120] {
            meter.add(&used(Some("long"), from, from + 2), &price());
        }
        let saved = serde_json::to_string(&meter.compacted()).unwrap();
        let mut meter: CodeExecutionMeter = serde_json::from_str(&saved).unwrap();
        assert_eq!(meter.sessions(), MAX_CONTAINERS);
        let before = meter.hours(&price());
        meter.add(&used(Some("long"), 200, 203), &price());
        assert!((meter.hours(&price()) - before - 3.0 / 60.0).abs() < 1e-9, "6 min are 9 now");
        assert!(!meter.is_empty() && CodeExecutionMeter::new().compacted().is_empty());
    }

    #[test]
    fn the_price_decides_whether_files_are_billed_and_what_is_free() {
        let mut idle = used(Some("a"), 0, 1);
        idle.ran = false;
        assert!(minutes(&[idle.clone()]) < 1e-9);
        idle.preloaded = true;
        assert!(minutes(&[idle.clone()]) > 4.9);
        let mut meter = CodeExecutionMeter::new();
        meter.add(&idle, &SessionPrice { files_start_billing: false, ..price() });
        assert_eq!(meter.sessions(), 0);
        let mut free = used(Some("a"), 0, 30);
        free.free = true;
        assert!(minutes(&[free]) < 1e-9);
    }
}

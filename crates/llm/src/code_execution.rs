//! Where code runs that a model writes, and what the provider takes for it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use crate::catalog::{Catalog, Feature, ModelInfo, SessionPrice, unsupported};
use crate::foreign::without_foreign_files;
use crate::wires::anthropic;
use crate::{HostedTool, ItemView, ModelError, Part, Request, Response, Turn};

/// The names of tools in whose calls a provider runs code.
pub(crate) const CODE_TOOLS: [&str; 4] =
    ["code_execution", "bash_code_execution", "text_editor_code_execution", "code_interpreter"];

/// How many containers a condensed meter keeps.
const MOST_KEPT: usize = 16;

/// Where code should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeWanted {
    /// With the provider where the model is known to take its tool, else here.
    #[default]
    Auto,
    /// With the provider.
    Hosted,
    /// Here, in the sandbox of this host.
    Local,
}

impl FromStr for CodeWanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "hosted" => Ok(Self::Hosted),
            "local" => Ok(Self::Local),
            other => Err(format!("expected `auto`, `hosted` or `local`, found `{other}`")),
        }
    }
}

/// Where code runs. As text it is what a record should say.
#[derive(Clone, Debug, PartialEq)]
pub enum CodePlace {
    /// With the provider, by this tool of a request.
    Hosted(HostedTool),
    /// Here, by the tool `code_execution` of the sandbox.
    Local(LocalReason),
}

/// Why code runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalReason {
    /// It was asked for.
    Asked,
    /// The model takes no hosted tool for it.
    NotTaken,
    /// It is not known that the model takes a hosted tool for it.
    NotKnown,
}

impl fmt::Display for CodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hosted(_) => "code runs with the provider",
            Self::Local(LocalReason::Asked) => "code runs in the sandbox of this host, as asked",
            Self::Local(LocalReason::NotTaken) => {
                "code runs in the sandbox of this host: the model takes no hosted code execution"
            }
            Self::Local(LocalReason::NotKnown) => {
                "code runs in the sandbox of this host: it is not known that the model takes hosted code execution"
            }
        })
    }
}

/// Where the code of a model runs. An error ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)) if it should run
/// with the provider and the model is known to take no tool for it; it names models of the catalog that do.
pub fn choose_code_place(
    catalog: &Catalog,
    info: &ModelInfo,
    wanted: CodeWanted,
) -> Result<CodePlace, ModelError> {
    let hosted = || CodePlace::Hosted(HostedTool::CodeExecution { version: None, file_ids: Vec::new() });
    match (wanted, info.has(Feature::CodeExecution)) {
        (CodeWanted::Local, _) => Ok(CodePlace::Local(LocalReason::Asked)),
        (CodeWanted::Auto | CodeWanted::Hosted, Some(true)) | (CodeWanted::Hosted, None) => Ok(hosted()),
        (CodeWanted::Auto, Some(false)) => Ok(CodePlace::Local(LocalReason::NotTaken)),
        (CodeWanted::Auto, None) => Ok(CodePlace::Local(LocalReason::NotKnown)),
        (CodeWanted::Hosted, Some(false)) => {
            let mut error = unsupported(catalog, info, Feature::CodeExecution, "code that the provider runs");
            error.message.push_str(". Code can run in the sandbox of this host instead (`local`)");
            Err(error)
        }
    }
}

/// One use of the provider's code execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeUse {
    /// The container that the code ran in, if the provider says which: uses without one are sessions of their own.
    pub container: Option<String>,
    /// When the request was sent.
    pub began: Timestamp,
    /// When its answer had come.
    pub ended: Timestamp,
    /// Whether code ran.
    pub ran: bool,
    /// Whether files were put into the container, which some providers bill even if no code runs.
    pub preloaded: bool,
    /// Whether the request had something in whose company code costs nothing.
    pub free: bool,
}

/// Meters the time that the provider's code execution is billed for, by container: providers do not say it.
///
/// The time of a container is that of the requests in which code ran there, waits between them left out and
/// overlapping ones counted once. The provider's own clock decides the bill; this is the estimate that can be made here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeExecutionMeter {
    /// Spans of time by container, in microseconds since 1970, apart from each other and rising.
    containers: BTreeMap<String, Vec<(u64, u64)>>,
    /// The sessions without a container's name.
    #[serde(skip)]
    others: Vec<Duration>,
}

impl CodeExecutionMeter {
    /// A meter that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a use, by the rules of a price.
    pub fn add(&mut self, code_use: &CodeUse, price: &SessionPrice) {
        let counts = code_use.ran || (code_use.preloaded && price.files_start_the_meter);
        if !counts || code_use.free {
            return;
        }
        let (began, ended) =
            (code_use.began.as_micros(), code_use.ended.as_micros().max(code_use.began.as_micros()));
        match &code_use.container {
            None => self.others.push(Duration::from_micros(ended - began)),
            Some(id) => join(self.containers.entry(id.clone()).or_default(), (began, ended)),
        }
    }

    /// Counts what an answer tells of a use, if the model's provider has a price for running code.
    pub fn observe(
        &mut self,
        info: &ModelInfo,
        request: &Request,
        response: &Response,
        began: Timestamp,
        ended: Timestamp,
    ) {
        let Some(price) = &info.code_execution_price else { return };
        let (asked, _) = without_foreign_files(&info.id.provider, request);
        let container = response.carry.get("container").and_then(|container| container["id"].as_str());
        self.add(
            &CodeUse {
                container: container.map(str::to_owned),
                began,
                ended,
                ran: has_run_code(response),
                preloaded: has_container_files(&asked),
                free: anthropic::hosted_types(info, request)
                    .iter()
                    .any(|kind| price.free_with.contains(kind)),
            },
            price,
        );
    }

    /// The same with what later uses can still change and no more, so that it can be kept with a conversation: of the 16
    /// containers that ran last, for how long they did.
    #[must_use]
    pub fn condensed(mut self) -> Self {
        self.others.clear();
        let mut ends: Vec<u64> =
            self.containers.values().filter_map(|spans| spans.last().map(|(_, ended)| *ended)).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let oldest = ends.get(MOST_KEPT - 1).copied().unwrap_or_default();
        self.containers.retain(|_, spans| spans.last().is_some_and(|(_, ended)| *ended >= oldest));
        for spans in self.containers.values_mut() {
            let time: u64 = spans.iter().map(|(began, ended)| ended - began).sum();
            let end = spans.last().map_or(0, |(_, ended)| *ended);
            *spans = vec![(end.saturating_sub(time), end)];
        }
        self
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.others.is_empty()
    }

    /// How many containers have run.
    pub fn sessions(&self) -> usize {
        self.containers.len() + self.others.len()
    }

    /// The hours that are billed at a price: of each session at least its minimum. Hours that the account has free are
    /// not taken off, because only the provider knows what is left of them.
    pub fn hours(&self, price: &SessionPrice) -> f64 {
        let least = price.minimum_minutes / 60.0;
        self.times().map(|time| (time.as_secs_f64() / 3_600.0).max(least)).sum()
    }

    /// What that costs, in US dollars.
    pub fn cost(&self, price: &SessionPrice) -> f64 {
        self.times().map(|time| price.cost(time)).sum()
    }

    fn times(&self) -> impl Iterator<Item = Duration> {
        let named = self
            .containers
            .values()
            .map(|spans| Duration::from_micros(spans.iter().map(|(began, ended)| ended - began).sum()));
        named.chain(self.others.iter().copied())
    }
}

/// Adds a span, which swallows those that it touches.
fn join(spans: &mut Vec<(u64, u64)>, mut span: (u64, u64)) {
    spans.retain(|&(began, ended)| {
        let apart = ended < span.0 || began > span.1;
        if !apart {
            span = (span.0.min(began), span.1.max(ended));
        }
        apart
    });
    let place = spans.partition_point(|(began, _)| *began < span.0);
    spans.insert(place, span);
}

/// Whether the provider has run code for an answer.
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

/// Whether files go into the container with a request.
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
    use crate::{ErrorKind, ModelId};

    fn price() -> SessionPrice {
        SessionPrice {
            usd_per_hour: 0.05,
            minimum_minutes: 5.0,
            free_hours_per_month: 1_550.0,
            files_start_the_meter: true,
            free_with: vec!["web_search_20260209".into()],
        }
    }

    fn used(container: Option<&str>, from: u64, to: u64) -> CodeUse {
        let minute = |minute: u64| Timestamp::from_micros(minute * 60_000_000);
        CodeUse {
            container: container.map(str::to_owned),
            began: minute(from),
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
        // The same container later: the wait between is not billed, and the minimum is there once.
        close(minutes(&[used(Some("a"), 0, 1), used(Some("a"), 60, 61)]), 5.0);
        close(minutes(&[used(Some("a"), 0, 4), used(Some("a"), 60, 64)]), 8.0);
        // Overlapping requests count once, in whatever order they are told.
        close(minutes(&[used(Some("a"), 5, 20), used(Some("a"), 0, 10), used(Some("a"), 30, 31)]), 21.0);
        close(
            minutes(&[used(Some("a"), 0, 1), used(Some("b"), 0, 1), used(None, 0, 1), used(None, 0, 9)]),
            24.0,
        );
        // A clock that runs backwards costs the minimum and no more.
        close(minutes(&[used(Some("a"), 9, 1)]), 5.0);
    }

    #[test]
    fn a_condensed_meter_goes_on_where_it_was() {
        let mut meter = CodeExecutionMeter::new();
        for number in 0..40 {
            meter.add(&used(Some(&format!("c{number}")), number, number + 1), &price());
        }
        for from in [100, 110, 120] {
            meter.add(&used(Some("long"), from, from + 2), &price());
        }
        let saved = serde_json::to_string(&meter.condensed()).unwrap();
        let mut meter: CodeExecutionMeter = serde_json::from_str(&saved).unwrap();
        assert_eq!(meter.sessions(), MOST_KEPT);
        let before = meter.hours(&price());
        meter.add(&used(Some("long"), 200, 203), &price());
        assert!((meter.hours(&price()) - before - 3.0 / 60.0).abs() < 1e-9, "6 min are 9 now");
        assert!(!meter.is_empty() && CodeExecutionMeter::new().condensed().is_empty());
    }

    #[test]
    fn files_start_the_meter_where_the_price_says_so_and_company_makes_it_free() {
        let mut idle = used(Some("a"), 0, 1);
        idle.ran = false;
        assert!(minutes(&[idle.clone()]) < 1e-9);
        idle.preloaded = true;
        assert!(minutes(&[idle.clone()]) > 4.9);
        let mut meter = CodeExecutionMeter::new();
        meter.add(&idle, &SessionPrice { files_start_the_meter: false, ..price() });
        assert_eq!(meter.sessions(), 0);
        let mut free = used(Some("a"), 0, 30);
        free.free = true;
        assert!(minutes(&[free]) < 1e-9);
    }

    #[test]
    fn where_code_runs() {
        let info = |has: Option<bool>| {
            let mut info = ModelInfo::unknown(&ModelId::new("p", "m"));
            info.features.extend(has.map(|has| (Feature::CodeExecution, has)));
            info
        };
        let hosted = CodePlace::Hosted(HostedTool::CodeExecution { version: None, file_ids: Vec::new() });
        let local = |reason| Some(CodePlace::Local(reason));
        for (wanted, has, expected) in [
            ("auto", Some(true), Some(hosted.clone())),
            ("auto", Some(false), local(LocalReason::NotTaken)),
            ("auto", None, local(LocalReason::NotKnown)),
            ("hosted", Some(true), Some(hosted.clone())),
            ("hosted", None, Some(hosted)),
            ("hosted", Some(false), None),
            ("local", Some(true), local(LocalReason::Asked)),
        ] {
            let found = choose_code_place(Catalog::built_in(), &info(has), wanted.parse().unwrap());
            match expected {
                Some(expected) => assert_eq!(found.unwrap(), expected, "{wanted} {has:?}"),
                None => {
                    let error = found.unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Unsupported);
                    assert!(error.message.contains("Models that have it: "), "{error}");
                }
            }
        }
        assert!("both".parse::<CodeWanted>().unwrap_err().contains("`hosted`"));
        assert!(CodePlace::Local(LocalReason::NotTaken).to_string().contains("sandbox of this host"));
    }
}

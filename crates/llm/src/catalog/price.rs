//! Prices and costs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use super::{Date, ModelInfo};
use crate::{Response, TokenUsage};

/// The names of tools in whose calls a provider runs code.
pub(crate) const CODE_TOOLS: [&str; 4] =
    ["code_execution", "bash_code_execution", "text_editor_code_execution", "code_interpreter"];

/// Prices per million tokens, in US dollars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Uncached input.
    pub input: f64,
    /// Output, including reasoning.
    pub output: f64,
    /// Input read from a cache. Defaults to `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    /// Input written to a cache, for five minutes if there is a choice. Defaults to `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Input written to a cache for an hour. Defaults to `cache_write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<f64>,
}

/// The prices of requests with long input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceTier {
    /// The prices apply to all tokens of a request with more input tokens than this, cached or not.
    pub input_tokens: u64,
    /// The prices.
    #[serde(flatten)]
    pub rates: Rates,
}

/// The prices from a date on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PricePeriod {
    /// The first day. Default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Date>,
    /// The prices per million tokens.
    #[serde(flatten)]
    pub rates: Rates,
    /// The prices of requests with long input, by length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PriceTier>,
    /// The price per use of a hosted tool in US dollars, by the tool's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted_tools: BTreeMap<String, f64>,
}

/// The prices of a service tier between two dates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServicePeriod {
    /// The first day. Default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Date>,
    /// The first day after the period. Default: open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Date>,
    /// The prices per million tokens.
    #[serde(flatten)]
    pub rates: Rates,
    /// The prices of requests with long input, by length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PriceTier>,
}

/// The price of hosted code execution by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionPrice {
    /// The price of an hour of one container, in US dollars.
    pub usd_per_hour: f64,
    /// The minimum charge in minutes. Default: none.
    #[serde(default)]
    pub minimum_minutes: f64,
    /// The free hours per month of an account. [`SessionPrice::cost`] ignores them, because only the provider knows how
    /// many are left. Default: none.
    #[serde(default)]
    pub free_hours_per_month: f64,
    /// Whether a file in the container starts billing even if no code runs. Default: no.
    #[serde(default)]
    pub files_start_billing: bool,
    /// Hosted tools that make code execution free in the same request. Default: none.
    #[serde(default)]
    pub free_with: Vec<String>,
}

impl SessionPrice {
    /// The cost of one container for this time in US dollars, at least the minimum charge.
    pub fn cost(&self, time: Duration) -> f64 {
        let minutes = (time.as_secs_f64() / 60.0).max(self.minimum_minutes);
        minutes / 60.0 * self.usd_per_hour
    }
}

/// A cost in US dollars.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// The sum of everything with a known price.
    pub usd: f64,
    /// The part for uncached input.
    pub input: f64,
    /// The part for output.
    pub output: f64,
    /// The part for input read from a cache.
    pub cache_read: f64,
    /// The part for input written to a cache.
    pub cache_write: f64,
    /// The parts for hosted tools, by the provider's name of the count.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted: BTreeMap<String, f64>,
    /// Used hosted tools with an unknown price. The true cost is then higher than `usd`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpriced: Vec<String>,
}

impl Cost {
    /// Adds another cost.
    pub fn add(&mut self, other: &Self) {
        self.usd += other.usd;
        self.input += other.input;
        self.output += other.output;
        self.cache_read += other.cache_read;
        self.cache_write += other.cache_write;
        for (name, usd) in &other.hosted {
            *self.hosted.entry(name.clone()).or_default() += usd;
        }
        for name in &other.unpriced {
            if !self.unpriced.contains(name) {
                self.unpriced.push(name.clone());
            }
        }
    }
}

/// The providers' names of the standard service tier.
const STANDARD: &[&str] = &["", "standard", "default", "auto", "on_demand", "normal"];

impl ModelInfo {
    /// The cost of a usage at a time, in a service tier such as `batch` (`None` is the standard tier).
    ///
    /// `None` if the price is unknown or the usage [incomplete](TokenUsage::incomplete).
    pub fn cost(&self, usage: &TokenUsage, at: Timestamp, service: Option<&str>) -> Option<Cost> {
        if usage.incomplete {
            return None;
        }
        let day = Date::from(at);
        let has_started = |from: Option<Date>| from.is_none_or(|from| from <= day);
        let period = self.prices.iter().rev().find(|period| has_started(period.from))?;
        let (rates, tiers) = match service.filter(|service| !STANDARD.contains(service)) {
            None => (&period.rates, &period.tiers),
            Some(service) => {
                let periods = self.services.get(service)?;
                let period = periods.iter().rev().find(|period| has_started(period.from))?;
                if period.until.is_some_and(|until| until <= day) {
                    return None;
                }
                (&period.rates, &period.tiers)
            }
        };
        let tier = tiers.iter().rev().find(|tier| usage.total_input() > tier.input_tokens);
        let rates = tier.map_or(rates, |tier| &tier.rates);
        let price = |tokens: u64, rate: f64| tokens as f64 * rate / 1e6;
        let write = rates.cache_write.unwrap_or(rates.input);
        let hourly = usage.cache_write_1h.min(usage.cache_write);
        let mut cost = Cost {
            usd: 0.0,
            input: price(usage.input, rates.input),
            output: price(usage.output, rates.output),
            cache_read: price(usage.cache_read, rates.cache_read.unwrap_or(rates.input)),
            cache_write: price(usage.cache_write - hourly, write)
                + price(hourly, rates.cache_write_1h.unwrap_or(write)),
            hosted: BTreeMap::new(),
            unpriced: Vec::new(),
        };
        cost.usd = cost.input + cost.output + cost.cache_read + cost.cache_write;
        for (name, count) in usage.hosted.iter().filter(|(_, count)| **count > 0) {
            match self.price_per_use(period, name) {
                Some(price) => {
                    let usd = *count as f64 * price;
                    cost.usd += usd;
                    cost.hosted.insert(name.clone(), usd);
                }
                None => cost.unpriced.push(name.clone()),
            }
        }
        Some(cost)
    }

    /// The cost of an answer, in the service tier that it reports. `None` if unknown.
    pub fn cost_of(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        /// The members that report the service tier.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Answer {
            service_tier: Option<String>,
            usage: Option<UsageTier>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct UsageTier {
            service_tier: Option<String>,
            speed: Option<String>,
        }
        let answer: Answer = response.raw.read().unwrap_or_default();
        let usage = answer.usage.unwrap_or_default();
        let tiers = [answer.service_tier, usage.service_tier, usage.speed];
        let service = tiers.into_iter().flatten().find(|word| !STANDARD.contains(&word.as_str()));
        self.cost(&response.usage, at, service.as_deref())
    }

    /// The price per use of a hosted tool, by the provider's name of the count, such as `web_search_requests`.
    fn price_per_use(&self, period: &PricePeriod, count: &str) -> Option<f64> {
        let ends = ["_requests", "_calls", "_queries", "_uses"];
        let name = ends.iter().find_map(|end| count.strip_suffix(end)).unwrap_or(count);
        // Code execution is billed by time, which the meter estimates.
        if CODE_TOOLS.contains(&name) && self.code_execution_price.is_some() {
            return Some(0.0);
        }
        period.hosted_tools.get(name).or_else(|| self.hosted_tool_prices.get(name)).copied()
    }
}

//! What answers cost.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use super::{Date, ModelInfo};
use crate::code_execution::CODE_TOOLS;
use crate::{Response, Usage};

/// Prices per million tokens, in US dollars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Input that is neither read from nor written to a cache.
    pub input: f64,
    /// Output, reasoning included.
    pub output: f64,
    /// Input that is read from a cache. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    /// Input that is written to a cache, for five minutes where there is a choice. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Input that is written to a cache for an hour. Default: as `cache_write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<f64>,
}

/// Prices of requests whose whole input is long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// The prices hold when the input, cached or not, has more tokens than this; then they hold for every token.
    pub input_tokens: u64,
    /// The prices.
    #[serde(flatten)]
    pub rates: Rates,
}

/// The prices from a day on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PricePeriod {
    /// The first day. Default: since ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Date>,
    /// The prices per million tokens.
    #[serde(flatten)]
    pub rates: Rates,
    /// The prices of long requests, by length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Tier>,
    /// What one use of a hosted tool costs in US dollars, by the tool's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uses: BTreeMap<String, f64>,
}

/// The prices of a service level from a day on, and up to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServicePeriod {
    /// The first day. Default: since ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Date>,
    /// The first day on which they hold no more. Default: none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Date>,
    /// The prices per million tokens.
    #[serde(flatten)]
    pub rates: Rates,
    /// The prices of long requests, by length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Tier>,
}

/// What a provider takes for the time in which code can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionPrice {
    /// The price of an hour of one container, in US dollars.
    pub usd_per_hour: f64,
    /// The least time that is billed, in minutes. Default: none.
    #[serde(default)]
    pub minimum_minutes: f64,
    /// Hours in a month that cost nothing, for the whole account. What is left of them only the provider knows, so that
    /// [`SessionPrice::cost`] leaves them out. Default: none.
    #[serde(default)]
    pub free_hours_per_month: f64,
    /// Whether a file that is put into the container starts the meter even if no code runs. Default: no.
    #[serde(default)]
    pub files_start_the_meter: bool,
    /// Versions of hosted tools in whose company code costs nothing. Default: none.
    #[serde(default)]
    pub free_with: Vec<String>,
}

impl SessionPrice {
    /// What one container costs that was there for this long, in US dollars: at least the minimum.
    pub fn cost(&self, time: Duration) -> f64 {
        let minutes = (time.as_secs_f64() / 60.0).max(self.minimum_minutes);
        minutes / 60.0 * self.usd_per_hour
    }
}

/// What something costs, in US dollars.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Everything that has a price.
    pub usd: f64,
    /// Of it, input that is neither read from nor written to a cache.
    pub input: f64,
    /// Of it, output.
    pub output: f64,
    /// Of it, input that was read from a cache.
    pub cache_read: f64,
    /// Of it, input that was written to a cache.
    pub cache_write: f64,
    /// Of it, uses of hosted tools, by the provider's word.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted: BTreeMap<String, f64>,
    /// Hosted tools that were used and whose price is not known: the whole is then more than `usd`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpriced: Vec<String>,
}

impl Cost {
    /// Adds another's amounts to these.
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

/// Words of providers for the service level that costs the standard price.
const STANDARD: &[&str] = &["", "standard", "default", "auto", "on_demand", "normal"];

impl ModelInfo {
    /// What an answer costs whose tokens are these, at a time and a service level such as `batch` (`None` is the
    /// standard one). `None` if the model's price, or that of the service level, is not known, or not how many tokens
    /// were used ([`Usage::incomplete`]).
    pub fn cost(&self, usage: &Usage, at: Timestamp, service: Option<&str>) -> Option<Cost> {
        if usage.incomplete {
            return None;
        }
        let day = Date::of(at);
        let has_begun = |from: Option<Date>| from.is_none_or(|from| from <= day);
        let period = self.prices.iter().rev().find(|period| has_begun(period.from))?;
        let (rates, above) = match service.filter(|service| !STANDARD.contains(service)) {
            None => (&period.rates, &period.above),
            Some(service) => {
                let periods = self.services.get(service)?;
                let period = periods.iter().rev().find(|period| has_begun(period.from))?;
                if period.until.is_some_and(|until| until <= day) {
                    return None;
                }
                (&period.rates, &period.above)
            }
        };
        let tier = above.iter().rev().find(|tier| usage.total_input() > tier.input_tokens);
        let rates = tier.map_or(rates, |tier| &tier.rates);
        let price = |tokens: u64, rate: f64| tokens as f64 * rate / 1e6;
        let write = rates.cache_write.unwrap_or(rates.input);
        let for_an_hour = usage.cache_write_1h.min(usage.cache_write);
        let mut cost = Cost {
            usd: 0.0,
            input: price(usage.input, rates.input),
            output: price(usage.output, rates.output),
            cache_read: price(usage.cache_read, rates.cache_read.unwrap_or(rates.input)),
            cache_write: price(usage.cache_write - for_an_hour, write)
                + price(for_an_hour, rates.cache_write_1h.unwrap_or(write)),
            hosted: BTreeMap::new(),
            unpriced: Vec::new(),
        };
        cost.usd = cost.input + cost.output + cost.cache_read + cost.cache_write;
        for (name, count) in usage.hosted.iter().filter(|(_, count)| **count > 0) {
            match self.price_of_use(period, name) {
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

    /// What an answer costs, at the service level that it names itself. `None` if that is not known.
    pub fn cost_of(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        /// Where the wires say at which level they served.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Answer {
            service_tier: Option<String>,
            usage: Option<Level>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Level {
            service_tier: Option<String>,
            speed: Option<String>,
        }
        let answer: Answer = response.raw.read().unwrap_or_default();
        let usage = answer.usage.unwrap_or_default();
        let said = [answer.service_tier, usage.service_tier, usage.speed];
        let service = said.into_iter().flatten().find(|word| !STANDARD.contains(&word.as_str()));
        self.cost(&response.usage, at, service.as_deref())
    }

    /// The price of one use, by the provider's word for it: `web_search_requests` is about `web_search`.
    fn price_of_use(&self, period: &PricePeriod, word: &str) -> Option<f64> {
        let ends = ["_requests", "_calls", "_queries", "_uses"];
        let name = ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        // Running code is paid by time, which is metered apart.
        if CODE_TOOLS.contains(&name) && self.code_execution_price.is_some() {
            return Some(0.0);
        }
        period.uses.get(name).or_else(|| self.uses.get(name)).copied()
    }
}

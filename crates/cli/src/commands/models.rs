//! `toolpost models`

use serde_json::json;
use toolpost_core::{Clock as _, SystemClock, did_you_mean};
use toolpost_llm::{Feature, ModelInfo, ModelSpec, PROVIDERS, Rates};

use crate::args::{Format, ModelsCommand, ModelsListArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::model::catalog;
use crate::print::Printer;
use crate::style::{FAINT, HINT, STRONG, WARN, harmless, paint};

pub(crate) fn run(command: &ModelsCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    match command {
        ModelsCommand::Ls(args) => list(args, config, printer)?,
        ModelsCommand::Show(args) => show(&args.model, config, printer)?,
    }
    Ok(Exit::Ok)
}

fn list(args: &ModelsListArgs, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let catalog = catalog(config)?;
    let features = args.can.iter().map(|name| feature(name)).collect::<Result<Vec<_>, _>>()?;
    let providers: Vec<&str> = args
        .provider
        .iter()
        .map(|name| toolpost_llm::Provider::find(name).map_or(name.as_str(), |provider| provider.name))
        .collect();
    for provider in &providers {
        if catalog.models().all(|model| model.id.provider != *provider) {
            let known = PROVIDERS.iter().map(|provider| provider.name);
            let near = did_you_mean(provider, known.clone())
                .unwrap_or_else(|| format!("There are: {}.", known.collect::<Vec<_>>().join(", ")));
            let failure = Failure::usage(format!("`--provider {provider}`: no known models"));
            return Err(failure.hint(near));
        }
    }
    let now = SystemClock.timestamp();
    let mut models: Vec<ModelInfo> = catalog.models().collect();
    models.retain(|model| {
        (providers.is_empty() || providers.contains(&model.id.provider.as_str()))
            && (args.retired || !model.is_retired(now))
            && features.iter().all(|feature| model.has(*feature) == Some(true))
    });
    match printer.format {
        Format::Json => printer.json(&json!({
            "date": catalog.date(), "sources": catalog.sources(), "models": models,
        })),
        Format::Jsonl => models.iter().try_for_each(|model| printer.json(model)),
        Format::Text => {
            let names: Vec<String> = models.iter().map(|model| harmless(&model.id.to_string())).collect();
            let width = names.iter().map(String::len).max().unwrap_or_default();
            let mut lines = Vec::new();
            for (model, name) in models.iter().zip(&names) {
                let window = model.context_window.map_or("?".to_owned(), tokens);
                let price = rates(model).map_or("price unknown".to_owned(), |rates| {
                    format!("{} in, {} out", amount(rates.input), amount(rates.output))
                });
                let gap = " ".repeat(width - name.len());
                lines.push(format!("{}{gap}  {window:>6}  {price}", paint(HINT, name)));
            }
            printer.result(&lines.join("\n"))?;
            printer.note(&paint(
                FAINT,
                format!("context window in tokens, US dollars per million tokens; as of {}", catalog.date()),
            ));
            Ok(())
        }
    }
}

fn feature(name: &str) -> Result<Feature, Failure> {
    let names = || Feature::ALL.iter().map(|feature| feature.as_str());
    Feature::ALL.iter().find(|feature| feature.as_str() == name).copied().ok_or_else(|| {
        let near = did_you_mean(name, names())
            .unwrap_or_else(|| format!("There are: {}.", names().collect::<Vec<_>>().join(", ")));
        Failure::usage(format!("`--can {name}`: unknown feature")).hint(near)
    })
}

fn show(name: &str, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let catalog = catalog(config)?;
    let ModelSpec::Hosted { provider, name } = ModelSpec::parse(name)? else {
        return Err(Failure::usage(format!("`{name}` is a file, which the catalog does not describe")));
    };
    let model = catalog.find(&toolpost_llm::ModelId::new(provider, name));
    if model.catalog_id.is_none() {
        let near = catalog.did_you_mean(&model.id);
        let failure = Failure::new(Exit::Failed, "NOT_FOUND", format!("unknown model `{}`", model.id));
        let failure = failure.hint("You can use it without a known price. A `models.file` can describe it.");
        return Err(match near {
            Some(near) => failure.hint(near),
            None => failure,
        });
    }
    if !printer.is_text() {
        return printer.json(&model);
    }
    let mut lines = vec![paint(STRONG, harmless(&model.id.to_string()))];
    let mut row = |name: &str, value: String| lines.push(format!("  {name:<18}{value}"));
    if model.catalog_id.as_ref() != Some(&model.id) {
        row("catalog id", model.catalog_id.as_ref().map(ToString::to_string).unwrap_or_default());
    }
    let size = |tokens_: Option<u64>| tokens_.map_or("unknown".to_owned(), tokens);
    row("context", size(model.context_window));
    if model.max_input_tokens.is_some() {
        row("longest input", size(model.max_input_tokens));
    }
    row("longest answer", size(model.max_output_tokens));
    if let Some(day) = model.retires {
        let word = if model.is_retired(SystemClock.timestamp()) { "ended" } else { "ends" };
        row(word, paint(WARN, day));
    }
    let able = |expected: bool| -> String {
        let names =
            model.features.iter().filter(|(_, has)| **has == expected).map(|(feature, _)| feature.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    row("can", able(true));
    row("cannot", able(false));
    if let Some(efforts) = &model.efforts {
        let names: Vec<&str> = efforts.iter().map(|effort| effort.as_str()).collect();
        row("effort", if names.is_empty() { "none".to_owned() } else { names.join(", ") });
    }
    let refused: Vec<String> = model.unsupported_settings.iter().map(ToString::to_string).collect();
    if !refused.is_empty() {
        row("does not take", refused.join(", "));
    }
    for (tool, versions) in &model.hosted_versions {
        row(tool, harmless(&versions.join(", ")));
    }
    if model.prices.is_empty() {
        row("price", "unknown".to_owned());
    }
    for period in &model.prices {
        let from = period.from.map_or(String::new(), |day| format!("from {day}: "));
        row("price", format!("{from}{}", rates_text(&period.rates)));
        for tier in &period.tiers {
            row(
                "",
                format!("above {} tokens of input: {}", tokens(tier.input_tokens), rates_text(&tier.rates)),
            );
        }
        for (tool, usd) in &period.hosted_tools {
            row("", format!("{} for 1,000 uses of {}", amount(usd * 1_000.0), harmless(tool)));
        }
    }
    for (service, periods) in &model.services {
        if let Some(period) = periods.last() {
            row(service, rates_text(&period.rates));
        }
    }
    if let Some(price) = model.code_execution_price.as_ref().filter(|price| price.usd_per_hour > 0.0) {
        // Only the provider knows how many are left.
        let free = match price.free_hours_per_month {
            hours if hours > 0.0 => {
                format!("; {hours} free hours a month, which costs of runs ignore")
            }
            _ => String::new(),
        };
        let text = format!(
            "{} an hour, at least {} minutes{free}",
            amount(price.usd_per_hour),
            price.minimum_minutes
        );
        row("hosted code", text);
    }
    printer.result(&lines.join("\n"))?;
    printer.note(&paint(
        FAINT,
        format!(
            "US dollars per million tokens; as of {} from {}",
            catalog.date(),
            catalog.sources().join("; ")
        ),
    ));
    Ok(())
}

/// The current prices.
fn rates(model: &ModelInfo) -> Option<&Rates> {
    let today = toolpost_llm::Date::from(SystemClock.timestamp());
    let period = model.prices.iter().rev().find(|period| period.from.is_none_or(|day| day <= today))?;
    Some(&period.rates)
}

fn rates_text(rates: &Rates) -> String {
    let mut text = format!("{} in, {} out", amount(rates.input), amount(rates.output));
    for (name, rate) in [
        ("cached", rates.cache_read),
        ("cache written", rates.cache_write),
        ("for an hour", rates.cache_write_1h),
    ] {
        if let Some(rate) = rate {
            text.extend([", ", &amount(rate), " ", name]);
        }
    }
    text
}

/// US dollars with the needed digits.
fn amount(usd: f64) -> String {
    let text = format!("{usd:.4}");
    format!("{} USD", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A number of tokens, short if it is round.
fn tokens(count: u64) -> String {
    match count {
        1_000_000.. if count.is_multiple_of(10_000) => format!("{}M", count as f64 / 1e6),
        1_000.. if count.is_multiple_of(1_000) => format!("{}k", count / 1_000),
        _ => count.to_string(),
    }
}

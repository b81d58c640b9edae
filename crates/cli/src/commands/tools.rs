//! `toolpost tools`

use serde_json::Value;
use toolpost_core::{ToolSpec, did_you_mean};
use toolpost_gateway::catalog::{Catalog, Search};
use toolpost_tools::FileRoot;

use crate::args::ToolsArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::missing;
use crate::print::Printer;
use crate::style::{HINT, STRONG, harmless, one_line, paint};
use crate::target::{self, OpenOptions, Wait};

pub(crate) fn run(args: &ToolsArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let runtime = crate::runtime::start()?;
    let (specs, missing) = runtime.block_on(async {
        let options = OpenOptions {
            token: crate::mcp::token(&args.server)?,
            wait: args.manifest.as_deref().map_or(Wait::All, Wait::Tool),
            ..OpenOptions::new(args.level, &args.grants)?
        };
        let mut opened = target::open(&args.targets, config, options).await?;
        opened.warnings.iter().for_each(|warning| printer.warn(warning));
        let missing = std::mem::take(&mut opened.missing);
        let specs = match &args.search {
            None => opened.specs(),
            Some(words) => {
                let here = FileRoot::new(".");
                let toolbox = crate::toolbox::upstream(opened, here, config, args.level).await?;
                let catalog = Catalog::new(&toolbox);
                let found = catalog.search(&Search::new(words).limit(usize::MAX));
                found.hits.iter().filter_map(|hit| hit.entry.spec().cloned()).collect()
            }
        };
        Ok::<_, Failure>((specs, missing))
    })?;
    crate::runtime::end(runtime);
    if specs.is_empty() && args.search.is_some() {
        printer.note("no tool matches");
    }
    if let Some(name) = &args.manifest {
        let spec = specs.iter().find(|spec| spec.name == *name).ok_or_else(|| {
            if !missing.is_empty() {
                return missing::failure(&missing);
            }
            let failure = Failure::usage(format!("unknown tool `{name}`"));
            let hint = did_you_mean(name, specs.iter().map(|spec| spec.name.as_str()));
            failure.hint(hint.unwrap_or_else(|| "`toolpost tools` lists them.".into()))
        })?;
        if printer.is_text() {
            printer.result(&page(spec))?;
        } else {
            printer.json(&manifest(spec))?;
        }
        return Ok(Exit::Ok);
    }
    let width = specs.iter().map(|spec| spec.name.len()).max().unwrap_or(0);
    printer.list(
        "tools",
        &specs,
        |spec| manifest(spec),
        |spec| {
            let gap = " ".repeat(width - spec.name.len() + 2);
            format!("{}{gap}{}", paint(HINT, &spec.name), one_line(spec.summary(), 200))
        },
    )?;
    if missing.is_empty() { Ok(Exit::Ok) } else { Err(missing::failure(&missing)) }
}

fn manifest(spec: &ToolSpec) -> Value {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    value["digest"] = spec.digest().into();
    value
}

/// Prints one tool as text.
fn page(spec: &ToolSpec) -> String {
    let mut lines = vec![paint(STRONG, &spec.name), harmless(&spec.description), String::new()];
    let schema = spec.input_schema.as_value();
    let required: Vec<&str> = spec.input_schema.required().collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    if properties.is_some_and(|properties| !properties.is_empty()) {
        lines.push(paint(STRONG, "Parameters"));
    }
    for (name, property) in properties.into_iter().flatten() {
        let kind = match property.get("type") {
            Some(Value::String(kind)) => kind.clone(),
            Some(Value::Array(kinds)) => {
                kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
            }
            _ => "any".to_owned(),
        };
        let must = if required.contains(&name.as_str()) { ", required" } else { "" };
        let default = property.get("default").map(|value| format!(", default {value}")).unwrap_or_default();
        lines.push(format!(
            "  {} ({}{must}{})",
            paint(HINT, harmless(name)),
            harmless(&kind),
            harmless(&default)
        ));
        if let Some(text) = property.get("description").and_then(Value::as_str) {
            lines.extend(text.lines().map(|line| format!("      {}", harmless(line))));
        }
    }
    for example in &spec.examples {
        lines.push(format!("{} {}", paint(STRONG, "Example"), harmless(&example.args.to_string())));
    }
    lines.push(format!("{} {}", paint(STRONG, "Digest"), spec.digest()));
    lines.join("\n")
}

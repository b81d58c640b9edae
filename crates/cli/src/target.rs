//! The grammar of targets: where tools come from.

use std::sync::Arc;

use toolpost_core::{Tool, did_you_mean};

use crate::config::Config;
use crate::failure::Failure;

/// The tools that targets name, each once: `builtin`, `builtin:NAME`, the bare name of a built-in tool, or a name of the
/// settings.
pub(crate) fn tools(targets: &[String], config: &Config) -> Result<Vec<Arc<dyn Tool>>, Failure> {
    let all = toolpost_tools::builtin();
    let names: Vec<String> = all.iter().map(|tool| tool.spec().name.clone()).collect();
    let mut chosen: Vec<Arc<dyn Tool>> = Vec::new();
    for target in targets.iter().flat_map(|targets| targets.split(',')).map(str::trim) {
        let target = config.target(target).unwrap_or(target);
        let found: Vec<&Arc<dyn Tool>> = if target == "builtin" {
            all.iter().collect()
        } else {
            let name = target.strip_prefix("builtin:").unwrap_or(target);
            let tool = names.iter().zip(&all).find(|(known, _)| *known == name).map(|(_, tool)| tool);
            vec![tool.ok_or_else(|| unknown(target, name, &names, config))?]
        };
        for tool in found {
            if !chosen.iter().any(|known| known.spec().name == tool.spec().name) {
                chosen.push(Arc::clone(tool));
            }
        }
    }
    Ok(chosen)
}

fn unknown(target: &str, name: &str, names: &[String], config: &Config) -> Failure {
    let failure = Failure::usage(format!("there is no target `{target}`"));
    let known =
        names.iter().map(String::as_str).chain(["builtin"]).chain(config.targets().map(|(name, ..)| name));
    match did_you_mean(name, known) {
        Some(hint) => failure.hint(hint),
        None => failure
            .hint("A target is `builtin`, `builtin:NAME` or the name of a built-in tool; `toolpost tools` lists them."),
    }
}

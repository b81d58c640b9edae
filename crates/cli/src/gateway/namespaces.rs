//! Several targets of one command, each under a namespace.

use std::path::Path;
use std::sync::Arc;

use toolpost_gateway::{Gateway, GatewaySettings, UpstreamSettings};
use toolpost_sandbox::{Grants, Level};

use super::{is_gateway_file, parts};
use crate::config::Config;
use crate::failure::Failure;
use crate::target;
use crate::target::trail::Trail;
use crate::target_grammar::{Target, named, namespace};

/// The targets of a command, with and without a namespace.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Several {
    /// Built-in tools, gateways, and a single target: without a namespace.
    pub(crate) bare: Vec<String>,
    /// Targets under a namespace.
    upstreams: Vec<UpstreamSettings>,
}

impl Several {
    /// Assigns namespaces to targets.
    ///
    /// `NAME=TARGET` sets the namespace, `=TARGET` none. Otherwise a single target has none, and several have
    /// namespaces of their names. Built-in tools and gateways never have one.
    ///
    /// # Errors
    /// Two targets have one name, or a name is not a valid namespace.
    pub(crate) fn new(words: &[String], config: &Config, lazy: bool) -> Result<Self, Failure> {
        let mut several = Self::default();
        let mut unnamed = 0_usize;
        let mut named_targets: Vec<(Option<&str>, &str)> = Vec::new();
        for word in words {
            if let Some((name, target)) = named(word) {
                named_targets.push((Some(name), target));
                continue;
            }
            for target in crate::target_grammar::split(word) {
                let resolved = config.target(target).unwrap_or(target);
                if Target::parse(resolved).is_built_in() || is_gateway_file(Path::new(resolved)) {
                    several.bare.push(target.to_owned());
                } else {
                    unnamed += 1;
                    named_targets.push((None, target));
                }
            }
        }
        let is_alone = named_targets.len() == 1 && unnamed == 1;
        if is_alone && !lazy {
            several.bare.extend(named_targets.iter().map(|(_, target)| (*target).to_owned()));
            return Ok(several);
        }
        let taken: Vec<String> =
            named_targets.iter().filter_map(|(name, _)| Some((*name)?.to_lowercase())).collect();
        let mut generated: Vec<String> = Vec::new();
        for (name, target) in named_targets {
            let mut upstream = UpstreamSettings::new(name.unwrap_or_default(), target);
            upstream.lazy = lazy;
            upstream.namespace = name.is_some_and(|name| !name.is_empty()) || (name.is_none() && !is_alone);
            if upstream.name.is_empty() {
                let base = namespace(target);
                let free = |name: &String| !generated.contains(name) && !taken.contains(name);
                let numbered = (2..).map(|number| format!("{base}-{number}"));
                let mut names = std::iter::once(base.clone()).chain(numbered);
                upstream.name = names.find(free).unwrap_or(base);
                generated.push(upstream.name.clone());
            }
            several.upstreams.push(upstream);
        }
        several.settings().check().map_err(|error| {
            Failure::usage(error.message()).hint(
                "Write NAME=TARGET, such as `calc=./calculator`; a name has letters, digits, `_` and `-`.",
            )
        })?;
        Ok(several)
    }

    /// All targets without namespaces.
    pub(crate) fn targets(&self, config: &Config) -> Vec<Target> {
        let upstreams = self.upstreams.iter().map(|upstream| upstream.target.as_str());
        let targets = self.bare.iter().map(String::as_str).chain(upstreams);
        targets.map(|target| Target::parse(config.target(target).unwrap_or(target))).collect()
    }

    fn settings(&self) -> GatewaySettings {
        let mut settings = GatewaySettings::default();
        settings.upstreams.clone_from(&self.upstreams);
        settings
    }

    /// Opens the gateway to the targets under a namespace, if there are some. It is returned at once, while its
    /// upstreams start.
    ///
    /// The grants are for the only program or server among the targets.
    pub(crate) async fn open(
        &self,
        config: &Config,
        level: Option<Level>,
        granted: &Grants,
    ) -> Result<Option<Arc<Gateway>>, Failure> {
        if self.upstreams.is_empty() {
            return Ok(None);
        }
        // A target that can never connect is a typo, not an unavailable upstream.
        self.upstreams.iter().try_for_each(|upstream| target::check(&upstream.target, config))?;
        let mut settings = self.settings();
        if !granted.is_empty() {
            let takes = |target: &str| Target::parse(config.target(target).unwrap_or(target)).takes_grants();
            let granted_ones = settings.upstreams.iter_mut().filter(|upstream| takes(&upstream.target));
            granted_ones.for_each(|upstream| upstream.grants = serde_json::to_value(granted).ok());
        }
        let gateway = Gateway::open("targets", &settings, parts(config, level, Trail::default())).await?;
        Ok(Some(Arc::new(gateway)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bare, …; namespace=target, …`, with targets under no namespace in brackets.
    fn sorted(words: &[&str], lazy: bool) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let several = match Several::new(&words, &Config::default(), lazy) {
            Ok(several) => several,
            Err(failure) => return failure.message,
        };
        let upstreams: Vec<String> = several
            .upstreams
            .iter()
            .map(|upstream| {
                assert_eq!(upstream.lazy, lazy);
                let text = format!("{}={}", upstream.name, upstream.target);
                if upstream.namespace { text } else { format!("({text})") }
            })
            .collect();
        format!("{}; {}", several.bare.join(", "), upstreams.join(", "))
    }

    #[test]
    fn one_target_keeps_its_names_and_several_have_namespaces() {
        for (words, expected) in [
            (&["builtin"][..], "builtin; "),
            (&["./calc"], "./calc; "),
            (&["builtin:calculate", "./calc", "command:git"], "builtin:calculate, command:git, ./calc; "),
            (&["./calc", "./other/weather.py"], "; calc=./calc, weather=./other/weather.py"),
            (&["./calc,./weather", "read_file"], "read_file; calc=./calc, weather=./weather"),
            (&["maths=./calc"], "; maths=./calc"),
            (&["=./calc", "./weather"], "; (calc=./calc), weather=./weather"),
            (&["a=./calc,./weather"], "; a=./calc,./weather"),
            (&["./calc", "./again/calc", "calc-2=./x"], "; calc=./calc, calc-3=./again/calc, calc-2=./x"),
            (
                &["https://me:key@mcp.example.com/mcp?a=b", "http://127.0.0.1:80/mcp"],
                "; mcp-example-com=https://me:key@mcp.example.com/mcp?a=b, s-127-0-0-1-80=http://127.0.0.1:80/mcp",
            ),
            (
                &["stdio:./bin/srv.sh --key=x a,b", "weather"],
                "; srv=stdio:./bin/srv.sh --key=x a,b, weather=weather",
            ),
            (&["A=./x", "a=./y"], "the upstream `a`: two upstreams have this name"),
            (&["./a=b", "./c"], "; a-b=./a=b, c=./c"),
        ] {
            assert_eq!(sorted(words, false), expected, "{words:?}");
        }
        assert_eq!(sorted(&["./calc"], true), "; (calc=./calc)");
        assert_eq!(sorted(&["builtin", "./calc", "./b"], true), "builtin; calc=./calc, b=./b");
    }
}

//! Several targets of one command, each under a namespace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_core::check_tool_name;
use toolpost_sandbox::{Grants, Level};
use toolpost_toolbox::sources::{Gateway, GatewaySettings, UpstreamSettings};

use super::{is_gateway_file, parts};
use crate::config::Config;
use crate::failure::Failure;
use crate::target::{self, Trail};

/// The longest namespace that is made of a target, in bytes; a longer one is cut.
const MAX_NAMESPACE: usize = 24;

/// The targets of a command: those whose tools keep their names, and those that stand under a namespace.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Several {
    /// Built-in tools, gateways, and a target that is alone.
    pub(crate) bare: Vec<String>,
    /// The others.
    upstreams: Vec<UpstreamSettings>,
}

impl Several {
    /// Sorts targets. `NAME=TARGET` puts a target under this namespace, `=TARGET` under none. Without either, one target
    /// keeps its names, and several have the namespace of their name; built-in tools and gateways always keep theirs.
    ///
    /// # Errors
    /// Two targets have one name, or a name cannot be a namespace.
    pub(crate) fn of(words: &[String], config: &Config, lazy: bool) -> Result<Self, Failure> {
        let mut several = Self::default();
        let mut unnamed = 0_usize;
        let mut wanted: Vec<(Option<&str>, &str)> = Vec::new();
        for word in words {
            if let Some((name, target)) = named(word) {
                wanted.push((Some(name), target));
                continue;
            }
            for target in target::split(word) {
                let resolved = config.target(target).unwrap_or(target);
                if target::is_built_in(resolved) || is_gateway_file(Path::new(resolved)) {
                    several.bare.push(target.to_owned());
                } else {
                    unnamed += 1;
                    wanted.push((None, target));
                }
            }
        }
        let is_alone = wanted.len() == 1 && unnamed == 1;
        if is_alone && !lazy {
            several.bare.extend(wanted.iter().map(|(_, target)| (*target).to_owned()));
            return Ok(several);
        }
        let taken: Vec<String> =
            wanted.iter().filter_map(|(name, _)| Some((*name)?.to_lowercase())).collect();
        let mut made: Vec<String> = Vec::new();
        for (name, target) in wanted {
            let mut upstream = UpstreamSettings::new(name.unwrap_or_default(), target);
            upstream.lazy = lazy;
            upstream.namespace = name.is_some_and(|name| !name.is_empty()) || (name.is_none() && !is_alone);
            if upstream.name.is_empty() {
                let base = namespace(target);
                let free = |name: &String| !made.contains(name) && !taken.contains(name);
                let numbered = (2..).map(|number| format!("{base}-{number}"));
                let mut names = std::iter::once(base.clone()).chain(numbered);
                upstream.name = names.find(free).unwrap_or(base);
                made.push(upstream.name.clone());
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

    /// All targets, as they stand for themselves.
    pub(crate) fn targets<'a>(&'a self, config: &'a Config) -> impl Iterator<Item = &'a str> {
        let upstreams = self.upstreams.iter().map(|upstream| upstream.target.as_str());
        let targets = self.bare.iter().map(String::as_str).chain(upstreams);
        targets.map(|target| config.target(target).unwrap_or(target))
    }

    fn settings(&self) -> GatewaySettings {
        let mut settings = GatewaySettings::default();
        settings.upstreams.clone_from(&self.upstreams);
        settings
    }

    /// The gateway to those under a namespace, if there are some. What runs code works in the folder.
    ///
    /// The grants are for the one program or server among all targets.
    pub(crate) async fn open(
        &self,
        config: &Config,
        level: Option<Level>,
        folder: PathBuf,
        granted: &Grants,
    ) -> Result<Option<Arc<Gateway>>, Failure> {
        if self.upstreams.is_empty() {
            return Ok(None);
        }
        // What can never be connected is a typo, and no upstream that is away.
        self.upstreams.iter().try_for_each(|upstream| target::check(&upstream.target, config))?;
        let mut settings = self.settings();
        if !granted.is_empty() {
            let takes = |target: &str| target::takes_grants(config.target(target).unwrap_or(target));
            let granted_ones = settings.upstreams.iter_mut().filter(|upstream| takes(&upstream.target));
            granted_ones.for_each(|upstream| upstream.grants = serde_json::to_value(granted).ok());
        }
        let gateway =
            Gateway::open("targets", &settings, parts(config, level, Some(folder), Trail::default())).await?;
        Ok(Some(Arc::new(gateway)))
    }
}

/// The name and the target of `NAME=TARGET`, if a word is that: what stands before the sign is a name or nothing.
fn named(word: &str) -> Option<(&str, &str)> {
    let (name, target) = word.split_once('=')?;
    (name.is_empty() || check_tool_name(name).is_ok()).then_some((name, target))
}

/// A namespace for a target: the name of its file, host or command, as far as it has characters of one.
pub(super) fn namespace(target: &str) -> String {
    let own = if let Some((_, rest)) = target.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        host.rsplit('@').next().unwrap_or_default()
    } else {
        let words =
            target.strip_prefix("stdio:").or_else(|| target.strip_prefix("docker:")).unwrap_or(target);
        let first = words.split_whitespace().next().unwrap_or_default();
        let file = first.split(',').next().unwrap_or_default();
        let file = file.rsplit('/').next().unwrap_or_default();
        file.rsplit_once('.').map_or(file, |(stem, _)| stem)
    };
    let fits = |one: char| if one.is_ascii_alphanumeric() || matches!(one, '_' | '-') { one } else { '-' };
    let plain: String = own.chars().map(fits).take(MAX_NAMESPACE).collect::<String>().to_lowercase();
    let plain = plain.trim_matches(['-', '_']);
    // A name begins with a letter.
    match plain.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => plain.to_owned(),
        Some(_) => format!("s-{plain}"),
        None => "source".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `bare, …; namespace=target, …`, a target under no namespace in brackets.
    fn sorted(words: &[&str], lazy: bool) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let several = match Several::of(&words, &Config::default(), lazy) {
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

//! `toolpost doctor`

mod providers;

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_runtimes::{LanguageStatus, Languages, Profile};
use toolpost_sandbox::{Cancel, Egress, Error, Host, Language, Pool, Program, Sandbox};

use self::providers::ProviderStatus;
use crate::config::{Config, paths};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{BAD, GOOD, HINT, STRONG, WARN, paint};
use crate::{container, env, packages};

/// The checked profile.
const PROFILE: &str = "data";
/// The time limit of a prewarmed interpreter.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let host = Host::probe();
    let languages = Languages::of_host(host, env::get_os("PATH").as_deref());
    let providers = providers::statuses();
    let catalog = crate::model::catalog(config)?;
    let mut sandbox = Sandbox::new();
    if let Some(path) = env::get_os("PATH") {
        sandbox = sandbox.search_path(path);
    }
    sandbox = paths::home().iter().fold(sandbox, Sandbox::home);
    let features = [profile(&sandbox), pool(&sandbox, config), egress(&sandbox), docker()];
    let apparmor = host.apparmor_restricts().then(|| std::env::current_exe().ok()).flatten();
    let apparmor = apparmor.map(|program| host.apparmor_profile(&program));
    if !printer.is_text() {
        printer.json(&json!({
            "v": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "host": host,
            "languages": languages.iter().map(language_json).collect::<Vec<_>>(),
            "features": features,
            "apparmor_profile": apparmor,
            "keys": providers
                .iter()
                .map(|provider| (provider.name.to_owned(), provider.has_key.into()))
                .collect::<serde_json::Map<_, Value>>(),
            "providers": providers.iter().map(provider_json).collect::<Vec<_>>(),
            "catalog": { "date": catalog.date(), "models": catalog.models().count() },
        }))?;
        return Ok(verdict(host));
    }
    let mut page = Page::default();
    page.section("Host", &host.system);
    for capability in &host.capabilities {
        page.row(capability.available, capability.name, &capability.reason, capability.fix);
    }
    page.section("Sandbox levels", "");
    for level in &host.levels {
        let reason = level.reason.as_deref().unwrap_or("available");
        page.row(level.available, &level.level.to_string(), reason, level.fix.as_deref());
    }
    page.languages(&languages);
    page.section("More", "");
    for feature in &features {
        page.row(feature.available, feature.name, &feature.reason, feature.fix.as_deref());
    }
    if let Some(profile) = &apparmor {
        page.apparmor(profile);
    }
    page.providers(&providers);
    page.section("Models", "");
    let known = format!("{} known models, as of {}", catalog.models().count(), catalog.date());
    page.row(true, "catalog", &known, None);
    printer.result(&page.lines.join("\n"))?;
    Ok(verdict(host))
}

fn verdict(host: &Host) -> Exit {
    if host.best().is_some() { Exit::Ok } else { Exit::Denied }
}

/// A check of this host: the finding and the fix.
#[derive(Debug, Serialize)]
struct Feature {
    name: &'static str,
    available: bool,
    reason: String,
    fix: Option<String>,
}

impl Feature {
    fn new(name: &'static str, found: Result<String, String>, fix: impl Into<String>) -> Self {
        let available = found.is_ok();
        let (Ok(reason) | Err(reason)) = found;
        Self { name, available, reason, fix: (!available).then(|| fix.into()) }
    }
}

/// Checks the packages of the profile: in an environment or in the host's Python.
fn profile(sandbox: &Sandbox) -> Feature {
    let found = match packages::environment(PROFILE) {
        Ok(Some(environment)) => Ok(format!("an environment with {} packages", environment.installed.len())),
        _ => missing(sandbox).map_err(|error| error.to_string()).and_then(|missing| {
            if missing.is_empty() {
                Ok("the host's Python has all packages".to_owned())
            } else {
                Err(format!("the host's Python lacks: {}", missing.join(", ")))
            }
        }),
    };
    Feature::new("profile_data", found, format!("`toolpost image build {PROFILE}`"))
}

fn missing(sandbox: &Sandbox) -> Result<Vec<String>, Error> {
    let profile = Profile::named(PROFILE)?;
    let missing = profile.missing(sandbox)?;
    Ok(missing.into_iter().map(|package| package.requirement.clone()).collect())
}

/// Checks by a trial whether Python forks for each run, and the pool's settings.
fn pool(sandbox: &Sandbox, config: &Config) -> Feature {
    let reason = match config.settings.code_pool {
        Some(number) => format!("Python forks for each run; `run` keeps {number} prewarmed (`code.pool`)"),
        None => "Python can fork for each run, but `code.pool` is false".to_owned(),
    };
    let sandbox = match config
        .settings
        .code_profile
        .as_deref()
        .map(|name| packages::with_profile(sandbox.clone(), name))
    {
        Some(Ok(sandbox)) => sandbox,
        Some(Err(failure)) => {
            let reason = format!("`code.profile`: {}", failure.message);
            return Feature::new("pool", Err(reason), "`toolpost image build` makes an environment");
        }
        None => sandbox.clone(),
    };
    let built = Pool::builder(&sandbox)
        .language(Language::Python)
        .idle_workers(1)
        .preload(crate::toolbox::preload(config))
        .build();
    let found = built.map_err(|error| error.to_string()).and_then(|pool| {
        let begun = Instant::now();
        loop {
            let metrics = pool.metrics();
            if metrics.ready > 0 {
                let missing: Vec<String> =
                    metrics.missing.iter().map(|(name, why)| format!("`{name}` ({why})")).collect();
                if missing.is_empty() {
                    return Ok(reason.clone());
                }
                return Ok(format!("{reason}; not preloaded: {}", missing.join(", ")));
            }
            if let Some(reason) = metrics.unavailable {
                return Err(reason);
            }
            if begun.elapsed() > PATIENCE {
                return Err("no interpreter was ready in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    Feature::new(
        "pool",
        found,
        "without it, each run starts an interpreter, some tens of milliseconds slower",
    )
}

/// Checks by a trial whether egress allowlists work.
fn egress(sandbox: &Sandbox) -> Feature {
    let run =
        sandbox.clone().egress(Egress::new()).run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {});
    match run {
        Ok(_) => Feature::new("egress", Ok("programs can have an egress allowlist".into()), ""),
        Err(Error::EgressUnavailable { reason, fix }) => Feature::new("egress", Err(reason), fix),
        Err(error) => {
            let fix = error.hint().map_or_else(|| "see the levels above".into(), |hint| hint.to_string());
            Feature::new("egress", Err(error.to_string()), fix)
        }
    }
}

/// Checks for a Docker daemon.
fn docker() -> Feature {
    let found = container::probe()
        .map_err(|failure| failure.message)
        .map(|daemon| format!("Docker {} with the runtimes {}", daemon.version, daemon.runtimes.join(", ")));
    Feature::new("docker", found, "only `--backend docker` needs it: start a daemon, or set DOCKER_HOST")
}

/// The state of a language as text.
fn detail(status: &LanguageStatus) -> String {
    match (&status.reason, &status.version) {
        (Some(reason), _) => reason.clone(),
        (None, Some(version)) => version.clone(),
        (None, None) => "runs; unknown version".to_owned(),
    }
}

fn language_json(status: &LanguageStatus) -> Value {
    let mut value = json!(status);
    value["detail"] = detail(status).into();
    value
}

/// A provider as JSON.
fn provider_json(provider: &ProviderStatus) -> Value {
    let mut value = json!(provider);
    value["answers"] = match &provider.answers {
        Some(answer) => {
            json!({ "available": answer.is_ok(), "reason": answer.clone().unwrap_or_else(|why| why) })
        }
        None => Value::Null,
    };
    value
}

/// Prints the report as text: sections with a row per check.
#[derive(Default)]
struct Page {
    lines: Vec<String>,
}

impl Page {
    fn section(&mut self, title: &str, about: &str) {
        let about = crate::style::one_line(about, 300);
        self.lines.push(format!("{} {about}", paint(STRONG, title)).trim_end().to_owned());
    }

    /// A row: name, finding, fix. Without a fix it has a cross.
    fn row(&mut self, is_good: bool, name: &str, reason: &str, fix: Option<&str>) {
        let mark = match (is_good, fix) {
            (true, _) => paint(GOOD, "✓"),
            (false, Some(_)) => paint(WARN, "!"),
            (false, None) => paint(BAD, "✗"),
        };
        self.lines.push(format!("  {mark} {name}: {}", crate::style::one_line(reason, 300)));
        if let Some(fix) = fix.filter(|_| !is_good) {
            self.lines.push(format!("      {} {fix}", paint(HINT, "fix:")));
        }
    }

    /// The rows of providers: URL and key.
    fn providers(&mut self, providers: &[ProviderStatus]) {
        self.section("Providers", "");
        for provider in providers {
            let variable = provider.base_url_variable;
            let mut facts = vec![match (&provider.base_url, provider.is_changed) {
                (Some(url), false) => url.clone(),
                (Some(url), true) => format!("{url} ({variable})"),
                (None, _) => "no URL is set".to_owned(),
            }];
            if let Some(Ok(answer) | Err(answer)) = &provider.answers {
                facts.push(answer.clone());
            }
            // An optional key is not a gap.
            let lacks_key = provider.needs_key && !provider.has_key;
            if lacks_key || provider.has_key {
                let is = if provider.has_key { "is set" } else { "is not set" };
                facts.push(format!("{} {is}", provider.key_variable));
            }
            let is_reached = provider.base_url.is_some() && !matches!(provider.answers, Some(Err(_)));
            let fix = if lacks_key {
                format!("set the key for `{}/…` models", provider.name)
            } else {
                format!("start it, or set {variable}; only `{}/…` models need it", provider.name)
            };
            self.row(is_reached && !lacks_key, provider.name, &facts.join(", "), Some(&fix));
        }
    }

    /// The profile that fixes the host, and how to install it.
    fn apparmor(&mut self, profile: &str) {
        self.section(
            "AppArmor",
            "keeps this program from user namespaces; a profile allows them to it alone",
        );
        let fix = "save it as `/etc/apparmor.d/toolpost`, then `apparmor_parser -r /etc/apparmor.d/toolpost`";
        self.lines.push(format!("      {} {fix}", paint(HINT, "fix:")));
        self.lines
            .extend(profile.lines().map(|line| format!("      {}", crate::style::one_line(line, 4096))));
    }

    /// The languages that run, with versions, and those to install.
    fn languages(&mut self, languages: &Languages) {
        let there = languages.iter().filter(|status| status.available).count();
        self.section("Languages", &format!("{there} of {} run here", languages.iter().count()));
        for status in languages.iter() {
            let fix = status.hint.unwrap_or("install it");
            self.row(status.available, status.language.name(), &detail(status), Some(fix));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_of_apparmor_can_be_copied_from_the_page() {
        let profile = Host::probe().apparmor_profile("/opt/toolpost".as_ref());
        let mut page = Page::default();
        page.apparmor(&profile);
        let copied: Vec<&str> = page.lines[2..].iter().map(|line| line.trim_start()).collect();
        assert_eq!(copied, profile.lines().map(str::trim_start).collect::<Vec<_>>());
        assert!(copied.contains(&"userns,") && page.lines[1].contains("apparmor_parser -r"), "{copied:?}");
    }
}

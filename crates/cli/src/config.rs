//! Settings of all sources; a later source overrides an earlier one.
//!
//! The order is: built-in defaults, system, user, project, environment, command line. Each value has its
//! origin.

pub(crate) mod closure;
mod digest;
pub(crate) mod dotenv;
pub(crate) mod file;
pub(crate) mod keys;
pub(crate) mod paths;
mod pinned;
mod program_kind;
pub(crate) mod reference;
pub(crate) mod service;
mod settings;
pub(crate) mod trust;
mod trusted_code;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::did_you_mean;
use toolpost_sandbox::Grants;

use self::keys::{KEYS, Key, find};
use self::service::Service;
use self::settings::Settings;
use self::trust::{Pins, TrustState};
use crate::env;
use crate::failure::Failure;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    BuiltIn,
    File { path: PathBuf, line: usize },
    Environment(String),
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment: {name}"),
            Self::CommandLine => f.write_str("command line: --config"),
        }
    }
}

/// A file that may have settings.
#[derive(Clone, Debug)]
pub(crate) struct SettingsLayer {
    pub(crate) name: &'static str,
    pub(crate) path: Option<PathBuf>,
    pub(crate) exists: bool,
    /// The trust in its content; only a project's file needs it.
    pub(crate) standing: Option<TrustState>,
}

/// The settings of this command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The values of the settings with their origins.
    values: BTreeMap<&'static str, (Value, Origin)>,
    targets: BTreeMap<String, (String, Origin)>,
    /// The grants of named targets.
    grants: BTreeMap<String, Grants>,
    /// The digests of files that trusted project files reference, by path.
    closure: BTreeMap<PathBuf, String>,
    pub(crate) layers: Vec<SettingsLayer>,
    /// The targets of untrusted files, with their files.
    untrusted_targets: BTreeMap<String, PathBuf>,
    /// The server that this command runs.
    service: Option<Arc<Service>>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// Warnings about untrusted files; `toolpost trust` does not print them.
    pub(crate) trust_warnings: Vec<String>,
}

impl Config {
    /// Reads all sources.
    pub(crate) fn load(
        settings: &[String],
        store: Option<&Path>,
        env_files: &[PathBuf],
    ) -> Result<Self, Failure> {
        let mut config = Self::default();
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let value = key.parse(key.default).unwrap_or_default();
            config.values.insert(key.name, (value, Origin::BuiltIn));
        }
        config.file("system", Some(paths::system()), false)?;
        config.file("user", paths::user(), false)?;
        config.file("project", paths::project(), true)?;
        config.env_files(env_files)?;
        config.environment()?;
        for pair in settings {
            config.command_line(pair)?;
        }
        if let Some(path) = store {
            config.values.insert("store", (path.display().to_string().into(), Origin::CommandLine));
        }
        config.settings = Settings::from_values(&config.values)?;
        Ok(config)
    }

    /// Reads a file once, so that the checked content is the used one.
    fn file(&mut self, name: &'static str, path: Option<PathBuf>, strange: bool) -> Result<(), Failure> {
        let content = path.as_deref().map(file::content).transpose()?.flatten();
        let standing = match (&content, &path) {
            (Some(content), Some(path)) if strange => {
                let (standing, closure) = Pins::load()?.judge(path, content.as_bytes());
                self.closure.extend(closure);
                Some(standing)
            }
            _ => None,
        };
        let entries = match (content, &path) {
            (Some(content), Some(path)) => match file::parse(&content, path) {
                Ok(entries) => Some(entries),
                // An invalid file of a parent directory must not stop every command below it.
                Err(failure)
                    if standing.as_ref().is_some_and(|standing| *standing != TrustState::Trusted) =>
                {
                    self.warnings.push(failure.message);
                    None
                }
                Err(failure) => return Err(failure),
            },
            _ => None,
        };
        let layer = SettingsLayer { name, exists: entries.is_some(), path, standing: standing.clone() };
        if let (Some(entries), Some(path)) = (entries, &layer.path) {
            let trusted = standing.as_ref().is_none_or(|standing| *standing == TrustState::Trusted);
            self.warnings.extend(entries.warnings);
            let mut waiting: Vec<String> = Vec::new();
            for (key, value, line) in entries.settings {
                if trusted || key.allows_untrusted(&value, self.values.get(key.name).map(|(value, _)| value))
                {
                    self.values.insert(key.name, (value, Origin::File { path: path.clone(), line }));
                } else {
                    waiting.push(format!("`{}`", key.name));
                }
            }
            for (name, (target, grants, line)) in entries.targets {
                if trusted {
                    let mut grants = grants;
                    // A server of a project works in its directory.
                    if strange && grants.workdir.is_none() && target.starts_with("stdio:") {
                        grants.workdir = path.parent().map(Path::to_owned);
                    }
                    self.grants.insert(name.clone(), grants);
                    self.targets.insert(name, (target, Origin::File { path: path.clone(), line }));
                } else {
                    waiting.push(format!("`{}.{name}`", file::TARGETS));
                    self.untrusted_targets.insert(name, path.clone());
                }
            }
            if !waiting.is_empty() {
                self.trust_warnings.push(untrusted(path, standing.as_ref(), &waiting.join(", ")));
            }
        }
        self.layers.push(layer);
        Ok(())
    }

    /// Adds variables of files that the environment lacks.
    fn env_files(&mut self, files: &[PathBuf]) -> Result<(), Failure> {
        let wrong = |path: &Path, error: &io::Error| Failure::file("the file of variables", path, error);
        let parse = |path: &Path, text: &str| {
            dotenv::parse(text).map_err(|error| {
                Failure::usage(format!("the file of variables `{}`, {error}", path.display()))
                    .hint("Write NAME=value on each line.")
            })
        };
        let mut variables = BTreeMap::new();
        let here = Path::new(".env");
        if here.is_file() {
            // Read once, so that the checked content is the used one.
            match dotenv::content(here) {
                Ok(text) => match Pins::load()?.judge(here, text.as_bytes()) {
                    (TrustState::Trusted, closure) => {
                        self.closure.extend(closure);
                        variables.extend(parse(here, &text)?);
                    }
                    (standing, _) => {
                        self.trust_warnings.push(untrusted(here, Some(&standing), "its variables"));
                    }
                },
                // An unreadable file is never trusted, and must not stop every command here.
                Err(error) => {
                    self.warnings.push(format!("{}; the file is ignored", wrong(here, &error).message));
                }
            }
        }
        for path in files {
            let text = dotenv::content(path).map_err(|error| wrong(path, &error))?;
            variables.extend(parse(path, &text)?);
        }
        env::fill(variables);
        Ok(())
    }

    fn environment(&mut self) -> Result<(), Failure> {
        for key in KEYS {
            let former = keys::FORMER.iter().find(|(_, present)| *present == key.name);
            let former = former.map(|(former, _)| keys::variable(former));
            let former = former.and_then(|name| env::get(&name).map(|text| (name, text)));
            let (name, text) = match (env::get(&key.variable()), former) {
                (Some(text), _) => (key.variable(), text),
                (None, Some((name, text))) => {
                    self.warnings.push(format!("the variable {name} is now {}", key.variable()));
                    (name, text)
                }
                (None, None) => continue,
            };
            let value = match key.kind {
                // Every other text means true: `TOOLPOST_NO_NETWORK=yes` must not mean no.
                keys::Kind::Flag => Value::Bool(text != "0" && text != "false"),
                _ => key.parse(&text).map_err(|error| {
                    Failure::usage(format!("the variable {name}: {error}"))
                        .hint("`toolpost help environment` lists the environment variables.")
                })?,
            };
            self.values.insert(key.name, (value, Origin::Environment(name)));
        }
        Ok(())
    }

    fn command_line(&mut self, pair: &str) -> Result<(), Failure> {
        let (name, text) = crate::parse::pair("--config", pair)?;
        if let Some(target) = name.strip_prefix("targets.") {
            self.grants.remove(target);
            self.targets.insert(target.to_owned(), (text.to_owned(), Origin::CommandLine));
            return Ok(());
        }
        let key = known(name)?;
        let value =
            key.parse(text).map_err(|error| Failure::usage(format!("`--config {name}=…`: {error}")))?;
        self.values.insert(key.name, (value, Origin::CommandLine));
        Ok(())
    }

    /// The settings of an agent file: its own values over the others without the excluded ones.
    ///
    /// # Errors
    /// A number is too large.
    pub(crate) fn with_overrides(
        &self,
        excluded: &[&str],
        own: Vec<(&'static Key, Value, Origin)>,
    ) -> Result<Self, Failure> {
        let mut config = self.clone();
        config.values.retain(|name, _| !excluded.contains(name));
        config.values.extend(own.into_iter().map(|(key, value, origin)| (key.name, (value, origin))));
        config.settings = Settings::from_values(&config.values)?;
        Ok(config)
    }

    /// A setting with its origin.
    pub(crate) fn entry(&self, name: &str) -> Option<(&Value, &Origin)> {
        self.values.get(name).map(|(value, origin)| (value, origin))
    }

    /// A setting that is a path.
    fn path(&self, name: &str) -> Option<PathBuf> {
        self.values.get(name)?.0.as_str().map(PathBuf::from)
    }

    /// The target of a name.
    pub(crate) fn target(&self, name: &str) -> Option<&str> {
        self.targets.get(name).map(|(target, _)| target.as_str())
    }

    /// The untrusted file with a target of a name.
    pub(crate) fn untrusted_target(&self, name: &str) -> Option<&Path> {
        self.untrusted_targets.get(name).map(PathBuf::as_path)
    }

    /// The grants of a named target.
    pub(crate) fn target_grants(&self, name: &str) -> Option<&Grants> {
        self.grants.get(name)
    }

    /// The named targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (&str, &str, &Origin)> {
        self.targets.iter().map(|(name, (target, origin))| (name.as_str(), target.as_str(), origin))
    }
}

/// Checks the content of a settings file.
pub(crate) fn check_file(text: &str, path: &Path) -> Result<(), Failure> {
    file::parse(text, path).map(drop)
}

/// Finds a setting.
pub(crate) fn known(name: &str) -> Result<&'static Key, Failure> {
    find(name).ok_or_else(|| {
        if let Some(present) = keys::renamed(name) {
            return Failure::usage(format!("the setting `{name}` is now `{present}`"));
        }
        let hint = did_you_mean(name, KEYS.iter().map(|key| key.name));
        Failure::usage(format!("unknown setting `{name}`"))
            .hint(hint.unwrap_or_else(|| "`toolpost help settings` lists them.".into()))
    })
}

fn untrusted(path: &Path, standing: Option<&TrustState>, what: &str) -> String {
    let why = standing.unwrap_or(&TrustState::Unknown).reason(path);
    format!(
        "`{}` {why}; ignored: {what}. Read the file; then `toolpost trust {}`.",
        path.display(),
        path.display()
    )
}

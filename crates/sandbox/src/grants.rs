//! `Grants`: the paths, variables and hosts of one program beyond its level.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::level::shorten;
use crate::{Egress, Error, HostPattern, Level, Modules, Placeholder, RunChanges, Sandbox, Workspace};

/// The shortest value that is masked in output; a shorter one would mask parts of words.
const MIN_MASKED: usize = 6;

/// The paths, variables and hosts that one program gets beyond its level.
///
/// Every field is optional; an unknown one is an error.
///
/// ```toml
/// level = "strict"
/// workdir = "."
/// readable = ["/srv/data"]
/// writable = ["/srv/out"]
/// secrets = ["API_KEY", { name = "OTHER_KEY", hosts = ["other.example.org"], headers = ["x-key"] }, { name = "DSN", raw = true }]
/// allow_hosts = ["api.example.org", "other.example.org"]
/// allow_addresses = ["127.0.0.1:8080"]
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Grants {
    /// The level of the sandbox.
    pub level: Option<Level>,
    /// The working directory.
    pub workdir: Option<PathBuf>,
    /// Readable host files and directories.
    pub readable: Vec<PathBuf>,
    /// Writable host directories, without a private layer.
    pub writable: Vec<PathBuf>,
    /// Variables by name, without their values. Read from the former key `env` too.
    #[serde(alias = "env")]
    pub secrets: Vec<VariableGrant>,
    /// Allowed hosts.
    pub allow_hosts: Vec<HostPattern>,
    /// Allowed addresses that the address rules would reject; see [`Egress::allow_address`].
    pub allow_addresses: Vec<SocketAddr>,
    /// Whether a launcher may run install scripts of packages.
    pub install_scripts: bool,
}

/// A variable for a program: a name, or a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VariableGrant {
    /// The name, in the program's environment and the host's.
    pub name: String,
    /// Whether the program gets the value itself. Default no: a placeholder.
    pub raw: bool,
    /// Hosts that may receive the value. Default: all allowed hosts.
    pub hosts: Vec<HostPattern>,
    /// Headers in which the value replaces the placeholder. Default `authorization` and `x-api-key`.
    pub headers: Vec<String>,
}

impl VariableGrant {
    /// Creates a placeholder for all allowed hosts.
    pub fn placeholder(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Grants the value itself.
    pub fn raw(name: impl Into<String>) -> Self {
        Self { raw: true, ..Self::placeholder(name) }
    }
}

impl<'de> Deserialize<'de> for VariableGrant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            name: String,
            #[serde(default)]
            raw: bool,
            #[serde(default)]
            hosts: Vec<HostPattern>,
            #[serde(default)]
            headers: Vec<String>,
        }
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = VariableGrant;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a variable, or a table with `name`")
            }

            fn visit_str<E>(self, name: &str) -> Result<VariableGrant, E> {
                Ok(VariableGrant::placeholder(name))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VariableGrant, A::Error> {
                let Table { name, raw, hosts, headers } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(VariableGrant { name, raw, hosts, headers })
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

impl Grants {
    /// Whether there are no grants.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Merges other grants. Their level and working directory take precedence.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        let Self {
            level,
            workdir,
            readable,
            writable,
            secrets,
            allow_hosts,
            allow_addresses,
            install_scripts,
        } = other;
        self.level = level.or(self.level);
        self.workdir = workdir.or(self.workdir);
        self.readable.extend(readable);
        self.writable.extend(writable);
        self.secrets.retain(|own| secrets.iter().all(|variable| variable.name != own.name));
        self.secrets.extend(secrets);
        self.allow_hosts.extend(allow_hosts);
        self.allow_addresses.extend(allow_addresses);
        self.install_scripts |= install_scripts;
        self
    }

    /// Makes relative paths absolute, beneath a directory.
    #[must_use]
    pub fn below(mut self, directory: &Path) -> Self {
        let paths = self.readable.iter_mut().chain(&mut self.writable).chain(&mut self.workdir);
        for path in paths {
            *path = directory.join(path.strip_prefix(".").unwrap_or(path));
        }
        self
    }

    /// Describes each grant in a phrase, for the approval prompt. Raw variables come first.
    pub fn describe(&self) -> Vec<String> {
        let raw = |variable: &&VariableGrant| variable.raw;
        let (raw, placeholders): (Vec<_>, Vec<_>) = self.secrets.iter().partition(raw);
        let path = |verb: &'static str| move |path: &PathBuf| format!("{verb} `{}`", path.display());
        let mut lines: Vec<String> =
            raw.iter().map(|variable| format!("gets the value of `{}` (raw)", variable.name)).collect();
        lines.extend(placeholders.iter().map(|variable| {
            let hosts = if variable.hosts.is_empty() { &self.allow_hosts } else { &variable.hosts };
            let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
            let hosts = if variable.hosts.is_empty() {
                hosts.into_iter().chain(self.allow_addresses.iter().map(ToString::to_string)).collect()
            } else {
                hosts
            };
            format!("sends `{}` to {} (placeholder)", variable.name, hosts.join(", "))
        }));
        lines.extend(self.allow_hosts.iter().map(|host| format!("reaches {host}")));
        lines.extend(self.allow_addresses.iter().map(|address| format!("reaches {address}")));
        lines.extend(self.readable.iter().map(path("reads")));
        lines.extend(self.writable.iter().map(path("writes")));
        lines.extend(self.workdir.iter().map(path("works in")));
        lines.extend(self.level.map(|level| format!("runs at level `{level}`")));
        lines
            .extend(self.install_scripts.then(|| "runs scripts of packages while they are installed".into()));
        lines
    }

    /// Looks up the values of the variables. `value` returns the value of a host variable.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a variable without a value, or a value or header that a placeholder cannot have.
    /// [`Error::PlaceholderWithoutHost`] for a placeholder without a host.
    pub fn resolve(&self, value: &mut dyn FnMut(&str) -> Option<String>) -> Result<Granted, Error> {
        let refuse = |name: &str, reason: &str| Error::InvalidName {
            what: "granted variable",
            name: shorten(name),
            reason: reason.into(),
        };
        let mut granted = Granted { grants: self.clone(), ..Granted::default() };
        let mut egress = self.allow_hosts.iter().cloned().fold(Egress::new(), Egress::allow);
        egress = self.allow_addresses.iter().copied().fold(egress, Egress::allow_address);
        for variable in &self.secrets {
            let name = &variable.name;
            crate::sandbox::check_variable(name)?;
            let value = value(name).ok_or_else(|| refuse(name, "it is not set where Toolpost runs"))?;
            if variable.raw {
                granted.raw.push((name.clone(), Value(value)));
                continue;
            }
            let mut placeholder = Placeholder::new(name, value.clone());
            placeholder = variable.headers.iter().fold(placeholder, Placeholder::header);
            if variable.hosts.is_empty() {
                placeholder = self.allow_hosts.iter().cloned().fold(placeholder, Placeholder::host);
                for address in &self.allow_addresses {
                    let pattern = HostPattern::new(&address.to_string())?;
                    placeholder = placeholder.host(pattern.clone());
                    // Loopback traffic crosses no network.
                    if address.ip().is_loopback() {
                        placeholder = placeholder.plain_host(pattern);
                    }
                }
            } else {
                placeholder = variable.hosts.iter().cloned().fold(placeholder, Placeholder::host);
            }
            if !placeholder.has_hosts() {
                return Err(Error::PlaceholderWithoutHost { name: name.clone() });
            }
            egress = egress.secret(placeholder);
            granted.secrets.push(Value(value));
        }
        egress.check()?;
        let is_used =
            !(self.allow_hosts.is_empty() && self.allow_addresses.is_empty() && granted.secrets.is_empty());
        granted.egress = is_used.then_some(egress);
        Ok(granted)
    }
}

/// A secret value that debug output hides.
#[derive(Clone)]
struct Value(String);

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Value(..)")
    }
}

/// Grants with the values of their variables, ready for a run. Default nothing.
#[derive(Debug, Clone, Default)]
pub struct Granted {
    grants: Grants,
    raw: Vec<(String, Value)>,
    /// The values of the placeholders.
    secrets: Vec<Value>,
    egress: Option<Egress>,
    modules: Vec<Modules>,
    layers: Option<PathBuf>,
    changes: Option<RunChanges>,
    is_live: bool,
}

impl Granted {
    /// The grants without values.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Adds a raw variable with a known value.
    #[must_use]
    pub fn with_raw(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.grants.secrets.push(VariableGrant::raw(&name));
        self.raw.push((name, Value(value.into())));
        self
    }

    /// Sets the directory for the private layer of the working directory ([`Sandbox::layers`]).
    #[must_use]
    pub fn with_layers(mut self, directory: Option<PathBuf>) -> Self {
        self.layers = directory;
        self
    }

    /// Lists the changes of the working directory with those of a run ([`Sandbox::run_changes`]).
    #[must_use]
    pub fn with_run_changes(mut self, changes: Option<RunChanges>) -> Self {
        self.changes = changes;
        self
    }

    /// Lets the program write to its working directory without a private layer. Default no.
    #[must_use]
    pub fn live(mut self, is_live: bool) -> Self {
        self.is_live = is_live;
        self
    }

    /// The workspace in a working directory.
    pub fn workspace(&self, directory: PathBuf) -> Workspace {
        if self.is_live { Workspace::LiveHost(directory) } else { Workspace::Host(directory) }
    }

    /// Shows installed packages, read-only.
    #[must_use]
    pub fn with_modules(mut self, modules: impl Into<Modules>) -> Self {
        self.modules.push(modules.into());
        self
    }

    /// Blocks all connections except to this machine, whatever the grants. Default no.
    #[must_use]
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.egress = self.egress.map(|egress| egress.no_network(no_network));
        self
    }

    /// Whether any host or address is allowed.
    pub fn reaches_hosts(&self) -> bool {
        !(self.grants.allow_hosts.is_empty() && self.grants.allow_addresses.is_empty())
    }

    /// The names of the raw variables.
    pub fn raw_names(&self) -> Vec<String> {
        self.raw.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The values of all granted variables, to mask in output. Values shorter than 6 bytes are omitted.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        let raw = self.raw.iter().map(|(_, value)| value);
        raw.chain(&self.secrets)
            .map(|value| value.0.as_str())
            .filter(|value| value.trim().len() >= MIN_MASKED)
    }

    /// Applies the paths, variables and hosts to a sandbox. Its level and workspace stay.
    #[must_use]
    pub fn apply(&self, mut sandbox: Sandbox) -> Sandbox {
        sandbox = self.grants.readable.iter().fold(sandbox, Sandbox::read_only);
        sandbox = self.modules.iter().map(Modules::directory).fold(sandbox, Sandbox::read_only);
        sandbox = self.grants.writable.iter().fold(sandbox, Sandbox::read_write);
        sandbox =
            self.raw.iter().fold(sandbox, |sandbox, (name, value)| sandbox.raw_variable(name, &value.0));
        sandbox = self.layers.iter().fold(sandbox, |sandbox, layers| sandbox.layers(layers.clone()));
        sandbox = self.changes.iter().fold(sandbox, |sandbox, changes| sandbox.run_changes(changes.clone()));
        match &self.egress {
            Some(egress) => sandbox.egress(egress.clone()),
            None => sandbox,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Grants, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn grants_are_parsed_and_described() {
        let grants = read(
            r#"{"level": "strict", "workdir": "w", "readable": ["/a"], "writable": ["out"],
                "secrets": ["KEY", {"name": "DSN", "raw": true}, {"name": "T", "hosts": ["b.example"], "headers": ["x-t"]}],
                "allow_hosts": ["a.example", "b.example"], "allow_addresses": ["127.0.0.1:80"], "install_scripts": true}"#,
        )
        .unwrap();
        assert_eq!(
            grants.clone().below(Path::new("/p")).describe(),
            [
                "gets the value of `DSN` (raw)",
                "sends `KEY` to a.example, b.example, 127.0.0.1:80 (placeholder)",
                "sends `T` to b.example (placeholder)",
                "reaches a.example",
                "reaches b.example",
                "reaches 127.0.0.1:80",
                "reads `/a`",
                "writes `/p/out`",
                "works in `/p/w`",
                "runs at level `strict`",
                "runs scripts of packages while they are installed",
            ]
        );
        let again: Grants = serde_json::from_value(serde_json::to_value(&grants).unwrap()).unwrap();
        assert_eq!(again, grants);
        for (text, place) in [
            (r#"{"hosts": []}"#, "unknown field `hosts`"),
            (r#"{"secrets": [1]}"#, "the name of a variable"),
            (r#"{"secrets": [{"name": "A", "value": "x"}]}"#, "unknown field `value`"),
            (r#"{"secrets": [{"raw": true}]}"#, "missing field `name`"),
            (r#"{"allow_hosts": ["*"]}"#, "*"),
            (r#"{"level": "none"}"#, "none"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn merged_grants_add_up_and_later_ones_take_precedence() {
        let first =
            read(r#"{"level": "strict", "secrets": ["A", "B"], "allow_hosts": ["a.example"]}"#).unwrap();
        let second =
            read(r#"{"level": "minimal", "secrets": [{"name": "A", "raw": true}], "readable": ["/x"]}"#)
                .unwrap();
        let both = first.merge(second);
        let names: Vec<_> =
            both.secrets.iter().map(|variable| (variable.name.as_str(), variable.raw)).collect();
        assert_eq!(names, [("B", false), ("A", true)]);
        assert_eq!((both.level, both.readable.len(), both.allow_hosts.len()), (Some(Level::Minimal), 1, 1));
    }

    #[test]
    fn a_variable_needs_a_value_and_a_placeholder_a_host() {
        let resolve = |text: &str| {
            let value = |name: &str| (name != "MISSING").then(|| "secret-value-7".to_owned());
            read(text).unwrap().resolve(&mut { value })
        };
        for (text, reason) in [
            (r#"{"secrets": ["MISSING"], "allow_hosts": ["a.example"]}"#, "not set"),
            (r#"{"secrets": ["KEY"]}"#, "needs an allowed host"),
            (r#"{"secrets": [{"name": "LD_PRELOAD", "raw": true}]}"#, "other code"),
            (r#"{"secrets": [{"name": "K", "hosts": ["a.example"], "headers": ["host"]}]}"#, "host"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret-value"), "{text}: {error}");
        }
        let granted =
            resolve(r#"{"secrets": [{"name": "DSN", "raw": true}, "KEY"], "allow_hosts": ["a.example"]}"#);
        let granted = granted.unwrap();
        assert_eq!(granted.raw_names(), ["DSN"]);
        assert_eq!(granted.values().count(), 2);
        assert!(!format!("{granted:?}").contains("secret-value"));
        let sandbox = granted.apply(Sandbox::new());
        assert_eq!(sandbox.environment.len(), 1, "a placeholder is not a variable of the caller");
        assert!(sandbox.egress.is_some());
        assert!(!format!("{sandbox:?}").contains("secret-value"), "{sandbox:?}");
        assert!(resolve("{}").unwrap().apply(Sandbox::new()).egress.is_none());
    }
}

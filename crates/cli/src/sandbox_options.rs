//! The sandbox of `exec`: its options as one value, for this process or a session's holder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_sandbox::{
    Egress, EgressPolicy, HostPattern, Language, Level, Limits, ProtectedPath, Sandbox, Workspace,
};

use crate::args::{Backend, ExecArgs, Pull};
use crate::config::{Config, paths, reference};
use crate::container;
use crate::egress;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::packages::{self, Sources};
use crate::parse::pair;

/// Options of the sandbox. Each field has the name of its option; missing options are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxOptions {
    pub(crate) lang: Option<Language>,
    pub(crate) level: Option<Level>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) allow_degraded: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) cpu: Option<f32>,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) pids: Option<u32>,
    pub(crate) max_output: Option<u64>,
    pub(crate) max_total_output: Option<u64>,
    pub(crate) max_file: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workdir: Option<PathBuf>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) live: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_protected: Vec<PathBuf>,
    /// Paths of a host directory that a run never changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) protected: Vec<ProtectedPath>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) readable: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_host: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_address: Vec<SocketAddr>,
    pub(crate) egress_policy: Option<EgressPolicy>,
    pub(crate) backend: Option<Backend>,
    pub(crate) runtime: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) pull: Option<Pull>,
    pub(crate) profile: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) requirement: Vec<String>,
    /// The package sources, if there are requirements.
    pub(crate) sources: Option<Sources>,
    /// The setting `no_network`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) no_network: bool,
    /// The idle time after which a session ends.
    pub(crate) keep: Option<Duration>,
}

impl SandboxOptions {
    pub(crate) fn new(args: &ExecArgs, lang: Option<Language>, config: &Config) -> Result<Self, Failure> {
        let absolute = |path: &PathBuf| {
            path.canonicalize().map_err(|error| Failure::file("the directory", path, &error))
        };
        let mut env = BTreeMap::new();
        for text in &args.env {
            let (name, value) = pair("--env", text)?;
            env.insert(name.to_owned(), value.to_owned());
        }
        let policy = args.egress_policy.as_deref().or(config.settings.egress_policy.as_deref());
        let workdir = args.workdir.as_ref().map(absolute).transpose()?;
        let mut protected = config.own_files();
        if let Some(directory) = &workdir {
            config.check_directory(directory)?;
            // Without a layer only pinned files are protected.
            protected = config.protected((!args.directory.live).then_some(directory.as_path()))?;
            protected.extend(policy.map(|path| ProtectedPath::Trusted(reference::settled(path))));
        }
        Ok(Self {
            lang,
            level: args.level.or(config.settings.level),
            allow_degraded: args.allow_degraded,
            memory: args.memory,
            cpu: args.cpu,
            cpu_time: args.cpu_time,
            idle: args.idle,
            pids: args.pids,
            max_output: args.max_output,
            max_total_output: args.max_total_output,
            max_file: args.max_file,
            env,
            workdir,
            live: args.directory.live,
            allow_protected: args.directory.allow_protected.clone(),
            protected,
            readable: args
                .readable
                .iter()
                .map(|path| {
                    std::path::absolute(path).map_err(|error| Failure::file("the path", path, &error))
                })
                .collect::<Result<_, _>>()?,
            allow_host: args.allow_host.clone(),
            allow_address: args.allow_address.clone(),
            egress_policy: policy.map(|path| egress::read(path, config)).transpose()?,
            backend: args.backend,
            runtime: args.runtime.clone(),
            image: args.image.clone(),
            pull: args.pull,
            profile: profile(args, lang, config)?,
            requirement: args.requirement.clone(),
            sources: (!args.requirement.is_empty()).then(|| Sources::read(config)).transpose()?,
            no_network: config.settings.no_network,
            keep: args.keep,
        })
    }

    /// The limits, with the wall time of one run.
    pub(crate) fn limits(&self, timeout: Option<Duration>) -> Limits {
        let mut limits = Limits::for_level(self.level.unwrap_or(Level::Strict));
        limits.wall = timeout.unwrap_or(limits.wall);
        limits.memory = self.memory.unwrap_or(limits.memory);
        limits.cpu_quota = self.cpu.or(limits.cpu_quota);
        limits.cpu = self.cpu_time.or(limits.cpu);
        limits.idle = self.idle.or(limits.idle);
        limits.output_total = self.max_total_output.unwrap_or(limits.output_total);
        limits.processes = self.pids.unwrap_or(limits.processes);
        // In a host directory, the limit is that of the private layer.
        let usual = if self.workdir.is_some() { limits.layer_bytes } else { limits.file_size };
        limits.file_size = self.max_file.unwrap_or(usual);
        if let Some(output) = self.max_output {
            limits.stdout = output as usize;
            limits.stderr = output as usize;
            limits.value_bytes = limits.value_bytes.max(output as usize);
        }
        limits
    }

    /// Builds the sandbox. `search_path` is that of interpreters.
    pub(crate) fn sandbox(
        &self,
        search_path: OsString,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, Failure> {
        let mut plain = Sandbox::new().allow_degraded(self.allow_degraded).search_path(search_path);
        if let Some(level) = self.level {
            plain = plain.level(level);
        }
        if let Some(home) = paths::home() {
            plain = plain.home(home);
        }
        let mut sandbox = match self.backend {
            Some(Backend::Docker) => plain.backend(self.container()?),
            _ => self.with_packages(plain)?,
        };
        sandbox = sandbox.limits(self.limits(timeout));
        if let Some(directory) = &self.workdir {
            let directory = directory.clone();
            let workspace =
                if self.live { Workspace::LiveHost(directory) } else { Workspace::Host(directory) };
            sandbox = sandbox.workspace(workspace).allow_protected(self.allow_protected.iter().cloned());
            if let Some(layers) = paths::layers() {
                sandbox = sandbox.layers(layers);
            }
        }
        sandbox = sandbox.protect(self.protected.iter().cloned());
        sandbox = self.readable.iter().fold(sandbox, Sandbox::read_only);
        if let Some(out) = self.egress()? {
            sandbox = sandbox.egress(out);
        }
        if self.lang.is_some_and(Language::is_compiled)
            && let Some(cache) = packages::build_cache()?
        {
            sandbox = sandbox.build_cache(cache);
        }
        Ok(self.env.iter().fold(sandbox, |sandbox, (name, value)| sandbox.env(name, value)))
    }

    /// The egress of policy and options together; none means no network.
    fn egress(&self) -> Result<Option<Egress>, Failure> {
        let begun = match &self.egress_policy {
            Some(policy) => egress::open(policy, self.no_network)?,
            None if self.allow_host.is_empty() && self.allow_address.is_empty() => return Ok(None),
            None => Egress::new().no_network(self.no_network),
        };
        let out = self
            .allow_host
            .iter()
            .try_fold(begun, |out, host| Ok::<_, Failure>(out.allow(HostPattern::new(host)?)))?;
        Ok(Some(self.allow_address.iter().copied().fold(out, Egress::allow_address)))
    }

    /// The backend of the container.
    fn container(&self) -> Result<Arc<dyn toolpost_sandbox::Backend>, Failure> {
        if !self.requirement.is_empty() {
            return Err(Failure::usage("`--requirement` is not available with `--backend docker`")
                .hint("Build an image: `toolpost image build data --docker`, then `--profile data`.")
                .hint("Or use an image with the packages: `--image NAME`."));
        }
        let recipe = self.profile.as_deref().unwrap_or(container::DEFAULT_RECIPE);
        let image = container::image(self.image.as_deref(), recipe, self.pull)?;
        container::backend(&image, self.runtime.as_deref(), self.pull.unwrap_or_default())
    }

    /// Adds the profile's environment and the packages.
    fn with_packages(&self, mut sandbox: Sandbox) -> Result<Sandbox, Failure> {
        for (option, is_given) in [
            ("--runtime", self.runtime.is_some()),
            ("--image", self.image.is_some()),
            ("--pull", self.pull.is_some()),
        ] {
            if is_given {
                return Err(Failure::usage(format!("`{option}` needs `--backend docker`"))
                    .hint("Add `--backend docker`."));
            }
        }
        if let Some(name) = &self.profile {
            sandbox = packages::with_profile(sandbox, name)?;
        }
        if !self.requirement.is_empty() {
            let sources = self.sources.clone().unwrap_or_default();
            let installed = sources.install(&self.requirement, self.lang, &sandbox)?;
            sandbox = sandbox.modules(installed);
        }
        Ok(sandbox)
    }

    /// Checks that a session with these options suits another command.
    ///
    /// # Errors
    /// The first option that differs.
    pub(crate) fn check_same(&self, other: &Self, id: &str) -> Result<(), Failure> {
        let fields = |options: &Self| match serde_json::to_value(options) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let own = fields(self);
        let differs = |(name, value): &(String, Value)| {
            // The sources of installed packages do not matter, and no option sets protected paths.
            !value.is_null()
                && !["sources", "protected"].contains(&name.as_str())
                && own.get(name).unwrap_or(&Value::Null) != value
        };
        let Some((name, _)) = fields(other).into_iter().find(differs) else { return Ok(()) };
        let option = format!("--{}", name.replace('_', "-"));
        let begun = match own.get(&name).filter(|value| !value.is_null()) {
            // A variable may be a secret.
            Some(value) if name != "env" => format!("it started with {value}"),
            Some(_) => "it started with others".to_owned(),
            None => "it started without".to_owned(),
        };
        let failure = Failure::new(
            Exit::Failed,
            "PRECONDITION",
            format!("`{option}` cannot change the session `{id}`: {begun}"),
        );
        Err(failure.hint(format!(
            "Remove `{option}`, name another session, or end this one: `toolpost exec --session {id} --end`."
        )))
    }
}

/// The profile: the option's, else the setting's for Python code, and for commands if it is built.
fn profile(args: &ExecArgs, lang: Option<Language>, config: &Config) -> Result<Option<String>, Failure> {
    if args.profile.is_some() || args.image.is_some() {
        return Ok(args.profile.clone());
    }
    let Some(name) = config.settings.code_profile.clone() else { return Ok(None) };
    Ok(match lang {
        Some(Language::Python) => Some(name),
        None if args.code.is_none() && packages::environment(&name)?.is_some() => Some(name),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_its_options() {
        let begun = SandboxOptions {
            lang: Some(Language::Python),
            memory: Some(1 << 30),
            env: BTreeMap::from([("KEY".to_owned(), "secret".to_owned())]),
            ..SandboxOptions::default()
        };
        begun.check_same(&SandboxOptions::default(), "a").unwrap();
        begun.check_same(&begun, "a").unwrap();
        for (other, option) in [
            (SandboxOptions { lang: Some(Language::Ruby), ..SandboxOptions::default() }, "--lang"),
            (SandboxOptions { memory: Some(1 << 20), ..SandboxOptions::default() }, "--memory"),
            (SandboxOptions { level: Some(Level::Strict), ..SandboxOptions::default() }, "--level"),
            (SandboxOptions { allow_degraded: true, ..SandboxOptions::default() }, "--allow-degraded"),
            (
                SandboxOptions {
                    env: BTreeMap::from([("KEY".into(), "x".into())]),
                    ..SandboxOptions::default()
                },
                "--env",
            ),
        ] {
            let failure = begun.check_same(&other, "a").unwrap_err();
            assert!(failure.message.contains(&format!("`{option}`")), "{failure:?}");
            assert!(!failure.message.contains("secret"), "{failure:?}");
        }
    }
}

//! What the options of `exec` ask of the sandbox: read once, used here or by the holder of a session.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolpost_sandbox::{BuildCache, Egress, HostPattern, Language, Level, Limits, Sandbox, Workspace};

use crate::args::ExecArgs;
use crate::commands::pair;
use crate::config::{Config, places};
use crate::failure::Failure;

/// What is wanted of the sandbox. Each field has the name of its option, and is empty if nobody said anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    pub(crate) lang: Option<Language>,
    pub(crate) level: Option<Level>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) allow_degraded: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) cpu: Option<f32>,
    pub(crate) pids: Option<u32>,
    pub(crate) max_output: Option<u64>,
    pub(crate) max_file: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workdir: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_host: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_address: Vec<SocketAddr>,
    /// The setting: no connection leaves this machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) no_network: bool,
}

impl Wanted {
    pub(crate) fn new(args: &ExecArgs, lang: Option<Language>, config: &Config) -> Result<Self, Failure> {
        let absolute =
            |path: &PathBuf| path.canonicalize().map_err(|error| Failure::file("the folder", path, &error));
        let mut env = BTreeMap::new();
        for text in &args.env {
            let (name, value) = pair("--env", text)?;
            env.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self {
            lang,
            level: args.level.or_else(|| config.choice("level")),
            allow_degraded: args.allow_degraded,
            memory: args.memory,
            cpu: args.cpu,
            pids: args.pids,
            max_output: args.max_output,
            max_file: args.max_file,
            env,
            workdir: args.workdir.as_ref().map(absolute).transpose()?,
            allow_host: args.allow_host.clone(),
            allow_address: args.allow_address.clone(),
            no_network: config.flag("no_network"),
        })
    }

    /// The limits, with the wall time of one run.
    pub(crate) fn limits(&self, timeout: Option<Duration>) -> Limits {
        let mut limits = Limits::for_level(self.level.unwrap_or(Level::Strict));
        limits.wall = timeout.unwrap_or(limits.wall);
        limits.memory = self.memory.unwrap_or(limits.memory);
        limits.cpu_quota = self.cpu.or(limits.cpu_quota);
        limits.processes = self.pids.unwrap_or(limits.processes);
        limits.file_size = self.max_file.unwrap_or(limits.file_size);
        if let Some(output) = self.max_output {
            limits.stdout = output as usize;
            limits.stderr = output as usize;
        }
        limits
    }

    /// The sandbox that it describes. `search_path` is where interpreters are looked up.
    pub(crate) fn sandbox(
        &self,
        search_path: OsString,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, Failure> {
        let mut sandbox = Sandbox::new()
            .allow_degraded(self.allow_degraded)
            .limits(self.limits(timeout))
            .search_path(search_path);
        if let Some(level) = self.level {
            sandbox = sandbox.level(level);
        }
        if let Some(folder) = &self.workdir {
            sandbox = sandbox.workspace(Workspace::Host(folder.clone()));
        }
        if !self.allow_host.is_empty() || !self.allow_address.is_empty() {
            let out = egress(&self.allow_host, self.no_network)?;
            sandbox = sandbox.egress(self.allow_address.iter().copied().fold(out, Egress::allow_address));
        }
        if self.lang.is_some_and(Language::is_compiled)
            && let Some(cache) = places::cache()
        {
            let folder = cache.join("builds");
            std::fs::create_dir_all(&cache).map_err(|error| Failure::file("the folder", &cache, &error))?;
            sandbox = sandbox.build_cache(BuildCache::at(folder)?);
        }
        Ok(self.env.iter().fold(sandbox, |sandbox, (name, value)| sandbox.env(name, value)))
    }
}

/// The way out to these hosts: names, and patterns such as `*.example.org`.
pub(crate) fn egress(hosts: &[String], no_network: bool) -> Result<Egress, Failure> {
    let out = Egress::new().no_network(no_network);
    hosts.iter().try_fold(out, |out, host| Ok(out.allow(HostPattern::new(host)?)))
}

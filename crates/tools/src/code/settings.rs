//! What the operator allows code to do.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toolpost::import::{ResourceLimits, SandboxConfig};
use toolpost::{Ctx, ToolError};
use toolpost_sandbox::{Backend, BuildCache, Egress, Level, Limits, Sandbox, Workspace};

use super::{CodePool, failure};

/// What the operator allows code to do, given by type: `Toolbox::builder().provide(CodeSettings::default())`. Without
/// it the defaults hold. A call can only tighten it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CodeSettings {
    /// The level of the sandbox. Default none: the best that the host can give. A call that names a level gets the
    /// stricter of the two.
    pub level: Option<Level>,
    /// Whether a lower level is taken when the host cannot give the one that was named. Default no: then the call
    /// fails with `PERMISSION`. The result names the level that was given.
    pub allow_degraded: bool,
    /// The limits of one run. Defaults: [`Limits::default`]; its wall time (30 s) holds for calls without `timeout`.
    pub limits: Limits,
    /// The longest `timeout` that a call may ask for. Default 5 min.
    pub longest_timeout: Duration,
    /// Where interpreters and programs are looked up, in the form of `PATH`. Default
    /// [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub search_path: Option<OsString>,
    /// Files and folders of the host that code may read at their own paths. Default none beyond what the level shows.
    pub read_only: Vec<PathBuf>,
    /// Files and directories of the host that no run changes, each with everything beneath
    /// ([`Sandbox::protect`]). Default none.
    pub protected: Vec<PathBuf>,
    /// Whether programs write to the working directory itself, without a private layer. Default no.
    pub live: bool,
    /// Protected paths of the working directory that may change ([`Sandbox::allow_protected`]). Default none.
    pub allow_protected: Vec<PathBuf>,
    /// The directory that holds private layers ([`Sandbox::layers`]). Default one for temporary files.
    pub layers: Option<PathBuf>,
    /// Variables of the otherwise clean environment. Default none. Those that make a program run other code are refused.
    pub environment: Vec<(String, OsString)>,
    /// The hosts that code may reach. Default none: there is no network.
    pub egress: Option<Egress>,
    /// Who runs code and programs. Default none: processes of this host, started for each call. A
    /// [`toolpost_sandbox::Pool`] or a Docker backend stands here. Sessions are processes of this host in any case.
    pub backend: Option<Arc<dyn Backend>>,
    /// Pythons that are made ahead for `run_code`. Default none: each run starts one. It serves level `strict` without
    /// `egress`; with a [`CodeSettings::backend`] it is not used.
    pub pool: Option<CodePool>,
    /// Where programs that were built are kept. Default none: code of a compiled language is built each time.
    pub build_cache: Option<BuildCache>,
    /// How many sessions one run or conversation may have at a time. Default 8; 0 allows none.
    pub sessions: usize,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            level: None,
            allow_degraded: false,
            limits: Limits::default(),
            longest_timeout: Duration::from_mins(5),
            search_path: None,
            read_only: Vec::new(),
            protected: Vec::new(),
            live: false,
            allow_protected: Vec::new(),
            layers: None,
            environment: Vec::new(),
            egress: None,
            backend: None,
            pool: None,
            build_cache: None,
            sessions: 8,
        }
    }
}

/// Folders of the host that every level shows, and so cannot be blocked.
const ALWAYS_SHOWN: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

impl CodeSettings {
    /// The settings that another framework's sandbox configuration asks for. Paths that it blocks are out of reach
    /// because only what level `strict` shows and what it allows is there.
    ///
    /// # Errors
    /// `INVALID_INPUT` for a blocked path that every level shows, or that lies above one.
    pub fn from_config(config: &SandboxConfig) -> Result<Self, ToolError> {
        for path in &config.blocked {
            let shown = ALWAYS_SHOWN
                .iter()
                .find(|shown| path.starts_with(shown) || Path::new(shown).starts_with(path));
            if let Some(shown) = shown {
                return Err(ToolError::invalid_input(format!(
                    "`blocked_paths`: `{}` cannot be blocked, because interpreters need `{shown}`",
                    path.display()
                ))
                .with("pointer", "/blocked_paths"));
            }
        }
        let limits = Limits::for_level(Level::Strict)
            .with_memory(config.memory)
            .with_cpu_quota(config.cpu)
            .with_wall(config.time)
            .with_descriptors(config.descriptors)
            .with_processes(config.processes);
        limits.check().map_err(failure::of_sandbox)?;
        Ok(Self {
            level: Some(Level::Strict),
            limits,
            longest_timeout: config.time,
            read_only: config.allowed.clone(),
            environment: config
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.into()))
                .collect(),
            ..Self::default()
        })
    }

    /// A sandbox for one call: its level, its time, and what the operator allows.
    pub(super) fn sandbox(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Sandbox, ToolError> {
        let mut sandbox = self.plain(self.call_limits(ctx, timeout)?, self.asked_level(ctx)?);
        let no_requests = ctx.inject::<ResourceLimits>().is_ok_and(|asked| asked.network_requests == Some(0));
        if let Some(egress) = &self.egress
            && !no_requests
        {
            sandbox = sandbox.egress(egress.clone());
        }
        if let Some(backend) = &self.backend {
            sandbox = sandbox.backend(Arc::clone(backend));
        }
        if let Some(cache) = &self.build_cache {
            sandbox = sandbox.build_cache(cache.clone());
        }
        Ok(sandbox)
    }

    /// The same sandbox in a working directory of the host.
    pub(super) fn in_directory(&self, sandbox: Sandbox, directory: PathBuf) -> Sandbox {
        let workspace = if self.live { Workspace::LiveHost(directory) } else { Workspace::Host(directory) };
        let sandbox = sandbox.workspace(workspace).allow_protected(self.allow_protected.iter().cloned());
        match &self.layers {
            Some(layers) => sandbox.layers(layers),
            None => sandbox,
        }
    }

    /// A sandbox for no call in particular, for what is made ahead.
    pub(super) fn ahead(&self) -> Sandbox {
        self.plain(self.limits.clone(), self.level)
    }

    fn plain(&self, limits: Limits, level: Option<Level>) -> Sandbox {
        let mut sandbox = Sandbox::new().limits(limits).allow_degraded(self.allow_degraded);
        if let Some(level) = level {
            sandbox = sandbox.level(level);
        }
        for (name, value) in &self.environment {
            sandbox = sandbox.env(name, value);
        }
        if let Some(path) = &self.search_path {
            sandbox = sandbox.search_path(path);
        }
        sandbox = sandbox.protect(self.protected.iter().cloned());
        self.read_only.iter().fold(sandbox, Sandbox::read_only)
    }

    /// The stricter of the levels that the operator and the call have named.
    pub(super) fn asked_level(&self, ctx: &Ctx) -> Result<Option<Level>, ToolError> {
        let asked = ctx.level().map(|name| name.parse::<Level>().map_err(failure::of_sandbox)).transpose()?;
        // A call cannot ask for less than the best that the host can give.
        Ok(asked.filter(|level| level.is_boundary()).max(self.level))
    }

    /// The limits of one call, with its time.
    pub(super) fn call_limits(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Limits, ToolError> {
        let mut limits = self.tightened(ctx).with_wall(self.wall(ctx, timeout)?);
        if self.asked_level(ctx)? == Some(Level::Maximum) && self.limits == Limits::default() {
            let wall = limits.wall;
            limits = limits.tightened(&Limits::for_level(Level::Maximum));
            if timeout.is_some() {
                limits.wall = wall;
            }
        }
        Ok(limits)
    }

    /// The operator's limits, or the smaller ones that the call brings.
    fn tightened(&self, ctx: &Ctx) -> Limits {
        let mut limits = self.limits.clone();
        let Ok(asked) = ctx.inject::<ResourceLimits>() else { return limits };
        limits.memory = asked.memory.map_or(limits.memory, |memory| memory.min(limits.memory));
        limits.file_size = asked.file_size.map_or(limits.file_size, |size| size.min(limits.file_size));
        limits.cpu_quota = match (asked.cpu, limits.cpu_quota) {
            (Some(asked), Some(own)) => Some(asked.min(own)),
            (asked, own) => asked.or(own),
        };
        let processes = asked.subprocesses.map(|others| others.saturating_add(1));
        limits.processes = processes.map_or(limits.processes, |processes| processes.min(limits.processes));
        if let Some(requests) = asked.network_requests {
            // With no requests at all there is no way out in the first place.
            let requests = requests.max(1);
            limits.requests = Some(limits.requests.map_or(requests, |own| own.min(requests)));
            limits.connections = Some(limits.connections.map_or(requests, |own| own.min(requests)));
        }
        limits
    }

    /// The wall time of a run: what was asked for, and no more than is left of the call.
    fn wall(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Duration, ToolError> {
        let asked = ctx.inject::<ResourceLimits>().ok().and_then(|limits| limits.time);
        let wall = match timeout {
            None => self.limits.wall.min(asked.unwrap_or(Duration::MAX)),
            Some(seconds) => match Duration::try_from_secs_f64(seconds) {
                Ok(wall) if wall <= self.longest_timeout => wall,
                _ => {
                    let longest = self.longest_timeout.as_secs_f64();
                    return Err(ToolError::invalid_input(format!(
                        "`timeout`: expected at most {longest} seconds, found {seconds}"
                    ))
                    .with("pointer", "/timeout")
                    .suggest(
                        "Ask for less time, or do the work in parts; the operator can raise \
                         `CodeSettings::longest_timeout`.",
                    ));
                }
            },
        };
        // A little is kept for the end, so that the caller hears what was printed and not only that time is over.
        let left = ctx.remaining().map_or(wall, |left| left.saturating_sub((left / 10).min(RESERVED)));
        Ok(wall.min(left).max(Duration::from_millis(1)))
    }
}

/// What is kept of the time of a call for taking the sandbox down.
const RESERVED: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolpost::{Call, Output, ToolSpec, tool_fn};
    use toolpost_sandbox::{HostPattern, Processes};
    use toolpost_toolbox::Toolbox;

    /// The sandbox that a call gets, as text.
    async fn sandbox(settings: CodeSettings, timeout: Option<f64>, call_timeout: Duration) -> String {
        let tool = tool_fn(ToolSpec::new("look", "Look."), move |_, ctx| {
            let text = settings
                .sandbox(&ctx, timeout)
                .map(|sandbox| settings.in_directory(sandbox, "/srv/work".into()))
                .map(|sandbox| format!("{sandbox:?}"));
            async move { Ok(Output::text(text?)) }
        });
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        let mut call = Call::new("look", json!({}));
        call.options.timeout = Some(call_timeout);
        toolbox.call(call).await.result.unwrap().to_text().into_owned()
    }

    #[tokio::test]
    async fn every_setting_reaches_the_sandbox() {
        let minute = Duration::from_mins(1);
        let plain = sandbox(CodeSettings::default(), None, minute).await;
        let cache = tempfile::tempdir().unwrap();
        let settings = CodeSettings {
            level: Some(Level::Strict),
            allow_degraded: true,
            limits: Limits::default().with_memory(64 << 20),
            longest_timeout: minute,
            search_path: Some("/opt/bin".into()),
            read_only: vec!["/srv/data".into()],
            protected: vec!["/srv/way.toml".into()],
            live: true,
            allow_protected: vec![".vscode".into()],
            layers: Some("/srv/layers".into()),
            environment: vec![("MODE".into(), "test".into())],
            egress: Some(Egress::new().allow(HostPattern::new("example.org").unwrap())),
            backend: Some(Arc::new(Processes)),
            pool: None,
            build_cache: Some(BuildCache::at(cache.path().join("builds")).unwrap()),
            sessions: 1,
        };
        let changed = sandbox(settings, Some(1.5), minute).await;
        for text in [
            "level: Some(Strict)",
            "allow_degraded: true",
            "memory: 67108864",
            "wall: 1.5s",
            "search_path: Some(\"/opt/bin\")",
            "read_only: [\"/srv/data\"]",
            "protected: [\"/srv/way.toml\"]",
            "workspace: LiveHost(\"/srv/work\")",
            "allowed: [\".vscode\"]",
            "layers: Some(\"/srv/layers\")",
            "environment: [\"MODE\"]",
            "example.org",
            "backend: Some(Processes)",
            "build_cache: Some(",
        ] {
            assert!(changed.contains(text) && !plain.contains(text), "{text}: {changed}");
        }
        assert!(plain.contains("wall: 30s"), "{plain}");
    }

    #[tokio::test]
    async fn a_run_ends_a_little_before_its_call() {
        let text = sandbox(CodeSettings::default(), None, Duration::from_secs(4)).await;
        assert!(text.contains("wall: 3.5") || text.contains("wall: 3.4"), "{text}");
    }

    /// The sandbox of a call that brings limits and a level in the other vocabulary, as text.
    async fn asked(settings: CodeSettings, security: serde_json::Value) -> String {
        let tool = tool_fn(ToolSpec::new("look", "Look."), move |_, ctx| {
            let text = settings.sandbox(&ctx, None).map(|sandbox| format!("{sandbox:?}"));
            async move { Ok(Output::text(text?)) }
        });
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        let security = toolpost::import::SecurityLevel::from_json(&security).unwrap();
        toolbox
            .call(security.apply(Call::new("look", json!({}))))
            .await
            .result
            .unwrap()
            .to_text()
            .into_owned()
    }

    #[tokio::test]
    async fn a_call_names_all_four_levels_and_never_a_looser_one() {
        let own = |level| CodeSettings { level, ..CodeSettings::default() };
        for (settings, name, expected) in [
            (own(None), "minimal", "level: None"),
            (own(None), "standard", "level: Some(Standard)"),
            (own(None), "strict", "level: Some(Strict)"),
            (own(None), "maximum", "level: Some(Maximum)"),
            (own(Some(Level::Strict)), "minimal", "level: Some(Strict)"),
            (own(Some(Level::Minimal)), "minimal", "level: Some(Minimal)"),
            (own(Some(Level::Minimal)), "strict", "level: Some(Strict)"),
        ] {
            let text = asked(settings, json!({ "level": name })).await;
            assert!(text.contains(expected), "{name}: {text}");
        }
        let small = format!("memory: {}", Limits::for_level(Level::Maximum).memory);
        assert!(asked(own(None), json!({ "level": "maximum" })).await.contains(&small));
        assert!(!asked(own(None), json!({ "level": "strict" })).await.contains(&small));
        let chosen =
            CodeSettings { limits: Limits::default().with_memory(300 << 20), ..CodeSettings::default() };
        let text = asked(chosen, json!({ "level": "maximum" })).await;
        assert!(text.contains("memory: 314572800"), "what the operator set holds: {text}");
    }

    #[tokio::test]
    async fn every_limit_of_a_call_reaches_the_sandbox() {
        let limits = json!({
            "max_memory_mb": 7, "max_cpu_percent": 30, "max_execution_time_seconds": 9, "max_file_size_mb": 3,
            "max_network_requests": 5, "max_subprocess_count": 2,
        });
        let plain = asked(CodeSettings::default(), json!({ "level": "strict" })).await;
        let text =
            asked(CodeSettings::default(), json!({ "level": "strict", "resource_limits": limits })).await;
        for part in [
            "memory: 7340032",
            "cpu_quota: Some(0.3)",
            "wall: 8.",
            "file_size: 3145728",
            "requests: Some(5)",
            "connections: Some(5)",
            "processes: 3",
        ] {
            assert!(text.contains(part) && !plain.contains(part), "{part}: {text}");
        }
    }

    #[tokio::test]
    async fn every_field_of_a_sandbox_configuration_reaches_the_sandbox() {
        let settings = |value| CodeSettings::from_config(&SandboxConfig::from_json(&value).unwrap());
        let plain = sandbox(CodeSettings::default(), None, Duration::from_mins(1)).await;
        let config = json!({
            "max_memory_mb": 9, "max_cpu_percent": 40, "max_execution_time": 3, "max_file_descriptors": 33,
            "max_processes": 5, "allowed_paths": ["/srv/data"], "blocked_paths": ["/home"],
            "environment_variables": { "MODE": "test" },
        });
        let text = sandbox(settings(config).unwrap(), None, Duration::from_mins(1)).await;
        for part in [
            "level: Some(Strict)",
            "memory: 9437184",
            "cpu_quota: Some(0.4)",
            "wall: 3s",
            "descriptors: 33",
            "processes: 5",
            "read_only: [\"/srv/data\"]",
            "environment: [\"MODE\"]",
        ] {
            assert!(text.contains(part) && !plain.contains(part), "{part}: {text}");
        }
        for path in ["/usr/lib", "/"] {
            let error = settings(json!({ "blocked_paths": [path] })).unwrap_err();
            assert!(error.message().contains("cannot be blocked"), "{error}");
        }
        assert!(
            settings(json!({ "max_file_descriptors": 3 })).unwrap_err().message().contains("descriptors")
        );
    }
}

//! The operator's settings for code.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost::{Ctx, Masks, ToolError};
#[cfg(feature = "compat")]
use toolpost_compat::SandboxConfig;
use toolpost_sandbox::{
    Backend, BuildCache, Egress, Host, Level, Limits, ProtectedPath, Repeat, RunChanges, Sandbox, Workspace,
};

use super::{CodePool, failure};
use crate::call_limits::CallLimits;

/// The operator's settings for code, injected by type: `Toolbox::builder().provide(CodeSettings::default())`.
///
/// A call can only tighten them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CodeSettings {
    /// Sandbox level. Default: the best of the host. The stricter of this and the call's applies.
    pub level: Option<Level>,
    /// Whether to accept a lower level than requested. Default: no, the call fails with `PERMISSION`. The result has the
    /// effective level.
    pub allow_degraded: bool,
    /// Limits of a run. Default: [`Limits::default`]. Its wall time (30 s) applies to calls without `timeout`.
    pub limits: Limits,
    /// Maximum `timeout` of a call. Default: 5 min.
    pub max_timeout: Duration,
    /// Search path for interpreters and programs, like `PATH`. Default: [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub search_path: Option<OsString>,
    /// Home directory whose toolchains programs may use ([`toolpost_sandbox::Sandbox::home`]). Default: none.
    pub home: Option<PathBuf>,
    /// Files and directories of the host that code may read. Default: none beyond those of the level.
    pub read_only: Vec<PathBuf>,
    /// Files and directories of the host that no run changes ([`Sandbox::protect`]). Default: none.
    pub protected: Vec<ProtectedPath>,
    /// Whether programs write to the working directory directly, without a private layer. Default: no.
    pub live: bool,
    /// Protected paths of the working directory that may change ([`Sandbox::allow_protected`]). Default: none.
    pub allow_protected: Vec<PathBuf>,
    /// Directory for private layers ([`Sandbox::layers`]). Default: one for temporary files.
    pub layers: Option<PathBuf>,
    /// The run whose changes are listed and undone together ([`Sandbox::run_changes`]). Default: none.
    pub changes: Option<RunChanges>,
    /// Variables of the otherwise clean environment. Default: none. Variables that load other code are rejected.
    pub environment: Vec<(String, OsString)>,
    /// Egress allowlist. Default: none, no network.
    pub egress: Option<Egress>,
    /// Backend that runs code and programs, such as a [`toolpost_sandbox::Pool`] or Docker. Default: processes of this
    /// host. Sessions are always processes of this host.
    pub backend: Option<Arc<dyn Backend>>,
    /// Prewarmed Python processes for `run_code`. Default: none. Used at level `strict`, without `egress` and
    /// [`CodeSettings::backend`].
    pub pool: Option<CodePool>,
    /// Cache of compiled programs. Default: none, every run compiles.
    pub build_cache: Option<BuildCache>,
    /// Maximum number of sessions per run or conversation. Default: 8; 0 disables sessions.
    pub sessions: usize,
    /// Secrets that output, results and evidence mask, such as those of [`CodeSettings::egress`]. Default: none.
    pub masks: Masks,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            level: None,
            allow_degraded: false,
            limits: Limits::default(),
            max_timeout: Duration::from_mins(5),
            search_path: None,
            home: None,
            read_only: Vec::new(),
            protected: Vec::new(),
            live: false,
            allow_protected: Vec::new(),
            layers: None,
            changes: None,
            environment: Vec::new(),
            egress: None,
            backend: None,
            pool: None,
            build_cache: None,
            sessions: 8,
            masks: Masks::default(),
        }
    }
}

/// Directories of the host that every level mounts, and that cannot be blocked.
#[cfg(feature = "compat")]
const ALWAYS_MOUNTED: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

impl CodeSettings {
    /// Converts an imported sandbox configuration. Blocked paths are unreachable because level `strict` mounts only its
    /// own and the allowed paths.
    ///
    /// # Errors
    /// `INVALID_INPUT` for a blocked path that contains, or is in, a directory that every level mounts.
    #[cfg(feature = "compat")]
    pub fn from_config(config: &SandboxConfig) -> Result<Self, ToolError> {
        for path in &config.blocked {
            let mounted = ALWAYS_MOUNTED
                .iter()
                .find(|mounted| path.starts_with(mounted) || std::path::Path::new(mounted).starts_with(path));
            if let Some(mounted) = mounted {
                return Err(ToolError::invalid_input(format!(
                    "`blocked_paths`: cannot block `{}`, because interpreters need `{mounted}`",
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
            max_timeout: config.time,
            read_only: config.allowed.clone(),
            environment: config
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.into()))
                .collect(),
            ..Self::default()
        })
    }

    /// The sandbox of a call: its level, its limits and the operator's settings.
    pub(super) fn sandbox(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Sandbox, ToolError> {
        let mut sandbox = self.plain(self.call_limits(ctx, timeout)?, self.requested_level(ctx)?);
        if let Some(egress) = &self.egress
            && CallLimits::from_ctx(ctx).allow_network()
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

    /// Sets a working directory of the host.
    pub(super) fn in_directory(&self, sandbox: Sandbox, directory: PathBuf) -> Sandbox {
        let workspace = if self.live { Workspace::LiveHost(directory) } else { Workspace::Host(directory) };
        // Callers get the result alone; events are progress.
        let mut sandbox = sandbox.workspace(workspace).repeat(Repeat::Always);
        if let Some(changes) = &self.changes {
            sandbox = sandbox.run_changes(changes.clone());
        }
        let sandbox = sandbox.allow_protected(self.allow_protected.iter().cloned());
        match &self.layers {
            Some(layers) => sandbox.layers(layers),
            None => sandbox,
        }
    }

    /// A sandbox with the operator's settings only, for a pool.
    pub(super) fn plain_sandbox(&self) -> Sandbox {
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
        if let Some(home) = &self.home {
            sandbox = sandbox.home(home);
        }
        sandbox = sandbox.protect(self.protected.iter().cloned());
        self.read_only.iter().fold(sandbox, Sandbox::read_only)
    }

    /// The stricter of the operator's and the call's level.
    pub(super) fn requested_level(&self, ctx: &Ctx) -> Result<Option<Level>, ToolError> {
        let requested =
            ctx.level().map(|name| name.parse::<Level>().map_err(failure::of_sandbox)).transpose()?;
        let requested = requested.filter(|level| level.is_boundary());
        // A call only tightens: without a level of the operator, it cannot request less than the best of the host.
        let is_default = requested.is_some() && self.backend.is_none();
        let own = self.level.or_else(|| is_default.then(|| Host::probe().best()).flatten());
        Ok(requested.max(own))
    }

    /// The limits of a call.
    pub(super) fn call_limits(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Limits, ToolError> {
        let mut limits = CallLimits::from_ctx(ctx).tighten(self.limits.clone());
        limits.wall = self.wall(ctx, limits.wall, timeout)?;
        if self.requested_level(ctx)? == Some(Level::Maximum) && self.limits == Limits::default() {
            let wall = limits.wall;
            limits = limits.tightened(&Limits::for_level(Level::Maximum));
            if timeout.is_some() {
                limits.wall = wall;
            }
        }
        Ok(limits)
    }

    /// The wall time of a run, at most the time to the call's deadline.
    fn wall(&self, ctx: &Ctx, default: Duration, timeout: Option<f64>) -> Result<Duration, ToolError> {
        let wall = match timeout {
            None => default,
            Some(seconds) => match Duration::try_from_secs_f64(seconds) {
                Ok(wall) if wall <= self.max_timeout => wall,
                _ => {
                    let max = self.max_timeout.as_secs_f64();
                    return Err(ToolError::invalid_input(format!(
                        "`timeout`: expected at most {max} seconds, found {seconds}"
                    ))
                    .with("pointer", "/timeout")
                    .suggest(
                        "Use a shorter timeout, or split the work; the operator can raise \
                         `CodeSettings::max_timeout`.",
                    ));
                }
            },
        };
        Ok(ctx.working_time().map_or(wall, |left| wall.min(left)).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolpost::{Call, Output, ToolSpec, tool_fn};
    use toolpost_sandbox::{HostPattern, Processes};
    use toolpost_toolbox::Toolbox;

    /// The sandbox of a call, as text.
    async fn sandbox_of(settings: CodeSettings, timeout: Option<f64>, call: Call) -> String {
        let tool = tool_fn(ToolSpec::new("look", "Look."), move |_, ctx| {
            let text = settings
                .sandbox(&ctx, timeout)
                .map(|sandbox| settings.in_directory(sandbox, "/srv/work".into()))
                .map(|sandbox| format!("{sandbox:?}"));
            async move { Ok(Output::text(text?)) }
        });
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        toolbox.call(call).await.result.unwrap().to_text().into_owned()
    }

    async fn sandbox(settings: CodeSettings, timeout: Option<f64>, call_timeout: Duration) -> String {
        let mut call = Call::new("look", json!({}));
        call.options.timeout = Some(call_timeout);
        sandbox_of(settings, timeout, call).await
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
            max_timeout: minute,
            search_path: Some("/opt/bin".into()),
            home: Some("/users/ada".into()),
            read_only: vec!["/srv/data".into()],
            protected: vec![ProtectedPath::Trusted("/srv/way.toml".into())],
            live: true,
            allow_protected: vec![".vscode".into()],
            layers: Some("/srv/layers".into()),
            changes: None,
            environment: vec![("MODE".into(), "test".into())],
            egress: Some(Egress::new().allow(HostPattern::new("example.org").unwrap())),
            // They hide texts of results, not of the sandbox.
            masks: Masks::default(),
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
            "home: Some(\"/users/ada\")",
            "read_only: [\"/srv/data\"]",
            "protected: [Trusted(\"/srv/way.toml\")]",
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

    /// The sandbox of a call that requests a level, as text.
    async fn at_level(settings: CodeSettings, level: &str) -> String {
        let mut call = Call::new("look", json!({}));
        call.options.level = Some(level.to_owned());
        sandbox_of(settings, None, call).await
    }

    #[tokio::test]
    async fn a_call_names_all_four_levels_and_never_a_looser_one() {
        let own = |level| CodeSettings { level, ..CodeSettings::default() };
        let best = format!("level: {:?}", Host::probe().best().max(Some(Level::Standard)));
        for (settings, name, expected) in [
            (own(None), "minimal", "level: None"),
            (own(None), "standard", best.as_str()),
            (own(None), "strict", "level: Some(Strict)"),
            (own(None), "maximum", "level: Some(Maximum)"),
            (own(Some(Level::Standard)), "standard", "level: Some(Standard)"),
            (own(Some(Level::Strict)), "minimal", "level: Some(Strict)"),
            (own(Some(Level::Minimal)), "minimal", "level: Some(Minimal)"),
            (own(Some(Level::Minimal)), "strict", "level: Some(Strict)"),
        ] {
            let text = at_level(settings, name).await;
            assert!(text.contains(expected), "{name}: {text}");
        }
        let small = format!("memory: {}", Limits::for_level(Level::Maximum).memory);
        assert!(at_level(own(None), "maximum").await.contains(&small));
        assert!(!at_level(own(None), "strict").await.contains(&small));
        let chosen =
            CodeSettings { limits: Limits::default().with_memory(300 << 20), ..CodeSettings::default() };
        let text = at_level(chosen, "maximum").await;
        assert!(text.contains("memory: 314572800"), "what the operator set holds: {text}");
    }

    #[cfg(feature = "compat")]
    #[tokio::test]
    async fn every_limit_of_a_call_reaches_the_sandbox() {
        let limits = json!({
            "max_memory_mb": 7, "max_cpu_percent": 30, "max_execution_time_seconds": 9, "max_file_size_mb": 3,
            "max_network_requests": 5, "max_subprocess_count": 2,
        });
        let call = Call::new("look", json!({}));
        let security = json!({ "level": "strict", "resource_limits": limits });
        let security = toolpost_compat::SecurityLevel::from_json(&security).unwrap();
        let plain = at_level(CodeSettings::default(), "strict").await;
        let text = sandbox_of(CodeSettings::default(), None, security.apply(call)).await;
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

    #[cfg(feature = "compat")]
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
            assert!(error.message().contains("cannot block"), "{error}");
        }
        assert!(
            settings(json!({ "max_file_descriptors": 3 })).unwrap_err().message().contains("descriptors")
        );
    }
}

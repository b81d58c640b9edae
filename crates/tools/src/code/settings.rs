//! What the operator allows code to do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost::import::ResourceLimits;
use toolpost::{Ctx, ToolError};
use toolpost_sandbox::{Backend, BuildCache, Egress, Level, Limits, Sandbox};

use super::failure;

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
    /// The hosts that code may reach. Default none: there is no network.
    pub egress: Option<Egress>,
    /// Who runs code and programs. Default none: processes of this host, started for each call. A
    /// [`toolpost_sandbox::Pool`] or a Docker backend stands here. Sessions are processes of this host in any case.
    pub backend: Option<Arc<dyn Backend>>,
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
            egress: None,
            backend: None,
            build_cache: None,
            sessions: 8,
        }
    }
}

impl CodeSettings {
    /// A sandbox for one call: its level, its time, and what the operator allows.
    pub(super) fn sandbox(&self, ctx: &Ctx, timeout: Option<f64>) -> Result<Sandbox, ToolError> {
        let limits = self.call_limits(ctx, timeout)?;
        let mut sandbox = Sandbox::new().limits(limits).allow_degraded(self.allow_degraded);
        if let Some(level) = self.asked_level(ctx)? {
            sandbox = sandbox.level(level);
        }
        if let Some(path) = &self.search_path {
            sandbox = sandbox.search_path(path);
        }
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
        Ok(self.read_only.iter().fold(sandbox, Sandbox::read_only))
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
            let text = settings.sandbox(&ctx, timeout).map(|sandbox| format!("{sandbox:?}"));
            async move { Ok(Output::text(text?)) }
        });
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        let mut call = Call::new("look", json!({}));
        call.options.timeout = Some(call_timeout);
        toolbox.call(call).await.result.unwrap().model_text().into_owned()
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
            egress: Some(Egress::new().allow(HostPattern::new("example.org").unwrap())),
            backend: Some(Arc::new(Processes)),
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
}

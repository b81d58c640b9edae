//! The limits that a call carries. Only the feature `compat` has any.

use toolpost::Ctx;
#[cfg(feature = "compat")]
use toolpost::Inject;
#[cfg(feature = "http")]
use toolpost::ToolError;
#[cfg(feature = "compat")]
use toolpost_compat::ResourceLimits;
use toolpost_sandbox::Limits;

/// Limits of one call, which tighten the operator's settings.
#[derive(Default)]
pub(crate) struct CallLimits(#[cfg(feature = "compat")] Option<Inject<ResourceLimits>>);

#[cfg(feature = "compat")]
impl CallLimits {
    pub(crate) fn from_ctx(ctx: &Ctx) -> Self {
        Self(ctx.inject().ok())
    }

    /// Whether code may connect to other hosts at all.
    pub(crate) fn allow_network(&self) -> bool {
        self.0.as_ref().is_none_or(|call| call.network_requests != Some(0))
    }

    /// The smaller limits of both.
    pub(crate) fn tighten(&self, mut limits: Limits) -> Limits {
        let Some(call) = &self.0 else { return limits };
        limits.memory = call.memory.map_or(limits.memory, |memory| memory.min(limits.memory));
        limits.wall = call.time.map_or(limits.wall, |time| time.min(limits.wall));
        limits.file_size = call.file_size.map_or(limits.file_size, |size| size.min(limits.file_size));
        limits.cpu_quota = match (call.cpu, limits.cpu_quota) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let processes = call.subprocesses.map(|others| others.saturating_add(1));
        limits.processes = processes.map_or(limits.processes, |processes| processes.min(limits.processes));
        if let Some(requests) = call.network_requests {
            // With a limit of 0 the sandbox has no network at all.
            let requests = requests.max(1);
            limits.requests = Some(limits.requests.map_or(requests, |own| own.min(requests)));
            limits.connections = Some(limits.connections.map_or(requests, |own| own.min(requests)));
        }
        limits
    }

    /// Counts a request; fails when the limit is reached.
    #[cfg(feature = "http")]
    pub(crate) fn count_request(&self) -> Result<(), ToolError> {
        self.0.as_ref().map_or(Ok(()), |call| call.count_request())
    }
}

#[cfg(not(feature = "compat"))]
#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the same interface without limits")]
impl CallLimits {
    pub(crate) fn from_ctx(_: &Ctx) -> Self {
        Self()
    }

    pub(crate) fn allow_network(&self) -> bool {
        true
    }

    pub(crate) fn tighten(&self, limits: Limits) -> Limits {
        limits
    }

    #[cfg(feature = "http")]
    pub(crate) fn count_request(&self) -> Result<(), ToolError> {
        Ok(())
    }
}

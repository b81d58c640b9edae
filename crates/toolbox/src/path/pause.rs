//! The pause of a call while it waits for an answer.

use toolpost_core::ToolError;

use super::acquire;
use super::clock::now;
use super::host::{CallHost, lock};
use super::queue::{Permits, ToolPermit};

/// While it lives, the attempt clocks of a call and its ancestors are stopped, and their permits are free for
/// other calls.
pub(super) struct Pause<'a> {
    host: &'a CallHost,
    /// The released tool permits, and whether the global one was released.
    tools: Vec<ToolPermit>,
    global: bool,
    ended: bool,
}

impl<'a> Pause<'a> {
    pub(super) fn begin(host: &'a CallHost) -> Self {
        let mut pause = Self { host, tools: Vec::new(), global: false, ended: false };
        for host in host.lineage() {
            let mut clock = lock(&host.clock);
            let (open, since) = clock.paused.unwrap_or((0, now()));
            clock.paused = Some((open + 1, since));
            let watcher = clock.watcher.take();
            drop(clock);
            if let Some(watcher) = watcher {
                watcher.wake();
            }
            host.release_documents();
            let permits = std::mem::take(&mut lock(&host.holding).permits);
            pause.global |= permits.iter().flatten().any(Permits::is_global);
            if permits.iter().flatten().any(|permits| permits.is_of(host.call.id)) {
                pause.tools.extend(host.tool_permit());
            }
        }
        pause
    }

    /// Acquires the permits again and restarts the clocks.
    pub(super) async fn end(mut self) -> Result<(), ToolError> {
        let tools = std::mem::take(&mut self.tools);
        let global = std::mem::take(&mut self.global);
        let host = self.host;
        let permits = acquire::reacquire(&host.toolbox, &host.call, tools, global).await;
        self.ended = true;
        self.return_permits(permits?);
        Ok(())
    }

    /// Returns its permits to each call of the lineage.
    fn return_permits(&self, permits: Vec<Permits>) {
        let mut rest = permits;
        for host in self.host.lineage() {
            let own = &mut lock(&host.holding).permits;
            if let Some(index) = rest.iter().position(|permits| permits.is_of(host.call.id)) {
                own[0] = Some(rest.swap_remove(index));
            }
            if host.parent.is_none()
                && let Some(index) = rest.iter().position(Permits::is_global)
            {
                own[1] = Some(rest.swap_remove(index));
            }
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The question was dropped, and a drop cannot wait: the call continues without a permit that is
            // not free.
            let tools = std::mem::take(&mut self.tools);
            if self.global || !tools.is_empty() {
                let permits = acquire::try_reacquire(&self.host.toolbox, tools, self.global);
                self.return_permits(permits);
            }
        }
        for host in self.host.lineage() {
            let mut clock = lock(&host.clock);
            match clock.paused {
                Some((1, since)) => {
                    let waited = now().saturating_duration_since(since);
                    clock.end = clock.end.and_then(|end| end.checked_add(waited));
                    clock.paused = None;
                }
                Some((open, since)) => clock.paused = Some((open - 1, since)),
                None => {}
            }
            let watcher = clock.watcher.take();
            drop(clock);
            if let Some(watcher) = watcher {
                watcher.wake();
            }
        }
    }
}

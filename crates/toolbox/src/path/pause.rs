//! The time in which somebody outside is asked.

use toolpost_core::ToolError;

use super::host::{CallHost, lock};
use super::queue::{self, Places, ToolPlace};
use super::run::now;

/// While it lives, the clocks of a call and of all above it stand still, and their places are free for others.
pub(super) struct Pause<'a> {
    host: &'a CallHost,
    /// The tools whose places were put down, and whether the global one was.
    tools: Vec<ToolPlace>,
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
            host.let_others_in();
            let places = std::mem::take(&mut lock(&host.holding).places);
            pause.global |= places.iter().flatten().any(Places::is_global);
            if places.iter().flatten().any(|places| places.is_of(host.call.id)) {
                pause.tools.push(host.tool_place());
            }
        }
        pause
    }

    /// Takes the places up again and lets the clocks run on.
    pub(super) async fn end(mut self) -> Result<(), ToolError> {
        let tools = std::mem::take(&mut self.tools);
        let global = std::mem::take(&mut self.global);
        let host = self.host;
        let places = queue::enter_again(&host.toolbox, &host.call, tools, global).await;
        self.ended = true;
        self.put_back(places?);
        Ok(())
    }

    /// Gives each call of the chain its places.
    fn put_back(&self, places: Vec<Places>) {
        let mut rest = places;
        for host in self.host.lineage() {
            let own = &mut lock(&host.holding).places;
            if let Some(index) = rest.iter().position(|places| places.is_of(host.call.id)) {
                own[0] = Some(rest.swap_remove(index));
            }
            if host.parent.is_none()
                && let Some(index) = rest.iter().position(Places::is_global)
            {
                own[1] = Some(rest.swap_remove(index));
            }
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The question was dropped and there is no way to wait here: a place that is not free is done without.
            let tools = std::mem::take(&mut self.tools);
            if self.global || !tools.is_empty() {
                let places = queue::try_again(&self.host.toolbox, tools, self.global);
                self.put_back(places);
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

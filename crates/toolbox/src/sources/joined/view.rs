//! Joined sources as one caller may see them.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec,
};

use super::Joined;
use crate::sources::listing::in_time;

/// What the members show one caller.
pub(super) struct View {
    pub(super) joined: Joined,
    pub(super) caller: Caller,
}

impl View {
    fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        let sources = self.joined.sources().into_iter();
        sources.map(|source| source.seen_by(&self.caller).unwrap_or(source)).collect()
    }
}

impl ToolSource for View {
    fn name(&self) -> &str {
        self.joined.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let set = self.joined.set();
            let settings = &self.joined.0.settings;
            set.refresh(settings, false).await;
            let table = set.table(settings.collisions);
            // A member that cannot say what is open to the caller shows nothing.
            let open = set.members.iter().map(async |seat| {
                let view = seat.member.source.seen_by(&self.caller)?;
                let specs = in_time(&*view, settings.patience, view.list()).await.unwrap_or_default();
                Some(specs.into_iter().map(|spec| spec.name.clone()).collect::<HashSet<_>>())
            });
            let open = join_all(open).await;
            let is_open = |spec: &&Arc<ToolSpec>| {
                let Some(route) = table.routes.get(&spec.name) else { return false };
                let place = set.members.iter().position(|seat| Arc::ptr_eq(seat, &route.seat));
                match place.and_then(|place| open.get(place)) {
                    Some(Some(names)) => names.contains(&route.inner),
                    Some(None) => true,
                    None => false,
                }
            };
            Ok(table.specs.iter().filter(is_open).cloned().collect())
        })
    }

    fn generation(&self) -> u64 {
        self.joined.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.joined.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(self.joined.resources_of(&self.sources()).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(self.joined.prompts_of(&self.sources()).await) })
    }

    fn viewer(&self) -> Option<&Caller> {
        Some(&self.caller)
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.joined.read_from(self.sources(), call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.joined.render_from(self.sources(), call))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.joined.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.joined.status().into_iter().map(SourceStatus::brief).collect()
    }
}

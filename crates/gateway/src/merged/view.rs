//! Merged sources as one caller may see them.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, ResourceSpec, SourceStatus, ToolError, ToolSource, ToolSpec,
};

use super::Merged;
use crate::Specs;
use crate::listing::in_time;

/// What the members show one caller.
pub(super) struct View {
    pub(super) merged: Merged,
    pub(super) caller: Caller,
}

impl View {
    fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        let sources = self.merged.sources().into_iter();
        sources.map(|source| source.seen_by(&self.caller).unwrap_or(source)).collect()
    }
}

impl ToolSource for View {
    forward!(self => self.merged; name, generation, call, health);

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let set = self.merged.set();
            let settings = &self.merged.0.settings;
            set.refresh(settings, false).await;
            let table = set.table(settings.collisions);
            // A member that cannot list its tools for the caller shows none.
            let open = set.members.iter().map(async |seat| {
                let view = seat.member.source.seen_by(&self.caller)?;
                let specs = in_time(&*view, settings.member_timeout, view.list()).await.unwrap_or_default();
                Some(specs.into_iter().map(|spec| spec.name.clone()).collect::<HashSet<_>>())
            });
            let open = join_all(open).await;
            let is_open = |spec: &&Arc<ToolSpec>| {
                let Some(route) = table.routes.get(&spec.name) else { return false };
                let index = set.members.iter().position(|seat| Arc::ptr_eq(seat, &route.seat));
                match index.and_then(|index| open.get(index)) {
                    Some(Some(names)) => names.contains(&route.inner),
                    Some(None) => true,
                    None => false,
                }
            };
            Ok(table.specs.iter().filter(is_open).cloned().collect())
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(async { Ok(self.merged.resources_of(&self.sources()).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(async { Ok(self.merged.prompts_of(&self.sources()).await) })
    }

    fn viewer(&self) -> Option<&Caller> {
        Some(&self.caller)
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.merged.read_from(self.sources(), call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.merged.render_from(self.sources(), call))
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.merged.status().into_iter().map(SourceStatus::brief).collect()
    }
}

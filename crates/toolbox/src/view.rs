//! A toolbox's view of one caller.

use std::collections::HashSet;
use std::sync::Arc;

use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec,
};

use crate::Toolbox;
use crate::registry::Target;
use crate::shared::{Shared, in_time};

/// The toolbox's own tools, and the tools that its sources show to one caller.
pub(crate) struct View {
    toolbox: Toolbox,
    caller: Caller,
}

impl View {
    pub(crate) fn new(toolbox: Toolbox, caller: Caller) -> Self {
        Self { toolbox, caller }
    }
}

/// The names of sources' tools that are closed to a caller.
pub(crate) async fn closed(toolbox: &Shared, caller: &Caller) -> HashSet<String> {
    let sources = toolbox.sources();
    let views = sources.iter().filter_map(|source| Some((source, source.seen_by(caller)?)));
    let mut closed = HashSet::new();
    for (source, view) in views {
        // A source that cannot list its tools for the caller shows none.
        let listed = in_time(&*view, view.list()).await.unwrap_or_default();
        let open: HashSet<&str> = listed.iter().map(|spec| spec.name.as_str()).collect();
        let registry = toolbox.registry();
        closed.extend(
            registry
                .in_order()
                .filter(|entry| match &entry.target {
                    Target::Source(owner) => Arc::ptr_eq(owner, source),
                    Target::Local(_) => false,
                })
                .filter(|entry| !open.contains(&*entry.name))
                .map(|entry| entry.name.to_string()),
        );
    }
    closed
}

impl ToolSource for View {
    fn name(&self) -> &str {
        self.toolbox.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let known = self.toolbox.0.refresh().await;
            let closed = closed(&self.toolbox.0, &self.caller).await;
            let mut specs = self.toolbox.approved_specs();
            if specs.is_empty() {
                known?;
            }
            specs.retain(|spec| !closed.contains(&spec.name));
            Ok(specs)
        })
    }

    fn generation(&self) -> u64 {
        self.toolbox.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        ToolSource::call(&self.toolbox, call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(self.toolbox.resources_for(Some(&self.caller)).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(self.toolbox.prompts_for(Some(&self.caller)).await) })
    }

    fn viewer(&self) -> Option<&Caller> {
        Some(&self.caller)
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.toolbox.read(call.with_caller(self.caller.clone())))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.toolbox.render(call.with_caller(self.caller.clone())))
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.toolbox.status().into_iter().map(SourceStatus::brief).collect()
    }
}

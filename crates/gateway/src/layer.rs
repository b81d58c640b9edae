//! Layers: the one implementation of [`ToolSource`] for all transforms of a source.

use std::fmt;
use std::sync::Arc;

use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec,
};

use crate::definition::{Definition, Kind};
use crate::listing::{CachedList, LIST_TIMEOUT, listed};
use crate::{SourceManifest, Specs, refused};

/// Where a list comes from.
#[derive(Debug)]
pub struct Origin<'a> {
    /// The kind of definition that was read. The manifest has no others.
    pub kind: Kind,
    /// The name of the source.
    pub source: &'a str,
    /// The generation of the source before the list was read.
    pub generation: u64,
    /// The caller that the list is for; `None` for all callers.
    pub viewer: Option<&'a Caller>,
}

/// A transform of a source: it maps the listed definitions, and maps the names in calls back.
pub trait SourceLayer: fmt::Debug + Send + Sync + Sized + 'static {
    /// The name of the layered source. Default: the name of the source.
    fn name<'a>(&'a self, source: &'a str) -> &'a str {
        source
    }

    /// Added to the generation of the source.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether the lists differ by caller even if those of the source do not.
    fn has_views(&self) -> bool {
        false
    }

    /// Prepares the list of a view. Default: nothing.
    fn prepare(_: &Layered<Self>, _: Kind) -> impl Future<Output = Result<(), ToolError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Maps the definitions of one kind.
    fn map(&self, origin: &Origin<'_>, manifest: SourceManifest) -> Result<SourceManifest, ToolError>;

    /// The name in the source of what a call names; `None` if it is the same. An error denies the call.
    fn resolve(
        layered: &Layered<Self>,
        kind: Kind,
        call: &Call,
    ) -> impl Future<Output = Result<Option<String>, ToolError>> + Send;

    /// Maps an output of the source. Default: unchanged.
    fn finish(_: &Layered<Self>, output: Output) -> impl Future<Output = Output> + Send {
        std::future::ready(output)
    }

    /// Runs a call. Default: resolves it, calls the source, and maps the output.
    fn call(layered: &Layered<Self>, mut call: Call) -> impl Future<Output = Reply> + Send {
        async move {
            match Self::resolve(layered, Kind::Tool, &call).await {
                Ok(inner) => call.tool = inner.unwrap_or(call.tool),
                Err(error) => return refused(&call, layered.name(), error),
            }
            let mut reply = layered.whole.call(call).await;
            if let Ok(output) = reply.result {
                reply.result = Ok(Self::finish(layered, output).await);
            }
            reply
        }
    }

    /// Maps the status of the source. Default: unchanged.
    fn status(&self, status: Vec<SourceStatus>) -> Vec<SourceStatus> {
        status
    }
}

/// A source behind a [`SourceLayer`]. Cheap to clone; all clones share their state.
pub struct Layered<L> {
    pub(crate) layer: Arc<L>,
    /// The source for all callers, which runs the calls.
    pub(crate) whole: Arc<dyn ToolSource>,
    /// The source, or its view of one caller.
    pub(crate) source: Arc<dyn ToolSource>,
    /// The tools of the whole source.
    pub(crate) tools: Arc<CachedList>,
    viewer: Option<Caller>,
}

impl<L: SourceLayer> Layered<L> {
    pub(crate) fn over(source: Arc<dyn ToolSource>, layer: L) -> Self {
        Self {
            layer: Arc::new(layer),
            whole: Arc::clone(&source),
            tools: Arc::new(CachedList::new(Arc::clone(&source))),
            source,
            viewer: None,
        }
    }

    async fn show<D: Definition>(&self) -> Specs<D> {
        if self.viewer.is_some() {
            L::prepare(self, D::KIND).await?;
        }
        let generation = self.source.generation();
        let specs = listed::<D>(&*self.source, LIST_TIMEOUT).await?;
        let origin =
            Origin { kind: D::KIND, source: self.source.name(), generation, viewer: self.viewer.as_ref() };
        if let (None, Kind::Tool) = (&self.viewer, D::KIND) {
            self.tools.store(generation, D::into_manifest(specs.clone()).tools);
        }
        self.layer.map(&origin, D::into_manifest(specs)).map(D::from_manifest)
    }

    /// Resolves the name in a call of another kind than a tool.
    async fn resolved(&self, kind: Kind, mut call: Call) -> Result<Call, ToolError> {
        if let Some(inner) = L::resolve(self, kind, &call).await? {
            call.tool = inner;
        }
        Ok(call)
    }
}

impl<L> Clone for Layered<L> {
    fn clone(&self) -> Self {
        Self {
            layer: Arc::clone(&self.layer),
            whole: Arc::clone(&self.whole),
            source: Arc::clone(&self.source),
            tools: Arc::clone(&self.tools),
            viewer: self.viewer.clone(),
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Layered<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered")
            .field("source", &self.source.name())
            .field("layer", &self.layer)
            .field("viewer", &self.viewer)
            .finish_non_exhaustive()
    }
}

impl<L: SourceLayer> ToolSource for Layered<L> {
    fn name(&self) -> &str {
        self.layer.name(self.source.name())
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(self.show())
    }

    fn generation(&self) -> u64 {
        self.source.generation().wrapping_add(self.layer.generation())
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(L::call(self, call))
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.show())
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.show())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let call = self.resolved(Kind::Resource, call).await?;
            Ok(L::finish(self, self.source.read(call).await?).await)
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let call = self.resolved(Kind::Prompt, call).await?;
            Ok(L::finish(self, self.source.render(call).await?).await)
        })
    }

    fn viewer(&self) -> Option<&Caller> {
        self.viewer.as_ref().or_else(|| self.source.viewer())
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.whole.seen_by(caller);
        if seen.is_none() && !self.layer.has_views() {
            return None;
        }
        let source = seen.unwrap_or_else(|| Arc::clone(&self.whole));
        Some(Arc::new(Self { source, viewer: Some(caller.clone()), ..self.clone() }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    /// For one caller, without details that may be closed to it.
    fn status(&self) -> Vec<SourceStatus> {
        let status = self.layer.status(self.source.status());
        if self.viewer.is_none() {
            return status;
        }
        status.into_iter().map(SourceStatus::brief).collect()
    }
}

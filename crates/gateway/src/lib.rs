//! Many sources of tools as one, and search over their tools.
//!
//! Each type wraps sources and is a source itself. Those marked *layer* are a [`SourceLayer`] behind the one implementation
//! [`Layered`].
//!
//! | type | what it does |
//! |---|---|
//! | [`Namespaced`] | layer: puts names and URIs under a namespace: `calc__add`, `calc+notes://{id}` |
//! | [`Filtered`] | layer: lists and runs only what a [`Filter`] permits, per caller |
//! | [`Renamed`] | layer: changes names and descriptions of tools |
//! | [`Pinned`] | layer: pins each definition, and quarantines a changed one |
//! | [`Searchable`] | layer: puts many tools behind three, for clients without tool search |
//! | [`Reconnecting`] | connects at once or on first use, reconnects, and lists the last known tools meanwhile |
//! | [`Merged`] | merges sources into one; its members can be replaced while calls run |
//!
//! A [`Gateway`] combines them by its [`GatewaySettings`], and reloads changed settings while calls run.
//! The [`catalog`] searches the tools of a toolbox and loads them dynamically in conversations.
//! [`inspect()`] scans definitions for hidden or suspicious text.
//!
//! # Invariants
//!
//! - Every wait for a source has a timeout, and every source has a maximum number of tools.
//! - A name always resolves to the tool that was listed under it.
//! - A running call uses its source until it ends, even if the source is replaced or reconnected.
//! - A call that needs a list fails if the list cannot be read.
//! - The crate knows no protocol, no provider and no process.

#![forbid(unsafe_code)]

pub mod catalog;

mod definition;
mod filter;
mod gateway;
mod glob;
mod inspect;
mod layer;
mod listing;
mod manifest;
mod merged;
mod namespace;
mod pinned;
mod pins;
mod reconnecting;
mod rename;
mod search_tools;

use std::sync::Arc;

use toolpost_core::{
    BoxFuture, Call, CallRecord, Caller, Clock as _, Reply, SystemClock, ToolError, ToolSource, ToolSpec,
    did_you_mean,
};

pub use self::filter::{Filter, Filtered};
pub use self::gateway::{
    ApprovalCommand, ClientSettings, Connector, Gateway, GatewayParts, GatewaySettings, MissingUpstream,
    Pinning, UpstreamSettings,
};
pub use self::glob::Glob;
pub use self::inspect::{Finding, FindingKind, Severity, inspect};
pub use self::layer::{Layered, SourceLayer};
use self::listing::{LIST_TIMEOUT, listed};
pub use self::manifest::{ManifestStore, MemoryManifests, SourceManifest};
pub use self::merged::{Collisions, Member, MergeSettings, Merged};
pub use self::namespace::{Namespace, Namespaced};
pub use self::pinned::{PinStatus, PinVerdict, Pinned, Pins, UnpinnedPolicy};
pub use self::pins::{MemoryPins, Pin, PinStore};
pub use self::reconnecting::{ReconnectSettings, Reconnecting};
pub use self::rename::{Rename, Renamed, Renames};
pub use self::search_tools::{SearchTools, Searchable};

/// Creates a source, for example by a connection or a new process. Each use creates a new one. Closures that
/// return a future of a source implement it.
pub trait Connect: Send + Sync {
    /// Creates the source.
    ///
    /// # Errors
    /// The source cannot be reached or started.
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn ToolSource>, ToolError>>;
}

impl<F, Connected> Connect for F
where
    F: Fn() -> Connected + Send + Sync,
    Connected: Future<Output = Result<Arc<dyn ToolSource>, ToolError>> + Send + 'static,
{
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn ToolSource>, ToolError>> {
        Box::pin(self())
    }
}

/// The list of one kind of a source.
type Specs<D> = Result<Vec<Arc<D>>, ToolError>;

/// The reply to a call that does not reach its source, with its record.
fn refused(call: &Call, source: &str, error: ToolError) -> Reply {
    let mut record =
        CallRecord::begin(call, call.tool.as_str().into(), source.into(), SystemClock.timestamp());
    record.error = Some(error.clone());
    Reply { result: Err(error), record: Arc::new(record) }
}

/// Suggests a similar name among the tools that the caller may see.
async fn nearest<'a>(
    source: &dyn ToolSource,
    caller: &Caller,
    name: &str,
    all: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let Some(view) = source.seen_by(caller) else { return did_you_mean(name, all) };
    let open = listed::<ToolSpec>(&*view, LIST_TIMEOUT).await.ok()?;
    did_you_mean(name, open.iter().map(|spec| spec.name.as_str()))
}

/// Shortens and escapes untrusted text for a message.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

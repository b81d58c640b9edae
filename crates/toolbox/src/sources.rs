//! Combinators over sources of tools: each takes sources and is one, so that they nest. Together they are a gateway.
//!
//! | type | what it does |
//! |---|---|
//! | [`Namespaced`] | puts names and addresses under a namespace: `calc__add`, `calc+notes://{id}` |
//! | [`Filtered`] | shows and runs only what a [`Filter`] lets through, also by caller |
//! | [`Renamed`] | gives tools other names and descriptions |
//! | [`Pinned`] | keeps the definition of each tool that was approved, and quarantines a changed one |
//! | [`Lazy`] | starts a source on its first use, and lists it from what it had before |
//! | [`Revived`] | connects again when a source is gone, and keeps its names meanwhile |
//! | [`Joined`] | makes one source of many, that can be swapped while calls run |
//! | [`Searched`] | puts many tools behind three, for clients that cannot search |
//!
//! A [`Gateway`] puts them together as [`GatewaySettings`] say, and takes changed settings in while calls run.
//! [`inspect()`] reads definitions for what should not be in them.
//!
//! # Invariants
//!
//! - Every wait for a source has a bound, and so has the number of tools that are taken from one.
//! - A name never leads to another tool than the one that was listed under it.
//! - A call that has begun keeps its source until it is done, whatever is swapped or revived meanwhile.
//! - What cannot be decided for want of a list is refused.

mod definition;
mod filtered;
mod gateway;
mod glob;
mod inspect;
mod joined;
mod lazy;
mod listing;
mod manifest;
mod namespaced;
mod pinned;
mod pins;
mod renamed;
mod revived;
mod searched;

use std::sync::Arc;

use toolpost_core::{
    BoxFuture, Call, CallRecord, Caller, Clock as _, Reply, SystemClock, ToolError, ToolSource, did_you_mean,
};

pub use self::filtered::{Filter, Filtered};
pub use self::gateway::{
    ApprovalCommand, ClientSettings, Connector, Gateway, GatewayParts, GatewaySettings, Pinning,
    UpstreamSettings,
};
pub use self::glob::Glob;
pub use self::inspect::{Finding, FindingKind, Severity, inspect};
pub use self::joined::{Collisions, Joined, JoinedSettings, Member};
pub use self::lazy::Lazy;
use self::listing::{LIST_TIMEOUT, tools_of};
pub use self::manifest::{Manifest, ManifestStore, MemoryManifests};
pub use self::namespaced::Namespaced;
pub use self::pinned::{Pinned, Standing, Unpinned, Verdict};
pub use self::pins::{MemoryPins, Pin, PinStore};
pub use self::renamed::{Rename, Renamed};
pub use self::revived::{Revived, RevivedSettings};
pub use self::searched::Searched;

/// How a source comes to be: a connection is made, a program started. Each use makes a new one. Closures that give a
/// future of a source are this.
pub trait Connect: Send + Sync {
    /// Makes the source.
    ///
    /// # Errors
    /// Why it cannot be reached or started.
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

/// The answer to a call that a combinator does not pass on, with a record that says so.
fn refused(call: &Call, source: &str, error: ToolError) -> Reply {
    let mut record =
        CallRecord::begin(call, call.tool.as_str().into(), source.into(), SystemClock.timestamp());
    record.error = Some(error.clone());
    Reply { result: Err(error), record: Arc::new(record) }
}

/// "Did you mean…?", among those of a source's names that are open to a caller: what is closed is not told of.
async fn nearest<'a>(
    source: &dyn ToolSource,
    caller: &Caller,
    name: &str,
    all: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let Some(view) = source.seen_by(caller) else { return did_you_mean(name, all) };
    let open = tools_of(&*view, LIST_TIMEOUT).await.ok()?;
    did_you_mean(name, open.iter().map(|spec| spec.name.as_str()))
}

/// A text of a stranger that may be long or hold control characters, for a message.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

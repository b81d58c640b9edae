//! The Restate objects: tool state, one per document, with compare-and-set; indexes of the documents and of the runs.

use restate_sdk::context::RequestTarget;
use restate_sdk::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{Change, Clock as _, Commit, Document, Patch, SystemClock, Write};
use toolpost_flow::FlowSummary;

/// The name of the object of a document.
pub(crate) const STATE: &str = "ToolpostState";
/// The name of the object that lists the documents.
pub(crate) const INDEX: &str = "ToolpostStateIndex";
/// The name of the object that lists the runs.
pub(crate) const RUNS: &str = "ToolpostRuns";
/// The number of runs that the cluster lists. Older ones remain reachable by their whole id.
pub(crate) const MAX_RUNS: usize = 1_000;
/// The key of the only index.
pub(crate) const ALL: &str = "all";
/// The number of changes of a document that are stored. Older ones become part of the base.
pub(crate) const MAX_CHANGES: u64 = 1_000;

const DOCUMENT: &str = "document";
const BASE: &str = "base";

fn change_key(version: u64) -> String {
    format!("changes/{version:020}")
}

/// A value at a version.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) version: u64,
    pub(crate) value: Value,
}

/// The range of a list of changes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) after: u64,
    pub(crate) limit: usize,
}

/// The range of a list of documents.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Filter {
    pub(crate) prefix: String,
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
}

/// A document.
pub(crate) struct StateObject;

#[restate_sdk::object(
    name = "ToolpostState",
    lazy_state,
    journal_retention = "0s",
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "2s",
        factor = 2.0,
        max_attempts = 1000000
    )
)]
impl StateObject {
    /// The latest version.
    #[handler]
    async fn load(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<Version>> {
        Ok(ctx.get(DOCUMENT).await?.unwrap_or_default())
    }

    /// Commits one write if its base is the latest version; else the latest version.
    #[handler]
    async fn commit(
        &self,
        ctx: ObjectContext<'_>,
        Json(commit): Json<Commit>,
    ) -> HandlerResult<Json<Option<Document>>> {
        let Commit { mut writes, call, event, .. } = commit;
        let (Some(Write { base, patch, value, .. }), true) = (writes.pop(), writes.is_empty()) else {
            return Err(TerminalError::new_with_code(400, "expected one write").into());
        };
        let Json(Version { version, value: latest }) =
            ctx.get::<Json<Version>>(DOCUMENT).await?.unwrap_or_default();
        let id = ctx.key().to_owned();
        if version != base {
            return Ok(Json(Some(Document { id, version, value: latest.into() })));
        }
        let at = ctx.run(|| async { Ok(Json(SystemClock.timestamp())) }).name("time").await?.into_inner();
        if base == 0 {
            let target = RequestTarget::object(INDEX, ALL, "add");
            ctx.request::<String, ()>(target, id).call().await?;
        }
        let version = version + 1;
        ctx.set(&change_key(version), Json(Change { version, at, call, patch, event }));
        ctx.set(DOCUMENT, Json(Version { version, value: Value::clone(&value) }));
        if let Some(oldest) = version.checked_sub(MAX_CHANGES).filter(|oldest| *oldest > 0) {
            fold(&ctx, oldest).await?;
        }
        Ok(Json(None))
    }

    /// Changes after a version, oldest first.
    #[handler]
    async fn changes(
        &self,
        ctx: SharedObjectContext<'_>,
        Json(range): Json<Range>,
    ) -> HandlerResult<Json<Vec<Change>>> {
        let Json(base) = ctx.get::<Json<Version>>(BASE).await?.unwrap_or_default();
        let mut changes = Vec::new();
        let mut next = range.after.max(base.version) + 1;
        while changes.len() < range.limit
            && let Some(Json(change)) = ctx.get::<Json<Change>>(&change_key(next)).await?
        {
            changes.push(change);
            next += 1;
        }
        Ok(Json(changes))
    }

    /// The version before the oldest stored change.
    #[handler]
    async fn base(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<Version>> {
        Ok(ctx.get(BASE).await?.unwrap_or_default())
    }

    /// Removes the document with its history. Returns whether it existed.
    #[handler]
    async fn forget(&self, ctx: ObjectContext<'_>) -> HandlerResult<bool> {
        let existed = ctx.get::<Json<Version>>(DOCUMENT).await?.is_some();
        ctx.clear_all();
        let target = RequestTarget::object(INDEX, ALL, "remove");
        ctx.request::<String, ()>(target, ctx.key().to_owned()).call().await?;
        Ok(existed)
    }
}

/// Makes the oldest change a part of the base.
async fn fold(ctx: &ObjectContext<'_>, version: u64) -> HandlerResult<()> {
    let Json(base) = ctx.get::<Json<Version>>(BASE).await?.unwrap_or_default();
    let Some(Json(change)) = ctx.get::<Json<Change>>(&change_key(version)).await? else { return Ok(()) };
    let value = Patch::parse(&change.patch).and_then(|patch| patch.apply(&base.value));
    let value = value.map_err(|error| TerminalError::new(error.to_string()))?;
    ctx.set(BASE, Json(Version { version, value }));
    ctx.clear(&change_key(version));
    Ok(())
}

/// The ids of the documents.
pub(crate) struct StateIndex;

#[expect(clippy::unused_async, reason = "the SDK takes async handlers only")]
#[restate_sdk::object(
    name = "ToolpostStateIndex",
    lazy_state,
    journal_retention = "0s",
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "2s",
        factor = 2.0,
        max_attempts = 1000000
    )
)]
impl StateIndex {
    /// Adds a document.
    #[handler]
    async fn add(&self, ctx: ObjectContext<'_>, id: String) -> HandlerResult<()> {
        ctx.set(&id, true);
        Ok(())
    }

    /// Removes a document.
    #[handler]
    async fn remove(&self, ctx: ObjectContext<'_>, id: String) -> HandlerResult<()> {
        ctx.clear(&id);
        Ok(())
    }

    /// The ids with a prefix, sorted.
    #[handler]
    async fn list(
        &self,
        ctx: SharedObjectContext<'_>,
        Json(filter): Json<Filter>,
    ) -> HandlerResult<Json<Vec<String>>> {
        let mut ids = ctx.get_keys().await?;
        ids.retain(|id| {
            id.starts_with(&filter.prefix) && filter.after.as_ref().is_none_or(|after| id > after)
        });
        ids.sort_unstable();
        ids.truncate(filter.limit);
        Ok(Json(ids))
    }
}

/// The figures of the runs.
pub(crate) struct RunIndex;

#[restate_sdk::object(
    name = "ToolpostRuns",
    lazy_state,
    journal_retention = "0s",
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "2s",
        factor = 2.0,
        max_attempts = 1000000
    )
)]
impl RunIndex {
    /// Stores the figures of a run, and drops the oldest runs beyond the maximum.
    #[handler]
    async fn put(&self, ctx: ObjectContext<'_>, Json(run): Json<FlowSummary>) -> HandlerResult<()> {
        let mut ids = ctx.get_keys().await?;
        ctx.set(&run.id.to_string(), Json(run));
        // The ids begin with the time of the start.
        ids.sort_unstable();
        let old = ids.len().saturating_sub(MAX_RUNS - 1);
        ids.iter().take(old).for_each(|id| ctx.clear(id));
        Ok(())
    }

    /// The runs whose ids have a prefix, the latest first.
    #[handler]
    async fn list(
        &self,
        ctx: SharedObjectContext<'_>,
        Json(filter): Json<Filter>,
    ) -> HandlerResult<Json<Vec<FlowSummary>>> {
        let mut ids = ctx.get_keys().await?;
        ids.retain(|id| id.starts_with(&filter.prefix));
        ids.sort_unstable_by(|a, b| b.cmp(a));
        let mut runs = Vec::new();
        for id in ids.iter().take(filter.limit) {
            runs.extend(ctx.get::<Json<FlowSummary>>(id).await?.map(Json::into_inner));
        }
        Ok(Json(runs))
    }
}

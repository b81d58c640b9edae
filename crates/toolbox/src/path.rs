//! The stages of a call, in order.

mod acquire;
pub(crate) mod cache;
mod call_path;
mod check;
mod clock;
mod commits;
pub(crate) mod host;
mod limit;
mod mock;
pub(crate) mod pace;
mod pause;
mod permit;
pub(crate) mod queue;
mod record;
pub(crate) mod records;
mod replay;
mod resolve;
mod retry;
mod run;
mod size;

use std::sync::Arc;

use toolpost_core::{Call, Code, Output, OutputFiles, Reply, ToolError};

pub(crate) use self::clock::sleep_until;
use self::host::CallHost;
pub(crate) use self::permit::approval;
use self::record::Recorder;
use self::retry::attempts;
pub(crate) use self::size::{estimate, json_size};
use crate::shared::Shared;
use crate::state::transaction;

/// Runs a call. `parent` is the call that makes it, if that runs in this toolbox.
pub(crate) async fn call(
    toolbox: &Arc<Shared>,
    // In an `Arc`, because every stage, the record and the tool need it.
    call: Arc<Call>,
    parent: Option<&Arc<CallHost>>,
) -> Reply {
    // From here on the call gets a record, even if this future is dropped.
    let mut recorder = Recorder::begin(toolbox, &call);
    let result = stages(toolbox, call, parent, &mut recorder).await;
    recorder.settle().await;
    recorder.finish(result)
}

async fn stages(
    toolbox: &Arc<Shared>,
    call: Arc<Call>,
    parent: Option<&Arc<CallHost>>,
    recorder: &mut Recorder<'_>,
) -> Result<Output, ToolError> {
    let entry = match resolve::find(toolbox, &call).await {
        // The caller of a program may have the tool.
        Err(error) if parent.is_some() && error.code() == Code::NotFound && call.port.takes_calls() => {
            if let Some(parent) = parent {
                parent.mark_uncacheable();
            }
            return call.port.call(call.id, &call.tool, &call.arguments).await;
        }
        found => found?,
    };
    let call = resolve::by_own_name(&entry, call)?;
    recorder.renamed(&call);
    let secrets = check::secrets(&entry, &call, parent);
    let size = estimate(&call.arguments);
    recorder.resolved(&entry, size, &secrets);
    check::size(size, toolbox.settings().arguments_limit)?;
    check::may_nest(toolbox, &call)?;
    check::arguments(&entry, &call)?;
    let call = check::normalized(&entry, call);
    if call.options.validate {
        check::validated(&entry, &call)?;
        return Ok(Output::json(serde_json::json!({ "valid": true })));
    }
    permit::decide(toolbox, &entry, &call, parent, secrets.all()).await?;
    if call.options.dry_run && entry.is_local() && !entry.spec.dry_run {
        check::validated(&entry, &call)?;
        return Ok(check::dry_run(&entry, &call, secrets.all()));
    }
    let (permits, queue_wait) = acquire::acquire(toolbox, &entry, &call, parent).await;
    recorder.queued(queue_wait);
    let permits = permits?;
    let key = toolbox.cache.key(&entry, &call);
    if let Some(output) = key.and_then(|key| toolbox.cache.get(key)) {
        recorder.cached();
        return Ok(output);
    }
    let host = CallHost::new(toolbox, &entry, call, permits, parent, secrets);
    recorder.watch(&host);
    let mut output = if entry.spec.state.is_empty() || host.call.options.mock || !entry.is_local() {
        attempts(&host).await?
    } else {
        Box::pin(transaction::run(&host, attempts)).await?
    };
    let is_data = host.call.options.whole_output;
    let own = host.call.values.get::<OutputFiles>();
    let files = own.or_else(|| toolbox.config.values.get::<OutputFiles>());
    recorder.measured(limit::output(&entry, toolbox.settings(), &mut output, is_data, files.as_deref())?);
    host.publish(&output).await?;
    if let (Some(key), false) = (key, host.is_uncacheable()) {
        toolbox.cache.put(key, &entry, &output);
    }
    Ok(output)
}

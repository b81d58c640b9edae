//! The way of a call, top to bottom.

pub(crate) mod cache;
mod check;
pub(crate) mod host;
mod keep;
mod limit;
mod mock;
pub(crate) mod pace;
mod pause;
mod permit;
pub(crate) mod queue;
pub(crate) mod record;
mod replay;
mod resolve;
mod retry;
mod run;

use std::sync::Arc;

use toolpost_core::{Call, Code, Output, Reply, ToolError};

pub(crate) use self::check::{estimate, json_size};
use self::host::CallHost;
pub(crate) use self::permit::approval;
use self::record::Recorder;
pub(crate) use self::retry::attempts;
pub(crate) use self::run::sleep_until;
use crate::state::transaction;
use crate::toolbox::Shared;

/// Runs a call. `parent` is the one that it was made from, if that runs here.
pub(crate) async fn call(
    toolbox: &Arc<Shared>,
    // Shared, so that it is never moved again: it goes through every stage, and record and tool need it to the end.
    call: Arc<Call>,
    parent: Option<&Arc<CallHost>>,
) -> Reply {
    // From here on there will be a record, also if this future is dropped.
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
        // What is not here the caller may have: a program is called by someone who has tools too.
        Err(error) if parent.is_some() && error.code() == Code::NotFound && call.port.takes_calls() => {
            if let Some(parent) = parent {
                parent.note_speech();
            }
            return call.port.call(call.id, &call.tool, &call.arguments).await;
        }
        found => found?,
    };
    let call = resolve::by_own_name(&entry, call)?;
    recorder.renamed(&call);
    let secrets = check::secrets(&entry, &call, parent);
    let size = check::estimate(&call.arguments);
    recorder.resolved(&entry, size, &secrets);
    check::size(size, toolbox.settings().arguments_limit)?;
    check::may_nest(toolbox, &call)?;
    check::arguments(&entry, &call)?;
    if call.options.validate {
        check::validated(&entry, &call)?;
        return Ok(Output::json(serde_json::json!({ "valid": true })));
    }
    permit::decide(toolbox, &entry, &call, parent, secrets.all()).await?;
    if call.options.dry_run && entry.is_local() && !entry.spec.dry_run {
        check::validated(&entry, &call)?;
        return Ok(check::dry_run(&entry, &call, secrets.all()));
    }
    let (places, waited) = queue::enter(toolbox, &entry, &call, parent).await;
    recorder.entered(waited);
    let places = places?;
    let key = cache::key(toolbox, &entry, &call);
    if let Some(output) = cache::get(toolbox, key) {
        recorder.cached();
        return Ok(output);
    }
    let host = CallHost::new(toolbox, &entry, call, places, parent, secrets);
    recorder.watch(&host);
    let mut output = if entry.spec.state.is_empty() || host.call.options.mock || !entry.is_local() {
        attempts(&host).await?
    } else {
        Box::pin(transaction::run(&host)).await?
    };
    recorder.measured(limit::output(&entry, toolbox.settings(), &mut output)?);
    host.publish(&output).await?;
    if !host.spoke() {
        cache::put(toolbox, key, &entry, &output);
    }
    Ok(output)
}

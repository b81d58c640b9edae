//! The way of a call, top to bottom.

pub(crate) mod cache;
mod check;
mod host;
mod limit;
mod mock;
mod permit;
pub(crate) mod queue;
pub(crate) mod record;
mod resolve;
mod retry;
mod run;

use std::sync::Arc;

use toolpost_core::{Call, Output, Reply, ToolError};

use self::host::Nesting;
use self::record::Recorder;
use crate::toolbox::Shared;

/// Runs a call. `nesting` is what the call that it was made from holds already.
pub(crate) async fn call(toolbox: &Arc<Shared>, call: Call, nesting: Option<&Nesting>) -> Reply {
    // From here on there will be a record, also if this future is dropped.
    let mut recorder = Recorder::begin(toolbox, &call);
    let result = stages(toolbox, call, nesting, &mut recorder).await;
    recorder.finish(result)
}

async fn stages(
    toolbox: &Arc<Shared>,
    call: Call,
    nesting: Option<&Nesting>,
    recorder: &mut Recorder,
) -> Result<Output, ToolError> {
    let entry = resolve::find(toolbox, &call.tool).await.inspect_err(|_| recorder.unknown(&call.tool))?;
    recorder.resolved(&entry, &call);
    check::size(&call.arguments, toolbox.settings().arguments_limit)?;
    check::may_nest(toolbox, &call)?;
    check::arguments(&entry, &call)?;
    permit::decide(toolbox, &entry, &call).await?;
    if call.options.dry_run {
        return Ok(check::dry_run(&entry, &call));
    }
    let permits = queue::enter(toolbox, &entry, &call, nesting).await?;
    recorder.entered(permits.waited);
    let key = cache::key(&entry, &call);
    if let Some(output) = cache::get(toolbox, key.as_deref()) {
        recorder.cached();
        return Ok(output);
    }
    let host = host::CallHost::new(toolbox, &entry, call, permits, nesting);
    recorder.watch(&host);
    let output = retry::attempts(&host).await?;
    let (output, size) = limit::output(&entry, toolbox.settings(), output)?;
    recorder.measured(size);
    host.publish(&output).await?;
    cache::put(toolbox, key, &entry, &output);
    Ok(output)
}

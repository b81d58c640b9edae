//! Plans as tools.

use std::future::IntoFuture as _;
use std::pin::pin;
use std::sync::Arc;

use toolpost_core::{Args, BoxFuture, Cancellation, Ctx, Output, Tool, ToolError, ToolSpec};

use crate::outcome::RunStatus;
use crate::{Flows, Plan};

/// A plan as a tool: its inputs are the parameters, its output is the result.
#[derive(Debug)]
pub struct FlowTool {
    spec: Arc<ToolSpec>,
    plan: Arc<Plan>,
    flows: Flows,
}

impl FlowTool {
    /// The specification of a plan's tool.
    pub fn spec_of(plan: &Plan) -> ToolSpec {
        let description = if plan.description().is_empty() { "Run a workflow." } else { plan.description() };
        ToolSpec::new(plan.name(), description).input(plan.input().as_value().clone())
    }

    /// A tool that runs a plan with the tools of `flows`.
    pub fn new(plan: impl Into<Arc<Plan>>, flows: Flows) -> Self {
        let plan = plan.into();
        Self { spec: Arc::new(Self::spec_of(&plan)), plan, flows }
    }
}

impl Tool for FlowTool {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let token = Cancellation::new();
            let progress = ctx.clone();
            let mut run = self
                .flows
                .run(Arc::clone(&self.plan), args.as_value().clone())
                .caller(ctx.caller().clone())
                .port(ctx.port())
                .parent(ctx.id(), ctx.depth())
                .cancellation(token.clone())
                .on_progress(move |event| progress.progress(event.to_string(), None));
            if let Some(scope) = ctx.scope() {
                run = run.scope(scope.clone());
            }
            let mut running = pin!(run.into_future());
            let outcome = tokio::select! {
                outcome = &mut running => outcome,
                () = ctx.cancelled() => {
                    token.cancel();
                    // It stops its calls and undoes what it did.
                    running.await
                }
            }?;
            match (outcome.status, outcome.error) {
                (RunStatus::Succeeded, _) => {
                    Ok(Output::json(outcome.output).with_truncated(outcome.truncated))
                }
                (_, Some(error)) => Err(error.with("flow", outcome.id.to_string())),
                (status, None) => Err(ToolError::dependency(format!("the flow {}", status.as_str()))),
            }
        })
    }
}

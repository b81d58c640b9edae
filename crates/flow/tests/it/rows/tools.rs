//! Tools that do what a row says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost_core::{Args, Code, Ctx, Output, RetryAdvice, ToolError, ToolSpec, parse_duration, tool_fn};
use toolpost_flow::FlowEvent;
use toolpost_toolbox::Toolbox;

use super::{Behavior, Behaviors, Row};

/// The attempts of each step and the values that they got, by the idempotency key.
#[derive(Clone, Default)]
pub(crate) struct Script {
    attempts: Arc<Mutex<HashMap<String, usize>>>,
    values: Arc<Mutex<HashMap<String, Value>>>,
}

impl Script {
    /// The argument `value` of the last call of a step.
    pub(crate) fn value(&self, step: &str) -> Option<Value> {
        self.values.lock().unwrap().get(step).cloned()
    }

    /// A run continues after these events: an attempt without a stored end is repeated.
    pub(crate) fn resume(&self, events: &[FlowEvent]) {
        let mut attempts = self.attempts.lock().unwrap();
        attempts.clear();
        for event in events {
            if let FlowEvent::StepFailed { step, .. } = event {
                *attempts.entry(step.clone()).or_default() += 1;
            }
        }
    }

    /// The number of the attempt of a step, from 0.
    fn begin(&self, step: &str, value: Value) -> usize {
        self.values.lock().unwrap().insert(step.to_owned(), value);
        let mut attempts = self.attempts.lock().unwrap();
        let count = attempts.entry(step.to_owned()).or_default();
        *count += 1;
        *count - 1
    }
}

impl Row {
    /// The tools of the row.
    pub(crate) fn toolbox(&self, script: &Script) -> Toolbox {
        let mut builder = Toolbox::builder();
        let echo = Behaviors::Always(Behavior::default());
        for (name, behaviors) in
            self.tools.iter().map(|(name, own)| (name.as_str(), own)).chain([("echo", &echo)])
        {
            let behaviors = match behaviors {
                Behaviors::Each(each) => each.clone(),
                Behaviors::Always(one) => vec![one.clone()],
            };
            let script = script.clone();
            let spec = ToolSpec::new(name, "A scripted tool.").input(json!({ "type": "object" }));
            builder = builder.tool(tool_fn(spec, move |args: Args, ctx: Ctx| {
                let value = args.get("value").cloned().unwrap_or_default();
                let key = ctx.idempotency_key().unwrap_or_default();
                let step = key.split_once('/').map_or("", |(_, step)| step);
                let attempt = script.begin(step, value.clone());
                let behavior = behaviors.get(attempt).or(behaviors.last()).cloned().unwrap();
                async move { behave(&behavior, value, &ctx).await }
            }));
        }
        builder.build().unwrap()
    }
}

async fn behave(behavior: &Behavior, value: Value, ctx: &Ctx) -> Result<Output, ToolError> {
    let duration = |text: &String| parse_duration(text).unwrap();
    if let Some(delay) = &behavior.delay {
        tokio::select! {
            () = tokio::time::sleep(duration(delay)) => {}
            () = ctx.cancelled() => {
                return Err(ToolError::new(behavior.on_cancel.unwrap_or(Code::Cancelled), "it was stopped"));
            }
        }
    }
    let Some(code) = behavior.error else {
        return Ok(Output::json(behavior.output.clone().unwrap_or(value)));
    };
    let error = ToolError::new(code, behavior.message.as_deref().unwrap_or("it failed"));
    Err(match &behavior.retry_after {
        Some(after) => error.retry(RetryAdvice::After(duration(after))),
        None => error,
    })
}

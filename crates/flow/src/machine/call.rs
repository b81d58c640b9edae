//! The calls of steps, with the values of their expressions.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::Value;
use toolpost_core::CallLimit;

use super::{AttemptSettings, Caching, Machine, Task, short};
use crate::names::Names;
use crate::plan::types::{Action, CacheSettings, CallSettings, LimitSettings, Step};

impl Machine {
    /// The call of a step.
    pub(super) fn task(&self, step: &Step, names: &Names) -> Result<Task, String> {
        let Action::Tool { tool, arguments, values, is_program } = &step.action else {
            return Err("only a call is tried again".to_owned());
        };
        let settings = step.call.as_ref().map(|call| self.settings(call, names)).transpose()?;
        let arguments = arguments.shared(names)?;
        let values = if step.evaluate { Arc::default() } else { Arc::clone(values) };
        let (tool, uses) = (Arc::clone(tool), Arc::clone(&step.uses));
        Ok(Task::Call { tool, arguments, values, is_program: *is_program, uses, settings })
    }

    fn settings(&self, call: &CallSettings, names: &Names) -> Result<Box<AttemptSettings>, String> {
        let limit = |limit: &LimitSettings| {
            let key = match limit.key.as_ref().map(|key| key.value(names)).transpose()? {
                Some(Value::String(key)) => key,
                Some(other) => other.to_string(),
                // Plans with one toolbox share no limit by chance.
                None => format!("{}/{}", self.plan.name, limit.step),
            };
            let (concurrency, rate) = (limit.concurrency, limit.rate);
            Ok::<_, String>(Arc::new(CallLimit { key: key.into(), concurrency, rate }))
        };
        let cache = |cache: &CacheSettings| {
            let files = cache.files.value(names)?;
            let files = Vec::<String>::deserialize(&files)
                .map_err(|_| format!("`files` of a cache is a list of paths, not {}", short(&files)))?;
            Ok::<_, String>(Caching { ttl: cache.ttl, files })
        };
        Ok(Box::new(AttemptSettings {
            pool: call.pool.clone(),
            limit: call.limit.as_ref().map(limit).transpose()?,
            heartbeat: call.heartbeat,
            cache: call.cache.as_ref().map(cache).transpose()?,
        }))
    }
}

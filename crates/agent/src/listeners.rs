//! Sinks for the events and the usage of runs.

use std::sync::Arc;

use toolpost_core::{EventSink, UsageEvent};

/// Receives the usage of models. It must return at once.
pub type UsageSink = Arc<dyn Fn(&UsageEvent) + Send + Sync>;

/// The sinks of a run: those of its agent and of the runs above it, each once.
#[derive(Clone, Default)]
pub(crate) struct Listeners {
    pub(crate) events: Vec<EventSink>,
    pub(crate) usage: Vec<UsageSink>,
    /// Receives the events of tool calls, which otherwise only the toolbox emits.
    pub(crate) calls: Option<EventSink>,
}

impl Listeners {
    /// Adds the sinks of an agent, and the one of a stream, which also receives events of tool calls.
    pub(crate) fn add(
        &mut self,
        events: Option<&EventSink>,
        usage: Option<&UsageSink>,
        stream: Option<&EventSink>,
    ) {
        for sink in events.into_iter().chain(stream) {
            if !self.events.iter().any(|known| Arc::ptr_eq(known, sink)) {
                self.events.push(Arc::clone(sink));
            }
        }
        if let Some(sink) = usage.filter(|sink| !self.usage.iter().any(|known| Arc::ptr_eq(known, sink))) {
            self.usage.push(Arc::clone(sink));
        }
        if let Some(sink) = stream {
            self.calls = Some(Arc::clone(sink));
        }
    }
}

//! A run as a future, and as a stream of events.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::sync::mpsc::{Receiver, channel};
use toolpost_core::{BoxFuture, Event};

use super::{Run, RunError, RunOutput};

/// Unread events that a stream keeps. Only tools on other threads can exceed it; their events are then dropped.
const MAX_UNREAD_EVENTS: usize = 10_000;

impl IntoFuture for Run {
    type Output = Result<RunOutput, RunError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Runs to the end. Errors are described at [`RunOutput::into_result`].
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.finish().await.into_result() })
    }
}

impl Run {
    /// Runs while the stream is read, and yields the events of the run, of its tool calls and of nested runs.
    ///
    /// ```
    /// # use toolpost_agent::Agent;
    /// # use toolpost_core::Event;
    /// # async fn example(agent: Agent) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = agent.run("Sum up the news.").stream();
    /// while let Some(event) = events.next().await {
    ///     if let Event::TextDelta { text, .. } = event {
    ///         print!("{text}");
    ///     }
    /// }
    /// let output = events.finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(mut self) -> RunStream {
        let (sender, events) = channel(MAX_UNREAD_EVENTS);
        // A full queue drops the event: a sink must not wait.
        self.events = Some(Arc::new(move |event: &Event| drop(sender.try_send(event.clone()))));
        RunStream { events, state: StreamStage::Running(Box::pin(self.finish())) }
    }
}

/// The events of a run; returned by [`Run::stream`]. Dropping it cancels the run.
#[must_use = "a stream does nothing until it is read"]
pub struct RunStream {
    events: Receiver<Event>,
    state: StreamStage,
}

enum StreamStage {
    Running(BoxFuture<'static, RunOutput>),
    Done(Box<RunOutput>),
}

impl RunStream {
    /// The next event; `None` after the last one. The same as `StreamExt::next`, without an import.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Runs to the end, discards unread events, and returns the output.
    ///
    /// # Errors
    /// As [`RunOutput::into_result`].
    pub async fn finish(self) -> Result<RunOutput, RunError> {
        let output = match self.state {
            StreamStage::Running(run) => run.await,
            StreamStage::Done(output) => *output,
        };
        output.into_result()
    }
}

impl Stream for RunStream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = self.get_mut();
        if let Ok(event) = this.events.try_recv() {
            return Poll::Ready(Some(event));
        }
        if let StreamStage::Running(run) = &mut this.state
            && let Poll::Ready(output) = run.as_mut().poll(context)
        {
            this.state = StreamStage::Done(Box::new(output));
        }
        match this.state {
            StreamStage::Running(_) => this.events.poll_recv(context),
            StreamStage::Done(_) => Poll::Ready(this.events.try_recv().ok()),
        }
    }
}

impl fmt::Debug for RunStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = matches!(self.state, StreamStage::Done(_));
        f.debug_struct("RunStream").field("is_done", &is_done).finish_non_exhaustive()
    }
}

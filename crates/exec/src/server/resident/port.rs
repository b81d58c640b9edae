//! The port of a call in resident mode: frames to the caller and its answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use toolpost_core::{
    Answer, Artifact, BoxFuture, CallId, Delivery, DocStore, LogLine, Output, Port, Progress, Question,
    Sample, SampleRequest, ToolError,
};

use super::{Resident, lock};
use crate::protocol::documents::{FrameStore, StateLink};
use crate::protocol::frame::{StateRequest, ToolFrame, ToolMessage, Verb};
use crate::protocol::outcome::{Answered, ArtifactFrame, OutputFrame};

/// The connection to the caller of one request.
#[derive(Clone)]
struct Link {
    resident: Arc<Resident>,
    id: u64,
}

/// The port of one call.
pub(super) struct FramePort {
    link: Link,
    serves: Vec<Verb>,
}

/// Removes a pending question when its future is dropped.
struct PendingQuestion<'a> {
    resident: &'a Resident,
    key: (u64, u64),
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        lock(&self.resident.questions).remove(&self.key);
    }
}

impl Link {
    fn offer(&self, message: ToolMessage) -> Delivery {
        match ToolFrame::new(self.id, message).to_line() {
            Ok(line) => self.resident.output.offer(line),
            Err(_) => Delivery::Dropped,
        }
    }

    /// Asks the caller and waits for the answer, up to the timeout of the toolbox.
    async fn request<T: DeserializeOwned>(
        &self,
        message: impl FnOnce(u64) -> ToolMessage,
    ) -> Result<T, ToolError> {
        let request = self.resident.next_question.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        let key = (self.id, request);
        lock(&self.resident.questions).insert(key, sender);
        let _pending = PendingQuestion { resident: &self.resident, key };
        let gone = || ToolError::cancelled("the caller disconnected");
        let line = ToolFrame::new(self.id, message(request)).to_line()?;
        if !self.resident.output.send(line).await {
            return Err(gone());
        }
        let answer: Answered<Value> = answer.await.map_err(|_| gone())?;
        T::deserialize(answer.into_result()?)
            .map_err(|error| ToolError::dependency(format!("the caller's answer is invalid: {error}")))
    }
}

impl StateLink for Link {
    fn state<'a, T: DeserializeOwned + Send + 'a>(
        &'a self,
        state: StateRequest,
    ) -> BoxFuture<'a, Result<T, ToolError>> {
        Box::pin(self.request(|request| ToolMessage::State { request, state }))
    }
}

impl FramePort {
    pub(super) fn new(resident: Arc<Resident>, id: u64, serves: &[Verb]) -> Self {
        Self { link: Link { resident, id }, serves: serves.to_vec() }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        verb: Verb,
        what: &str,
        message: impl FnOnce(u64) -> ToolMessage,
    ) -> Result<T, ToolError> {
        if !self.serves.contains(&verb) {
            return Err(ToolError::precondition(format!("this caller cannot {what}"))
                .suggest("Use a front that can."));
        }
        self.link.request(message).await
    }
}

impl Port for FramePort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        self.link.offer(ToolMessage::Progress(progress))
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        self.link.offer(ToolMessage::Log(line))
    }

    fn takes_artifacts(&self) -> bool {
        self.serves.contains(&Verb::Artifact)
    }

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let artifact = ArtifactFrame::from(&artifact);
            self.request(Verb::Artifact, "accept artifacts", |request| ToolMessage::Artifact {
                request,
                artifact,
            })
            .await
        })
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(self.request(Verb::Ask, "answer questions", |request| ToolMessage::Ask {
            request,
            question: question.clone(),
        }))
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        prompt: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(self.request(Verb::Sample, "sample from a model", |request| ToolMessage::Sample {
            request,
            prompt: prompt.clone(),
        }))
    }

    fn takes_calls(&self) -> bool {
        self.serves.contains(&Verb::Nested)
    }

    fn call<'a>(
        &'a self,
        _call: CallId,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let nested = |request| ToolMessage::Nested {
                request,
                tool: tool.to_owned(),
                arguments: arguments.clone(),
            };
            let output: OutputFrame = self.request(Verb::Nested, "call other tools", nested).await?;
            output.into_output()
        })
    }

    fn documents(&self) -> Option<Arc<dyn DocStore>> {
        let has_store = self.serves.contains(&Verb::State);
        has_store.then(|| Arc::new(FrameStore(self.link.clone())) as Arc<dyn DocStore>)
    }
}

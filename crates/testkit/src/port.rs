//! A caller in memory: it keeps what it is told, and answers what the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore};
use toolpost_core::{
    Answer, Artifact, BoxFuture, CallId, Delivery, LogLine, Port, Progress, Question, Sample, SampleRequest,
    ToolError,
};

/// The messages to a [`MemoryPort`].
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Progress that found room.
    pub progress: Vec<Progress>,
    /// Log lines that found room.
    pub log: Vec<LogLine>,
    /// Files that were taken.
    pub artifacts: Vec<Artifact>,
    /// Questions that were asked.
    pub questions: Vec<Question>,
    /// Completions that were asked for.
    pub samples: Vec<SampleRequest>,
}

/// A caller in memory. Without answers given in advance, questions wait until [`answer`](Self::answer) is called.
#[derive(Debug)]
pub struct MemoryPort {
    heard: Mutex<Heard>,
    answers: Mutex<VecDeque<Answer>>,
    answered: Notify,
    /// The maximum number of notices; the others are dropped.
    room: usize,
    /// The number of files before the caller stops.
    files: Semaphore,
}

impl MemoryPort {
    /// Room for so many notices of each kind, and for so many files until [`take_files`](Self::take_files).
    pub fn new(room: usize, files: usize) -> Arc<Self> {
        Arc::new(Self {
            heard: Mutex::default(),
            answers: Mutex::default(),
            answered: Notify::new(),
            room,
            files: Semaphore::new(files),
        })
    }

    /// Answers the oldest open question, or the next one.
    pub fn answer(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push_back(answer);
        self.answered.notify_one();
    }

    /// Makes room for more files.
    pub fn take_files(&self, more: usize) {
        self.files.add_permits(more);
    }

    /// The messages so far.
    pub fn heard(&self) -> Heard {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for MemoryPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        let mut heard = self.lock();
        if heard.progress.len() >= self.room {
            return Delivery::Dropped;
        }
        heard.progress.push(progress);
        Delivery::Delivered
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        let mut heard = self.lock();
        if heard.log.len() >= self.room {
            return Delivery::Dropped;
        }
        heard.log.push(line);
        Delivery::Delivered
    }

    fn takes_artifacts(&self) -> bool {
        true
    }

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            self.files.acquire().await.map_err(|_| ToolError::cancelled("the caller is gone"))?.forget();
            self.lock().artifacts.push(artifact);
            Ok(())
        })
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            self.lock().questions.push(question.clone());
            loop {
                let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                match answer {
                    Some(answer) => return Ok(answer),
                    None => self.answered.notified().await,
                }
            }
        })
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            self.lock().samples.push(request.clone());
            Ok(Sample { content: format!("echo: {}", request.prompt), usage: None })
        })
    }
}

//! The attempts of one request: failures, retries, deadlines.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{HeaderMap, LOCATION};
use tokio::time::{Instant, sleep, timeout_at};

use crate::http::client::{classify_error, is_refused_by_this_host, later};
use crate::http::retry::{Advice, advice_of, retry_after};
use crate::{Attempt, ErrorKind, HttpClient, ModelError, ModelId, NetworkStage, Secret, TimeoutStage};

/// A failed attempt, and whether another attempt may succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: ModelError,
    pub(crate) advice: Advice,
}

impl Failure {
    /// A failure that every further attempt would repeat.
    pub(crate) fn permanent(error: ModelError) -> Self {
        Self { error, advice: Advice::GiveUp }
    }

    /// A failure that another attempt may avoid.
    pub(crate) fn transient(error: ModelError) -> Self {
        Self { error, advice: Advice::Retry { after: None } }
    }

    /// A permanent protocol error.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::permanent(ModelError::new(ErrorKind::Protocol, message))
    }
}

/// The status and headers of an unsuccessful answer.
pub(crate) struct Rejection {
    pub(crate) status: u16,
    pub(crate) advice: Advice,
    pub(crate) retry_after: Option<Duration>,
}

impl Rejection {
    /// Reads the head of an unsuccessful answer. A redirect is a permanent failure: it would receive the API key.
    pub(crate) fn from_response(response: &reqwest::Response) -> Result<Self, Failure> {
        let status = response.status().as_u16();
        let headers = response.headers();
        if response.status().is_redirection() {
            let target = text_header(headers, LOCATION.as_str()).unwrap_or("an unknown address");
            let message =
                format!("the server redirects to `{target}`; redirects are not followed with an API key");
            return Err(Failure::permanent(
                ModelError::new(ErrorKind::Protocol, message).with_status(status),
            ));
        }
        let now = SystemTime::now();
        Ok(Self { status, advice: advice_of(status, headers, now), retry_after: retry_after(headers, now) })
    }
}

/// A header's value, if it is text.
pub(crate) fn text_header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The attempts of one request so far.
pub(crate) struct Attempts {
    client: HttpClient,
    model: ModelId,
    /// Secrets that errors must not contain.
    secrets: Vec<Secret>,
    failed: Vec<Attempt>,
    /// The start of the current attempt.
    started: Instant,
    /// The end of all attempts.
    deadline: Instant,
}

impl Attempts {
    pub(crate) fn new(client: &HttpClient, model: &ModelId, secrets: &[Secret]) -> Self {
        let now = Instant::now();
        Self {
            client: client.clone(),
            model: model.clone(),
            secrets: secrets.to_vec(),
            failed: Vec::new(),
            started: now,
            deadline: later(now, client.options().total_timeout),
        }
    }

    /// The number of failed attempts.
    pub(crate) fn failed(&self) -> u32 {
        self.failed.len() as u32
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn first_byte_deadline(&self) -> Instant {
        later(self.started, self.client.options().first_byte_timeout).min(self.deadline)
    }

    pub(crate) fn event_deadline(&self) -> Instant {
        later(Instant::now(), self.client.options().event_timeout).min(self.deadline)
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &self,
        request: reqwest::Request,
        until: Instant,
    ) -> Result<reqwest::Response, Failure> {
        let url = request.url().clone();
        self.client.permit(&url, &self.model).map_err(Failure::permanent)?;
        let sent = timeout_at(until, self.client.inner(&url).execute(request))
            .await
            .map_err(|_| self.timed_out(until, TimeoutStage::FirstByte))?;
        sent.map_err(|error| {
            let is_refused = is_refused_by_this_host(&error, &url);
            let error = classify_error(error);
            match error.kind {
                // The next attempt meets the same certificate and protocol.
                ErrorKind::Network(NetworkStage::Tls) => Failure::permanent(error),
                _ if is_refused => Failure::permanent(error),
                _ => Failure::transient(error),
            }
        })
    }

    /// The next chunk of a body.
    pub(crate) async fn chunk(
        &self,
        response: &mut reqwest::Response,
        until: Instant,
        stage: TimeoutStage,
    ) -> Result<Option<Bytes>, Failure> {
        timeout_at(until, response.chunk())
            .await
            .map_err(|_| self.timed_out(until, stage))?
            .map_err(|error| Failure::transient(classify_error(error)))
    }

    /// Reads a body. A body longer than the limit is an error.
    pub(crate) async fn read_text(
        &self,
        response: &mut reqwest::Response,
        limit: usize,
        mut until: Instant,
        mut stage: TimeoutStage,
    ) -> Result<String, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(response, until, stage).await? {
            if bytes.len() + chunk.len() > limit {
                return Err(Failure::protocol(format!("the answer is longer than {limit} bytes")));
            }
            bytes.extend_from_slice(&chunk);
            until = self.event_deadline();
            stage = TimeoutStage::BetweenEvents;
        }
        String::from_utf8(bytes).map_err(|_| Failure::protocol("the answer is not UTF-8"))
    }

    /// The failure at a deadline: of all attempts or of one stage.
    pub(crate) fn timed_out(&self, until: Instant, stage: TimeoutStage) -> Failure {
        if until >= self.deadline {
            return Failure::permanent(self.timeout_error(TimeoutStage::Total));
        }
        Failure::transient(self.timeout_error(stage))
    }

    fn timeout_error(&self, stage: TimeoutStage) -> ModelError {
        let options = self.client.options();
        let limit = match stage {
            TimeoutStage::Connect => options.connect_timeout,
            TimeoutStage::FirstByte => options.first_byte_timeout,
            TimeoutStage::BetweenEvents => options.event_timeout,
            TimeoutStage::Total => options.total_timeout,
        };
        ModelError::new(ErrorKind::Timeout(stage), format!("the limit is {limit:?}"))
    }

    /// Records a failure: the reason and the wait before the next attempt, or the error if there is none.
    pub(crate) fn record(&mut self, failure: Failure) -> Result<(String, Duration), ModelError> {
        let Failure { mut error, advice } = failure;
        for secret in &self.secrets {
            error.message = secret.scrub(&error.message);
            let details = [&mut error.details.provider_code, &mut error.details.request_id];
            for text in details.into_iter().flatten() {
                *text = secret.scrub(text);
            }
        }
        let number = self.failed() + 1;
        let wait = self.client.options().retry.wait(number, &advice);
        let wait = wait.filter(|wait| later(Instant::now(), *wait) < self.deadline);
        let reason = error.message.clone();
        self.failed.push(Attempt {
            number,
            reason: reason.clone(),
            status: error.details.status,
            took: self.started.elapsed(),
            waited: wait.unwrap_or_default(),
        });
        if let Some(wait) = wait {
            return Ok((reason, wait));
        }
        error.details.model = Some(self.model.clone());
        error.details.attempts = std::mem::take(&mut self.failed);
        Err(error)
    }

    /// Waits before the next attempt.
    pub(crate) async fn pause(&mut self, wait: Duration) {
        sleep(wait).await;
        self.started = Instant::now();
    }

    /// Records a failure and waits before the next attempt. The error if there is none.
    pub(crate) async fn retry(&mut self, failure: Failure) -> Result<(), ModelError> {
        let (_, wait) = self.record(failure)?;
        self.pause(wait).await;
        Ok(())
    }
}

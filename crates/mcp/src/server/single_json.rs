//! Turns an event stream with a single response into plain JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame};
use tokio::time::Instant;

use super::http::Answer;

/// The time to wait for the response before streaming it.
const MAX_DELAY: Duration = Duration::from_millis(10);

/// rmcp answers session requests with an event stream. A response that comes soon is sent as JSON instead.
pub(super) async fn flatten(answer: Answer, has_session: bool) -> Answer {
    let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !is_stream || !has_session {
        return answer;
    }
    let (mut parts, mut body) = answer.into_parts();
    let end = Instant::now() + MAX_DELAY;
    let mut read = BytesMut::new();
    let message = loop {
        match tokio::time::timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => read.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..])),
            Ok(None) | Err(_) => break None,
            Ok(Some(Err(never))) => match never {},
        }
        match first_message(&read) {
            First::NotYet => {}
            First::Answer(message) => break Some(message),
            First::Other => break None,
        }
    };
    match message {
        Some(message) => {
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            parts.headers.remove(CACHE_CONTROL);
            Answer::from_parts(parts, Full::new(message).boxed())
        }
        None => {
            let read = (!read.is_empty()).then(|| read.freeze());
            Answer::from_parts(parts, Chained { head: read, rest: body }.boxed())
        }
    }
}

/// The bytes that were read, then the rest of the body.
struct Chained {
    head: Option<Bytes>,
    rest: BoxBody<Bytes, Infallible>,
}

impl Body for Chained {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.head.take() {
            Some(head) => Poll::Ready(Some(Ok(Frame::data(head)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

pub(super) enum First {
    NotYet,
    Answer(Bytes),
    Other,
}

/// Finds the first message; events without data are skipped.
pub(super) fn first_message(events: &[u8]) -> First {
    let Ok(events) = std::str::from_utf8(events) else { return First::NotYet };
    let mut rest = events;
    while let Some((event, after)) = rest.split_once("\n\n") {
        rest = after;
        let mut data = event.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start);
        match (data.next(), data.next()) {
            (None | Some(""), None) => {}
            (Some(message), None) => {
                return if is_answer(message) {
                    First::Answer(Bytes::copy_from_slice(message.as_bytes()))
                } else {
                    First::Other
                };
            }
            _ => return First::Other,
        }
    }
    First::NotYet
}

/// Whether a message is a response: it has no method.
fn is_answer(message: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Envelope {
        #[serde(default)]
        method: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Envelope>(message).is_ok_and(|envelope| envelope.method.is_none())
}

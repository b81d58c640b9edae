//! Answers of sessions as plain JSON where nothing else is to be told.

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

/// How long the answer is waited for before it becomes a stream of events.
const HOLD: Duration = Duration::from_millis(10);

/// The answer of a session is always a stream of events. Where its only message comes soon, it goes out as JSON.
pub(super) async fn settle(answer: Answer, has_session: bool) -> Answer {
    let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !is_stream || !has_session {
        return answer;
    }
    let (mut head, mut body) = answer.into_parts();
    let end = Instant::now() + HOLD;
    let mut begun = BytesMut::new();
    let message = loop {
        match tokio::time::timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => begun.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..])),
            Ok(None) | Err(_) => break None,
            Ok(Some(Err(never))) => match never {},
        }
        match first_message(&begun) {
            First::NotYet => {}
            First::Answer(message) => break Some(message),
            First::Other => break None,
        }
    };
    match message {
        Some(message) => {
            head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            head.headers.remove(CACHE_CONTROL);
            Answer::from_parts(head, Full::new(message).boxed())
        }
        None => {
            let begun = (!begun.is_empty()).then(|| begun.freeze());
            Answer::from_parts(head, Followed { begun, rest: body }.boxed())
        }
    }
}

/// What was read already, and the rest.
struct Followed {
    begun: Option<Bytes>,
    rest: BoxBody<Bytes, Infallible>,
}

impl Body for Followed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.begun.take() {
            Some(begun) => Poll::Ready(Some(Ok(Frame::data(begun)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

pub(super) enum First {
    NotYet,
    Answer(Bytes),
    Other,
}

/// The first message among events; those without data only say where the stream begins.
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

/// Whether a message answers a request: it has no method of its own.
fn is_answer(message: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Look {
        #[serde(default)]
        method: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Look>(message).is_ok_and(|look| look.method.is_none())
}

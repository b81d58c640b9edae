//! Parses messages of a server with bounds on length, values and depth.

use std::io::{self, BufRead};

use rmcp::model::{ErrorCode, ErrorData, JsonRpcMessage, NumberOrString, ServerJsonRpcMessage};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use toolpost_core::has_more_values_than;

use super::json::parse;
use super::response::Pending;
use crate::convert::inward::shortened;

/// The most JSON values in a message; each takes tens of bytes once parsed.
const MAX_VALUES: usize = 500_000;
/// The bytes of an overlong line that are kept to find its request id.
const HEAD_LENGTH: usize = 256;

/// A line from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The line without the newline.
    Whole(Vec<u8>),
    /// The first bytes; the rest was discarded.
    TooLong(Vec<u8>),
}

/// Splits a blocking stream into lines of bounded length.
pub(super) struct LineReader<R> {
    input: R,
    limit: usize,
}

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        Self { input, limit }
    }

    /// The next line; `None` at the end. An unterminated last line is discarded.
    pub(super) fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let mut is_too_long = false;
        loop {
            let piece = match self.input.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if piece.is_empty() {
                return Ok(None);
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let text = piece.get(..end.unwrap_or(piece.len())).unwrap_or_default();
            let used = end.map_or(piece.len(), |end| end + 1);
            is_too_long |= line.len() + text.len() > self.limit;
            if is_too_long {
                line.truncate(HEAD_LENGTH);
                line.extend(text.iter().take(HEAD_LENGTH.saturating_sub(line.len())));
                line.shrink_to_fit();
            } else {
                line.extend_from_slice(text);
            }
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(if is_too_long { Line::TooLong(line) } else { Line::Whole(line) }));
            }
        }
    }
}

/// Parses a line. An invalid response becomes an error for its request; any other invalid line is dropped.
pub(super) fn read(line: &Line, pending: &Pending) -> Option<ServerJsonRpcMessage> {
    let text = match line {
        Line::TooLong(start) => return Some(bad(id_in(start)?, "it is too long", true)),
        Line::Whole(text) => text,
    };
    if has_more_values_than(text, MAX_VALUES) {
        return invalid(text, "it has more than 500000 values");
    }
    match parse(text) {
        Ok(parsed) => {
            // Programs print JSON lines with an `error` of their own.
            let only = pending.only().filter(|_| parsed.value.get("jsonrpc").is_some());
            pending.message(parsed, only.as_ref())
        }
        Err(error) => {
            let head = text.get(..HEAD_LENGTH).unwrap_or(text);
            let quote = shortened(&String::from_utf8_lossy(head), 200);
            invalid(text, &format!("it is not JSON or is nested too deeply ({error}): {quote}"))
        }
    }
}

/// The fields that identify the request of a message.
#[derive(Deserialize)]
struct Envelope {
    id: Option<NumberOrString>,
    method: Option<IgnoredAny>,
}

/// The error for an invalid response. A line without an id is output of the program.
fn invalid(text: &[u8], why: &str) -> Option<ServerJsonRpcMessage> {
    let id = match serde_json::from_slice::<Envelope>(text) {
        Ok(Envelope { id, method: None }) => id?,
        Err(_) if text.trim_ascii_start().starts_with(b"{") => {
            let head = text.get(..HEAD_LENGTH).unwrap_or(text);
            let is_request = String::from_utf8_lossy(head).contains("\"method\"");
            id_in(head).filter(|_| !is_request)?
        }
        _ => return None,
    };
    Some(bad(id, why, false))
}

/// The error in place of an invalid response.
pub(super) fn bad(id: NumberOrString, why: &str, is_limit: bool) -> ServerJsonRpcMessage {
    let message = format!("invalid response: {why}");
    let data = is_limit.then(|| json!({ "limit": true }));
    JsonRpcMessage::error(ErrorData::new(ErrorCode::PARSE_ERROR, message, data), Some(id))
}

/// The number after `"id":` in the first bytes of a message. Ids of this client are numbers.
fn id_in(start: &[u8]) -> Option<NumberOrString> {
    let text = String::from_utf8_lossy(start);
    let (_, rest) = text.split_once("\"id\"")?;
    let digits: String =
        rest.trim_start().strip_prefix(':')?.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(NumberOrString::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::{ClientRequest, PingRequest};

    fn lines(text: &[u8], limit: usize, piece: usize) -> Vec<Line> {
        let mut reader = LineReader::new(io::BufReader::with_capacity(piece, text), limit);
        std::iter::from_fn(|| reader.next_line().unwrap()).collect()
    }

    #[test]
    fn lines_do_not_depend_on_read_sizes() {
        let text = b"one\n\ntwo\r\nthis is far too long\nthree\nwithout an end";
        for piece in 1..text.len() {
            assert_eq!(
                lines(text, 10, piece),
                [
                    Line::Whole(b"one".to_vec()),
                    Line::Whole(Vec::new()),
                    Line::Whole(b"two\r".to_vec()),
                    Line::TooLong(b"this is far too long".to_vec()),
                    Line::Whole(b"three".to_vec()),
                ],
                "{piece}"
            );
        }
    }

    #[test]
    fn a_log_line_with_an_error_is_not_an_answer() {
        let pending = Pending::default();
        let ping = ClientRequest::PingRequest(PingRequest::default());
        pending.register(&JsonRpcMessage::request(ping, NumberOrString::Number(1)));
        let read = |text: &str| read(&Line::Whole(text.as_bytes().to_vec()), &pending);
        assert!(read(r#"{"level":"error","error":"cannot connect; trying again","result":null}"#).is_none());
        assert!(read(r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"not initialized"}}"#).is_some());
    }

    #[test]
    fn an_invalid_response_is_an_error_for_its_request_and_garbage_is_dropped() {
        let deep =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}{}}}", "[".repeat(2_000), "]".repeat(2_000));
        let many = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{{\"x\":[1{}]}}}}",
            ",1".repeat(MAX_VALUES + 1)
        );
        let pending = Pending::default();
        let error = |line: &Line| match read(line, &pending) {
            Some(JsonRpcMessage::Error(error)) => Some((error.id, error.error.message.into_owned())),
            _ => None,
        };
        for text in [deep, many, "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{".to_owned()] {
            let (id, message) = error(&Line::Whole(text.into_bytes())).unwrap();
            assert_eq!(id, Some(NumberOrString::Number(7)));
            assert!(message.contains("invalid response"), "{message}");
        }
        let long = Line::TooLong(b"{\"jsonrpc\":\"2.0\", \"id\" : 12, \"result\":{".to_vec());
        assert_eq!(error(&long).unwrap().0, Some(NumberOrString::Number(12)));
        for text in ["", "hello", "[1,2]", "{}", "{\"id\":7,\"method\":5}", "{\"id\":null}", "\u{0}"] {
            assert!(read(&Line::Whole(text.as_bytes().to_vec()), &pending).is_none(), "{text}");
        }
    }
}

//! Reads messages from a stream with size limits and a bound on pending requests.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, GetExtensions as _, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::ServerLimits;
use super::tasks::TaskFilter;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
/// The most JSON values in a message; each takes tens of bytes once parsed.
pub(super) const MAX_VALUES: usize = 500_000;
/// The timeout of closing a stuck stream.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// Too many requests are pending.
const OVERLOADED: i32 = -32000;

/// The outcome of reading a message.
pub(super) enum Read {
    Message(Box<ClientJsonRpcMessage>),
    /// The message is invalid: the error response, and the permit until it is sent.
    Rejected(Vec<u8>, OwnedSemaphorePermit),
    /// Nothing to process and nothing to answer.
    Nothing,
}

/// Bounds the pending requests of a stream.
#[derive(Clone)]
pub(super) struct RequestGate {
    permits: Arc<Semaphore>,
    open: Arc<Mutex<HashMap<RequestId, OwnedSemaphorePermit>>>,
}

impl RequestGate {
    pub(super) fn new(permits: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))), open: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, OwnedSemaphorePermit>> {
        // The table is whole after any panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one message.
    pub(super) fn read(&self, bytes: &[u8]) -> Read {
        if toolpost_core::has_more_values_than(bytes, MAX_VALUES) {
            let text = format!("the message has more than {MAX_VALUES} values");
            return self.reject(INVALID_REQUEST, &Value::Null, &text);
        }
        let message = super::call_message::read(bytes).map_or_else(|| serde_json::from_slice(bytes), Ok);
        let Ok::<ClientJsonRpcMessage, _>(mut message) = message else {
            let (code, id, text) = classify_error(bytes);
            return self.reject(code, &id, text);
        };
        match &mut message {
            JsonRpcMessage::Request(request) => {
                if let Some(filter) = TaskFilter::from_message(bytes) {
                    request.request.extensions_mut().insert(filter);
                }
                let id = request.id.clone();
                if self.lock().contains_key(&id) {
                    return self.reject(INVALID_REQUEST, &json!(id), "a request with this id is pending");
                }
                let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                    // An error response needs a permit as well.
                    tracing::warn!("dropped a request: too many are pending");
                    return Read::Nothing;
                };
                if self.permits.available_permits() == 0 {
                    return Read::Rejected(
                        error_response(OVERLOADED, &json!(id), "too many pending requests"),
                        permit,
                    );
                }
                self.lock().insert(id, permit);
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.lock().remove(id);
                }
            }
            _ => {}
        }
        Read::Message(Box::new(message))
    }

    fn reject(&self, code: i32, id: &Value, text: &str) -> Read {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Read::Rejected(error_response(code, id, text), permit),
            Err(_) => Read::Nothing,
        }
    }

    /// The permit of the request that a message answers, released when the response is sent.
    pub(super) fn answered(&self, message: &ServerJsonRpcMessage) -> Option<OwnedSemaphorePermit> {
        match message {
            JsonRpcMessage::Response(response) => self.lock().remove(&response.id),
            JsonRpcMessage::Error(error) => self.lock().remove(error.id.as_ref()?),
            _ => None,
        }
    }
}

fn error_response(code: i32, id: &Value, text: &str) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } }).to_string().into_bytes()
}

/// The JSON-RPC error for an invalid message.
fn classify_error(bytes: &[u8]) -> (i32, Value, &'static str) {
    match serde_json::from_slice::<Value>(bytes) {
        Err(error) if error.is_syntax() || error.is_eof() => (PARSE_ERROR, Value::Null, "invalid JSON"),
        Err(_) => (PARSE_ERROR, Value::Null, "the JSON is nested too deeply"),
        Ok(Value::Array(_)) => {
            (INVALID_REQUEST, Value::Null, "batches are not supported: send one message at a time")
        }
        Ok(value) => {
            let id = value.get("id").filter(|id| id.is_string() || id.is_i64()).cloned().unwrap_or_default();
            (INVALID_REQUEST, id, "not a valid MCP request")
        }
    }
}

/// Newline-delimited messages as an rmcp transport.
pub(super) struct Lines<Input, Output> {
    input: BufReader<Input>,
    output: Arc<tokio::sync::Mutex<Output>>,
    line: Vec<u8>,
    limit: usize,
    /// Skipping the rest of an overlong line.
    is_skipping: bool,
    gate: RequestGate,
    timeout: std::time::Duration,
    /// Cancelled when writing to the client timed out; reading stops as well.
    ended: CancellationToken,
}

impl<Input: AsyncRead, Output> Lines<Input, Output> {
    pub(super) fn new(input: Input, output: Output, limits: &ServerLimits) -> Self {
        Self {
            input: BufReader::new(input),
            output: Arc::new(tokio::sync::Mutex::new(output)),
            line: Vec::new(),
            limit: limits.request_bytes,
            is_skipping: false,
            gate: RequestGate::new(limits.requests_per_stream),
            timeout: limits.write_time,
            ended: CancellationToken::new(),
        }
    }
}

impl<Input, Output> Lines<Input, Output>
where
    Input: AsyncRead + Unpin + Send,
    Output: AsyncWrite + Unpin + Send + 'static,
{
    /// Reads one line without the newline; `None` at the end of the input. Cancel-safe.
    async fn next_line(&mut self) -> io::Result<Option<Result<(), ()>>> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(None);
            }
            let end = memchr::memchr(b'\n', available);
            let taken = end.map_or(available.len(), |end| end + 1);
            let piece = available.get(..end.unwrap_or(taken)).unwrap_or_default();
            let is_too_long = self.line.len() + piece.len() > self.limit;
            if is_too_long {
                self.line.clear();
                self.is_skipping = true;
            } else if !self.is_skipping {
                self.line.extend_from_slice(piece);
            }
            self.input.consume(taken);
            if end.is_some() {
                return Ok(Some(if std::mem::take(&mut self.is_skipping) { Err(()) } else { Ok(()) }));
            }
        }
    }

    /// Sends a response in the background.
    fn send_in_background(&self, answer: Vec<u8>, permit: OwnedSemaphorePermit) {
        let (output, timeout, ended) = (Arc::clone(&self.output), self.timeout, self.ended.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = write(&output, answer, timeout, &ended).await;
        });
    }
}

async fn write<Output: AsyncWrite + Unpin>(
    output: &tokio::sync::Mutex<Output>,
    mut message: Vec<u8>,
    timeout: std::time::Duration,
    ended: &CancellationToken,
) -> io::Result<()> {
    message.push(b'\n');
    let mut output = output.lock().await;
    let written = async {
        output.write_all(&message).await?;
        output.flush().await
    };
    match tokio::time::timeout(timeout, written).await {
        Ok(written) => written,
        Err(_) => {
            // After a partial line the stream is unusable.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, output.shutdown()).await;
            ended.cancel();
            Err(io::Error::new(io::ErrorKind::TimedOut, "writing to the client timed out"))
        }
    }
}

impl<Input, Output> Transport<RoleServer> for Lines<Input, Output>
where
    Input: AsyncRead + Unpin + Send,
    Output: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let permit = self.gate.answered(&message);
        let (output, timeout, ended) = (Arc::clone(&self.output), self.timeout, self.ended.clone());
        async move {
            let _permit = permit;
            write(&output, serde_json::to_vec(&message)?, timeout, &ended).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let ended = self.ended.clone();
            let line = tokio::select! {
                biased;
                () = ended.cancelled() => return None,
                line = self.next_line() => line,
            };
            match line {
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(()))) => {
                    let text = format!("the line is longer than {} bytes", self.limit);
                    if let Read::Rejected(answer, permit) =
                        self.gate.reject(INVALID_REQUEST, &Value::Null, &text)
                    {
                        self.send_in_background(answer, permit);
                    }
                    continue;
                }
                Ok(None) => return None,
                Err(error) => {
                    tracing::debug!("reading from the client failed: {error}");
                    return None;
                }
            }
            let line = self.line.trim_ascii();
            let read = if line.is_empty() { Read::Nothing } else { self.gate.read(line) };
            self.line.clear();
            match read {
                Read::Message(message) => return Some(*message),
                Read::Rejected(answer, permit) => self.send_in_background(answer, permit),
                Read::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let mut output = self.output.lock().await;
        if self.ended.is_cancelled() {
            return Ok(());
        }
        output.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(read: Read) -> Value {
        match read {
            Read::Rejected(answer, _) => serde_json::from_slice(&answer).unwrap(),
            Read::Message(_) => json!("message"),
            Read::Nothing => json!("nothing"),
        }
    }

    #[test]
    fn an_invalid_message_gets_a_json_rpc_error() {
        let gate = RequestGate::new(8);
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        for (bytes, code, id) in [
            ("garbage", -32700, json!(null)),
            ("{\"jsonrpc\":\"2.0\"", -32700, json!(null)),
            ("[]", -32600, json!(null)),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, json!(null)),
            ("1", -32600, json!(null)),
            ("null", -32600, json!(null)),
            ("{}", -32600, json!(null)),
            (r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","id":99999999999999999999999,"method":"ping"}"#, -32600, json!(null)),
            (deep.as_str(), -32700, json!(null)),
        ] {
            let answer = answer(gate.read(bytes.as_bytes()));
            let shown: String = bytes.chars().take(60).collect();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{shown} {answer}");
        }
    }

    #[test]
    fn a_pending_request_holds_its_id_and_permit() {
        let gate = RequestGate::new(3);
        let ping =
            |id: &str| gate.read(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).as_bytes());
        assert_eq!(answer(ping("1")), "message");
        assert_eq!(answer(ping("1"))["error"]["code"], INVALID_REQUEST);
        assert_eq!(answer(ping("2")), "message");
        assert_eq!(answer(ping("3"))["error"]["code"], OVERLOADED);
        let cancelled = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        assert_eq!(answer(gate.read(cancelled)), "message");
        assert_eq!(answer(ping("1")), "message");
    }
}

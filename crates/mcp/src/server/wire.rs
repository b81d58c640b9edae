//! Messages on a stream: read with a limit, refused where they are none, a bounded number worked on at once.

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

use super::Limits;
use super::tasks::Wanted;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
/// The most values of one message: each takes many times the memory that it takes in the message.
pub(super) const MAX_VALUES: usize = 500_000;
/// How long the end of a stream that takes nothing may take.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(1);
/// The server has more to do than it may.
const OVERLOADED: i32 = -32000;

/// What is to be done with a message that came in.
pub(super) enum Read {
    Message(Box<ClientJsonRpcMessage>),
    /// It is none: this is the answer, and the place that it takes until it is sent.
    Refused(Vec<u8>, OwnedSemaphorePermit),
    /// Neither an answer nor a message.
    Nothing,
}

/// Which requests of a stream are worked on.
#[derive(Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    open: Arc<Mutex<HashMap<RequestId, OwnedSemaphorePermit>>>,
}

impl Gate {
    pub(super) fn new(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))), open: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, OwnedSemaphorePermit>> {
        // The table is whole after any panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one message.
    pub(super) fn read(&self, bytes: &[u8]) -> Read {
        if toolpost_core::has_more_values_than(bytes, MAX_VALUES) {
            let text = format!("the message has more than {MAX_VALUES} values");
            return self.refuse(INVALID_REQUEST, &Value::Null, &text);
        }
        let message = super::calling::read(bytes).map_or_else(|| serde_json::from_slice(bytes), Ok);
        let Ok::<ClientJsonRpcMessage, _>(mut message) = message else {
            let (code, id, text) = what_is_wrong(bytes);
            return self.refuse(code, &id, text);
        };
        match &mut message {
            JsonRpcMessage::Request(request) => {
                if let Some(wanted) = Wanted::of(bytes) {
                    request.request.extensions_mut().insert(wanted);
                }
                let id = request.id.clone();
                if self.lock().contains_key(&id) {
                    return self.refuse(
                        INVALID_REQUEST,
                        &json!(id),
                        "a request with this id is open already",
                    );
                }
                let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
                    // Its answer needs a place as well; without one it is only counted.
                    tracing::warn!("a request was dropped: as many are open as there may be");
                    return Read::Nothing;
                };
                if self.places.available_permits() == 0 {
                    return Read::Refused(
                        refusal(OVERLOADED, &json!(id), "as many requests are open as there may be"),
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

    fn refuse(&self, code: i32, id: &Value, text: &str) -> Read {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Read::Refused(refusal(code, id, text), permit),
            Err(_) => Read::Nothing,
        }
    }

    /// Which request a message answers: its place is free when the answer is sent.
    pub(super) fn answered(&self, message: &ServerJsonRpcMessage) -> Option<OwnedSemaphorePermit> {
        match message {
            JsonRpcMessage::Response(response) => self.lock().remove(&response.id),
            JsonRpcMessage::Error(error) => self.lock().remove(error.id.as_ref()?),
            _ => None,
        }
    }
}

fn refusal(code: i32, id: &Value, text: &str) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } }).to_string().into_bytes()
}

/// The error that belongs to what is no message.
fn what_is_wrong(bytes: &[u8]) -> (i32, Value, &'static str) {
    match serde_json::from_slice::<Value>(bytes) {
        Err(error) if error.is_syntax() || error.is_eof() => (PARSE_ERROR, Value::Null, "this is not JSON"),
        Err(_) => (PARSE_ERROR, Value::Null, "this cannot be read"),
        Ok(Value::Array(_)) => {
            (INVALID_REQUEST, Value::Null, "batches are not served: send one message at a time")
        }
        Ok(value) => {
            let id = value.get("id").filter(|id| id.is_string() || id.is_i64()).cloned().unwrap_or_default();
            (INVALID_REQUEST, id, "this is no request of the protocol, or its parameters have another form")
        }
    }
}

/// Messages as lines.
pub(super) struct Lines<Input, Output> {
    input: BufReader<Input>,
    output: Arc<tokio::sync::Mutex<Output>>,
    line: Vec<u8>,
    limit: usize,
    /// The rest of a line that was too long is passed over.
    skips: bool,
    gate: Gate,
    patience: std::time::Duration,
    /// The client takes nothing, and is not listened to any more.
    ended: CancellationToken,
}

impl<Input: AsyncRead, Output> Lines<Input, Output> {
    pub(super) fn new(input: Input, output: Output, limits: &Limits) -> Self {
        Self {
            input: BufReader::new(input),
            output: Arc::new(tokio::sync::Mutex::new(output)),
            line: Vec::new(),
            limit: limits.request_bytes,
            skips: false,
            gate: Gate::new(limits.requests_per_stream),
            patience: limits.write_time,
            ended: CancellationToken::new(),
        }
    }
}

impl<Input, Output> Lines<Input, Output>
where
    Input: AsyncRead + Unpin + Send,
    Output: AsyncWrite + Unpin + Send + 'static,
{
    /// One line without its end; `None` at the end of the input. What was read of a line stays when this is dropped.
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
                self.skips = true;
            } else if !self.skips {
                self.line.extend_from_slice(piece);
            }
            self.input.consume(taken);
            if end.is_some() {
                return Ok(Some(if std::mem::take(&mut self.skips) { Err(()) } else { Ok(()) }));
            }
        }
    }

    /// Sends an answer without keeping the reader waiting.
    fn send_aside(&self, answer: Vec<u8>, permit: OwnedSemaphorePermit) {
        let (output, patience, ended) = (Arc::clone(&self.output), self.patience, self.ended.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = write(&output, answer, patience, &ended).await;
        });
    }
}

async fn write<Output: AsyncWrite + Unpin>(
    output: &tokio::sync::Mutex<Output>,
    mut message: Vec<u8>,
    patience: std::time::Duration,
    ended: &CancellationToken,
) -> io::Result<()> {
    message.push(b'\n');
    let mut output = output.lock().await;
    let written = async {
        output.write_all(&message).await?;
        output.flush().await
    };
    match tokio::time::timeout(patience, written).await {
        Ok(written) => written,
        Err(_) => {
            // What follows half a line could not be read.
            let _ = tokio::time::timeout(FAREWELL, output.shutdown()).await;
            ended.cancel();
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing"))
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
        let (output, patience, ended) = (Arc::clone(&self.output), self.patience, self.ended.clone());
        async move {
            let _permit = permit;
            write(&output, serde_json::to_vec(&message)?, patience, &ended).await
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
                    if let Read::Refused(answer, permit) =
                        self.gate.refuse(INVALID_REQUEST, &Value::Null, &text)
                    {
                        self.send_aside(answer, permit);
                    }
                    continue;
                }
                Ok(None) => return None,
                Err(error) => {
                    tracing::debug!("the client's stream broke: {error}");
                    return None;
                }
            }
            let line = self.line.trim_ascii();
            let read = if line.is_empty() { Read::Nothing } else { self.gate.read(line) };
            self.line.clear();
            match read {
                Read::Message(message) => return Some(*message),
                Read::Refused(answer, permit) => self.send_aside(answer, permit),
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
            Read::Refused(answer, _) => serde_json::from_slice(&answer).unwrap(),
            Read::Message(_) => json!("message"),
            Read::Nothing => json!("nothing"),
        }
    }

    #[test]
    fn what_is_no_message_gets_the_error_that_belongs_to_it() {
        let gate = Gate::new(8);
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
    fn an_open_request_keeps_its_id_and_its_place() {
        let gate = Gate::new(3);
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

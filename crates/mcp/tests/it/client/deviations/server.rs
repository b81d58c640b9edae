//! A good session, and a server that replaces one of its replies.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The good result of a method. Each text that a user must not lose has a marker.
pub(super) fn session(method: &str) -> Value {
    let annotations = json!({ "audience": ["user"], "priority": 0.5, "lastModified": "MARKtime" });
    match method {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": { "tools": { "listChanged": false }, "prompts": {}, "resources": { "subscribe": false } },
            "serverInfo": { "name": "s", "version": "1", "title": "S" },
            "instructions": "MARKinstructions",
        }),
        "tools/list" => json!({ "tools": [
            { "name": "MARKtool1", "title": "MARKtitle1", "description": "MARKdescription1", "inputSchema": {
                "type": "object", "properties": { "MARKcityname": { "type": "string", "description": "MARKcitytext", "minLength": 0 } } },
                "annotations": { "readOnlyHint": true, "destructiveHint": false }, "_meta": { "ui": { "resourceUri": "ui://MARKui" } } },
            { "name": "MARKtool2", "description": "MARKdescription2", "inputSchema": { "type": "object" }, "outputSchema": {
                "type": "object", "properties": { "MARKnumber": { "type": "integer" } } } },
        ] }),
        "tools/call" => json!({
            "content": [
                { "type": "text", "text": "MARKtext", "annotations": annotations, "_meta": { "ex.com/a": "MARKmeta" } },
                { "type": "image", "data": "MARKimag", "mimeType": "image/png" },
                { "type": "resource_link", "uri": "docs://MARKlink", "name": "MARKname", "title": "MARKlinktitle",
                  "description": "MARKabout", "size": 12, "mimeType": "text/plain" },
                { "type": "resource", "resource": { "uri": "docs://MARKuri", "mimeType": "text/plain", "text": "MARKinside" } },
                { "type": "resource", "resource": { "uri": "docs://MARKpdf", "mimeType": "application/pdf", "blob": "MARKblob" } },
            ],
            "structuredContent": { "MARKnumber": 1, "list": ["MARKitem"] },
            "isError": false,
            "_meta": { "ex.com/trace": "MARKtrace" },
        }),
        "prompts/list" => json!({ "prompts": [
            { "name": "MARKpromptname", "title": "MARKprompttitle", "description": "MARKprompttext",
              "arguments": [{ "name": "MARKargname", "description": "MARKargumenttext", "required": false }] },
        ] }),
        "prompts/get" => json!({ "description": "MARKrendered", "messages": [
            { "role": "user", "content": { "type": "text", "text": "MARKquestion" } },
            { "role": "assistant", "content": { "type": "text", "text": "MARKanswer" } },
        ] }),
        "resources/list" => json!({ "resources": [
            { "uri": "docs://a", "name": "MARKresname", "title": "MARKresourcetitle", "description": "MARKresourcetext",
              "mimeType": "text/plain", "size": 5, "annotations": annotations },
        ] }),
        "resources/templates/list" => json!({ "resourceTemplates": [
            { "uriTemplate": "docs://MARKpattern/{id}", "name": "MARKtplname", "description": "MARKtemplatetext" },
        ] }),
        "resources/read" => json!({ "contents": [
            { "uri": "docs://a", "mimeType": "text/plain", "text": "MARKcontents", "_meta": { "ui": "MARKreadmeta" } },
            { "uri": "docs://a/b", "mimeType": "application/pdf", "blob": "MARKread" },
        ] }),
        _ => json!({}),
    }
}

/// The reply to one method. `ID` in the body stands for the id of the request.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) method: String,
    pub(super) status: String,
    pub(super) media: String,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn new(method: &str, status: &str, media: &str, body: Vec<u8>) -> Self {
        Self { method: method.to_owned(), status: status.to_owned(), media: media.to_owned(), body }
    }

    fn bytes(&self, id: &Value) -> Vec<u8> {
        let mut body = self.body.clone();
        if let Some(at) = body.windows(2).position(|word| word == b"ID") {
            body.splice(at..at + 2, id.to_string().into_bytes());
        }
        let media = match self.media.as_str() {
            "" => String::new(),
            media => format!("Content-Type: {media}\r\n"),
        };
        let head = format!("HTTP/1.1 {}\r\n{media}Content-Length: {}\r\n\r\n", self.status, body.len());
        [head.into_bytes(), body].concat()
    }
}

/// A running server.
pub(super) struct Server {
    pub(super) url: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let reply = Arc::new(reply);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let reply = Arc::clone(&reply);
                connections.spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while respond(&mut stream, &reply).await.is_some() {}
                });
            }
        });
        Self { url, task }
    }
}

/// Answers one request; `None` at the end of the connection.
async fn respond(stream: &mut BufReader<TcpStream>, reply: &Reply) -> Option<()> {
    let (mut length, mut is_post) = (0, false);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        is_post |= line.starts_with("POST");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (method, id) = (message["method"].as_str().unwrap_or_default(), &message["id"]);
    let json_reply =
        |body: Value| Reply::new(method, "200 OK", "application/json", body.to_string().into_bytes());
    let bytes = match method {
        _ if !is_post => Reply::new("", "405 Method Not Allowed", "", Vec::new()).bytes(id),
        _ if id.is_null() => Reply::new("", "202 Accepted", "", Vec::new()).bytes(id),
        "server/discover" => {
            json_reply(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no" } }))
                .bytes(id)
        }
        method if method == reply.method => reply.bytes(id),
        method => json_reply(json!({ "jsonrpc": "2.0", "id": id, "result": session(method) })).bytes(id),
    };
    stream.get_mut().write_all(&bytes).await.ok()
}

/// The pointers of all members and elements.
pub(super) fn members(value: &Value) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    let nested = inner.iter().flat_map(|(key, value)| {
        let places = members(value).into_iter().map(move |place| format!("/{key}{place}"));
        std::iter::once(format!("/{key}")).chain(places)
    });
    nested.collect()
}

/// Values of other types that hold the same data.
pub(super) fn other_types(value: &Value) -> Vec<Value> {
    match value {
        Value::String(text) => vec![json!([text]), json!({ "value": text }), json!(5), json!(true)],
        Value::Number(number) => {
            vec![json!(number.to_string()), json!(number.as_f64()), json!([number]), json!(-7)]
        }
        Value::Bool(flag) => vec![json!(flag.to_string()), json!(u8::from(*flag)), json!([])],
        Value::Array(items) => {
            let mut others = vec![json!({ "0": items.first() }), json!(json!(items).to_string()), json!({})];
            others.extend(items.first().cloned());
            others
        }
        Value::Object(fields) => vec![json!([fields]), json!(json!(fields).to_string()), json!([]), json!(1)],
        Value::Null => Vec::new(),
    }
}

/// A value without the member or element at a place.
pub(super) fn without(value: &Value, place: &str) -> Value {
    let mut value = value.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.shift_remove(&key.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
        _ => {}
    }
    value
}

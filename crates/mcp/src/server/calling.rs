//! A call of a tool, read in one pass. Most messages are that; reading any message keeps all of it aside first, to look at
//! it several times.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, InputResponses, JsonObject,
    JsonRpcMessage, MetaObject, RequestId, RequestMetaObject,
};
use serde::de::{Deserialize, Deserializer, Error as _};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    #[serde(deserialize_with = "version")]
    #[expect(dead_code, reason = "it is what it must be, or there is no message")]
    jsonrpc: (),
    id: RequestId,
    #[serde(deserialize_with = "method")]
    #[expect(dead_code, reason = "it is what it must be, or there is no message")]
    method: (),
    params: Params,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Params {
    #[serde(rename = "_meta")]
    meta: Option<JsonObject>,
    name: String,
    arguments: Option<JsonObject>,
    input_responses: Option<InputResponses>,
    request_state: Option<String>,
}

fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    literal("2.0", deserializer)
}

fn method<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    literal("tools/call", deserializer)
}

fn literal<'de, D: Deserializer<'de>>(wanted: &str, deserializer: D) -> Result<(), D::Error> {
    match <&str>::deserialize(deserializer)? {
        found if found == wanted => Ok(()),
        _ => Err(D::Error::custom("another one")),
    }
}

/// The message, if it is a plain call of a tool. Whatever else it is, is for the reader of all messages to say.
pub(super) fn read(bytes: &[u8]) -> Option<ClientJsonRpcMessage> {
    let Message { id, params, .. } = serde_json::from_slice(bytes).ok()?;
    let mut call = CallToolRequestParams::new(params.name);
    call.arguments = params.arguments;
    call.input_responses = params.input_responses;
    call.request_state = params.request_state;
    let mut request = CallToolRequest::new(call);
    if let Some(meta) = params.meta {
        request.extensions.insert(RequestMetaObject(MetaObject(meta)));
    }
    Some(JsonRpcMessage::request(ClientRequest::CallToolRequest(request), id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slowly(bytes: &[u8]) -> Option<Value> {
        let message = serde_json::from_slice::<ClientJsonRpcMessage>(bytes).ok()?;
        serde_json::to_value(message).ok()
    }

    #[test]
    fn a_plain_call_is_read() {
        let bytes = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add","arguments":{"a":1},"_meta":{"progressToken":"p"}}}"#;
        let read = read(bytes).map(|message| serde_json::to_value(message).unwrap());
        assert_eq!(read, slowly(bytes));
        assert_eq!(read.unwrap()["params"]["_meta"]["progressToken"], "p");
    }

    /// Each place takes each value, and each is left out: what is read here is what the reader of all messages reads.
    #[test]
    fn what_is_read_is_what_the_reader_of_all_messages_reads() {
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-7),
            json!(1.5),
            json!(u64::MAX),
            json!(""),
            json!("2.0"),
            json!("tools/call"),
            json!("tools/list"),
            json!([]),
            json!({}),
            json!({ "a": [1, { "b": null }] }),
            json!({ "tools/call": null }),
            json!({ "progressToken": 5 }),
        ];
        let whole = json!({ "jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {
            "name": "add", "arguments": { "a": 1 }, "_meta": { "k": "v" },
            "inputResponses": { "q": { "action": "accept" } }, "requestState": "s" } });
        let places = [
            "/jsonrpc",
            "/id",
            "/method",
            "/params",
            "/params/name",
            "/params/arguments",
            "/params/_meta",
            "/params/inputResponses",
            "/params/requestState",
            "/other",
            "/params/other",
        ];
        let mut read_here = 0;
        for place in places {
            let (parent, key) = place.rsplit_once('/').unwrap();
            for value in values.iter().map(Some).chain([None]) {
                let mut message = whole.clone();
                let parent = message.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                match value {
                    Some(value) => parent.insert(key.to_owned(), value.clone()),
                    None => parent.remove(key),
                };
                let bytes = message.to_string();
                if let Some(read) = read(bytes.as_bytes()) {
                    read_here += 1;
                    assert_eq!(serde_json::to_value(read).ok(), slowly(bytes.as_bytes()), "{bytes}");
                }
            }
        }
        assert!(read_here > 30, "{read_here}");
        for twice in [
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","name":"sub"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}} x"#,
        ] {
            assert!(read(twice.as_bytes()).is_none(), "{twice}");
        }
    }
}

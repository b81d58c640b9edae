//! Parses a plain `tools/call` in one pass. rmcp buffers each message and parses it several times.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, InputResponses, JsonObject,
    JsonRpcMessage, MetaObject, RequestId, RequestMetaObject,
};
use serde::de::{Deserialize, Deserializer, Error as _};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    #[serde(deserialize_with = "version")]
    #[expect(dead_code, reason = "the deserializer checks the value")]
    jsonrpc: (),
    id: RequestId,
    #[serde(deserialize_with = "method")]
    #[expect(dead_code, reason = "the deserializer checks the value")]
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

fn literal<'de, D: Deserializer<'de>>(expected: &str, deserializer: D) -> Result<(), D::Error> {
    match <&str>::deserialize(deserializer)? {
        found if found == expected => Ok(()),
        _ => Err(D::Error::custom("another value")),
    }
}

/// The message, if it is a plain tool call; otherwise rmcp parses it.
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

    fn by_rmcp(bytes: &[u8]) -> Option<Value> {
        let message = serde_json::from_slice::<ClientJsonRpcMessage>(bytes).ok()?;
        serde_json::to_value(message).ok()
    }

    #[test]
    fn a_plain_call_parses() {
        let bytes = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add","arguments":{"a":1},"_meta":{"progressToken":"p"}}}"#;
        let read = read(bytes).map(|message| serde_json::to_value(message).unwrap());
        assert_eq!(read, by_rmcp(bytes));
        assert_eq!(read.unwrap()["params"]["_meta"]["progressToken"], "p");
    }

    /// Each field takes each value or is removed: the result must match rmcp's parser.
    #[test]
    fn the_fast_parser_matches_rmcp() {
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
                    assert_eq!(serde_json::to_value(read).ok(), by_rmcp(bytes.as_bytes()), "{bytes}");
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

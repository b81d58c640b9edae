//! A provider on this machine that says what a test wants.

use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use super::TestEnv;

/// The key that tests use. It may appear in the request's header and nowhere else.
pub(crate) const KEY: &str = "sk-ant-canary-7d1e55";

/// A provider and a world whose environment leads to it.
pub(crate) struct Anthropic {
    pub(crate) env: TestEnv,
    pub(crate) server: LoopbackProvider,
}

impl Anthropic {
    pub(crate) const KEY: &str = KEY;

    pub(crate) fn start(replies: Vec<Reply>) -> Self {
        Self::at(LoopbackProvider::start(replies).unwrap())
    }

    pub(crate) fn at(server: LoopbackProvider) -> Self {
        let env = TestEnv::new().with("ANTHROPIC_API_KEY", KEY).with("ANTHROPIC_BASE_URL", server.base_url());
        Self { env, server }
    }

    /// The bodies of the requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.server.requests().iter().map(ReceivedRequest::json).collect()
    }
}

/// The body of the one request of `run -p hi` with these further words.
#[track_caller]
pub(crate) fn ask(words: &[&str]) -> Value {
    let model = Anthropic::start(vec![says("hello")]);
    let finished = model.env.run(["run", "-p", "hi"].iter().chain(words)).ok();
    assert_eq!(finished.out, "hello\n", "{finished}");
    let mut bodies = model.bodies();
    assert_eq!(bodies.len(), 1);
    bodies.remove(0)
}

/// An answer of words.
pub(crate) fn says(text: &str) -> Reply {
    let delta = json!({"type": "text_delta", "text": text});
    Reply::events(stream(&json!({"type": "text", "text": ""}), &delta, "end_turn"))
}

/// An answer of words that come in these pieces.
pub(crate) fn says_in_pieces(pieces: &[&str]) -> Reply {
    let deltas = pieces.iter().map(|text| json!({"type": "text_delta", "text": text})).collect();
    Reply::events(stream_of(&[(json!({"type": "text", "text": ""}), deltas)], "end_turn"))
}

/// An answer of words that is cut off because it became too long.
pub(crate) fn says_too_much(text: &str) -> Reply {
    let delta = json!({"type": "text_delta", "text": text});
    Reply::events(stream(&json!({"type": "text", "text": ""}), &delta, "max_tokens"))
}

/// An answer of words in one piece, to a request that did not ask for a stream.
pub(crate) fn says_whole(text: &str) -> Reply {
    let message = json!({
        "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-test",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 7, "output_tokens": 5},
    });
    Reply::json(200, message.to_string())
}

/// An answer of words whose last record of usage has these members.
pub(crate) fn says_with_usage(text: &str, usage: &Value) -> Reply {
    let delta = json!({"type": "text_delta", "text": text});
    let stream = stream(&json!({"type": "text", "text": ""}), &delta, "end_turn");
    Reply::events(stream.replace(USAGE, &usage.to_string()))
}

/// An answer of words whose connection breaks before the end.
pub(crate) fn begins(text: &str) -> Reply {
    let delta = json!({"type": "text_delta", "text": text});
    let stream = stream(&json!({"type": "text", "text": ""}), &delta, "end_turn");
    let end = stream.find("event: content_block_stop").unwrap();
    Reply::events(stream).cut_after(end)
}

/// An answer of words that does not come to its end for minutes.
pub(crate) fn hesitates(text: &str) -> Reply {
    let delta = json!({"type": "text_delta", "text": text});
    let stream = stream(&json!({"type": "text", "text": ""}), &delta, "end_turn");
    let end = stream.find("event: content_block_stop").unwrap();
    Reply::events(stream).in_pieces(end, std::time::Duration::from_mins(3))
}

/// An answer that calls a tool.
pub(crate) fn calls(tool: &str, arguments: &Value) -> Reply {
    calls_all(&[tool], arguments)
}

/// An answer that calls several tools at once.
pub(crate) fn calls_all(tools: &[&str], arguments: &Value) -> Reply {
    let delta = json!({"type": "input_json_delta", "partial_json": arguments.to_string()});
    let call = |(number, tool)| {
        (
            json!({"type": "tool_use", "id": format!("toolu_{number}"), "name": tool, "input": {}}),
            vec![delta.clone()],
        )
    };
    Reply::events(stream_of(&(1_usize..).zip(tools).map(call).collect::<Vec<_>>(), "tool_use"))
}

/// The last record of usage, as it stands in a stream.
const USAGE: &str = r#"{"output_tokens":5}"#;

fn stream(block: &Value, delta: &Value, stop: &str) -> String {
    stream_of(&[(block.clone(), vec![delta.clone()])], stop)
}

/// A stream of blocks, each of a start and what is added to it, piece by piece.
fn stream_of(blocks: &[(Value, Vec<Value>)], stop: &str) -> String {
    let message = json!({
        "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-test", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 7, "output_tokens": 1},
    });
    let mut events = vec![json!({"type": "message_start", "message": message})];
    for (index, (block, deltas)) in blocks.iter().enumerate() {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        events.extend(
            deltas.iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
        );
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.extend([
        json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}}),
        json!({"type": "message_stop"}),
    ]);
    let lines = events.iter().flat_map(|event| {
        ["event: ", event["type"].as_str().unwrap(), "\ndata: ", &event.to_string(), "\n\n"]
            .map(str::to_owned)
    });
    lines.collect()
}

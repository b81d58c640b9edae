//! Prompt caches stay valid: each request extends the one before.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolpost::{Output, ParameterType, ToolSpec, tool_fn};
use toolpost_agent::{Agent, Dynamic};
use toolpost_llm::{CacheLifetime, ModelSettings, PromptCaching, Turn};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::Toolbox;

use crate::support::hosted;

/// An action of a model: a call of a tool, or the final text.
enum Does {
    Calls(&'static str, Value),
    Says(&'static str),
}
use Does::{Calls, Says};

/// An answer in the words of a provider.
fn answer(provider: &str, number: usize, does: &Does) -> Value {
    let id = format!("call_{number}");
    match (provider, does) {
        ("anthropic", Calls(name, input)) => {
            json!({"type": "message", "id": "m", "role": "assistant", "model": "m",
            "content": [{"type": "tool_use", "id": id, "name": name, "input": input}],
            "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}})
        }
        ("anthropic", Says(text)) => json!({"type": "message", "id": "m", "role": "assistant", "model": "m",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}),
        ("openai" | "xai", does) => {
            let output = match does {
                Calls(name, input) => {
                    json!({"type": "function_call", "id": format!("fc_{number}"), "call_id": id,
                    "name": name, "arguments": input.to_string(), "status": "completed"})
                }
                Says(text) => json!({"type": "message", "id": format!("msg_{number}"), "role": "assistant",
                    "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}),
            };
            json!({"id": "r", "object": "response", "status": "completed", "model": "m", "output": [output],
                "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})
        }
        ("gemini", does) => {
            let part = match does {
                Calls(name, input) => json!({"functionCall": {"id": id, "name": name, "args": input},
                    "thoughtSignature": "c2lnbmVk"}),
                Says(text) => json!({"text": text}),
            };
            json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1}})
        }
        (_, does) => {
            let (message, finish) = match does {
                Calls(name, input) => (
                    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id,
                    "type": "function", "function": {"name": name, "arguments": input.to_string()}}]}),
                    "tool_calls",
                ),
                Says(text) => (json!({"role": "assistant", "content": text}), "stop"),
            };
            json!({"id": "c", "object": "chat.completion", "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
        }
    }
}

fn add_tool(toolbox: &Toolbox, name: &str) {
    let mut spec =
        ToolSpec::new(name, "A tool.").optional_parameter("text", ParameterType::String, "The text.");
    spec.group = Some("crm".to_owned());
    // What is called may bring a tool with it.
    let more = toolbox.clone();
    toolbox
        .add(tool_fn(spec, move |_, _| {
            let more = more.clone();
            async move {
                if more.spec("came_later").is_none() {
                    let spec = ToolSpec::new("came_later", "A tool that came later.");
                    more.add(tool_fn(spec, async |_, _| Ok(Output::text("late")))).unwrap();
                }
                Ok(Output::text("done"))
            }
        }))
        .unwrap();
}

/// The bodies of all requests of two runs of one conversation.
async fn bodies(
    (provider, name): (&'static str, &str),
    dynamic: Dynamic,
    caching: PromptCaching,
    script: Vec<Does>,
) -> Vec<String> {
    let replies = script.iter().enumerate();
    let replies = replies.map(|(number, does)| Reply::json(200, answer(provider, number, does).to_string()));
    let server = LoopbackProvider::start(replies.collect()).unwrap();
    let toolbox = Toolbox::builder().build().unwrap();
    for name in ["boil_water", "add_person", "find_person", "send_letter"] {
        add_tool(&toolbox, name);
    }
    let agent = Agent::builder(hosted(&server, provider, name), toolbox)
        .system("Be brief.")
        .settings(ModelSettings { prompt_caching: caching, ..ModelSettings::default() })
        .dynamic(dynamic)
        .core_tools(["boil_water"])
        .build();
    let first = agent.run("Write to Ada.").finish().await;
    assert!(first.record.success, "{provider}: {:?} {:?}", first.error, first.stop);
    let mut turns = first.turns;
    turns.push(Turn::user("And now?"));
    let second = agent.run_turns(turns).with_tool_session(first.tool_session.unwrap()).finish().await;
    assert!(second.record.success, "{provider}: {:?} {:?}", second.error, second.stop);
    let requests = server.requests();
    assert_eq!(requests.len(), script.len(), "{provider}");
    requests.into_iter().map(|request| String::from_utf8(request.body).unwrap()).collect()
}

/// A request's body, and where its parts are.
struct Body<'a> {
    whole: &'a str,
    members: BTreeMap<String, &'a RawValue>,
}

const CONVERSATIONS: [&str; 3] = ["messages", "input", "contents"];

impl<'a> Body<'a> {
    fn new(whole: &'a str) -> Self {
        Self { whole, members: serde_json::from_str(whole).unwrap() }
    }

    /// The text of a member, without the brackets that close it: more may come before them.
    fn open(&self, name: &str) -> &'a str {
        open(self.members.get(name).map_or("", |raw| raw.get()))
    }

    /// The body up to the end of a member, without the brackets that close it.
    fn up_to(&self, name: &str) -> &'a str {
        let text = self.members[name].get();
        let end = text.as_ptr() as usize - self.whole.as_ptr() as usize + text.len();
        open(&self.whole[..end])
    }
}

fn open(text: &str) -> &str {
    text.trim_end_matches([']', '}', '"'])
}

/// Holds each body against the one before. How often tools came is returned.
fn check(name: &str, bodies: &[String]) -> usize {
    let mut grown = 0;
    for (index, pair) in bodies.windows(2).enumerate() {
        let (before, after) = (Body::new(&pair[0]), Body::new(&pair[1]));
        for (member, raw) in &before.members {
            let now = after.members.get(member).map(|raw| raw.get());
            let may_grow = member == "tools" || CONVERSATIONS.contains(&member.as_str());
            assert!(
                if may_grow {
                    now.is_some_and(|now| now.starts_with(before.open(member)))
                } else {
                    now == Some(raw.get())
                },
                "{name}, after request {index}, `{member}` was\n{raw}\nand is\n{now:?}"
            );
        }
        assert_eq!(before.members.len(), after.members.len(), "{name}: {}", after.whole);
        let has_grown = before.open("tools") != after.open("tools");
        grown += usize::from(has_grown);
        // The bytes are equal up to the end of the conversation or, after new tools, of the first of both.
        let conversation = CONVERSATIONS.into_iter().find(|name| before.members.contains_key(*name)).unwrap();
        let (tools, all) = (before.up_to("tools"), before.up_to(conversation));
        let same = if has_grown && tools.len() < all.len() { tools } else { all };
        assert!(after.whole.starts_with(same), "{name}, after request {index}:\n{same}\n{}", after.whole);
        assert!(after.open(conversation).len() > before.open(conversation).len());
    }
    grown
}

#[tokio::test]
async fn each_request_extends_the_one_before_while_tools_are_loaded() {
    let script = || {
        vec![
            Calls("browse_toolkit", json!({"query": "letter"})),
            Calls("load_tools", json!({"tool_names": ["send_letter"]})),
            Calls("send_letter", json!({"text": "Dear \"Ada\""})),
            Calls("load_tool_group", json!({"group": "crm"})),
            Calls("find_person", json!({})),
            Says("Done."),
            Calls("load_tools", json!({"tool_names": ["came_later"]})),
            Says("Nothing more."),
        ]
    };
    for model in [
        ("anthropic", "claude-opus-5-5"),
        ("openai", "gpt-5.4"),
        ("gemini", "gemini-3.8-flash"),
        ("xai", "grok-4.3"),
        ("openai-compatible", "some-model"),
    ] {
        let bodies = bodies(model, Dynamic::Browse, PromptCaching::Automatic, script()).await;
        assert_eq!(check(model.0, &bodies), 3, "{}", model.0);
        assert!(bodies[7].contains("came_later") && !bodies[0].contains("send_letter"));
    }
}

#[tokio::test]
async fn each_request_extends_the_one_before_if_the_provider_searches_tools() {
    for model in [("anthropic", "claude-opus-5-5"), ("openai", "gpt-5.4")] {
        let script = vec![
            Calls("find_person", json!({})),
            Calls("send_letter", json!({})),
            Says("Done."),
            Calls("came_later", json!({})),
            Says("Nothing more."),
        ];
        let bodies = bodies(model, Dynamic::Native, PromptCaching::Automatic, script).await;
        assert_eq!(check(model.0, &bodies), 1, "what came later stands at the end");
        assert_eq!(bodies[0].matches(r#""defer_loading":true"#).count(), 3);
        assert_eq!(bodies[4].matches(r#""defer_loading":true"#).count(), 4);
    }
}

#[tokio::test]
async fn anthropic_caches_prompts_by_default_and_at_breakpoints() {
    let script =
        || vec![Calls("load_tools", json!({"tool_names": ["send_letter"]})), Says("Done."), Says("So.")];
    let model = ("anthropic", "claude-opus-5-5");
    let mark = r#","cache_control":{"type":"ephemeral","ttl":"5m"}"#;
    let automatic = bodies(model, Dynamic::Browse, PromptCaching::Automatic, script()).await;
    for body in &automatic {
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["cache_control"], json!({"type": "ephemeral"}));
    }
    let off = bodies(model, Dynamic::Browse, PromptCaching::Off, script()).await;
    assert!(off.iter().all(|body| !body.contains("cache_control")));
    for dynamic in [Dynamic::Browse, Dynamic::Native] {
        let script = if matches!(dynamic, Dynamic::Native) {
            vec![Calls("send_letter", json!({})), Says("Done."), Says("So.")]
        } else {
            script()
        };
        let marked =
            bodies(model, dynamic.clone(), PromptCaching::Breakpoints(CacheLifetime::FiveMinutes), script)
                .await;
        for body in &marked {
            let whole: Value = serde_json::from_str(body).unwrap();
            let is_marked = |value: &Value| value.get("cache_control").is_some();
            assert!(is_marked(&whole["system"][0]), "{body}");
            let tools = whole["tools"].as_array().unwrap();
            let shown = tools
                .iter()
                .rposition(|tool| tool.get("input_schema").is_some() && tool.get("defer_loading").is_none());
            assert_eq!(tools.iter().position(is_marked), shown, "{dynamic:?} {body}");
            assert_eq!(tools.iter().filter(|tool| is_marked(tool)).count(), 1);
            let last = whole["messages"].as_array().unwrap().last().unwrap();
            assert!(is_marked(last["content"].as_array().unwrap().last().unwrap()), "{body}");
            assert_eq!(body.matches(mark).count(), 3);
        }
        let bare: Vec<String> = marked.iter().map(|body| body.replace(mark, "")).collect();
        check("marks", &bare);
    }
}

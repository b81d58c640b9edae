//! Search tools.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Call, Caller, Code, ParameterType, ToolError, ToolSource, ToolSpec};
use toolpost_gateway::catalog::{Catalog, definition_tokens};
use toolpost_gateway::{Filter, Filtered, SearchTools, Searchable};
use toolpost_toolbox::Toolbox;

use super::upstream::{Upstream, caller, names, spec};

const NONE: [&str; 0] = [];
const THREE: [&str; 3] = ["search_tools", "describe_tools", "call_tool"];

async fn behind(
    upstream: &Arc<Upstream>,
    filter: Filter,
    change: impl FnOnce(SearchTools) -> SearchTools,
) -> (Toolbox, Searchable) {
    let toolbox = Toolbox::builder().name("front").build().unwrap();
    toolbox.add_source(upstream.clone()).await.unwrap();
    let source: Arc<dyn ToolSource> = Arc::new(Filtered::new(Arc::new(toolbox.clone()), filter));
    let searched = Searchable::new(source, change(SearchTools::new(Catalog::new(&toolbox))));
    (toolbox, searched)
}

async fn ask(
    source: &dyn ToolSource,
    who: &Caller,
    tool: &str,
    arguments: Value,
) -> Result<Value, ToolError> {
    let call = Call::new(tool, arguments).with_caller(who.clone());
    let output = source.call(call).await.result?;
    Ok(output.structured.clone().unwrap_or_else(|| output.to_text().into_owned().into()))
}

fn found(answer: &Value) -> Vec<&str> {
    answer["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_client_without_search_sees_three_tools_and_reaches_all() {
    let upstream = Upstream::of(
        "up",
        vec![
            spec("send_email", "Send an e-mail to somebody."),
            spec("forecast", "Forecast the weather of a city."),
        ],
    );
    let change = |tools: SearchTools| {
        tools.always(["fore*".parse().unwrap()]).whole_for(["claude-code".parse().unwrap()])
    };
    let (toolbox, source) = behind(&upstream, Filter::default(), change).await;
    let plain = Caller::new("mcp").with_program("inspector");
    let finder = Caller::new("mcp").with_program("claude-code");
    assert_eq!(names(&*source.seen_by(&plain).unwrap()).await, [&THREE[..], &["forecast"]].concat());
    assert_eq!(names(&*source.seen_by(&finder).unwrap()).await, ["send_email", "forecast"]);
    assert_eq!(names(&source).await, [&THREE[..], &["send_email", "forecast"]].concat());

    let answer = ask(&source, &plain, "search_tools", json!({ "query": "mail somebody" })).await.unwrap();
    assert_eq!(found(&answer), ["send_email"]);
    assert_eq!(answer["tools"][0]["parameters"], "text?");
    let answer = ask(&source, &plain, "search_tools", json!({ "query": "", "limit": 1 })).await.unwrap();
    assert_eq!((found(&answer).len(), &answer["total"], &answer["next_offset"]), (1, &json!(2), &json!(1)));
    let answer = ask(&source, &plain, "search_tools", json!({ "query": "zzz" })).await.unwrap();
    assert!(answer["hint"].as_str().unwrap().contains("there are 2 tools"), "{answer}");
    let described = json!({ "names": ["send_email", "send_mail"] });
    let answer = ask(&source, &plain, "describe_tools", described).await.unwrap();
    assert_eq!(answer["tools"][0]["input_schema"]["properties"]["text"]["type"], "string");
    assert_eq!(answer["tools"][1]["hint"], "Did you mean `send_email`?");

    for arguments in [json!({ "text": "a" }), json!("{\"text\": \"a\"}"), json!(null)] {
        let wanted = json!({ "name": "send_email", "arguments": arguments });
        assert_eq!(ask(&source, &plain, "call_tool", wanted).await.unwrap(), "up:send_email");
    }
    // A call through `call_tool` has one record, under the name of the tool.
    let records: Vec<String> = toolbox.records().iter().map(|record| record.tool.to_string()).collect();
    assert_eq!(records, ["send_email"; 3]);
    assert_eq!(ask(&source, &plain, "send_email", json!({})).await.unwrap(), "up:send_email");
    for (wanted, code) in [
        (json!({ "name": "send_email", "arguments": [1] }), Code::InvalidInput),
        (json!({ "arguments": {} }), Code::InvalidInput),
        (json!({ "name": "send_mail" }), Code::NotFound),
        (json!({ "name": "resource:notes://1" }), Code::NotFound),
        (json!({ "name": "call_tool", "arguments": { "name": "send_email" } }), Code::NotFound),
    ] {
        let error = ask(&source, &plain, "call_tool", wanted.clone()).await.unwrap_err();
        assert_eq!(error.code(), code, "{wanted}: {error}");
    }
    assert_eq!(upstream.count_calls(), 4);
}

#[tokio::test]
async fn search_tools_respect_the_filter() {
    let upstream = Upstream::new("up", &["read_mail", "send_mail"]);
    let filter = Filter::parse(["read_*"], NONE).unwrap().client("admin", ["*"], NONE).unwrap();
    let (_, source) = behind(&upstream, filter, |tools| tools).await;
    for (who, sees) in [("guest", &["read_mail"][..]), ("admin", &["read_mail", "send_mail"])] {
        let who = caller(who);
        let mut answer = ask(&source, &who, "search_tools", json!({ "query": "mail" })).await.unwrap();
        assert_eq!(found(&answer), sees, "{who:?}");
        answer = ask(&source, &who, "describe_tools", json!({ "names": ["send_mail"] })).await.unwrap();
        assert_eq!(answer["tools"][0].get("error").is_some(), sees.len() == 1, "{answer}");
        let called = ask(&source, &who, "call_tool", json!({ "name": "send_mail" })).await;
        assert_eq!(called.is_ok(), sees.len() == 2, "{called:?}");
    }
    assert_eq!(upstream.count_calls(), 1);
}

#[tokio::test]
async fn searches_see_the_current_list() {
    let upstream = Upstream::of("up", vec![spec("send_email", "Send an e-mail.")]);
    let (_, source) = behind(&upstream, Filter::default(), |tools| tools).await;
    let who = Caller::new("mcp");
    let search = || ask(&source, &who, "search_tools", json!({ "query": "email" }));
    assert_eq!(found(&search().await.unwrap()), ["send_email"]);
    let before = source.generation();
    upstream.set(vec![spec("draft_email", "Draft an e-mail."), spec("sort_email", "Sort e-mails.")]);
    assert_ne!(source.generation(), before);
    let mut now = search().await.unwrap();
    assert_eq!(now["tools"].as_array().unwrap().len(), 2, "{now}");
    upstream.set(vec![]);
    now = search().await.unwrap();
    assert_eq!(now["total"], 0);
    upstream.set(vec![spec("search_tools", "A tool of that name."), spec("other", "Other.")]);
    assert_eq!(names(&source).await, [&THREE[..], &["other"]].concat(), "the search tools have precedence");
    let wanted = json!({ "name": "search_tools" });
    assert_eq!(ask(&source, &who, "call_tool", wanted).await.unwrap(), "up:search_tools");
}

/// 500 tools and a first search cost a client without search at most a twentieth of the tokens.
#[tokio::test]
async fn the_tokens_of_five_hundred_tools() {
    let things = [
        "invoice", "contact", "ticket", "meeting", "document", "order", "payment", "shipment", "campaign",
        "user",
    ];
    let verbs =
        ["create", "read", "update", "delete", "list", "search", "export", "archive", "assign", "comment_on"];
    let places = ["crm", "erp", "desk", "shop", "wiki"];
    let tool = |number: usize| {
        let (place, verb, thing) = (places[number % 5], verbs[number / 5 % 10], things[number / 50 % 10]);
        let text = format!(
            "{verb} a {thing} in the {place} system. Use it when the person asks about {thing}s of {place}; the answer has \
             the id, the state and the time of the last change."
        );
        ToolSpec::new(format!("{place}__{verb}_{thing}"), text)
            .parameter("id", ParameterType::String, &format!("The id of the {thing}, as the list gives it."))
            .optional_parameter(
                "fields",
                ParameterType::String,
                "The names of the fields wanted, with commas between.",
            )
            .optional_parameter("dry_run", ParameterType::Boolean, "Whether only to say what would be done.")
    };
    let upstream = Upstream::of("up", (0..500).map(tool).collect());
    let (_, source) = behind(&upstream, Filter::default(), |tools| tools).await;
    let tokens =
        |specs: &[Arc<ToolSpec>]| specs.iter().map(|spec| definition_tokens(spec, false)).sum::<u64>();
    let all = tokens(&upstream.list().await.unwrap());
    let who = Caller::new("mcp");
    let three = tokens(&source.seen_by(&who).unwrap().list().await.unwrap());
    let query = json!({ "query": "assign a ticket in desk" });
    let answer = ask(&source, &who, "search_tools", query).await.unwrap();
    assert_eq!(found(&answer)[0], "desk__assign_ticket");
    let search = answer.to_string().len() as u64 / 4;
    println!("500 tools: {all} tokens; behind three: {three}, and {search} for a search");
    assert!(three + search <= all / 20, "{all} {three} {search}");
}

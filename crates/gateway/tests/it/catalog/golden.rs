//! Comparison with `llm_factory_toolkit`, with every intended difference.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost::{Call, Code, Output, ParameterType, ToolError, ToolSpec, tool_fn};
use toolpost_gateway::catalog::{
    Catalog, DiscoveryMode, DynamicTools, ToolSession, compact_schema, definition,
};
use toolpost_toolbox::Toolbox;

use super::{OneAnswer, call, golden, toolbox_of};

/// The intended differences: the case (a final `*` is a wildcard), the JSON pointer of the difference or of a parent (`*`
/// matches any part), and the reason. An unused row fails the test.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("browse/*", "/calls/*/body/hint", "the hint has another text"),
    ("meeting/*", "/calls/*/body/hint", "the hint has another text"),
    ("meeting/*", "/calls/*/payload/hint", "the hint has another text"),
    ("browse/word_of_the_category_alone", "/calls", "words of categories and groups are searched too"),
    ("browse/exact_name", "/calls", "the parts of a name are words of the query too"),
    ("browse/query_in_category", "/calls", "ties are in the order of registration"),
    (
        "meeting/load_invalid",
        "/calls/*/*/invalid/0/did_you_mean",
        "suggestions are by spelling, not by shared words",
    ),
    ("meeting/load_core", "/calls/*/*/already_active", "a meta-tool is a tool that is active"),
    ("meeting/load_core", "/calls/*/*/invalid", "a meta-tool is a tool that is active"),
    ("session/budget", "/analytics/most_loaded", "ties are sorted by name"),
    ("meeting/*", "/session/active_tools", "the load order is stable for prompt caches"),
    ("browse/*", "/session/active_tools", "the load order is stable for prompt caches"),
    ("browse/*", "/session/_token_counts", "core and meta-tools count"),
    ("meeting/*", "/session/_token_counts", "core and meta-tools count"),
    ("meeting/*", "/session/_analytics_calls", "the session counts calls itself"),
    ("browse/*", "/session/_analytics_calls", "the session counts calls itself"),
    ("meeting/budget", "/calls/*/body/budget", "core and meta-tools count"),
    ("meeting/budget", "/calls/*/payload/budget", "core and meta-tools count"),
    ("meeting/load_twice_in_one_call", "/calls", "the second of two equal names is already active"),
    ("meeting/load_twice_in_one_call", "/session", "the second of two equal names is already active"),
    ("meeting/find_garbage", "/calls/0", "without a valid model answer, the search is by words"),
    ("meeting/find_failure", "/calls/0", "without a model, the search is by words"),
    ("dispatch/list", "", "a list is a result like any other"),
    ("dispatch/number", "", "a number is a result like any other"),
    ("dispatch/nothing", "", "null is a result like any other"),
    ("dispatch/wrong_type", "/status", "arguments are checked before the tool runs"),
    ("dispatch/missing", "/status", "arguments are checked before the tool runs"),
    ("dispatch/injected_overridden", "", "the model cannot override injected values"),
    ("dispatch/mock", "/payload", "a text is its own payload, mocked or not"),
    ("session/*", "/saved/active_tools", "the load order is stable for prompt caches"),
    ("session/partial_1", "/read_again/active_tools", "the load order is stable for prompt caches"),
];

fn differences(theirs: &Value, ours: &Value, pointer: &str, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let pointer = format!("{pointer}/{key}");
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => differences(one, other, &pointer, found),
                    _ => found.push(pointer),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(one, other, &format!("{pointer}/{index}"), found);
            }
        }
        _ if theirs != ours => found.push(pointer.to_owned()),
        _ => {}
    }
}

fn covers(listed: &(&str, &str, &str), case: &str, pointer: &str) -> bool {
    let same_case = match listed.0.strip_suffix('*') {
        Some(begin) => case.starts_with(begin),
        None => case == listed.0,
    };
    let parts: Vec<&str> = listed.1.split('/').skip(1).collect();
    let found: Vec<&str> = pointer.split('/').skip(1).collect();
    same_case
        && parts.len() <= found.len()
        && parts.iter().zip(&found).all(|(part, found)| *part == "*" || part == found)
}

#[derive(Default)]
struct Comparison {
    used: Vec<bool>,
    unexpected: Vec<String>,
    cases: usize,
}

impl Comparison {
    fn case(&mut self, case: &str, theirs: &Value, ours: &Value) {
        self.used.resize(DIFFERENCES.len(), false);
        self.cases += 1;
        let mut found = Vec::new();
        differences(theirs, ours, "", &mut found);
        for pointer in found {
            let mut listed = false;
            for (used, difference) in self.used.iter_mut().zip(DIFFERENCES) {
                if covers(difference, case, &pointer) {
                    (*used, listed) = (true, true);
                }
            }
            if !listed {
                let value = |from: &Value| from.pointer(&pointer).cloned().unwrap_or_default();
                self.unexpected.push(format!(
                    "{case} {pointer}: theirs {} ours {}",
                    value(theirs),
                    value(ours)
                ));
            }
        }
    }
}

async fn meet(office: &Value, case: &Value) -> Value {
    let options = &case["options"];
    let mut session = ToolSession::new();
    if let Some(limit) = options["max_tools"].as_u64() {
        session = session.with_max_tools(usize::try_from(limit).unwrap());
    }
    if let Some(budget) = options["token_budget"].as_u64() {
        session = session.with_token_budget(budget);
    }
    let core: Vec<String> = serde_json::from_value(options["core"].clone()).unwrap_or_default();
    let find = options.get("find");
    let discovery = if find.is_some() { DiscoveryMode::Find } else { DiscoveryMode::Browse };
    let answer = find.and_then(Value::as_str).map(str::to_owned);
    let tools = DynamicTools::new(&toolbox_of(office), discovery, core, false);
    let (dynamic, notices) = tools.open(session.clone());
    assert!(notices.is_empty(), "{notices:?}");
    let mut calls = Vec::new();
    for step in case["calls"].as_array().unwrap() {
        let (tool, arguments) = (step["tool"].as_str().unwrap(), step["arguments"].clone());
        let port = Arc::new(OneAnswer(answer.clone()));
        let output = call(&dynamic, tool, arguments.clone(), port).await.unwrap();
        let payload = output.payload.as_ref().and_then(toolpost::Payload::get::<Value>).unwrap();
        calls.push(
            json!({ "tool": tool, "arguments": arguments, "body": output.structured, "payload": *payload }),
        );
    }
    json!({ "case": case["case"], "options": options, "calls": calls, "session": session })
}

fn hold_session(case: &Value) -> Value {
    if let Some(data) = case.get("data") {
        let session: ToolSession = serde_json::from_value(data.clone()).unwrap();
        return json!({ "case": case["case"], "data": data, "read_again": session });
    }
    let session: ToolSession = serde_json::from_value(case["options"].clone()).unwrap();
    let mut steps = Vec::new();
    for step in case["steps"].as_array().unwrap() {
        let (verb, argument) = (step["verb"].as_str().unwrap(), &step["argument"]);
        let mut result = Value::Null;
        match verb {
            "load" => {
                let tools = argument.as_object().unwrap().iter();
                result = session
                    .load(tools.map(|(name, tokens)| (name.as_str(), tokens.as_u64().unwrap())))
                    .into();
            }
            "unload" => {
                session.unload(argument.as_array().unwrap().iter().filter_map(Value::as_str));
            }
            "call" => session.record_call(argument.as_str().unwrap()),
            _ => session.reset_analytics(),
        }
        steps.push(
            json!({ "verb": verb, "argument": argument, "result": result, "budget": session.budget() }),
        );
    }
    let saved = serde_json::to_value(&session).unwrap();
    let again: ToolSession = serde_json::from_value(saved.clone()).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), saved);
    json!({
        "case": case["case"], "options": case["options"], "steps": steps, "saved": saved,
        // The original sorts when it saves.
        "read_again": case["read_again"],
        "analytics": session.analytics(),
    })
}

fn dispatcher() -> Toolbox {
    let one =
        |name: &str| ToolSpec::new(name, "A tool.").parameter("text", ParameterType::String, "The text.");
    let mut who = ToolSpec::new("who", "A tool.");
    who.injected = vec!["user_id".to_owned()];
    Toolbox::builder()
        .tool(tool_fn(one("echo"), async |args, _| Ok(Output::text(args.decode::<String>("text")?))))
        .tool(tool_fn(ToolSpec::new("no_arguments", "A tool."), async |_, _| {
            Ok(Output::text("nothing needed"))
        }))
        .tool(tool_fn(one("table"), async |args, _| {
            Ok(Output::json(json!({ "text": args.get("text"), "n": 1 })))
        }))
        .tool(tool_fn(one("several"), async |args, _| {
            Ok(Output::json(json!([args.get("text"), args.get("text")])))
        }))
        .tool(tool_fn(one("number"), async |_, _| Ok(Output::json(json!(7)))))
        .tool(tool_fn(one("nothing"), async |_, _| Ok(Output::json(Value::Null))))
        .tool(tool_fn(one("apart"), async |args, _| {
            Ok(Output::text("for the model").with_payload(json!({ "for": args.get("text") })))
        }))
        .tool(tool_fn(one("fails"), async |_, _| Err(ToolError::internal("broken inside"))))
        .tool(tool_fn(one("slow"), async |_, _| {
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok(Output::default())
        }))
        .tool(tool_fn(who, async |_, ctx| {
            Ok(Output::text(format!("you are {}", ctx.inject_named::<String>("user_id")?)))
        }))
        .build()
        .unwrap()
}

/// The original's word for a code of ours.
fn status(error: &ToolError) -> &'static str {
    match error.code() {
        Code::NotFound => "tool_not_found",
        Code::Timeout => "timeout",
        Code::InvalidInput if error.message().contains("JSON object") => "argument_type_error",
        Code::InvalidInput | Code::MissingParam => "argument refused",
        _ => "execution_error",
    }
}

async fn dispatch(toolbox: &Toolbox, case: &Value) -> Value {
    let text = case["arguments"].as_str().unwrap();
    // What is not JSON reaches a toolbox as the text that it is.
    let arguments = match text {
        "" => json!({}),
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    };
    let not_json = arguments.is_string();
    let mut call = Call::new(case["tool"].as_str().unwrap(), arguments);
    let options = &case["options"];
    call.options.mock = options["use_mock"] == true;
    call.options.timeout = options["tool_timeout"].as_f64().map(Duration::from_secs_f64);
    for (name, value) in options["tool_execution_context"].as_object().unwrap_or(&Map::new()) {
        call = call.provide_named(name, value.clone());
    }
    let (status, content, payload) = match toolbox.call(call).await.result {
        Ok(output) => {
            let payload = output.payload.as_ref().and_then(toolpost::Payload::get::<Value>);
            let payload = payload.map_or_else(|| output.result_value(), |payload| (*payload).clone());
            ("success", Value::from(output.to_text().into_owned()), payload)
        }
        Err(_) if not_json => ("argument_decode_error", Value::Null, Value::Null),
        Err(error) => (status(&error), Value::Null, Value::Null),
    };
    let mut ours = case.clone();
    (ours["status"], ours["content"], ours["payload"]) = (status.into(), content, payload);
    ours
}

/// JSON in a text as the value that it is: the original writes it with spaces.
fn read_content(mut case: Value) -> Value {
    if let Some(read) = case["content"].as_str().and_then(|text| serde_json::from_str(text).ok()) {
        case["content"] = read;
    }
    case
}

fn cases<'a>(golden: &'a Value, section: &str) -> impl Iterator<Item = (String, &'a Value)> {
    golden[section].as_array().unwrap().iter().map(|case| (case["case"].as_str().unwrap().to_owned(), case))
}

#[tokio::test]
async fn answers_equal_the_original_except_listed_differences() {
    let Some(golden) = golden("the_original_answers_the_same") else { return };
    let mut comparison = Comparison::default();
    let office = &golden["office"];
    for (section, prefix) in [("browse", "browse"), ("meetings", "meeting")] {
        for (name, theirs) in cases(&golden, section) {
            comparison.case(&format!("{prefix}/{name}"), theirs, &meet(office, theirs).await);
        }
    }
    for (name, theirs) in cases(&golden, "sessions") {
        comparison.case(&format!("session/{name}"), theirs, &hold_session(theirs));
    }
    let toolbox = dispatcher();
    for (name, theirs) in cases(&golden, "dispatch") {
        let ours = dispatch(&toolbox, theirs).await;
        comparison.case(&format!("dispatch/{name}"), &read_content(theirs.clone()), &read_content(ours));
    }
    let toolbox = toolbox_of(office);
    let catalog = Catalog::new(&toolbox);
    let groups = golden["groups"]["tools_in_group"].as_object().unwrap().keys();
    let in_groups: BTreeMap<&String, Vec<String>> =
        groups.map(|group| (group, catalog.tools_in_group(group))).collect();
    let ours = json!({
        "list_groups": catalog.list_groups(),
        "list_categories": catalog.list_categories(),
        "tools_in_group": in_groups,
    });
    comparison.case("groups", &golden["groups"], &ours);
    let definitions: Map<String, Value> = toolbox
        .specs()
        .iter()
        .map(|spec| {
            let forms = json!({ "full": definition(spec, false), "compact": definition(spec, true) });
            (spec.name.clone(), forms)
        })
        .collect();
    comparison.case("definitions", &golden["definitions"], &definitions.into());
    let mut savings = serde_json::to_value(catalog.token_savings()).unwrap();
    let total = |field: &str| -> u64 {
        savings.as_object().unwrap().values().filter_map(|row| row[field].as_u64()).sum()
    };
    let total = json!({ "full": total("full"), "compact": total("compact"), "saved": total("saved") });
    savings["__total__"] = total;
    comparison.case("savings", &golden["savings"], &savings);

    println!("{} cases", comparison.cases);
    assert!(comparison.cases > 60, "{} cases", comparison.cases);
    let unneeded: Vec<String> = DIFFERENCES
        .iter()
        .zip(&comparison.used)
        .filter(|(_, used)| !**used)
        .map(|((case, pointer, _), _)| format!("no longer different: {case} {pointer}"))
        .collect();
    assert!(
        comparison.unexpected.is_empty() && unneeded.is_empty(),
        "{}\n{}",
        comparison.unexpected.join("\n"),
        unneeded.join("\n")
    );
}

#[test]
fn compact_definitions_equal_the_original() {
    let Some(golden) = golden("compact_definitions_equal_the_original") else { return };
    // Made compact twice is made compact once.
    for tool in golden["scenarios"]["tools"].as_array().unwrap() {
        let once = compact_schema(&tool["parameters"]);
        assert_eq!(compact_schema(&once), once);
    }
}

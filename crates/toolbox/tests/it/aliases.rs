//! Aliases of tools.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{
    Alias, Approval, Args, BoxFuture, Call, Code, Ctx, Output, ParameterType, Tool, ToolError, ToolSource,
    ToolSpec, tool_fn, with_aliases,
};
use toolpost_toolbox::Toolbox;

fn greet() -> Arc<dyn Tool> {
    let spec = ToolSpec::new("greet", "Greet.")
        .parameter("name", ParameterType::String, "Whom.")
        .optional_parameter("tone", ParameterType::String, "How.");
    let tool = tool_fn(spec, async |args, _| Ok(Output::json(args.as_value().clone())));
    let aliases =
        [Alias::new("hello").parameter("person", "name"), Alias::new("shout").argument("tone", "loud")];
    with_aliases(tool, aliases)
}

#[tokio::test]
async fn a_call_by_an_alias_is_a_call_of_the_tool() {
    let toolbox = Toolbox::builder().tool(greet()).build().unwrap();
    for (tool, arguments, expected) in [
        ("greet", json!({ "name": "Ada" }), Ok(json!({ "name": "Ada" }))),
        ("hello", json!({ "person": "Ada" }), Ok(json!({ "name": "Ada" }))),
        ("hello", json!({ "name": "Ada" }), Ok(json!({ "name": "Ada" }))),
        ("shout", json!({ "name": "Ada" }), Ok(json!({ "name": "Ada", "tone": "loud" }))),
        ("shout", json!({ "name": "Ada", "tone": "soft" }), Err(Code::InvalidInput)),
        ("hello", json!({ "person": "Ada", "name": "Bob" }), Err(Code::InvalidInput)),
        ("greet", json!({ "person": "Ada" }), Err(Code::MissingParam)),
        ("hello", json!({}), Err(Code::MissingParam)),
    ] {
        let reply = toolbox.call(Call::new(tool, arguments.clone())).await;
        let found = reply.result.map(|output| output.structured.unwrap()).map_err(|error| error.code());
        assert_eq!(found, expected, "{tool} {arguments}");
        if let Ok(arguments) = found {
            assert_eq!((&*reply.record.tool, reply.record.arguments.as_deref()), ("greet", Some(&arguments)));
        }
    }
    assert_eq!(toolbox.specs().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>(), ["greet"]);
    assert_eq!(toolbox.usage()[0].tool.clone(), "greet");
}

#[tokio::test]
async fn names_and_aliases_are_unique() {
    let named = |name: &str| tool_fn(ToolSpec::new(name, "Another."), async |_, _| Ok(Output::default()));
    let toolbox = Toolbox::builder().tool(greet()).build().unwrap();
    for tool in [named("hello"), named("greet")] {
        toolbox.add(tool).unwrap_err();
    }
    let error = toolbox.add(with_aliases(named("other"), [Alias::new("greet")])).unwrap_err();
    assert!(error.message.contains("`greet` is a name or an alias of `greet`"), "{error}");
    assert!(toolbox.add(with_aliases(named("other"), [Alias::new("hello")])).is_err());
    assert!(toolbox.remove("greet"));
    assert_eq!(toolbox.run("hello", json!({})).await.unwrap_err().code(), Code::NotFound);
    toolbox.add(named("hello")).unwrap();
    toolbox.run("hello", json!({})).await.unwrap();
}

#[tokio::test]
async fn aliases_follow_the_tools_of_a_source() {
    let inner = Toolbox::builder().name("inner").tool(greet()).build().unwrap();
    let outer = Toolbox::builder().build().unwrap();
    outer.add_source(Arc::new(inner.clone()) as Arc<dyn ToolSource>).await.unwrap();
    let output = outer.run("hello", json!({ "person": "Ada" })).await.unwrap();
    assert_eq!(output.structured, Some(json!({ "name": "Ada" })));
    inner.remove("greet");
    assert_eq!(outer.run("hello", json!({ "person": "Ada" })).await.unwrap_err().code(), Code::NotFound);
    inner.add(greet()).unwrap();
    outer.run("hello", json!({ "person": "Ada" })).await.unwrap();
    let clash = Toolbox::builder().name("clash").tool(with_aliases(greet(), [])).build().unwrap();
    assert!(outer.add_source(Arc::new(clash)).await.is_err());
}

#[tokio::test]
async fn approval_is_the_same_for_all_aliases() {
    for (name, called) in
        [("greet", "hello"), ("greet", "greet"), ("hello", "hello"), ("hello", "greet"), ("shout", "hello")]
    {
        let toolbox = Toolbox::builder().tool(greet()).approval(name, Approval::Deny).build().unwrap();
        let error = toolbox.run(called, json!({ "name": "Ada" })).await.unwrap_err();
        assert_eq!(error.code(), Code::Permission, "{name} denied, {called} called");
    }
    let builder = Toolbox::builder().tool(greet()).approval("hello", Approval::Deny);
    let toolbox = builder.approval("greet", Approval::Allow).build().unwrap();
    toolbox.run("hello", json!({ "person": "Ada" })).await.unwrap();
}

/// A tool that declares its secrets.
struct Login;

impl Tool for Login {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::new(ToolSpec::new("login", "Log in.").parameter("address", ParameterType::String, "Where."))
    }

    fn call<'a>(&'a self, args: &'a Args, _: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async {
            Err(ToolError::dependency(format!("no way into {}", args.decode::<String>("address")?)))
        })
    }

    fn secrets(&self, arguments: &Value) -> Vec<String> {
        let address = arguments["address"].as_str().unwrap_or_default();
        address
            .split_once(':')
            .map(|(_, password)| vec![password.to_owned(), String::new()])
            .unwrap_or_default()
    }
}

#[tokio::test]
async fn declared_secrets_are_masked_in_records_and_errors() {
    let toolbox = Toolbox::builder().tool(Login).build().unwrap();
    let reply = toolbox.call(Call::new("login", json!({ "address": "ada:hunter2" }))).await;
    assert_eq!(reply.record.arguments.as_deref(), Some(&json!({ "address": "ada:[secret]" })));
    let error = reply.result.unwrap_err();
    assert_eq!(error.message(), "no way into ada:[secret]");
    assert!(!serde_json::to_string(&*reply.record).unwrap().contains("hunter2"));
    let reply = toolbox.call(Call::new("login", json!({ "address": "ada" }))).await;
    assert_eq!(reply.record.arguments.as_deref(), Some(&json!({ "address": "ada" })));
}

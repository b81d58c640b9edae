//! Tests of the attributes on functions, types and `impl` blocks.

mod hygiene;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{
    Code, Ctx, Inject, Output, Placement, Tool, ToolError, ToolSource as _, ToolSpec, data, tool, tool_fn,
    tools,
};
use toolpost_toolbox::Toolbox;

/// Which units.
#[data]
#[derive(Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum Units {
    Metric,
    Imperial,
}

/// A place on earth.
#[data]
struct Place {
    /// Degrees north.
    latitude: f64,
    /// Degrees east.
    longitude: f64,
}

#[data]
struct Forecast {
    summary: String,
    days: u8,
}

struct Station(&'static str);

/// Forecast the weather.
///
/// For any place on earth.
#[tool(
    summary = "Weather forecast",
    tags("weather", "forecast"),
    timeout_s = 10,
    examples(r#"{"city": "Oslo"}"#),
    policy(category = "weather", group = "outside.sky", idempotent, open_world)
)]
async fn forecast(
    /// City name, for example "Oslo".
    #[arg(min_len = 2, max_len = 40)]
    city: String,
    /// Days ahead.
    #[arg(default = 1, min = 1, max = 14)]
    days: u8,
    units: Option<Units>,
    place: Option<Place>,
    #[arg(default = json!({}))] extra: BTreeMap<String, Vec<i32>>,
    station: Inject<Station>,
    #[arg(inject)] user_id: String,
    ctx: &Ctx,
) -> Result<Forecast, ToolError> {
    let _ = ctx.id();
    let place = place.map(|place| place.latitude + place.longitude);
    Ok(Forecast { summary: format!("{city} {units:?} {place:?} {extra:?} {} {user_id}", station.0), days })
}

fn toolbox() -> Toolbox {
    Toolbox::builder()
        .tool(forecast)
        .provide(Station("st"))
        .provide_named("user_id", "alice")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_function_becomes_a_tool() {
    let toolbox = toolbox();
    let spec = toolbox.spec("forecast").unwrap();
    assert_eq!(spec.summary(), "Forecast the weather.");
    assert_eq!(
        *spec.input_schema.as_value(),
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City name, for example \"Oslo\".", "minLength": 2, "maxLength": 40},
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "description": "Days ahead.", "default": 1},
                "units": {"anyOf": [{"$ref": "#/$defs/Units"}, {"type": "null"}]},
                "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
                "extra": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}, "default": {}},
            },
            "required": ["city"],
            "additionalProperties": false,
            "$defs": {
                "Units": {"description": "Which units.", "type": "string", "enum": ["metric", "imperial"]},
                "Place": {
                    "description": "A place on earth.",
                    "type": "object",
                    "properties": {
                        "latitude": {"description": "Degrees north.", "type": "number"},
                        "longitude": {"description": "Degrees east.", "type": "number"},
                    },
                    "required": ["latitude", "longitude"],
                }
            }
        })
    );
    assert_eq!(spec.policy.placement, Placement::Inline);
    assert_eq!((spec.category.as_deref(), spec.group.as_deref()), (Some("weather"), Some("outside.sky")));
    assert!(spec.annotations.idempotent && spec.annotations.open_world && !spec.annotations.destructive);
    assert_eq!(spec.examples[0].args, json!({"city": "Oslo"}));
    assert_eq!(spec.injected, ["user_id"]);
    assert!(spec.output_schema.is_some());

    let output = toolbox.run("forecast", json!({"city": "Oslo"})).await.unwrap();
    assert_eq!(output.structured, Some(json!({"summary": "Oslo None None {} st alice", "days": 1})));
    let all = json!({"city": "Oslo", "days": 3, "units": "metric", "place": {"latitude": 1, "longitude": 2}, "extra": {"a": [1]}});
    let output = toolbox.run("forecast", all).await.unwrap();
    assert_eq!(output.structured.unwrap()["summary"], "Oslo Some(Metric) Some(3.0) {\"a\": [1]} st alice");
}

#[tokio::test]
async fn an_injected_value_never_comes_from_the_arguments() {
    let error = toolbox().run("forecast", json!({"city": "Oslo", "user_id": "bob"})).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidInput);
    assert!(error.message().contains("`user_id` is injected by the application"), "{error}");
    let nobody = Toolbox::builder().tool(forecast).provide(Station("st")).build().unwrap();
    let error = nobody.run("forecast", json!({"city": "Oslo"})).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
    // A call's own value goes before the toolbox's.
    let call = toolpost::Call::new("forecast", json!({"city": "Oslo"})).provide_named("user_id", "carol");
    let output = toolbox().call(call).await.result.unwrap();
    assert!(output.structured.unwrap()["summary"].as_str().unwrap().ends_with("carol"));
}

#[tokio::test]
async fn the_function_can_still_be_called() {
    let station = Inject::new(Station("direct"));
    let toolbox = Toolbox::builder().tool(direct).build().unwrap();
    assert_eq!(toolbox.run("direct", json!({})).await.unwrap().to_text(), "2");
    assert_eq!(direct::run(), 2);
    assert_eq!(station.0, "direct");
}

/// Give two.
#[tool]
fn direct() -> i32 {
    2
}

/// A counter with a lock.
#[derive(Default)]
struct Counter(Mutex<BTreeMap<String, i64>>);

#[tools(category = "counters")]
impl Counter {
    /// Add to a named counter.
    #[tool]
    fn add(&self, name: String, #[arg(default = 1)] by: i64) -> i64 {
        let mut counters = self.0.lock().unwrap();
        let counter = counters.entry(name).or_default();
        *counter += by;
        *counter
    }

    /// Read a named counter.
    #[tool(name = "read_counter", policy(read_only, idempotent))]
    async fn read(&self, name: String) -> Result<i64, ToolError> {
        self.peek(&name).ok_or_else(|| ToolError::not_found(format!("no counter `{name}`")))
    }

    fn peek(&self, name: &str) -> Option<i64> {
        self.0.lock().unwrap().get(name).copied()
    }
}

#[tokio::test]
async fn an_impl_block_becomes_tools_that_share_their_value() {
    let toolbox = Toolbox::builder().tools(Counter::default()).build().unwrap();
    assert_eq!(toolbox.run("add", json!({"name": "a", "by": 5})).await.unwrap().structured, Some(json!(5)));
    assert_eq!(toolbox.run("add", json!({"name": "a"})).await.unwrap().structured, Some(json!(6)));
    assert_eq!(toolbox.run("read_counter", json!({"name": "a"})).await.unwrap().structured, Some(json!(6)));
    assert_eq!(toolbox.run("read_counter", json!({"name": "b"})).await.unwrap_err().code(), Code::NotFound);
    let specs = toolbox.list().await.unwrap();
    assert!(specs.iter().all(|spec| spec.category.as_deref() == Some("counters")));
    assert_eq!(specs[0].policy.placement, Placement::Blocking);
}

#[tokio::test]
async fn several_tools_come_from_any_iterator() {
    let of = |name: &'static str| {
        tool_fn(ToolSpec::new(name, "Say the name."), move |_, _| async move { Ok(Output::text(name)) })
    };
    let shared: Vec<Arc<dyn Tool>> = vec![Arc::new(of("a")), Arc::new(of("b"))];
    let alike = ["d", "e"].into_iter().map(of);
    let toolbox = Toolbox::builder().tools(shared).tools([of("c")]).tools(alike).build().unwrap();
    toolbox.add(of("f")).unwrap();
    assert_eq!(toolbox.specs().len(), 6);
    assert_eq!(toolbox.run("f", json!({})).await.unwrap().to_text(), "f");
}

/// A range of numbers.
#[data]
struct Range {
    /// The first.
    from: i64,
    /// The last.
    #[serde(default)]
    to: i64,
}

fn in_order(range: &Range) -> Result<(), ToolError> {
    if range.from > range.to {
        return Err(ToolError::invalid_input("`from` is after `to`").with("pointer", "/from"));
    }
    Ok(())
}

/// Count the numbers of a range.
#[tool(policy(placement = "inline", pre_validate = in_order))]
fn count(#[arg(input)] range: Range) -> i64 {
    range.to - range.from + 1
}

#[tokio::test]
async fn a_struct_can_be_the_whole_input_and_check_itself() {
    let toolbox = Toolbox::builder().tool(count).build().unwrap();
    assert_eq!(toolbox.run("count", json!({"from": 1, "to": 3})).await.unwrap().structured, Some(json!(3)));
    assert_eq!(
        toolbox.run("count", json!({"from": 3, "to": 1})).await.unwrap_err().message(),
        "`from` is after `to`"
    );
    assert_eq!(toolbox.run("count", json!({"to": 1})).await.unwrap_err().code(), Code::MissingParam);
    assert_eq!(
        toolbox.run("count", json!({"from": 1, "too": 1})).await.unwrap_err().code(),
        Code::InvalidInput
    );
}

/// Check forms.
#[tool(policy(placement = "inline"))]
fn forms(
    #[arg(format = "url")] address: String,
    #[arg(pattern = "^[A-Z]{2}$", example = "NO")] country: String,
    #[arg(enum("red", "green"))] colour: String,
    #[arg(format = "datetime", default = "2026-01-01T00:00:00Z")] when: String,
    #[arg(min_len = 1, max_len = 2)] names: Option<Vec<String>>,
    #[arg(min_len = 1)] counts: Option<BTreeMap<String, u8>>,
    #[arg(enum("small", "large"))] size: Option<String>,
) -> String {
    format!("{address} {country} {colour} {when} {names:?} {counts:?} {size:?}")
}

#[tokio::test]
async fn the_options_of_parameters_are_checked() {
    let toolbox = Toolbox::builder().tool(forms).build().unwrap();
    let good = json!({"address": "https://example.com", "country": "NO", "colour": "red"});
    assert!(toolbox.run("forms", good.clone()).await.is_ok());
    for (name, fine) in [
        ("names", json!(["a", "b"])),
        ("names", json!(null)),
        ("counts", json!({"a": 1})),
        ("size", json!("small")),
        ("size", json!(null)),
    ] {
        let mut arguments = good.clone();
        arguments[name] = fine;
        assert!(toolbox.run("forms", arguments.clone()).await.is_ok(), "{arguments}");
    }
    for (name, bad) in [
        ("address", json!("nowhere")),
        ("country", json!("no")),
        ("colour", json!("blue")),
        ("colour", json!(null)),
        ("when", json!("now")),
        ("names", json!([])),
        ("names", json!(["a", "b", "c"])),
        ("counts", json!({})),
        ("size", json!("huge")),
    ] {
        let mut arguments = good.clone();
        arguments[name] = bad;
        let error = toolbox.run("forms", arguments).await.unwrap_err();
        assert_eq!(error.context()["pointer"], format!("/{name}"), "{error}");
    }
}

#[test]
fn contradictions_are_rejected_at_registration() {
    for (tool, expected) in [
        (Toolbox::builder().tool(large_default), "the default of parameter `days`"),
        (Toolbox::builder().tool(wrong_example), "example 1 does not match its parameters"),
        (Toolbox::builder().tool(wrong_value), "an example of parameter `days`"),
        (Toolbox::builder().tool(no_pattern), "is invalid"),
        (Toolbox::builder().tool(idle_limit), "`minLength` of parameter `days` has no effect"),
        (Toolbox::builder().tool(unknown_secret), "the sensitive argument `passwort`"),
    ] {
        let error = tool.build().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let twice = Toolbox::builder().tool(direct).tool(direct).build().unwrap_err();
    assert!(twice.to_string().contains("another tool from `local` has this name"), "{twice}");
}

/// A default that is above its own limit.
#[tool]
fn large_default(#[arg(default = 20, max = 14)] days: u8) -> u8 {
    days
}

/// An example that lacks what is required.
#[tool(examples(r#"{"dais": 3}"#))]
fn wrong_example(days: u8) -> u8 {
    days
}

/// A value of another type as an example.
#[tool]
fn wrong_value(#[arg(example = "three")] days: u8) -> u8 {
    days
}

/// A pattern that is not closed.
#[tool]
fn no_pattern(#[arg(pattern = "(")] days: String) -> String {
    days
}

/// A limit that says nothing of a number.
#[tool]
fn idle_limit(#[arg(min_len = 3)] days: u8) -> u8 {
    days
}

#[data]
struct Login {
    user: String,
    password: String,
}

/// A misspelt secret.
#[tool(policy(sensitive("passwort")))]
fn unknown_secret(#[arg(input)] login: Login) -> bool {
    login.user == login.password
}

/// Log in.
#[tool(policy(sensitive("password")))]
fn log_in(#[arg(input)] login: Login) -> bool {
    login.user == login.password
}

#[tokio::test]
async fn fields_of_a_whole_input_can_be_masked() {
    let toolbox = Toolbox::builder().tool(log_in).build().unwrap();
    let call = toolpost::Call::new("log_in", json!({"user": "ada", "password": "hunter2"}));
    let record = serde_json::to_string(&toolbox.call(call).await.record).unwrap();
    assert!(record.contains("ada") && !record.contains("hunter2"), "{record}");
}

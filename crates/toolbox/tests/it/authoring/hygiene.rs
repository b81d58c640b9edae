//! Names that a user chooses never meet those of the emitted code.

use std::sync::Arc;

use serde_json::json;
use toolpost::{Call, Code, ToolError, tool, tools};
use toolpost_toolbox::Toolbox;

/// Parameters named as what the emitted code could have.
#[tool]
#[expect(clippy::too_many_arguments, reason = "each is a name that could clash")]
async fn names(
    args: i64,
    ctx: i64,
    spec: i64,
    input: i64,
    self_: i64,
    retry: i64,
    #[arg(default = 7)] toolpost_args: i64,
    #[arg(default = 8)] names: i64,
) -> Vec<i64> {
    vec![args, ctx, spec, input, self_, retry, toolpost_args, names]
}

/// A keyword.
#[tool(max_retries = 1, backoff_initial_ms = 1500, backoff_max_ms = 2500)]
fn r#match(r#type: String) -> String {
    r#type
}

#[tokio::test]
async fn parameters_and_functions_may_have_any_name() {
    let toolbox = Toolbox::builder().tool(names).tool(r#match).build().unwrap();
    let arguments = json!({"args": 1, "ctx": 2, "spec": 3, "input": 4, "self_": 5, "retry": 6});
    let output = toolbox.run("names", arguments).await.unwrap();
    assert_eq!(output.structured, Some(json!([1, 2, 3, 4, 5, 6, 7, 8])));
    let output = toolbox.run("match", json!({"type": "a"})).await.unwrap();
    assert_eq!(output.to_text(), "a");
    let retry = toolbox.spec("match").unwrap().policy.retry.clone().unwrap();
    assert_eq!((retry.initial.as_millis(), retry.maximum.as_millis()), (1500, 2500));
}

type Maybe<T> = Result<T, std::num::ParseIntError>;

/// An alias of a result.
#[tool]
fn aliased(text: String) -> Maybe<u8> {
    text.parse()
}

mod shadow {
    use toolpost::{data, tool};

    /// A user's own type.
    #[data]
    pub(super) struct Output {
        pub(super) number: i64,
    }

    /// Another one.
    #[data]
    pub(super) struct Ctx {
        pub(super) number: i64,
    }

    /// Names of ours for types of theirs.
    #[tool]
    pub(super) fn theirs(ctx: Ctx) -> Output {
        Output { number: ctx.number + 1 }
    }
}

type Context = toolpost::Ctx;
type Given<T> = toolpost::Inject<T>;
type Perhaps<T> = Option<T>;

/// Ours by other names.
#[tool]
async fn ours(context: Context, factor: Given<i64>, by: Perhaps<i64>) -> toolpost::Output {
    toolpost::Output::text(format!("{} {} {by:?}", context.attempt(), *factor))
}

#[tokio::test]
async fn renamed_types_are_recognized() {
    let toolbox =
        Toolbox::builder().tool(aliased).tool(shadow::theirs).tool(ours).provide(6_i64).build().unwrap();
    let schema = |name: &str| toolbox.spec(name).unwrap().output_schema.clone();
    assert_eq!(
        *schema("aliased").unwrap().as_value(),
        json!({"type": "integer", "minimum": 0, "maximum": 255, "title": "uint8"})
    );
    assert_eq!(toolbox.run("aliased", json!({"text": "7"})).await.unwrap().structured, Some(json!(7)));
    assert_eq!(toolbox.run("aliased", json!({"text": "x"})).await.unwrap_err().code(), Code::Internal);

    assert_eq!(schema("theirs").unwrap().as_value()["properties"]["number"], json!({"type": "integer"}));
    let output = toolbox.run("theirs", json!({"ctx": {"number": 1}})).await.unwrap();
    assert_eq!(output.structured, Some(json!({"number": 2})));

    assert!(schema("ours").is_none(), "an `Output` may hold anything");
    let input = toolbox.spec("ours").unwrap();
    let input = input.input_schema.as_value();
    assert_eq!((&input["properties"].as_object().unwrap().len(), &input["required"]), (&1, &json!(null)));
    assert_eq!(toolbox.run("ours", json!({})).await.unwrap().to_text(), "1 6 None");
}

#[toolpost::data]
#[derive(Clone, Debug, PartialEq)]
struct Point {
    x: i64,
}

impl Point {
    const ORIGIN: i64 = 0;

    fn is_right(point: &Point) -> Result<(), ToolError> {
        if point.x < 0 { Err(ToolError::invalid_input("it lies left")) } else { Ok(()) }
    }
}

#[tools]
impl Point {
    /// Move it.
    #[tool(policy(placement = "inline"))]
    fn moved(&self, #[arg(default = Self::ORIGIN)] by: i64, other: Option<Self>) -> Result<Self, ToolError> {
        Ok(Self { x: self.x + by + other.map_or(0, |other| other.x) })
    }

    /// Tell how far.
    #[tool(policy(placement = "inline", pre_validate = Self::is_right))]
    fn distance(&self, #[arg(input)] other: Self) -> i64 {
        other.x - self.x
    }

    /// Not built.
    #[cfg(any())]
    #[tool]
    fn absent(&self, nothing: Nothing) {}

    /// Built.
    #[cfg(test)]
    #[tool]
    fn r#type(&self) -> i64 {
        self.x
    }
}

/// Not built either.
#[tool]
#[cfg(any())]
fn absent(nothing: Nothing) {}

struct Idle;

#[tools]
impl Idle {
    /// Not built, as nothing else is.
    #[cfg(any())]
    #[tool]
    fn absent(&self) {}
}

#[tokio::test]
async fn the_type_of_a_block_may_be_named_self_and_methods_may_have_conditions() {
    let toolbox = Toolbox::builder().tools(Point { x: 1 }).build().unwrap();
    let names: Vec<String> = toolbox.specs().iter().map(|spec| spec.name.clone()).collect();
    assert_eq!(names, ["moved", "distance", "type"]);
    assert!(Toolbox::builder().tools(Idle).build().unwrap().specs().is_empty());
    let run = async |tool: &str, arguments| toolbox.run(tool, arguments).await;
    assert_eq!(run("moved", json!({})).await.unwrap().structured, Some(json!({"x": 1})));
    let output = run("moved", json!({"by": 2, "other": {"x": 3}})).await.unwrap();
    assert_eq!(output.structured, Some(json!({"x": 6})));
    assert_eq!(run("distance", json!({"x": 4})).await.unwrap().structured, Some(json!(3)));
    assert_eq!(run("distance", json!({"x": -4})).await.unwrap_err().message(), "it lies left");
}

/// A whole input beside what the application fills in.
#[tool]
async fn beside(ctx: toolpost::Ctx, #[arg(input)] point: Point, factor: toolpost::Inject<i64>) -> i64 {
    i64::from(ctx.attempt()) * point.x * *factor
}

#[tokio::test]
async fn a_whole_input_allows_injected_parameters() {
    let toolbox = Toolbox::builder().tool(beside).build().unwrap();
    let call = Call::new("beside", Arc::new(json!({"x": 2}))).provide(21_i64);
    assert_eq!(toolbox.call(call).await.result.unwrap().structured, Some(json!(42)));
}

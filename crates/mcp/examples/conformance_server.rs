//! The server that the official conformance suite tests: its fixed names, made of our own tools, resources and prompts.
//!
//! `conformance_server [ADDRESS:PORT]` prints the address to connect to, and serves until it is killed.
#![expect(clippy::print_stdout, reason = "says where it listens")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Answer, BoxFuture, Call, Content, Ctx, LogLevel, Output, ParameterType, PromptSpec, Question, Reply,
    ResourceSpec, SampleRequest, TaskUse, Tool, ToolError, ToolSource, ToolSpec, tool_fn,
};
use toolpost_mcp::server::{Completion, Server};
use toolpost_toolbox::Toolbox;

/// One red pixel.
const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV file without a sound.
const AUDIO: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==";

/// The time that a call may keep its request open where the client knows tasks.
const TASK_AFTER: Duration = Duration::from_millis(300);

/// The content at `test://static-text`.
const TEXT: &str = "This is the content of the static text resource.";

fn image() -> Content {
    Content::Image { media_type: "image/png".into(), data: IMAGE.into() }
}

fn resource(uri: &str, media_type: &str, text: &str) -> Content {
    Content::Resource { uri: uri.into(), media_type: media_type.into(), text: Some(text.into()) }
}

/// A tool without arguments that does something with its context.
fn acting<Done>(name: &str, act: impl Fn(Ctx) -> Done + Send + Sync + 'static) -> Arc<dyn Tool>
where
    Done: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    Arc::new(tool_fn(ToolSpec::new(name, format!("Act as {name}.")), move |_args, ctx| act(ctx)))
}

/// A tool without arguments that answers at once.
fn plain(name: &str, content: Vec<Content>) -> Arc<dyn Tool> {
    acting(name, move |_ctx| {
        let output = content.iter().cloned().fold(Output::default(), Output::with_content);
        async move { Ok(output) }
    })
}

fn text_schema(name: &str) -> Value {
    json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name] })
}

fn confirmation() -> Value {
    json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] })
}

async fn asked(ctx: &Ctx, message: &str, schema: Value, name: &str) -> Result<Value, ToolError> {
    match ctx.ask(Question::with_schema(message, schema).named(name)).await? {
        Answer::Given { value } => Ok(value),
        Answer::Declined => Ok(Value::Null),
    }
}

fn completed(answer: &Value) -> Output {
    let action = if answer.is_null() { "decline" } else { "accept" };
    Output::text(format!("Elicitation completed: action={action}, content={answer}"))
}

fn contents() -> Vec<Arc<dyn Tool>> {
    let embedded =
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.");
    let audio = Content::Audio { media_type: "audio/wav".into(), data: AUDIO.into() };
    let mixed = vec![
        Content::text("Multiple content types test:"),
        image(),
        resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
    ];
    let broken = acting("test_error_handling", async |_ctx| {
        Err(ToolError::precondition("This tool intentionally returns an error for testing"))
    });
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    });
    let spec =
        ToolSpec::new("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features").input(schema);
    let header = json!({
        "type": "object",
        "properties": { "region": { "type": "string", "x-mcp-header": "Region" } },
        "required": ["region"],
    });
    let header = ToolSpec::new("test_custom_header", "Take an argument from a header.").input(header);
    vec![
        plain("test_simple_text", vec![Content::text("This is a simple text response for testing.")]),
        plain("test_image_content", vec![image()]),
        plain("test_audio_content", vec![audio]),
        plain("test_embedded_resource", vec![embedded]),
        plain("test_multiple_content_types", mixed),
        broken,
        Arc::new(tool_fn(spec, async |_args, _ctx| Ok(Output::text("It fits.")))),
        Arc::new(tool_fn(header, async |args, _ctx| Ok(Output::text(args.decode::<String>("region")?)))),
    ]
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn log(ctx: Ctx) -> Result<Output, ToolError> {
    ctx.log(LogLevel::Info, "Tool execution started");
    pause().await;
    ctx.log(LogLevel::Info, "Tool processing data");
    pause().await;
    ctx.log(LogLevel::Info, "Tool execution completed");
    Ok(Output::text("Logged three lines."))
}

async fn progress(ctx: Ctx) -> Result<Output, ToolError> {
    for percent in [0.0, 50.0, 100.0] {
        ctx.progress(format!("Completed {percent} %"), percent);
        pause().await;
    }
    Ok(Output::text("Told three steps."))
}

fn asking() -> Vec<Arc<dyn Tool>> {
    let sampling = ToolSpec::new("test_sampling", "Ask the client's model.").input(text_schema("prompt"));
    let sampling = tool_fn(sampling, async |args, ctx| {
        let mut request = SampleRequest::new(args.decode::<String>("prompt")?);
        request.max_tokens = 100;
        Ok(Output::text(format!("LLM response: {}", ctx.sample(request).await?.content)))
    });
    let elicitation =
        ToolSpec::new("test_elicitation", "Ask the client's person.").input(text_schema("message"));
    let elicitation = tool_fn(elicitation, async |args, ctx| {
        let schema = json!({
            "type": "object",
            "properties": {
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            },
            "required": ["username", "email"],
        });
        let message = args.decode::<String>("message")?;
        Ok(Output::text(format!("User response: {}", asked(&ctx, &message, schema, "user").await?)))
    });
    let defaults = acting("test_elicitation_sep1034_defaults", async |ctx| {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "default": "John Doe" },
                "age": { "type": "integer", "default": 30 },
                "score": { "type": "number", "default": 95.5 },
                "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
                "verified": { "type": "boolean", "default": true },
            },
        });
        Ok(completed(&asked(&ctx, "Please review", schema, "review").await?))
    });
    let enums = acting("test_elicitation_sep1330_enums", async |ctx| {
        let options = ["option1", "option2", "option3"];
        let titled = json!([
            { "const": "value1", "title": "First Option" },
            { "const": "value2", "title": "Second Option" },
            { "const": "value3", "title": "Third Option" },
        ]);
        let schema = json!({
            "type": "object",
            "properties": {
                "untitledSingle": { "type": "string", "enum": options },
                "titledSingle": { "type": "string", "oneOf": titled },
                "legacyEnum": {
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
                "titledMulti": { "type": "array", "items": { "anyOf": titled } },
            },
        });
        Ok(completed(&asked(&ctx, "Please choose", schema, "choice").await?))
    });
    let missing = acting("test_missing_capability", async |ctx| {
        Ok(Output::text(ctx.sample(SampleRequest::new("Anything.")).await?.content))
    });
    let streaming = acting("test_streaming_elicitation", async |ctx| {
        ctx.progress("Asking", 10.0);
        Ok(completed(&asked(&ctx, "Please confirm", confirmation(), "confirm").await?))
    });
    vec![Arc::new(sampling), Arc::new(elicitation), defaults, enums, missing, streaming]
}

/// Calls that need several rounds.
fn rounds() -> Vec<Arc<dyn Tool>> {
    let confirm = async |ctx: Ctx| {
        asked(&ctx, "Please confirm", confirmation(), "confirm").await?;
        Ok(Output::text("state-ok"))
    };
    let elicitation = acting("test_input_required_result_elicitation", async |ctx| {
        let answer = asked(&ctx, "What is your name?", text_schema("name"), "user_name").await?;
        Ok(Output::text(format!("Hello, {}!", answer["name"].as_str().unwrap_or("stranger"))))
    });
    let sampling = acting("test_input_required_result_sampling", async |ctx| {
        let mut request = SampleRequest::new("What is the capital of France?");
        request.max_tokens = 100;
        Ok(Output::text(ctx.sample(request).await?.content))
    });
    let roots = acting("test_input_required_result_list_roots", async |ctx| {
        let uris: Vec<String> = ctx.roots().await?.into_iter().map(|root| root.uri).collect();
        Ok(Output::text(format!("Roots: {}", uris.join(", "))))
    });
    let several = acting("test_input_required_result_multiple_inputs", async |ctx| {
        let mut request = SampleRequest::new("Generate a greeting");
        request.max_tokens = 50;
        let (name, greeting, roots) = tokio::join!(
            asked(&ctx, "What is your name?", text_schema("name"), "user_name"),
            ctx.sample(request),
            ctx.roots(),
        );
        Ok(Output::text(format!("{} {} in {} places", greeting?.content, name?["name"], roots?.len())))
    });
    let many = acting("test_input_required_result_multi_round", async |ctx| {
        let name = asked(&ctx, "Step 1: What is your name?", text_schema("name"), "step1").await?;
        let color =
            asked(&ctx, "Step 2: What is your favorite color?", text_schema("color"), "step2").await?;
        Ok(Output::text(format!("{} likes {}", name["name"], color["color"])))
    });
    let capabilities = acting("test_input_required_result_capabilities", async |ctx| {
        let (name, greeting) = tokio::join!(
            asked(&ctx, "What is your name?", text_schema("name"), "user_name"),
            ctx.sample(SampleRequest::new("Generate a greeting")),
        );
        Ok(Output::text(format!("{} {}", name.is_ok(), greeting.is_ok())))
    });
    vec![
        elicitation,
        sampling,
        roots,
        acting("test_input_required_result_request_state", confirm),
        acting("test_input_required_result_tampered_state", confirm),
        several,
        many,
        capabilities,
    ]
}

/// Calls that outlive their requests.
fn tasks() -> Vec<Arc<dyn Tool>> {
    let spec = |name: &str, task: TaskUse| ToolSpec::new(name, format!("Act as {name}.")).task(task);
    let greet = spec("greet", TaskUse::Never).parameter("name", ParameterType::String, "Whom.");
    let greet = tool_fn(greet, async |args, _ctx| {
        Ok(Output::text(format!("Hello, {}!", args.decode::<String>("name")?)))
    });
    let slow = spec("slow_compute", TaskUse::AtOnce)
        .parameter("seconds", ParameterType::Integer, "How long.")
        .optional_parameter("label", ParameterType::String, "What it is called.");
    let slow = tool_fn(slow, async |args, _ctx| {
        tokio::time::sleep(Duration::from_secs(args.decode("seconds")?)).await;
        Ok(Output::text("It is computed."))
    });
    let failing = tool_fn(spec("failing_job", TaskUse::Only), async |_args, _ctx| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err(ToolError::precondition("This job always fails"))
    });
    // What the client cannot do is an error of the protocol.
    let protocol_error = tool_fn(spec("protocol_error_job", TaskUse::AtOnce), async |_args, ctx| {
        ctx.roots().await?;
        Ok(Output::text("The client has roots."))
    });
    let confirm = spec("confirm_delete", TaskUse::AtOnce).parameter(
        "filename",
        ParameterType::String,
        "What is to be deleted.",
    );
    let confirm = tool_fn(confirm, async |args, ctx| {
        let message = format!("Delete {}?", args.decode::<String>("filename")?);
        Ok(completed(&asked(&ctx, &message, confirmation(), "confirm").await?))
    });
    let several = tool_fn(spec("multi_input", TaskUse::AtOnce), async |_args, ctx| {
        let (one, other) = tokio::join!(
            asked(&ctx, "What is your name?", text_schema("name"), "first"),
            asked(&ctx, "And theirs?", text_schema("name"), "second"),
        );
        Ok(Output::text(format!("{} and {}", one?["name"], other?["name"])))
    });
    // Asks while its request is open; what follows takes too long for that.
    let composed = tool_fn(spec("test_tool_with_task", TaskUse::WhenSlow), async |_args, ctx| {
        let answer = asked(&ctx, "What is your name?", text_schema("name"), "user_name").await?;
        tokio::time::sleep(TASK_AFTER * 3).await;
        Ok(Output::text(format!("Hello, {}!", answer["name"].as_str().unwrap_or("stranger"))))
    });
    vec![
        Arc::new(greet),
        Arc::new(slow),
        Arc::new(failing),
        Arc::new(protocol_error),
        Arc::new(confirm),
        Arc::new(several),
        Arc::new(composed),
    ]
}

/// The function of a prompt or a resource.
type Make = Arc<dyn Fn(Call) -> BoxFuture<'static, Result<Output, ToolError>> + Send + Sync>;

fn make<Made>(make: impl Fn(Call) -> Made + Send + Sync + 'static) -> Make
where
    Made: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    Arc::new(move |call| Box::pin(make(call)))
}

/// The tools of a toolbox, with prompts and resources that change.
struct Fixture {
    tools: Toolbox,
    prompts: Vec<(PromptSpec, Make)>,
    resources: Vec<(ResourceSpec, Make)>,
    changes: Arc<AtomicU64>,
}

impl Fixture {
    fn new() -> Result<Self, ToolError> {
        let changes = Arc::new(AtomicU64::new(0));
        let change = |name: &str| {
            let changes = Arc::clone(&changes);
            acting(name, move |_ctx| {
                changes.fetch_add(1, Ordering::Relaxed);
                async { Ok(Output::text("Changed.")) }
            })
        };
        let telling = vec![
            acting("test_tool_with_logging", log),
            acting("test_logging_tool", log),
            acting("test_tool_with_progress", progress),
            change("test_trigger_tool_change"),
            change("test_trigger_prompt_change"),
        ];
        let all = [contents(), telling, asking(), rounds(), tasks()].into_iter().flatten();
        let tools = all
            .fold(Toolbox::builder().name("conformance"), toolpost_toolbox::ToolboxBuilder::tool)
            .build()?;
        Ok(Self { tools, prompts: prompts(), resources: resources()?, changes })
    }
}

impl ToolSource for Fixture {
    fn name(&self) -> &'static str {
        "conformance"
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        self.tools.list()
    }

    fn generation(&self) -> u64 {
        self.tools.generation() + self.changes.load(Ordering::Relaxed)
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(self.tools.call(call))
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(self.resources.iter().map(|(spec, _)| Arc::new(spec.clone())).collect()) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        let changes = self.changes.load(Ordering::Relaxed);
        let mut specs: Vec<_> = self.prompts.iter().map(|(spec, _)| Arc::new(spec.clone())).collect();
        let last = (changes > 0).then(|| format!("test_changed_prompt_{changes}"));
        specs.extend(last.map(|name| Arc::new(PromptSpec::new(name, "A prompt that came later."))));
        Box::pin(async { Ok(specs) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            match self.resources.iter().find(|(spec, _)| spec.uri_pattern.matches(&call.tool).is_some()) {
                Some((_, make)) => make(call).await,
                None => Err(ToolError::not_found(format!("there is no resource `{}`", call.tool))),
            }
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            match self.prompts.iter().find(|(spec, _)| spec.name == call.tool) {
                Some((_, make)) => make(call).await,
                None => Err(ToolError::not_found(format!("there is no prompt `{}`", call.tool))),
            }
        })
    }
}

fn argument(call: &Call, name: &str) -> String {
    call.arguments[name].as_str().unwrap_or_default().to_owned()
}

fn prompts() -> Vec<(PromptSpec, Make)> {
    let simple = make(async |_call| Ok(Output::text("This is a simple prompt for testing.")));
    let arguments = make(async |call: Call| {
        let (one, two) = (argument(&call, "arg1"), argument(&call, "arg2"));
        Ok(Output::text(format!("Prompt with arguments: arg1='{one}', arg2='{two}'")))
    });
    let embedded = make(async |call: Call| {
        let uri = argument(&call, "resourceUri");
        Ok(Output::default()
            .with_content(resource(&uri, "text/plain", "Embedded resource content for testing."))
            .with_content(Content::text("Please process the embedded resource above.")))
    });
    let pictured = make(async |_call| {
        Ok(Output::default()
            .with_content(image())
            .with_content(Content::text("Please analyze the image above.")))
    });
    let asking = make(async |call: Call| {
        let question = Question::with_schema("What context should the prompt use?", text_schema("context"));
        match call.port.ask(call.id, &question.named("user_context")).await? {
            Answer::Given { value } => Ok(Output::text(format!("Use {}.", value["context"]))),
            Answer::Declined => Ok(Output::text("Use nothing.")),
        }
    });
    vec![
        (PromptSpec::new("test_simple_prompt", "A prompt without arguments."), simple),
        (
            PromptSpec::new("test_prompt_with_arguments", "A prompt with arguments.")
                .argument("arg1", "First test argument", false)
                .argument("arg2", "Second test argument", false),
            arguments,
        ),
        (
            PromptSpec::new("test_prompt_with_embedded_resource", "A prompt with a resource.").argument(
                "resourceUri",
                "URI of the resource to embed",
                false,
            ),
            embedded,
        ),
        (PromptSpec::new("test_prompt_with_image", "A prompt with an image."), pictured),
        (PromptSpec::new("test_input_required_result_prompt", "A prompt that asks."), asking),
    ]
}

fn resources() -> Result<Vec<(ResourceSpec, Make)>, ToolError> {
    let spec = |uri: &str, summary: &str, kind: &str| -> Result<ResourceSpec, ToolError> {
        let mut spec = ResourceSpec::new(uri.parse().map_err(ToolError::internal)?, summary);
        spec.mime_types = vec![kind.to_owned()];
        Ok(spec)
    };
    Ok(vec![
        (spec("test://static-text", "A text.", "text/plain")?, make(async |_call| Ok(Output::text(TEXT)))),
        (
            spec("test://static-binary", "A picture.", "image/png")?,
            make(async |_call| Ok(Output::default().with_content(image()))),
        ),
        (
            spec("test://watched-resource", "A text that is watched.", "text/plain")?,
            make(async |_call| Ok(Output::text("Watched."))),
        ),
        (
            spec("test://template/{id}/data", "Data by its id.", "application/json")?,
            make(async |call: Call| {
                let id = call.tool.split('/').nth(3).unwrap_or_default().to_owned();
                Ok(Output::json(
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") }),
                ))
            }),
        ),
    ])
}

#[tokio::main]
async fn main() -> Result<(), ToolError> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let server = Server::builder(Arc::new(Fixture::new()?))
        .name("toolpost-conformance")
        .version("1.0.0")
        .limits(|limits| limits.task_after = TASK_AFTER)
        .complete(|wanted: Completion| async move {
            let values = ["paris", "park", "party"].map(str::to_owned);
            values.into_iter().filter(|value| value.starts_with(&wanted.value)).collect()
        })
        .build()?;
    let running = server.http(address.parse()?).await?;
    println!("{}", running.connection_url());
    std::future::pending::<()>().await;
    drop(running);
    Ok(())
}

//! The tools that the tests call.

use std::time::Duration;

use serde_json::json;
use toolpost::{
    Answer, Artifact, Ctx, LogLevel, Output, Partial, Question, SampleRequest, ToolError, data, prompt,
    resource, tool,
};
use toolpost_toolbox::Toolbox;

/// Add two numbers.
#[tool(tags("math"), examples(r#"{"a": 1, "b": 2}"#), policy(idempotent))]
async fn add(
    /// The first.
    a: i64,
    /// The second.
    #[arg(default = 10)]
    b: i64,
) -> i64 {
    a + b
}

/// Greet a person.
///
/// With titles.
#[tool]
async fn greet(
    /// Whom.
    #[arg(min_len = 1)]
    name: String,
    /// Titles, one flag each.
    #[arg(default = [])]
    titles: Vec<String>,
    /// Whole numbers.
    #[arg(default = [])]
    numbers: Vec<i64>,
    /// In capitals.
    #[arg(default = false)]
    loud: bool,
    /// Anything.
    extra: Option<serde_json::Value>,
) -> Output {
    Output::json(json!({ "name": name, "titles": titles, "numbers": numbers, "loud": loud, "extra": extra }))
}

/// Order a thing; the answer has a status of its own.
#[tool]
async fn order() -> Output {
    Output::json(json!({ "status": "shipped", "id": 7 }))
}

/// Count, and report progress.
#[tool(streaming)]
async fn count(
    ctx: &Ctx,
    /** How far. */
    #[arg(min = 1)]
    to: u32,
) -> Result<u32, ToolError> {
    for number in 1..=to {
        ctx.progress(format!("{number}"), f64::from(number) * 100.0 / f64::from(to));
    }
    ctx.log(LogLevel::Warn, "counted");
    ctx.artifact(Artifact::from_bytes("count.txt", "text/plain", to.to_string().into_bytes())).await?;
    if to == 13 {
        return Err(ToolError::conflict("13 is unlucky"));
    }
    Ok(to)
}

/// Guess a number.
#[tool(session_mode)]
async fn guess(ctx: &Ctx, #[arg(default = 7)] number: u64) -> Result<Output, ToolError> {
    let mut tries = 0;
    let mut question = "Guess.";
    while let Answer::Given { value } = ctx.ask(Question::text(question)).await? {
        tries += 1;
        match value.as_u64() {
            Some(guessed) if guessed == number => return Ok(Output::json(json!({ "tries": tries }))),
            Some(guessed) if guessed < number => question = "More.",
            _ => question = "Less.",
        }
    }
    Ok(Output::default())
}

/// Ask for ever, whatever is answered.
#[tool(session_mode)]
async fn stubborn(ctx: &Ctx) -> Result<(), ToolError> {
    loop {
        let _ = ctx.ask(Question::text("Again?")).await?;
    }
}

/// Fill a form.
#[tool(session_mode)]
async fn form(ctx: &Ctx) -> Result<Output, ToolError> {
    let schema = json!({"type": "object", "properties": {"value": {"type": "string"}}});
    match ctx.ask(Question::with_schema("Fill in.", schema)).await? {
        Answer::Given { value } => Ok(Output::json(value)),
        Answer::Declined => Err(ToolError::precondition("the form was declined")),
    }
}

/// Say it shorter.
#[tool]
async fn summarize(ctx: &Ctx, text: String) -> Result<String, ToolError> {
    let mut request = SampleRequest::new(format!("Short: {text}"));
    request.system = Some("Be brief.".into());
    request.temperature = Some(0.5);
    request.stop_sequences = vec!["END".into()];
    Ok(ctx.sample(request).await?.content)
}

/// Divide numbers by numbers.
#[tool]
async fn divide(numbers: Vec<f64>, by: Vec<f64>) -> Output {
    let mut errors = Vec::new();
    let mut quotients = Vec::new();
    for (number, divisor) in numbers.iter().zip(&by) {
        if *divisor == 0.0 {
            errors.push(ToolError::invalid_input("division by 0"));
        } else {
            quotients.push(number / divisor);
        }
    }
    let partial = Partial { succeeded: quotients.len(), errors };
    Output::json(json!({ "quotients": quotients })).with_partial(partial)
}

#[data]
struct Search {
    /// A part of the name.
    name: String,
    #[serde(default)]
    working_dir: Option<String>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    verbose: bool,
}

fn no_path(search: &Search) -> Result<(), ToolError> {
    if search.name.contains('/') {
        return Err(ToolError::invalid_input("/name: expected a name, found a path"));
    }
    Ok(())
}

/// Find a file.
#[tool(policy(pre_validate = no_path))]
async fn find(ctx: &Ctx, #[arg(input)] search: Search) -> Result<Output, ToolError> {
    ctx.log(LogLevel::Info, "looking");
    let limit = ctx.remaining().map(|left| left.as_secs_f64().ceil());
    let given = (search.working_dir.is_some(), search.timeout, search.dry_run, search.verbose);
    Ok(Output::json(json!({
        "name": search.name, "directory": ctx.working_dir(), "seconds": limit, "verbose": ctx.is_verbose(),
        "given": [given.0, given.1, given.2, given.3],
    })))
}

/// Delete a thing; it knows what it would do.
#[tool(policy(dry_run, destructive))]
async fn delete(ctx: &Ctx, thing: String, #[arg(default = false)] dry_run: bool) -> Output {
    Output::json(json!({ "thing": thing, "deleted": !ctx.is_dry_run(), "asked": dry_run }))
}

/// Sign in.
#[tool(examples(r#"{"user": "ada", "password": "xyz"}"#))]
async fn sign_in(
    user: String,
    #[arg(sensitive, min_len = 3)] password: String,
    #[arg(default = false)] dry_run: bool,
) -> String {
    let _ = (password, dry_run);
    user
}

/// Sleep.
#[tool(timeout_s = 1.2)]
async fn sleep(milliseconds: u64, timeout: Option<f64>) -> Result<u64, ToolError> {
    let _ = timeout;
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    Ok(milliseconds)
}

/// Fail.
#[tool]
async fn fail(code: String) -> Result<(), ToolError> {
    let code = serde_json::from_value(code.into()).map_err(|_| ToolError::invalid_input("no such code"))?;
    Err(ToolError::new(code, "hunter2").suggest("Do it later."))
}

/// Panic.
#[tool]
async fn explode() -> Output {
    panic!("hunter2")
}

/// Call another tool.
#[tool]
async fn nested(ctx: &Ctx, tool: String, arguments: serde_json::Value) -> Result<Output, ToolError> {
    ctx.call(tool, arguments).await
}

/// Return a file and facts of the caller.
#[tool]
async fn give(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.artifact(Artifact::from_bytes("a.bin", "application/octet-stream", vec![0_u8, 255])).await?;
    Ok(Output::json(json!({
        "front": ctx.caller().front, "identity": ctx.caller().identity, "metadata": ctx.metadata(),
        "key": ctx.idempotency_key(), "level": ctx.level(),
        "scope": ctx.scope().map(|scope| (scope.id().to_string(), scope.owner().to_owned())),
    })))
}

/// Keep a sum.
#[tool]
async fn tally(#[state(id = "tallies/sum")] sum: &mut i64, by: i64) -> i64 {
    *sum += by;
    *sum
}

/// A note.
#[resource("notes://{user}/{page}", mime_types("text/plain"), tags("notes"))]
async fn note(user: String, page: u32) -> Result<Output, ToolError> {
    if page > 9 {
        return Err(ToolError::not_found("no such page"));
    }
    Ok(Output::json(json!({ "user": user, "page": page })))
}

/// Ask for a review.
#[prompt(tags("writing"))]
async fn review(
    /** The text. */
    text: String,
    /** How strict. */
    #[arg(default = "kind")]
    tone: String,
) -> String {
    format!("{tone}: {text}")
}

pub(super) fn toolbox() -> Toolbox {
    let builder = Toolbox::builder().tool(add).tool(greet).tool(order).tool(count).tool(guess).tool(stubborn);
    let builder =
        builder.tool(form).tool(summarize).tool(divide).tool(find).tool(delete).tool(sign_in).tool(sleep);
    let builder = builder.tool(fail).tool(explode).tool(nested).tool(give).tool(tally);
    builder.resource(note).prompt(review).build().unwrap()
}

/// A program of one tool.
pub(super) fn single() -> Toolbox {
    Toolbox::builder().tool(greet).build().unwrap()
}

//! A tool program: every kind of tool that a program can offer, in little code.
//!
//! ```text
//! tool_program --help
//! tool_program add --a 1 --b 2
//! tool_program add '{"a": 1, "b": 2}'
//! tool_program count --stream --to 3
//! tool_program guess --session
//! tool_program summarize --text "…" --sample-via stdin
//! ```
#![expect(clippy::print_stdout, reason = "shows that a stray print does no harm")]

use std::path::PathBuf;
use std::process::ExitCode;

use toolpost::output::{Artifact, Partial};
use toolpost::port::{Answer, LogLevel, Question, SampleRequest};
use toolpost::{Ctx, Output, ToolError, ToolProgram, Toolbox, data, json, prompt, resource, tool};

/// Add two numbers.
#[tool(tags("math"), examples(r#"{"a": 1, "b": 2}"#), policy(idempotent))]
async fn add(
    /// The first.
    a: i64,
    /// The second.
    #[arg(default = 10)]
    b: i64,
) -> i64 {
    println!("this goes to standard error");
    a + b
}

/// Greet somebody.
///
/// The greeting is repeated for each of the titles.
#[tool]
async fn greet(
    /// Whom.
    #[arg(min_len = 1)]
    name: String,
    /// Titles, one flag each.
    #[arg(default = [])]
    titles: Vec<String>,
    /// In capitals.
    #[arg(default = false)]
    loud: bool,
) -> Output {
    let mut words = titles;
    words.push(name);
    let text = format!("Hello, {}", words.join(" "));
    Output::text(if loud { text.to_uppercase() } else { text })
}

/// Count, and tell how far it is.
#[tool(streaming)]
async fn count(
    ctx: &Ctx,
    /** How far. */
    #[arg(min = 1, max = 1000)]
    to: u32,
) -> Result<u32, ToolError> {
    for number in 1..=to {
        ctx.progress(format!("{number} of {to}"), f64::from(number) * 100.0 / f64::from(to));
    }
    ctx.log(LogLevel::Info, "counted");
    ctx.artifact(Artifact::from_bytes("count.txt", "text/plain", to.to_string().into_bytes())).await?;
    Ok(to)
}

/// Guess the number that I think of.
#[tool(session_mode)]
async fn guess(
    ctx: &Ctx,
    #[arg(default = 7)]
    /// The number, for tests.
    number: u32,
) -> Result<u32, ToolError> {
    let mut tries = 0;
    let mut question = "I think of a number from 1 to 10.";
    while let Answer::Given { value } = ctx.ask(Question::text(question)).await? {
        tries += 1;
        match value.as_u64() {
            Some(guessed) if guessed == u64::from(number) => return Ok(tries),
            Some(guessed) if guessed < u64::from(number) => question = "More.",
            Some(_) => question = "Less.",
            None => question = "A number, please.",
        }
    }
    Ok(tries)
}

/// Say it shorter. The caller's model does the work.
#[tool]
async fn summarize(
    ctx: &Ctx,
    /** What is to be said. */
    text: String,
) -> Result<String, ToolError> {
    let mut request = SampleRequest::new(format!("Summarize in one sentence: {text}"));
    request.max_tokens = 100;
    Ok(ctx.sample(request).await?.content)
}

/// Divide many numbers by one another; some may fail.
#[tool]
async fn divide(
    /** The dividends. */
    numbers: Vec<f64>,
    /** The divisors. */
    by: Vec<f64>,
) -> Output {
    let mut errors = Vec::new();
    let mut quotients = Vec::new();
    for (number, divisor) in numbers.iter().zip(&by) {
        if *divisor == 0.0 {
            errors.push(ToolError::invalid_input(format!("{number} cannot be divided by 0")));
        } else {
            quotients.push(number / divisor);
        }
    }
    let partial = Partial { succeeded: quotients.len(), errors };
    Output::json(json!({ "quotients": quotients })).with_partial(partial)
}

/// Where files are sought, and how.
#[data]
struct Search {
    /// A part of the name.
    name: String,
    /// The directory.
    #[serde(default)]
    working_dir: Option<String>,
    /// Seconds, from 1 to 600.
    #[serde(default)]
    timeout: Option<u32>,
    /// Only tell what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Tell how it went.
    #[serde(default)]
    verbose: bool,
}

fn check(search: &Search) -> Result<(), ToolError> {
    if search.name.contains('/') {
        return Err(ToolError::invalid_input("/name: expected a name, found a path").with("pointer", "/name"));
    }
    Ok(())
}

/// Find files by a part of their names.
#[tool(policy(read_only, pre_validate = check))]
fn find(ctx: &Ctx, #[arg(input)] search: Search) -> Result<Vec<String>, ToolError> {
    let directory = ctx.working_dir().map_or_else(|| PathBuf::from("."), PathBuf::from);
    ctx.log(LogLevel::Debug, format!("looking into {}", directory.display()));
    let names = std::fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| name.contains(&search.name)).collect();
    found.sort();
    Ok(found)
}

/// Sleep, to be cancelled or to run into a limit of time.
#[tool]
async fn sleep(
    /// The duration.
    milliseconds: u64,
    /// Seconds, from 1 to 600.
    timeout: Option<f64>,
) -> Result<u64, ToolError> {
    let _ = timeout;
    tokio::time::sleep(std::time::Duration::from_millis(milliseconds)).await;
    Ok(milliseconds)
}

/// Fail in the way that is asked for.
#[tool]
async fn fail(
    /// The code.
    #[arg(enum("NOT_FOUND", "CONFLICT", "PERMISSION", "DEPENDENCY", "LIMIT", "INTERNAL"))]
    code: String,
) -> Result<(), ToolError> {
    let message = "as asked";
    let error = match code.as_str() {
        "NOT_FOUND" => ToolError::not_found(message),
        "CONFLICT" => ToolError::conflict(message),
        "PERMISSION" => ToolError::permission(message),
        "DEPENDENCY" => ToolError::dependency(message),
        "LIMIT" => ToolError::limit(message),
        _ => ToolError::internal(message),
    };
    Err(error.suggest("Ask for something else."))
}

/// Tell which directory the process works in.
#[tool]
fn where_am_i(
    /// Another directory.
    working_dir: Option<String>,
) -> Result<String, ToolError> {
    let _ = working_dir;
    Ok(std::env::current_dir()?.display().to_string())
}

/// Read standard input: in resident mode there is nothing on it for a tool.
#[tool]
fn read_input() -> Result<String, ToolError> {
    Ok(std::io::read_to_string(std::io::stdin())?)
}

/// A note of somebody.
#[resource("notes://{user}/{page}", mime_types("text/plain"), tags("notes"))]
async fn note(user: String, page: u32) -> Result<String, ToolError> {
    if page > 9 {
        return Err(ToolError::not_found(format!("{user} has 9 pages, and no page {page}")));
    }
    Ok(format!("page {page} of {user}"))
}

/// Ask for a review of a text.
#[prompt(tags("writing"))]
async fn review(
    /** The text. */
    text: String,
    /** How strict. */
    #[arg(default = "kind")]
    tone: String,
) -> String {
    format!("Review this text, in a {tone} tone: {text}")
}

fn main() -> ExitCode {
    ToolProgram::new(|| {
        Toolbox::builder()
            .tool(add)
            .tool(greet)
            .tool(count)
            .tool(guess)
            .tool(summarize)
            .tool(divide)
            .tool(find)
            .tool(sleep)
            .tool(fail)
            .tool(where_am_i)
            .tool(read_input)
            .resource(note)
            .prompt(review)
    })
    .name("tool_program")
    .version("1.2.3")
    .about("Every kind of tool that a program can offer.")
    .main()
}

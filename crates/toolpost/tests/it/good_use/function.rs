//! Functions as tools.

use toolpost::policy::Timeout;
use toolpost::{Ctx, Inject, Output, ToolError, tool};

/// No parameters, no result.
#[tool]
async fn nothing() {}

/// All kinds of parameters.
#[tool(name = "many-things", policy(no_timeout, rate = "10/s", concurrency = 2, output_limit = 1024))]
fn many(
    /// A number.
    #[arg(min = -1, max = 1.5)]
    x: f64,
    r#type: Option<String>,
    #[arg(enum("a", "b"), sensitive)] letter: String,
    #[arg(inject)] user: String,
    http: Inject<u8>,
    ctx: &Ctx,
) -> Result<Output, ToolError> {
    let _ = (x, r#type, letter, user, *http, ctx.id());
    Ok(Output::text("done"))
}

/// A result of another error type.
#[tool]
async fn io() -> std::io::Result<String> {
    std::fs::read_to_string("x")
}

type Answer<T> = Result<T, std::fmt::Error>;

/// An alias, a keyword, and names that the emitted code could have.
#[tool(backoff_initial_ms = 500, backoff_max_ms = 1500)]
async fn r#match(args: u8, ctx: u8, spec: u8, input: u8) -> Answer<u8> {
    Ok(args + ctx + spec + input)
}

/// Seconds as a number.
#[tool(timeout_s = 7)]
async fn seconds() {}

/// Not built.
#[tool]
#[cfg(any())]
fn absent(nothing: Nothing) {}

#[test]
fn functions_with_all_kinds_of_parameters() {
    let toolbox = toolpost::Toolbox::builder()
        .tool(nothing)
        .tool(many)
        .tool(io)
        .tool(r#match)
        .tool(seconds)
        .build()
        .unwrap();
    assert_eq!(toolbox.specs().len(), 5);
    let limit = Timeout::After(std::time::Duration::from_secs(7));
    assert!(toolbox.specs().iter().any(|spec| spec.name == "seconds" && spec.policy.timeout == Some(limit)));
    let nothing = 1; // the name can be used again
    let _ = nothing;
}

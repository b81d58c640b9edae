//! An agent with two tools, whose answer is a value of a type, and which may spend ten cents. Without an argument its
//! model is a script, so that it needs no key and no network; `MODEL` is one of a provider whose key is in the
//! environment.
//!
//! ```text
//! cargo run -p toolpost --features agent --example agent -- [MODEL]
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program with a terminal")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use toolpost::llm::{self, Model, ScriptModel};
use toolpost::{Agent, ToolError, Toolbox, data, tool};

/// The item to buy.
#[data]
struct Order {
    /// The article's name.
    article: String,
    /// The number.
    pieces: u32,
    /// In euros.
    total: f64,
}

/// Work out what pieces of an article cost together, in euros.
#[tool(policy(read_only, idempotent))]
async fn quote(
    /** The article's name. */
    article: String,
    /** How many. */
    pieces: u32,
) -> Result<f64, ToolError> {
    let price = match article.as_str() {
        "lamp" => 49.5,
        "chair" => 80.0,
        _ => {
            let error = ToolError::not_found(format!("there is no article `{article}`"));
            return Err(error.suggest("Ask for `lamp` or `chair`."));
        }
    };
    Ok(price * f64::from(pieces))
}

/// Look up how many pieces of an article there are.
#[tool(policy(read_only, idempotent))]
async fn stock(
    /** The article's name. */
    article: String,
) -> u32 {
    if article == "lamp" { 3 } else { 0 }
}

const SCRIPT: &str = r#"
turns:
  - calls:
      - { tool: stock, args: { article: lamp } }
      - { tool: quote, args: { article: lamp, pieces: 2 } }
  - text: '{ "article": "lamp", "pieces": 2, "total": {{ results[1].structured }} }'
"#;

fn model() -> Result<Arc<dyn Model>, Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(name) => Ok(llm::from_env(&name)?),
        None => Ok(Arc::new(ScriptModel::parse("agent", SCRIPT)?)),
    }
}

async fn order() -> Result<(), Box<dyn Error>> {
    let model = model()?;
    let toolbox = Toolbox::builder().tool(stock).tool(quote).build()?;
    let mut agent = Agent::builder(Arc::clone(&model), toolbox).max_iterations(10);
    // A scripted model has no price, and a limit of cost needs one.
    if model.info().is_some() {
        agent = agent.max_cost_usd(0.10);
    }
    let order = agent.build().run_as::<Order>("Order two lamps, if there are as many.").await?;
    println!("{} × {}: {} €", order.value.pieces, order.value.article, order.value.total);
    let record = &order.output.record;
    eprintln!("{} turns, {} calls", record.iterations, record.tool_calls.len());
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match order().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

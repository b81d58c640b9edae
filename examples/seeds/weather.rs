//! An agent whose tool has a payload for the application, beside `weather.py`.
#![expect(clippy::print_stdout, reason = "a program with a terminal")]

use toolpost::llm;
use toolpost::prelude::*;

/// Gets current weather for a location.
#[tool(tags("weather", "api"), policy(category = "data", group = "api.weather"))]
async fn get_weather(
    /// City name.
    location: String,
) -> Output {
    let data = json!({ "temp": 20, "condition": "sunny", "location": location });
    Output::text(format!("20C and sunny in {location}")).with_payload(data)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or("openai/gpt-4o-mini".to_owned());
    let toolbox = Toolbox::builder().tool(get_weather).build()?;
    let agent = Agent::builder(llm::from_env(&name)?, toolbox).build();
    let output = agent.run("What's the weather in London?").await?;
    println!("{}", output.text());
    Ok(())
}

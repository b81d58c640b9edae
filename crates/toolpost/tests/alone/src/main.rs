use toolpost::{ToolError, Toolbox, json, tool};

/// Forecast the weather for a city.
#[tool(tags("weather"), timeout_s = 10, policy(idempotent))]
async fn forecast(/** City name. */ city: String, #[arg(default = 1, min = 1, max = 14)] days: u8) -> Forecast {
    Forecast { summary: format!("{city}: sun"), days }
}

#[toolpost::data]
struct Forecast { summary: String, days: u8 }

#[tokio::main]
async fn main() -> Result<(), ToolError> {
    let toolbox = Toolbox::builder().tool(forecast).build()?;
    println!("{}", toolbox.run("forecast", json!({ "city": "Oslo" })).await?.to_text());
    Ok(())
}

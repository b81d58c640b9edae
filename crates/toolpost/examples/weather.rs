//! The weather: a structured answer with a schema, a resource and a prompt. The figures are made up of the city's name,
//! so that it needs no network.
//!
//! ```console
//! $ cargo run -p toolpost --example weather -- forecast --city Oslo --days 2
//! ```

use toolpost::{ToolError, Toolbox, data, prompt, resource, tool};

/// The weather of one day.
#[data]
struct Day {
    /// Days from now.
    ahead: u8,
    /// In degrees Celsius.
    high: i32,
    /// In degrees Celsius.
    low: i32,
    /// In words.
    sky: String,
}

/// The weather of some days.
#[data]
struct Forecast {
    /// The city.
    city: String,
    /// One day after the other.
    days: Vec<Day>,
}

fn day(city: &str, day: u8) -> Day {
    // The same city has the same weather, in every process.
    let seed = city.bytes().fold(u32::from(day), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let high = i32::try_from(seed % 25).unwrap_or_default();
    let sky = ["sun", "clouds", "rain", "snow"][seed as usize / 25 % 4];
    Day { ahead: day, high, low: high - 7, sky: sky.to_owned() }
}

/// Forecast the weather for a city.
#[tool(tags("weather"), policy(read_only, idempotent, cache = "5m"))]
fn forecast(
    /// City name, for example "Oslo".
    #[arg(min_len = 1)]
    city: String,
    /// Days ahead.
    #[arg(default = 1, min = 1, max = 14)]
    days: u8,
) -> Forecast {
    Forecast { days: (1..=days).map(|number| day(&city, number)).collect(), city }
}

/// Today's weather of a city.
#[resource("weather://{city}/today", mime_types("text/plain"))]
async fn today(city: String) -> Result<String, ToolError> {
    let Day { high, low, sky, .. } = day(&city, 0);
    Ok(format!("{city}: {sky}, {low} to {high} °C"))
}

/// Ask what to wear.
#[prompt]
async fn what_to_wear(
    /** City name. */
    city: String,
) -> String {
    format!("Look at the forecast for {city} and say in one sentence what to wear.")
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| Toolbox::builder().tool(forecast).resource(today).prompt(what_to_wear))
}

//! A calculator: functions as tools, with checked arguments and errors that say what to do.
//!
//! ```console
//! $ cargo run -p toolpost --example calculator -- divide --a 7 --b 2
//! {"status":"success","result":{"result":3.5}}
//! ```

use toolpost::{ToolError, Toolbox, tool};

/// Add numbers.
#[tool(policy(read_only, idempotent))]
fn add(
    /// The numbers.
    #[arg(min_len = 1)]
    numbers: Vec<f64>,
) -> f64 {
    numbers.iter().sum()
}

/// Divide one number by another.
#[tool(policy(read_only, idempotent))]
fn divide(
    /// The dividend.
    a: f64,
    /// The divisor.
    b: f64,
) -> Result<f64, ToolError> {
    if b == 0.0 {
        return Err(ToolError::invalid_input("/b: nothing can be divided by 0")
            .with("pointer", "/b")
            .suggest("Give another divisor."));
    }
    Ok(a / b)
}

/// Raise a number to a power.
#[tool(policy(read_only, idempotent))]
fn power(
    /// The number.
    base: f64,
    /// The power.
    #[arg(min = -100, max = 100)]
    exponent: i32,
) -> f64 {
    base.powi(exponent)
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| Toolbox::builder().tool(add).tool(divide).tool(power))
}

//! A tool with an enum and an error, beside `calculator.py`.

use toolpost::prelude::*;

#[data]
#[serde(rename_all = "lowercase")]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// Perform basic arithmetic operations.
#[tool]
async fn calculator(
    /// Arithmetic operation.
    operation: Operation,
    /// First number.
    a: f64,
    /// Second number.
    b: f64,
) -> Result<f64, ToolError> {
    match operation {
        Operation::Add => Ok(a + b),
        Operation::Subtract => Ok(a - b),
        Operation::Multiply => Ok(a * b),
        Operation::Divide if b == 0.0 => Err(ToolError::invalid_input("division by zero")),
        Operation::Divide => Ok(a / b),
    }
}

fn main() -> std::process::ExitCode {
    toolpost::main(|| Toolbox::builder().tool(calculator))
}

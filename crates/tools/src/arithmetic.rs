//! `calculate`: arithmetic with exact fractions where possible.

mod function;
mod number;
mod parser;

use std::collections::BTreeMap;

use toolpost::{ToolError, data, tool};

use self::number::Number;
use crate::WithText;

/// Maximum length of an expression, in characters.
const MAX_EXPRESSION: usize = 4096;
/// Maximum number of variables.
const MAX_VARIABLES: usize = 256;

/// The result of an expression.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Calculated {
    /// The value, as the nearest double if JSON numbers cannot represent it.
    pub value: serde_json::Number,
    /// The value with all known digits.
    pub text: String,
    /// Whether `text` is the exact result, without rounding.
    pub exact: bool,
    /// The exact result as a fraction, such as `1/3`, if its digits are endless.
    pub fraction: Option<String>,
}

/// Calculate the value of an arithmetic expression.
///
/// Integers, decimals and fractions are exact up to 38 digits: 2**100 has all its digits, and 0.1 + 0.2 is 0.3. Larger
/// values and functions such as sin use 64-bit floating point, and `exact` is false.
/// Operators: + - * / // % ** (also ^), and parentheses. Precedence is Python's: -2**2 is -4, 2**3**2 is 512; // and %
/// round towards minus infinity.
/// Functions: abs, sign, sqrt, cbrt, exp, ln, log(x) or log(x, base), log2, log10, sin, cos, tan, asin, acos, atan,
/// atan2(y, x), sinh, cosh, tanh, degrees, radians, floor, ceil, trunc, round(x) or round(x, digits), min, max, sum,
/// mean, median, hypot, gcd, lcm, factorial, comb(n, k). Angles are in radians; halves round to the even digit.
/// Constants: pi, e, tau.
#[tool(summary = "Calculate", tags("maths", "arithmetic", "calculator", "number"), examples(r#"{"expression": "round(principal * (1 + rate)**10, 2)", "variables": {"principal": 1000, "rate": 0.03}}"#), policy(category = "data_processing", group = "maths", read_only, idempotent, placement = "inline"))]
pub fn calculate(
    /// The expression, for example "3 * (2 + sqrt(16)) / 7".
    #[arg(min_len = 1, max_len = 4096)]
    expression: String,
    /// Values of variables, for example {"rate": 0.03}. They override constants of the same name.
    variables: Option<BTreeMap<String, serde_json::Number>>,
) -> Result<WithText<Calculated>, ToolError> {
    let variables = read_variables(variables.unwrap_or_default())?;
    if expression.chars().count() > MAX_EXPRESSION {
        return Err(ToolError::limit(format!("the expression has more than {MAX_EXPRESSION} characters")));
    }
    let number =
        parser::evaluate(&expression, &variables).map_err(|failure| failure.into_error(&expression))?;
    let result = number.describe();
    let text = match (&result.fraction, result.exact) {
        (Some(fraction), _) => format!("{} (exactly {fraction})", result.text),
        (None, true) => result.text.clone(),
        (None, false) => format!("{} (rounded)", result.text),
    };
    Ok(WithText::new(result, text))
}

fn read_variables(
    given: BTreeMap<String, serde_json::Number>,
) -> Result<BTreeMap<String, Number>, ToolError> {
    if given.len() > MAX_VARIABLES {
        return Err(ToolError::limit(format!("{} variables; the maximum is {MAX_VARIABLES}", given.len()))
            .with("pointer", "/variables"));
    }
    let read = |(name, number): (String, serde_json::Number)| {
        let shown = crate::files::shown(&name);
        if !parser::is_name(&name) {
            return Err(ToolError::invalid_input(format!(
                "`{shown}` is not a variable name; use letters, digits and `_`, without a leading digit"
            ))
            .with("pointer", "/variables"));
        }
        let number = Number::from_json(&number).ok_or_else(|| {
            ToolError::invalid_input(format!("the value of `{shown}` is not a finite number"))
                .with("pointer", "/variables")
        })?;
        Ok((name, number))
    };
    given.into_iter().map(read).collect()
}

//! Folds a stream of the Messages API on standard input to the body that it would have been, on standard output.
//! Useful to hold the fold against another one, such as the official client's.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read as _, Write as _};

use toolpost_llm::AnthropicFold;

/// The longest input, in bytes.
const LONGEST: u64 = 64 * 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().take(LONGEST).read_to_end(&mut bytes)?;
    let mut fold = AnthropicFold::new("any");
    let mut events = VecDeque::new();
    fold.feed(&bytes, &mut events)?;
    let response = fold.finish(&mut events)?;
    writeln!(std::io::stdout(), "{}", response.raw)?;
    Ok(())
}

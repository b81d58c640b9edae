//! Bounds how much of a schema is visited and copied: references multiply schemas.

use serde_json::Value;

/// The remaining values and bytes to visit or copy.
///
/// Each `spend` method returns a sentence as its error once the budget is exhausted.
#[derive(Debug)]
pub struct Budget {
    max_values: usize,
    max_bytes: usize,
    values: usize,
    bytes: usize,
}

impl Budget {
    /// A budget of values and bytes of text.
    pub fn new(max_values: usize, max_bytes: usize) -> Self {
        Self { max_values, max_bytes, values: max_values, bytes: max_bytes }
    }

    /// Spends one value.
    pub fn spend_value(&mut self) -> Result<(), String> {
        self.values = self.values.checked_sub(1).ok_or_else(|| {
            format!("the schema has more than {} values with all its references", self.max_values)
        })?;
        Ok(())
    }

    /// Spends the bytes of a text.
    pub fn spend_text(&mut self, text: &str) -> Result<(), String> {
        self.bytes = self.bytes.checked_sub(text.len()).ok_or_else(|| {
            format!("the schema has more than {} MiB of text with all its references", self.max_bytes >> 20)
        })?;
        Ok(())
    }

    /// Spends a value, everything in it, and the bytes of its texts.
    pub fn spend(&mut self, value: &Value) -> Result<(), String> {
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            self.spend_value()?;
            match value {
                Value::String(text) => self.spend_text(text)?,
                Value::Array(elements) => pending.extend(elements),
                Value::Object(members) => {
                    for (name, member) in members {
                        self.spend_text(name)?;
                        pending.push(member);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

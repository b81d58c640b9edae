//! The part of a document that a tool sees.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::pointer::at;
use super::{Document, Patch, StateAddress, to_json};
use crate::ToolError;

/// A type that can be state: serializable, with a default as its initial value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be state",
    label = "needs serde support and a default",
    note = "put `#[toolpost::data]` and `#[derive(Default)]` on the type, or use one with both, such as `i64` or `Vec<String>`"
)]
pub trait StateValue: Serialize + DeserializeOwned + Default {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Default> StateValue for T {}

/// A part of a document at one version.
#[derive(Clone, Debug)]
pub struct StateView {
    address: StateAddress,
    /// The document; `None` before its first commit.
    document: Option<Arc<Value>>,
}

impl StateView {
    /// A view of a part of a document.
    pub fn new(address: StateAddress, document: &Document) -> Self {
        let written = document.version > 0;
        Self { address, document: written.then(|| Arc::clone(&document.value)) }
    }

    /// The address of the part.
    pub fn address(&self) -> &StateAddress {
        &self.address
    }

    /// The value; `None` if it does not exist yet.
    pub fn value(&self) -> Option<&Value> {
        at(self.document.as_deref()?, &self.address.pointer)
    }

    /// The value, decoded; the type's default if it does not exist yet.
    ///
    /// # Errors
    /// `INTERNAL` if the stored value does not fit the type.
    pub fn decode<T: StateValue>(&self) -> Result<T, ToolError> {
        let Some(value) = self.value() else { return Ok(T::default()) };
        decode(value, &self.address)
    }

    /// The JSON of a new value; `None` if it equals the stored value, or the default of a missing one.
    ///
    /// # Errors
    /// `INTERNAL` with the JSON pointer of a value that JSON cannot represent.
    pub fn changed<T: StateValue>(&self, value: &T) -> Result<Option<Value>, ToolError> {
        let after = to_json(value).map_err(|error| self.locate(error))?;
        if self.value() == Some(&after) {
            return Ok(None);
        }
        // The stored form may differ, for example by omitted fields, so compare re-encoded values.
        let before = to_json(&self.decode::<T>()?).map_err(|error| self.locate(error))?;
        Ok((before != after).then_some(after))
    }

    /// Converts an error about the value into one about its location in the document.
    fn locate(&self, error: ToolError) -> ToolError {
        let within = error.context().get("pointer").and_then(Value::as_str).unwrap_or_default();
        let pointer = format!("{}{within}", self.address.pointer);
        error.with("pointer", pointer).with("document", self.address.document.as_str())
    }
}

/// Decodes a value of a document.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value, address: &StateAddress) -> Result<T, ToolError> {
    T::deserialize(value).map_err(|error| {
        let StateAddress { document, pointer } = address;
        let place = if pointer.is_empty() { "/" } else { pointer };
        ToolError::internal(format!(
            "the document `{document}` at `{place}` does not fit the tool's type: {error}"
        ))
        .with("document", document.as_str())
        .with("pointer", pointer.as_str())
    })
}

impl Document {
    /// Sets values at JSON pointers, creating missing parents. Returns the new value and the patch.
    ///
    /// # Errors
    /// `PRECONDITION` with the pointer of a parent that is not an object.
    pub fn with_values<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<(Arc<Value>, Patch), ToolError> {
        let mut patch = Patch::default();
        let mut changed = Value::clone(&self.value);
        for (pointer, value) in values {
            patch
                .set(&mut changed, pointer, value)
                .map_err(|error| error.with("document", self.id.as_str()))?;
        }
        Ok((Arc::new(changed), patch))
    }

    /// The value at a JSON pointer.
    pub fn get(&self, pointer: &str) -> Option<&Value> {
        at(&self.value, pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn view(version: u64, value: Value, pointer: &str) -> StateView {
        let document = Document { id: "d".into(), version, value: Arc::new(value) };
        StateView::new(StateAddress { document: "d".into(), pointer: pointer.into() }, &document)
    }

    #[test]
    fn a_missing_value_is_the_default() {
        assert_eq!(view(0, json!(null), "").decode::<i64>().unwrap(), 0);
        assert_eq!(view(1, json!({"a": 1}), "/b").decode::<Vec<u8>>().unwrap(), Vec::<u8>::new());
        assert_eq!(view(1, json!({"a": 1}), "/a").decode::<i64>().unwrap(), 1);
        assert_eq!(view(1, json!(null), "").decode::<Option<u8>>().unwrap(), None);
        let error = view(1, json!({"a": "x"}), "/a").decode::<i64>().unwrap_err();
        assert!(error.message().starts_with("the document `d` at `/a` does not fit"), "{error}");
    }

    #[test]
    fn only_a_real_change_is_written() {
        assert_eq!(view(0, json!(null), "").changed(&0_i64).unwrap(), None);
        assert_eq!(view(1, json!({"a": 3}), "/a").changed(&3_i64).unwrap(), None);
        assert_eq!(view(1, json!({"a": 3}), "/a").changed(&4_i64).unwrap(), Some(json!(4)));
        // Stored as an integer, written as a float: equal.
        assert_eq!(view(1, json!({"a": 3}), "/a").changed(&3.0_f64).unwrap(), None);
    }

    #[test]
    fn an_unsupported_value_is_located_in_the_document() {
        let error =
            view(0, json!(null), "/a").changed(&BTreeMap::from([("x".to_owned(), f64::NAN)])).unwrap_err();
        assert_eq!(error.context()["pointer"], "/a/x");
        assert_eq!(error.context()["document"], "d");
    }
}

//! JSON text, written straight into the bytes that are sent.

use serde::Serialize;

use crate::RawJson;
use crate::fields::Fields;

/// Writes JSON text from the front to the back.
///
/// A request has the whole conversation in it and is written anew for every turn, so this is most of the work of asking
/// a model: there is no tree of it in between, and what the wire always says alike is copied and not composed.
#[derive(Debug)]
pub(crate) struct JsonWriter(Vec<u8>);

impl JsonWriter {
    /// A writer with room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// A piece of JSON text, as it is.
    pub(crate) fn piece(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// The comma between two values or members; none where a list or an object has just begun.
    pub(crate) fn comma(&mut self) {
        if !matches!(self.0.last(), None | Some(b'{' | b'[')) {
            self.0.push(b',');
        }
    }

    /// A string.
    pub(crate) fn string(&mut self, text: &str) {
        // Few texts have anything to escape. A look at every byte without a way out compiles to a few at a time.
        let has_escapes = text.bytes().fold(false, |has, byte| has | matches!(byte, 0..0x20 | b'"' | b'\\'));
        if has_escapes {
            // Writing a text into memory cannot fail.
            let _ = serde_json::to_writer(&mut self.0, text);
            return;
        }
        self.0.push(b'"');
        self.piece(text);
        self.0.push(b'"');
    }

    /// A member's name, after which its value must be written. The name has nothing to escape.
    pub(crate) fn name(&mut self, name: &'static str) {
        self.comma();
        self.0.push(b'"');
        self.piece(name);
        self.piece("\":");
    }

    /// A member that is a string.
    pub(crate) fn text(&mut self, name: &'static str, text: &str) {
        self.name(name);
        self.string(text);
    }

    /// A member that is JSON text already.
    pub(crate) fn json(&mut self, name: &'static str, json: &str) {
        self.name(name);
        self.piece(json);
    }

    /// A member of any serialisable value.
    pub(crate) fn put(
        &mut self,
        name: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), serde_json::Error> {
        self.name(name);
        serde_json::to_writer(&mut self.0, value)
    }

    /// How much has been written, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Changes members of the object that stands from `start` to the end.
    pub(crate) fn change(
        &mut self,
        start: usize,
        change: impl FnOnce(&mut Fields) -> Result<(), serde_json::Error>,
    ) -> Result<(), serde_json::Error> {
        let mut object: Fields = serde_json::from_slice(&self.0[start..])?;
        change(&mut object)?;
        self.0.truncate(start);
        serde_json::to_writer(&mut self.0, &object)
    }

    /// What was written so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// What was written, without the room for more: a body is kept until its answer has come.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.0.shrink_to_fit();
        self.0
    }

    /// What was written, as a value. Fails if it is not exactly one.
    pub(crate) fn into_raw(self) -> Result<RawJson, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let texts = ["", "plain ü", "\"", "\\", "\u{0}\u{1f}\n", "\u{7f}\u{2028}"];
        let mut out = JsonWriter::with_capacity(0);
        out.piece("[");
        for text in texts {
            out.comma();
            out.string(text);
        }
        out.piece("]");
        assert_eq!(serde_json::from_slice::<Vec<String>>(&out.into_bytes()).unwrap(), texts);
    }

    #[test]
    fn members_of_a_written_object_can_be_changed() {
        let mut out = JsonWriter::with_capacity(0);
        out.piece("[7,");
        let start = out.len();
        out.piece("{");
        out.text("a", "x");
        out.put("b", &1).unwrap();
        out.json("c", "[1.0]");
        out.piece("}");
        out.change(start, |object| object.put("b", "y")).unwrap();
        out.piece("]");
        assert_eq!(out.into_raw().unwrap().get(), json!([7, {"a": "x", "b": "y", "c": [1.0]}]).to_string());
    }
}

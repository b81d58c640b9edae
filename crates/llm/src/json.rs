//! Writes JSON text directly into the body of a request.

use serde::Serialize;

use crate::RawJson;
use crate::fields::Fields;

/// The initial capacity of a body without its turns, in bytes.
const BODY_CAPACITY: usize = 1024;

/// The initial capacity of a turn, in bytes.
const TURN_CAPACITY: usize = 256;

/// Writes JSON text sequentially, without an intermediate tree.
///
/// Every turn writes the whole conversation again, so this is most of the work of a request.
#[derive(Debug)]
pub(crate) struct JsonWriter(Vec<u8>);

impl JsonWriter {
    /// A writer for the body of a conversation with this number of turns.
    pub(crate) fn for_turns(turns: usize) -> Self {
        Self::with_capacity(BODY_CAPACITY + turns * TURN_CAPACITY)
    }

    /// A writer with a capacity in bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Writes a piece of JSON text.
    pub(crate) fn piece(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// Writes a comma, unless a list or an object has just begun.
    pub(crate) fn comma(&mut self) {
        if !matches!(self.0.last(), None | Some(b'{' | b'[')) {
            self.0.push(b',');
        }
    }

    /// Writes a string.
    pub(crate) fn string(&mut self, text: &str) {
        // Few texts need escapes. A fold over all bytes is vectorized, an early exit is not.
        let has_escapes = text.bytes().fold(false, |has, byte| has | matches!(byte, 0..0x20 | b'"' | b'\\'));
        if has_escapes {
            // Writing into memory cannot fail.
            let _ = serde_json::to_writer(&mut self.0, text);
            return;
        }
        self.0.push(b'"');
        self.piece(text);
        self.0.push(b'"');
    }

    /// Writes a member's name, which needs no escapes. The value must follow.
    pub(crate) fn name(&mut self, name: &'static str) {
        self.comma();
        self.0.push(b'"');
        self.piece(name);
        self.piece("\":");
    }

    /// Writes a string member.
    pub(crate) fn text(&mut self, name: &'static str, text: &str) {
        self.name(name);
        self.string(text);
    }

    /// Writes a member of JSON text.
    pub(crate) fn json(&mut self, name: &'static str, json: &str) {
        self.name(name);
        self.piece(json);
    }

    /// Writes a member of any serializable value.
    pub(crate) fn put(
        &mut self,
        name: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), serde_json::Error> {
        self.name(name);
        serde_json::to_writer(&mut self.0, value)
    }

    /// The number of written bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Changes the members of the object from `start` to the end.
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

    /// The written bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The written bytes without spare capacity: a body stays in memory until its answer is complete.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.0.shrink_to_fit();
        self.0
    }

    /// The written text as a value. Fails unless it is exactly one value.
    pub(crate) fn into_raw(self) -> Result<RawJson, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_strings_parse_back() {
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
    fn a_written_object_can_be_changed() {
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

//! Writes a conversation as messages, with adjacent parts of one role in one message.

use crate::json::JsonWriter;

/// The state of the messages.
#[derive(Debug, Default)]
pub(super) struct Roles {
    /// The role of the open message; empty before the first.
    role: &'static str,
}

impl Roles {
    /// Begins an element in the list of a message with this role. True if it starts a new message.
    pub(super) fn begin(&mut self, out: &mut JsonWriter, role: &'static str, list: &'static str) -> bool {
        let is_new = self.role != role;
        if is_new {
            self.end(out);
            self.role = role;
            out.comma();
            out.piece("{");
            out.text("role", role);
            out.json(list, "[");
        }
        out.comma();
        is_new
    }

    /// Ends the open message.
    pub(super) fn end(&self, out: &mut JsonWriter) {
        if !self.role.is_empty() {
            out.piece("]}");
        }
    }
}

//! A conversation as messages of one role each, where neighbours of one role are one message.

use crate::json::JsonWriter;

/// The messages that are being written.
#[derive(Debug, Default)]
pub(super) struct Roles {
    /// The role of the open message; empty before the first.
    role: &'static str,
}

impl Roles {
    /// Makes room for an element in the list of this name, of a message of this role: a new one, unless the open one has
    /// it. Whether it is new.
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

    /// Ends the open message, if there is one.
    pub(super) fn end(&self, out: &mut JsonWriter) {
        if !self.role.is_empty() {
            out.piece("]}");
        }
    }
}

//! Notes on the parts of a message that cannot be used as they are.

use toolpost_core::{Content, Output};

use super::shortened;

/// The most notes on one message.
const MAX_NOTES: usize = 10;
/// The longest note, in characters.
const MAX_NOTE: usize = 700;

/// Sentences on the parts of a message that are lost or changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    sentences: Vec<String>,
    omitted: usize,
}

impl From<Vec<String>> for Notes {
    fn from(sentences: Vec<String>) -> Self {
        let mut notes = Self::default();
        for sentence in sentences {
            notes.add(sentence);
        }
        notes
    }
}

impl Notes {
    pub(crate) fn add(&mut self, sentence: impl AsRef<str>) {
        if self.sentences.len() < MAX_NOTES {
            self.sentences.push(shortened(sentence.as_ref(), MAX_NOTE));
        } else {
            self.omitted += 1;
        }
    }

    /// The notes as one text; `None` without notes.
    pub(crate) fn text(&self) -> Option<String> {
        let mut lines: Vec<String> =
            self.sentences.iter().map(|sentence| format!("[note: {sentence}]")).collect();
        if self.omitted > 0 {
            lines.push(format!("[note: {} further notes are omitted]", self.omitted));
        }
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Appends the notes to the content of an output.
    pub(crate) fn append_to(&self, output: &mut Output) {
        let Some(text) = self.text() else { return };
        // Without content the model gets the structured value, which must stay visible.
        if output.content.is_empty() && output.structured.is_some() {
            output.content.push(Content::text(output.to_text()));
        }
        output.content.push(Content::text(text));
    }

    /// Logs the notes for the operator. `what` names the message.
    pub(crate) fn log(&self, what: &str) {
        for sentence in &self.sentences {
            tracing::warn!("{what}: {sentence}");
        }
    }

    /// The sentences.
    pub(crate) fn into_sentences(self) -> Vec<String> {
        self.sentences
    }
}

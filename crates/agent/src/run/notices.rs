//! Notices for the owner of a run.

/// Notices of a record, so that a hostile provider cannot exhaust the memory.
const MAX_NOTICES: usize = 64;
/// Characters of a notice.
const MAX_CHARS: usize = 1000;

/// The notices of a run, each once.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<String>);

impl Notices {
    /// Adds a notice once. The last one reports that there are more.
    pub(super) fn add(&mut self, message: String) {
        if self.0.len() < MAX_NOTICES && !self.0.contains(&message) {
            let is_last = self.0.len() + 1 == MAX_NOTICES;
            self.0.push(if is_last { "further notices were dropped".to_owned() } else { message });
        }
    }

    pub(super) fn has(&self, message: &str) -> bool {
        self.0.iter().any(|known| known == message)
    }

    pub(super) fn as_slice(&self) -> &[String] {
        &self.0
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Truncates a notice.
pub(super) fn truncate(message: &str) -> String {
    match message.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

//! What a run's owner should know.

/// How many notices a record keeps: a hostile provider must not fill the memory with them.
const MAX_NOTICES: usize = 64;
/// How much of a notice is kept and passed on, in characters.
const MAX_NOTICE: usize = 1000;

/// The notices of a run, each once.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<String>);

impl Notices {
    /// Keeps a notice once; the last that finds room says that there were more.
    pub(super) fn add(&mut self, message: String) {
        if self.0.len() < MAX_NOTICES && !self.0.contains(&message) {
            let is_last = self.0.len() + 1 == MAX_NOTICES;
            self.0.push(if is_last {
                "there were further notices, which are not kept".to_owned()
            } else {
                message
            });
        }
    }

    pub(super) fn has(&self, message: &str) -> bool {
        self.0.iter().any(|kept| kept == message)
    }

    pub(super) fn as_slice(&self) -> &[String] {
        &self.0
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// The beginning of a notice.
pub(super) fn shortened(message: &str) -> String {
    match message.char_indices().nth(MAX_NOTICE) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

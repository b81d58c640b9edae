//! A condition for starting a program.

use std::fmt;
use std::sync::Arc;

use crate::ToolError;

/// A check that runs directly before each start of a program.
///
/// The executable may change between its approval and its start. The caller that starts programs calls
/// [`StartCheck::check`] as the last step before each start, restarts included. A change between the check and the
/// kernel's own read of the file goes undetected.
#[derive(Clone)]
pub struct StartCheck(Arc<dyn Fn() -> Result<(), ToolError> + Send + Sync>);

impl StartCheck {
    /// A check that rejects a start with an error. It may block.
    pub fn new(check: impl Fn() -> Result<(), ToolError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// Whether the program may start now.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn check(&self) -> Result<(), ToolError> {
        (self.0)()
    }
}

impl fmt::Debug for StartCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartCheck")
    }
}

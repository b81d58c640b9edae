//! A condition for starting a program.

use std::fmt;
use std::sync::Arc;

use crate::ToolError;

/// A check that runs directly before each start of a program.
///
/// A program is named by its path, and the file may change between the time at which it was approved and its start.
/// The caller that starts programs calls [`StartCheck::check`] as the last step before each start, restarts included. What
/// changes in the time between the check and the kernel's own look at the file is not noticed.
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
    /// Why it may not.
    pub fn check(&self) -> Result<(), ToolError> {
        (self.0)()
    }
}

impl fmt::Debug for StartCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartCheck")
    }
}

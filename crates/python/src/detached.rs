//! Values whose destructors may wait for other threads.

use std::ops::{Deref, DerefMut};

use crate::exit;

/// A value that is dropped without the interpreter: a store waits for its thread, which may be waking an event loop.
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        if exit::is_exiting() {
            // This thread could not attach again.
            std::mem::forget(value);
            return;
        }
        exit::attach(|py| py.detach(|| drop(value)));
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    #[expect(clippy::expect_used, reason = "only the destructor takes the value")]
    fn deref(&self) -> &T {
        self.0.as_ref().expect("a value until the drop")
    }
}

impl<T: Send> DerefMut for Detached<T> {
    #[expect(clippy::expect_used, reason = "only the destructor takes the value")]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a value until the drop")
    }
}

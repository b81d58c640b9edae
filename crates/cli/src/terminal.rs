//! The terminal: streamed Markdown and running calls.

pub(crate) mod markdown;
mod screen;
mod tail;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::screen::Screen;
pub(crate) use self::tail::Tail;

use crate::env;

/// The default size of a terminal.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// The columns and rows of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let known = |(columns, rows): (usize, usize)| (columns > 0 && rows > 0).then_some((columns, rows));
    measured().and_then(known).unwrap_or_else(|| {
        let columns = env::get("COLUMNS").and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        (columns.unwrap_or(DEFAULT_SIZE.0), DEFAULT_SIZE.1)
    })
}

#[cfg(unix)]
fn measured() -> Option<(usize, usize)> {
    use rustix::stdio::{stderr, stdout};
    use rustix::termios::tcgetwinsize;
    // Standard output may be a file while progress is drawn.
    let size = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stderr())).ok()?;
    Some((size.ws_col.into(), size.ws_row.into()))
}

#[cfg(not(unix))]
fn measured() -> Option<(usize, usize)> {
    None
}

/// The interval between redraws.
const REDRAW: Duration = Duration::from_millis(100);

/// Redraws the screen periodically.
pub(crate) async fn draw(screen: Arc<Screen>) {
    loop {
        tokio::time::sleep(REDRAW).await;
        screen.tick();
    }
}

/// The drawing on the terminal, which yields to prompts.
pub(crate) trait Prompted: Send + Sync {
    /// Stops drawing: a prompt comes.
    fn pause(&self);

    /// Draws again, unless another prompt is open.
    fn go_on(&self);
}

/// Leaves the terminal to a prompt until the guard is dropped.
pub(crate) fn leave(drawing: &Arc<dyn Prompted>) -> OpenPrompt {
    drawing.pause();
    OpenPrompt(Arc::clone(drawing))
}

/// An open prompt.
pub(crate) struct OpenPrompt(Arc<dyn Prompted>);

impl Drop for OpenPrompt {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

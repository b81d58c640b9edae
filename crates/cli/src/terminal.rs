//! What a person at a terminal sees while an agent works: Markdown as it is written, calls as they run.

pub(crate) mod markdown;
mod screen;

pub(crate) use self::screen::Screen;

use crate::env;

/// The size of a terminal that does not say how large it is.
const USUAL: (usize, usize) = (80, 24);

/// The columns and rows of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let known = |(columns, rows): (usize, usize)| (columns > 0 && rows > 0).then_some((columns, rows));
    measured().and_then(known).unwrap_or_else(|| {
        let columns = env::get("COLUMNS").and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        (columns.unwrap_or(USUAL.0), USUAL.1)
    })
}

#[cfg(unix)]
fn measured() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some((size.ws_col.into(), size.ws_row.into()))
}

#[cfg(not(unix))]
fn measured() -> Option<(usize, usize)> {
    None
}

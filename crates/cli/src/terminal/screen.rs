//! The changing part of the terminal: the last block of an answer, and running calls. Finished lines scroll
//! away above it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;
use toolpost_core::{CallId, Event, format_duration};

use super::markdown::Stream;
use super::tail::Tail;
use super::{Prompted, size};
use crate::env;
use crate::print::{Printer, Stream as Output};
use crate::progress::calls::Calls;
use crate::progress::hosted;
use crate::progress::lines::{WIDTH, is_printed, scrubbed_line};
use crate::style::{FAINT, WARN, paint, paragraph};

/// The minimum interval between drawings.
const FRAME: Duration = Duration::from_millis(40);

/// Draws events on a terminal.
pub(crate) struct Screen {
    state: Mutex<ScreenContent>,
    printer: Printer,
    is_coloured: bool,
    /// Whether answers are raw text without redrawing.
    is_plain: bool,
}

#[derive(Default)]
struct ScreenContent {
    is_begun: bool,
    markdown: Stream,
    /// The running calls.
    calls: Vec<RunningCall>,
    /// The lines of calls.
    lines: Calls,
    /// The drawn lines that may still change.
    drawn: Tail,
    drawn_at: Option<Instant>,
    is_stale: bool,
    /// The number of open prompts, which stop the drawing.
    asked: usize,
    /// Lines that came during a prompt.
    waiting: Vec<String>,
    /// The text of the model since its last turn.
    answer: String,
    /// Whether raw text ended within a line.
    in_line: bool,
}

struct RunningCall {
    id: CallId,
    line: String,
    detail: String,
    since: Instant,
}

impl Screen {
    /// Creates a screen, if standard output and standard error are a terminal.
    pub(crate) fn new(printer: &Printer, is_plain: bool) -> Option<Arc<Self>> {
        let is_terminal = Output::Stdout.is_terminal() && Output::Stderr.is_terminal();
        (is_terminal && printer.is_text()).then(|| {
            Arc::new(Self {
                state: Mutex::default(),
                printer: printer.clone(),
                is_coloured: printer.colors(Output::Stdout),
                is_plain: is_plain || !Printer::moves_cursor(),
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, ScreenContent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to draw.
    pub(crate) fn begin(&self) {
        self.state().is_begun = true;
    }

    /// Handles an event. An event after the end is dropped.
    pub(crate) fn handle(&self, event: &Event) {
        let mut state = self.state();
        if !state.is_begun {
            return;
        }
        match event {
            Event::TextDelta { text, .. } => {
                state.answer.push_str(text);
                if self.is_plain {
                    state.in_line = !text.ends_with('\n');
                    self.write(0, text);
                } else {
                    let finished = state.markdown.push(text, columns());
                    self.draw(&mut state, finished, false);
                }
            }
            Event::TurnFinished { .. } | Event::RunFinished { .. } => self.end_text(&mut state),
            Event::HostedStarted { tool, input, .. } => {
                self.write_within(&mut state, hosted::started(tool, input.as_deref()));
            }
            Event::HostedFinished { tool, output, .. } => {
                self.write_within(&mut state, hosted::finished(tool, output));
            }
            Event::CallStarted { call, parent, tool, arguments } => {
                let line = state.lines.started(*call, *parent, tool, arguments);
                if self.is_plain {
                    self.write_lines(&mut state, vec![line]);
                } else {
                    state.calls.push(RunningCall {
                        id: *call,
                        line,
                        detail: String::new(),
                        since: Instant::now(),
                    });
                    self.draw(&mut state, Vec::new(), true);
                }
            }
            Event::CallProgress { call, progress, .. } => {
                let percent = progress.percent.map(|percent| format!(" {percent:.0} %")).unwrap_or_default();
                let detail = format!("{}{percent}", scrubbed_line(&progress.message, WIDTH));
                self.detail(&mut state, *call, detail);
            }
            Event::CallLog { call, line, .. } if is_printed(&self.printer, line) => {
                if line.level >= toolpost_core::LogLevel::Warn {
                    let text = scrubbed_line(&line.message, WIDTH);
                    let text = paint(WARN, state.lines.within(*call, "│", &text));
                    self.write_lines(&mut state, vec![text]);
                } else {
                    self.detail(&mut state, *call, scrubbed_line(&line.message, WIDTH));
                }
            }
            Event::CallRetry { call, attempt, error, wait_ms } => {
                let line = state.lines.again(*call, *attempt, error, *wait_ms);
                self.write_lines(&mut state, vec![line]);
            }
            Event::CallFinished { record } => {
                state.calls.retain(|call| call.id != record.id);
                let line = state.lines.finished(record);
                self.write_lines(&mut state, vec![line]);
            }
            Event::Notice { message } => {
                let message = env::scrubber().scrub(message.clone());
                let line = format!("{} {}", paint(WARN, "note:"), paragraph(&message));
                self.write_lines(&mut state, line.lines().map(str::to_owned).collect());
            }
            _ => {}
        }
    }

    /// Redraws stale lines and the durations of running calls.
    pub(crate) fn tick(&self) {
        let mut state = self.state();
        let is_slow = state.calls.iter().any(|call| call.since.elapsed() >= Duration::from_secs(1));
        if !self.is_plain && (state.is_stale || is_slow) {
            self.draw(&mut state, Vec::new(), true);
        }
    }

    /// Writes everything and ends the drawing. Returns the last text of the model.
    pub(crate) fn settle(&self) -> String {
        let mut state = self.state();
        self.end_text(&mut state);
        state.calls.clear();
        self.draw(&mut state, Vec::new(), true);
        std::mem::take(&mut *state).answer
    }

    /// Writes lines above the changing part.
    fn write_lines(&self, state: &mut ScreenContent, lines: Vec<String>) {
        if self.printer.quiet {
            return;
        }
        // The terminal wraps finished lines, which are never redrawn.
        self.draw(state, lines, true);
    }

    /// Writes lines within an answer, below its text.
    fn write_within(&self, state: &mut ScreenContent, lines: Vec<String>) {
        if !self.printer.quiet {
            self.end_text(state);
            self.write_lines(state, lines);
        }
    }

    fn detail(&self, state: &mut ScreenContent, id: CallId, detail: String) {
        if self.is_plain {
            let line = state.lines.within(id, "…", &detail);
            return self.write_lines(state, vec![paint(FAINT, line)]);
        }
        if let Some(call) = state.calls.iter_mut().find(|call| call.id == id) {
            call.detail = detail;
            self.draw(state, Vec::new(), false);
        }
    }

    fn end_text(&self, state: &mut ScreenContent) {
        if self.is_plain {
            self.end_line(state);
        } else {
            let last = state.markdown.finish(columns());
            self.draw(state, last, true);
        }
    }

    fn end_line(&self, state: &mut ScreenContent) {
        if std::mem::take(&mut state.in_line) {
            self.write(0, "\n");
        }
    }

    /// Writes finished lines, then the changed lines below them.
    fn draw(&self, state: &mut ScreenContent, finished: Vec<String>, now: bool) {
        if state.asked > 0 {
            state.waiting.extend(finished);
            state.is_stale = true;
            return;
        }
        if self.is_plain {
            if !finished.is_empty() {
                self.end_line(state);
                self.write(0, &(finished.join("\n") + "\n"));
            }
            return;
        }
        let is_early = state.drawn_at.is_some_and(|at| at.elapsed() < FRAME);
        if finished.is_empty() && is_early && !now {
            state.is_stale = true;
            return;
        }
        let (columns, rows) = size();
        let mut lines = std::mem::take(&mut state.waiting);
        lines.extend(finished);
        let mut changing = state.markdown.open(columns.saturating_sub(1));
        if !self.printer.quiet {
            changing.extend(state.calls.iter().map(|call| call.shown(columns.saturating_sub(1))));
        }
        let (erased, text) = state.drawn.redraw(lines, changing, (columns, rows));
        (state.drawn_at, state.is_stale) = (Some(Instant::now()), false);
        if erased > 0 || !text.is_empty() {
            self.write(erased, &text);
        }
    }

    fn write(&self, erased: usize, text: &str) {
        Output::Stdout.draw(erased, text, self.is_coloured);
    }
}

/// The columns of wrapped text. The last one stays free, because terminals differ there.
fn columns() -> usize {
    size().0.saturating_sub(1)
}

impl RunningCall {
    fn shown(&self, width: usize) -> String {
        let mut line = self.line.clone();
        if !self.detail.is_empty() {
            line.push_str(&paint(FAINT, format!(" … {}", self.detail)));
        }
        let since = self.since.elapsed();
        if since >= Duration::from_secs(1) {
            line.push_str(&paint(
                FAINT,
                format!(" ({})", format_duration(Duration::from_secs(since.as_secs()))),
            ));
        }
        let bare = strip_str(&line).to_string();
        // A line that the terminal wraps could not be erased.
        if super::markdown::columns(&bare) <= width { line } else { super::markdown::clipped(&bare, width) }
    }
}

impl Prompted for Screen {
    fn pause(&self) {
        let mut state = self.state();
        if state.asked == 0 {
            self.draw(&mut state, Vec::new(), true);
            state.drawn.leave();
            self.end_line(&mut state);
        }
        state.asked += 1;
    }

    fn go_on(&self) {
        let mut state = self.state();
        state.asked = state.asked.saturating_sub(1);
        if state.asked == 0 {
            let waiting = std::mem::take(&mut state.waiting);
            self.draw(&mut state, waiting, true);
        }
    }
}

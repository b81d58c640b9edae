//! The live progress of a run on a terminal: counts, maps and running steps below the finished lines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;
use serde_json::Value;
use toolpost_core::format_duration;
use toolpost_flow::{FlowProgress, Plan, StepStatus, StoredFlow};

use crate::print::{Printer, Stream};
use crate::style::{BAD, FAINT, GOOD, HINT, WARN, one_line, paint};
use crate::terminal::{self, Prompted, Tail, markdown};

/// The interval between drawings.
const FRAME: Duration = Duration::from_millis(100);
/// The maximum number of running steps, and of maps.
const MAX_STEPS: usize = 8;
const MAX_MAPS: usize = 4;
/// The characters of the bar of a map.
const BAR: usize = 20;
/// The maximum number of finished lines between two drawings.
const MAX_LINES: usize = 1_000;

/// Draws the progress of a run on standard error.
pub(super) struct Live {
    state: Mutex<LiveProgress>,
    is_coloured: bool,
}

#[derive(Default)]
struct LiveProgress {
    begun: Option<Instant>,
    /// The steps of the plan itself that have not ended.
    left: usize,
    succeeded: u64,
    failed: u64,
    /// The steps that were skipped, blocked or cancelled.
    other: u64,
    /// The running calls in the order in which they began.
    running: BTreeMap<u64, RunningStep>,
    /// The places of steps in `running`.
    places: HashMap<Arc<str>, u64>,
    next: u64,
    waiting: HashSet<Arc<str>>,
    /// Maps that have not ended: the items that have, and all.
    maps: BTreeMap<Arc<str>, (usize, usize)>,
    /// Finished lines that are not drawn yet.
    lines: Vec<String>,
    tail: Tail,
    /// The number of open prompts, which stop the drawing.
    asked: usize,
}

struct RunningStep {
    step: Arc<str>,
    tool: Arc<str>,
    attempt: u32,
    since: Instant,
}

impl Live {
    /// The progress of a plan, or of a stored run; none unless standard error is a terminal whose cursor moves.
    pub(super) fn new(plan: &Plan, stored: Option<&StoredFlow>, printer: &Printer) -> Option<Arc<Self>> {
        let is_drawn = printer.is_text()
            && !printer.quiet
            // The log shares standard error.
            && printer.verbose == 0
            && Stream::Stderr.is_terminal()
            && Printer::moves_cursor();
        if !is_drawn {
            return None;
        }
        let mut state = LiveProgress {
            begun: Some(Instant::now()),
            left: plan.source().get("steps").and_then(Value::as_array).map_or(0, Vec::len),
            ..LiveProgress::default()
        };
        if let Some(stored) = stored {
            (state.succeeded, state.failed) = (stored.summary.succeeded, stored.summary.failed);
            state.left -= stored.steps().iter().filter(|step| step.status.is_some()).count().min(state.left);
        }
        Some(Arc::new(Self { state: Mutex::new(state), is_coloured: printer.colors(Stream::Stderr) }))
    }

    fn state(&self) -> MutexGuard<'_, LiveProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes progress, and the line that it prints.
    pub(super) fn take(&self, progress: &FlowProgress, line: Option<String>) {
        let mut state = self.state();
        state.take(progress);
        state.lines.extend(line);
        // A burst of lines does not wait for the next drawing.
        if state.lines.len() > MAX_LINES {
            self.draw(&mut state);
        }
    }

    /// Draws until a future ends, then erases what may change.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let draw = async {
            loop {
                tokio::time::sleep(FRAME).await;
                self.draw(&mut self.state());
            }
        };
        let done = tokio::select! {
            done = work => done,
            () = draw => std::future::pending().await,
        };
        self.end();
        done
    }

    /// Erases what may change, and draws no more.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.begun = None;
        self.draw(&mut state);
    }

    fn draw(&self, state: &mut LiveProgress) {
        if state.asked > 0 {
            return;
        }
        let (columns, rows) = terminal::size();
        let lines = std::mem::take(&mut state.lines);
        let changing: Vec<String> = match state.begun {
            // The last column stays free, because terminals differ there.
            Some(begun) => {
                state.page(begun.elapsed(), rows).iter().map(|line| fitting(line, columns - 1)).collect()
            }
            None => Vec::new(),
        };
        let (erased, text) = state.tail.redraw(lines, changing, (columns, rows));
        Stream::Stderr.draw(erased, &text, self.is_coloured);
    }
}

impl Prompted for Live {
    fn pause(&self) {
        let mut state = self.state();
        if state.asked == 0 {
            let begun = state.begun.take();
            self.draw(&mut state);
            state.begun = begun;
        }
        state.asked += 1;
    }

    fn go_on(&self) {
        let mut state = self.state();
        state.asked = state.asked.saturating_sub(1);
        self.draw(&mut state);
    }
}

fn is_nested(step: &str) -> bool {
    step.contains(['.', '[', ':'])
}

impl LiveProgress {
    fn take(&mut self, progress: &FlowProgress) {
        match progress {
            FlowProgress::Started { step, tool, attempt } => {
                self.stopped(step);
                let (step, tool) = (Arc::clone(step), Arc::clone(tool));
                self.places.insert(Arc::clone(&step), self.next);
                self.running
                    .insert(self.next, RunningStep { step, tool, attempt: *attempt, since: Instant::now() });
                self.next += 1;
            }
            FlowProgress::AttemptFailed { step, .. } => self.stopped(step),
            FlowProgress::Waiting { step, .. } => _ = self.waiting.insert(Arc::clone(step)),
            FlowProgress::Items { step, ended, count } => {
                self.maps.insert(Arc::clone(step), (*ended, *count));
            }
            FlowProgress::Ended { step, status, .. } => {
                self.stopped(step);
                self.waiting.remove(step);
                self.maps.remove(step);
                match status {
                    StepStatus::Succeeded => self.succeeded += 1,
                    StepStatus::Failed => self.failed += 1,
                    _ => self.other += 1,
                }
                if !is_nested(step) {
                    self.left = self.left.saturating_sub(1);
                }
            }
            _ => {}
        }
    }

    fn stopped(&mut self, step: &str) {
        if let Some(place) = self.places.remove(step) {
            self.running.remove(&place);
        }
    }

    /// The lines that may change.
    fn page(&self, elapsed: Duration, rows: usize) -> Vec<String> {
        let active = self.running.values().map(|running| &running.step).chain(&self.waiting);
        let nested = active.filter(|step| is_nested(step)).count() as u64;
        let ended = self.succeeded + self.failed + self.other;
        let known = ended + nested + self.left as u64;
        let counts = [
            (HINT, self.running.len() as u64, "running"),
            (WARN, self.waiting.len() as u64, "waiting"),
            (BAD, self.failed, "failed"),
        ];
        let counts = counts.into_iter().filter(|(_, count, _)| *count > 0);
        let mut facts = vec![format!("{} of {} steps", number(ended), number(known))];
        facts.extend(counts.map(|(style, count, what)| paint(style, format!("{} {what}", number(count)))));
        facts.push(seconds(elapsed));
        let mut lines = vec![facts.join(" · ")];
        // On a low terminal the finished lines have a place, too.
        let mut room = rows.saturating_sub(4);
        let mut add = |all: usize, max: usize, shown: &mut dyn Iterator<Item = String>| {
            let count = if all <= max.min(room) { all } else { max.min(room.saturating_sub(1)) };
            lines.extend(shown.take(count));
            if count < all && room > 0 {
                lines.push(paint(FAINT, format!("  and {} more", number((all - count) as u64))));
            }
            room = room.saturating_sub(count + usize::from(count < all));
        };
        let mut maps = self.maps.iter().map(|(step, (ended, count))| {
            let full = ended * BAR / (*count).max(1);
            let bar = format!("{}{}", paint(GOOD, "█".repeat(full)), paint(FAINT, "░".repeat(BAR - full)));
            format!(
                "  {} {bar} items {}/{}",
                one_line(step, 60),
                number(*ended as u64),
                number(*count as u64)
            )
        });
        add(self.maps.len(), MAX_MAPS, &mut maps);
        let mut running = self.running.values().map(|running| {
            let attempt =
                if running.attempt > 1 { format!(", attempt {}", running.attempt) } else { String::new() };
            let facts =
                format!("{}{attempt}  {}", one_line(&running.tool, 60), seconds(running.since.elapsed()));
            format!("  {} {}  {}", paint(WARN, "…"), one_line(&running.step, 100), paint(FAINT, facts))
        });
        add(self.running.len(), MAX_STEPS, &mut running);
        lines
    }
}

/// Whole seconds: a line that changes less is drawn less.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds => format_duration(Duration::from_secs(seconds)),
    }
}

/// A number with separators.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A line within a width: one that the terminal wraps could not be erased.
fn fitting(line: &str, width: usize) -> String {
    let bare = strip_str(line).to_string();
    if markdown::columns(&bare) <= width { line.to_owned() } else { markdown::clipped(&bare, width) }
}

#[cfg(test)]
mod tests {
    use toolpost_flow::StepWait;

    use super::*;

    fn state(progress: &[FlowProgress]) -> LiveProgress {
        let mut state = LiveProgress { left: 4, ..LiveProgress::default() };
        for progress in progress {
            state.take(progress);
        }
        state
    }

    fn started(step: &str) -> FlowProgress {
        FlowProgress::Started { step: step.into(), tool: "sleep".into(), attempt: 1 }
    }

    fn ended(step: &str, status: StepStatus) -> FlowProgress {
        FlowProgress::Ended { step: step.into(), status, output: Arc::default(), error: None }
    }

    fn page(state: &LiveProgress, rows: usize) -> Vec<String> {
        let lines = state.page(Duration::from_millis(62_900), rows);
        lines.iter().map(|line| strip_str(line).to_string()).collect()
    }

    #[test]
    fn steps_are_counted_and_listed_while_they_run() {
        let mut all = vec![
            ended("load", StepStatus::Succeeded),
            started("other"),
            FlowProgress::Waiting { step: "ok".into(), wait: StepWait::Signal("ok".to_owned()) },
            FlowProgress::Items { step: "each".into(), ended: 1_250, count: 5_000 },
            started("each[3].a"),
            ended("each[2].a", StepStatus::Failed),
        ];
        let lines = [
            "2 of 6 steps · 2 running · 1 waiting · 1 failed · 1 min 2 s",
            "  each █████░░░░░░░░░░░░░░░ items 1,250/5,000",
            "  … other  sleep  0 s",
            "  … each[3].a  sleep  0 s",
        ];
        assert_eq!(page(&state(&all), 24), lines);
        all.extend([
            ended("each[3].a", StepStatus::Succeeded),
            ended("each", StepStatus::Skipped),
            ended("ok", StepStatus::Succeeded),
            FlowProgress::AttemptFailed {
                step: "other".into(),
                error: toolpost_core::ToolError::timeout("late"),
            },
        ]);
        assert_eq!(page(&state(&all), 24), ["5 of 6 steps · 1 failed · 1 min 2 s"]);
    }

    #[test]
    fn many_steps_are_counted() {
        let all: Vec<FlowProgress> = (0..12).map(|at| started(&format!("each[{at}].a"))).collect();
        let lines = page(&state(&all), 24);
        assert_eq!(
            (lines.len(), lines[8].as_str(), lines[9].as_str()),
            (10, "  … each[7].a  sleep  0 s", "  and 4 more")
        );
        let lines = page(&state(&all), 8);
        assert_eq!((lines.len(), lines[4].as_str()), (5, "  and 9 more"));
        assert_eq!(page(&state(&all), 4).len(), 1);
    }

    #[test]
    fn a_line_has_one_row_and_no_escapes_of_names() {
        let all = [started("a\u{1b}[2J\nb")];
        let lines = page(&state(&all), 24);
        assert_eq!(lines[1], "  … a␛[2J b  sleep  0 s");
        assert_eq!(fitting("\u{1b}[1m0123456789\u{1b}[0m", 10), "\u{1b}[1m0123456789\u{1b}[0m");
        assert_eq!(fitting("\u{1b}[1m0123456789\u{1b}[0m", 6), "01234…");
        assert_eq!(
            [number(0), number(999), number(1_000), number(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}

//! The table on the driver of one machine: every durability, and stopped at every commit.

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use toolpost_core::{
    Answer, BoxFuture, CallId, Cancellation, DocStore, Port, Question, QuestionKind, RunId, ToolError,
};
use toolpost_flow::{
    Durability, FlowEvent, FlowOutcome, FlowRun, Flows, Plan, RunStatus, StepReport, StepStatus,
};
use toolpost_toolbox::MemoryStore;

use crate::observed::Observed;
use crate::rows::{Row, Script, Trace, rows};

/// Answers the approvals of a run that is not stored as its row says.
struct Approver(Vec<(String, Value)>);

impl Port for Approver {
    fn ask<'a>(&'a self, _: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            let QuestionKind::Approval { tool, .. } = &question.kind else { panic!("{question:?}") };
            match self.0.iter().find(|(name, _)| name == tool) {
                Some((_, value)) => Ok(Answer::Given { value: value["approved"].clone() }),
                None => std::future::pending().await,
            }
        })
    }
}

/// State that outlives the process of a run.
struct World<'a> {
    row: &'a Row,
    durability: Durability,
    store: Arc<MemoryStore>,
    script: Script,
    cancellation: Cancellation,
    traces: Mutex<Vec<Trace>>,
}

impl<'a> World<'a> {
    fn new(row: &'a Row, durability: Durability) -> Self {
        Self {
            row,
            durability,
            store: Arc::new(MemoryStore::new()),
            script: Script::default(),
            cancellation: Cancellation::new(),
            traces: Mutex::default(),
        }
    }

    fn flows(&self, store: Arc<dyn DocStore>) -> Flows {
        let flows = Flows::new(self.row.toolbox(&self.script));
        if self.durability == Durability::None { flows } else { flows.store(store) }
    }

    fn watched(&self, run: FlowRun) -> FlowRun {
        let trace = Trace::default();
        self.traces.lock().unwrap().push(trace.clone());
        let mut run = run.durability(self.durability).on_progress(move |event| trace.show(event));
        if self.durability == Durability::None {
            let answers = self.row.outside.iter();
            let answers =
                answers.filter_map(|message| Some((message.answer.clone()?, message.value.clone())));
            run = run.port(Arc::new(Approver(answers.collect()))).cancellation(self.cancellation.clone());
        }
        run
    }

    /// Sends the row's messages when their time has come; never ends.
    async fn send(&self, id: RunId) {
        let flows = self.flows(self.store.clone());
        for message in &self.row.outside {
            while !self.traces.lock().unwrap().iter().any(|trace| trace.has(&message.after)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let value = message.value.clone();
            let sent = match (&message.signal, &message.answer, &message.cancel) {
                _ if self.durability == Durability::None => {
                    if message.cancel.is_some() {
                        self.cancellation.cancel();
                    }
                    Ok(())
                }
                (Some(name), ..) => flows.signal(id, name, value).await,
                (_, Some(step), _) => flows.answer(id, Some(step), value).await.map(drop),
                (.., reason) => flows.cancel(id, reason.as_deref().unwrap()).await,
            };
            message.check(sent.map_err(ToolError::from)).unwrap();
        }
        std::future::pending::<()>().await;
    }

    fn trace(&self, process: usize) -> Vec<crate::rows::Entry> {
        self.traces.lock().unwrap()[process].entries()
    }

    fn check_end(&self, outcome: &FlowOutcome) -> Result<(), String> {
        self.row.check_end(outcome.status, &outcome.output, outcome.error.as_ref(), &self.script)
    }

    async fn journal(&self, id: RunId) -> (RunStatus, Vec<FlowEvent>) {
        let stored = self.flows(self.store.clone()).load(id).await.unwrap();
        (stored.summary.status, stored.events.into_iter().map(|(_, event)| event).collect())
    }
}

/// Runs a row to its end. Returns the number of its commits.
async fn undisturbed(row: &Row, durability: Durability) -> Result<u64, String> {
    let world = World::new(row, durability);
    let store = Observed::new(world.store.clone(), |_, _| false);
    let plan = Plan::from_value(&row.plan).map_err(|error| error.to_string())?;
    let run = world.watched(world.flows(store.clone()).run(plan, row.input.clone()));
    let id = run.id();
    let outcome = tokio::select! {
        outcome = run.into_future() => outcome.map_err(|error| error.to_string())?,
        () = world.send(id) => unreachable!(),
    };
    world.check_end(&outcome)?;
    row.check_events(&world.trace(0))?;
    if durability != Durability::None {
        let (status, events) = world.journal(id).await;
        assert_eq!(status, row.status);
        row.check_journal(&events)?;
        let stored = world.flows(world.store.clone()).load(id).await.unwrap();
        check_steps(row, &stored.steps())?;
    }
    Ok(store.commits())
}

/// The steps of a stored run are those of its progress.
fn check_steps(row: &Row, reports: &[StepReport]) -> Result<(), String> {
    fn flat<'a>(reports: &'a [StepReport], all: &mut BTreeMap<&'a str, &'a StepReport>) {
        for report in reports {
            // Items, iterations and handlers make no progress of their own.
            if !report.name().starts_with(['[', ':']) {
                all.insert(&report.path, report);
            }
            flat(&report.steps, all);
        }
    }
    let mut all = BTreeMap::new();
    flat(reports, &mut all);
    if !all.keys().copied().eq(row.events.keys().map(String::as_str)) {
        return Err(format!("the stored run has the steps {:?}", all.keys()));
    }
    for (path, report) in all {
        let words: Vec<&str> = row.events[path].split(' ').collect();
        let starts = words.iter().filter(|word| **word == "start").count() as u32;
        let is_waiting = words.contains(&"wait");
        let found = (report.status.map(StepStatus::as_str), report.attempts, report.wait.is_some());
        // A wait for a time is not an event.
        if (found.0, found.1) != (words.last().copied(), starts) || is_waiting && !found.2 {
            return Err(format!("{path}: {found:?} in the stored run"));
        }
        let is_ordered = report.started.is_none_or(|started| Some(started) <= report.ended);
        if report.ended.is_none() || !is_ordered {
            return Err(format!("{path}: from {:?} to {:?}", report.started, report.ended));
        }
    }
    Ok(())
}

/// Stops the process of a row at a commit, and resumes the run in another one. Returns whether it stopped.
async fn stopped(row: &Row, durability: Durability, at: u64, after: bool) -> Result<bool, String> {
    let world = World::new(row, durability);
    let halted = Arc::new(Notify::new());
    let halt = Arc::clone(&halted);
    let store = Observed::new(world.store.clone(), move |number, is_done| {
        let is_point = (number, is_done) == (at, after);
        if is_point {
            halt.notify_one();
        }
        is_point
    });
    let plan = Plan::from_value(&row.plan).map_err(|error| error.to_string())?;
    let run = world.watched(world.flows(store.clone()).run(plan, row.input.clone()));
    let id = run.id();
    let mut first = run.into_future();
    let life = async {
        tokio::select! {
            biased;
            outcome = &mut first => return outcome.map_err(|error| error.to_string()).map(Some),
            () = halted.notified() => {}
        }
        drop(first);
        let (status, events) = world.journal(id).await;
        if status != RunStatus::Running {
            return Ok(None);
        }
        world.script.resume(&events);
        let second = world.watched(world.flows(world.store.clone()).resume(id));
        second.into_future().await.map_err(|error| error.to_string()).map(Some)
    };
    let outcome = tokio::select! {
        outcome = life => outcome?,
        () = world.send(id) => unreachable!(),
    };
    if let Some(outcome) = &outcome {
        world.check_end(outcome)?;
    }
    let (status, events) = world.journal(id).await;
    if status != row.status {
        return Err(format!("the stored run {}, not {}", status.as_str(), row.status.as_str()));
    }
    row.check_journal(&events)?;
    if world.traces.lock().unwrap().len() < 2 {
        return Ok(outcome.is_none());
    }
    let is_strict = durability == Durability::Full && !after;
    row.check_resumed(&world.trace(0), &world.trace(1), is_strict)?;
    Ok(true)
}

/// Applies a check to all rows, several at once, and reports all that fail.
fn each_row(check: impl Fn(&Row) -> Result<(), String> + Sync) {
    // They sleep most of the time.
    const THREADS: usize = 32;
    let rows = rows();
    let next = AtomicUsize::new(0);
    let failures: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(problem) = check(row) {
                        failures.lock().unwrap().push(format!("{}: {problem}", row.name));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} rows fail\n{}", failures.len(), rows.len(), failures.join("\n"));
}

fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    const LIMIT: Duration = Duration::from_secs(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(LIMIT, future).await };
    runtime.block_on(limited).unwrap_or_else(|_| Err("it does not end".to_owned()))
}

#[test]
fn the_table_covers_the_language() {
    let rows = rows();
    assert!(rows.len() >= 60, "{}", rows.len());
    let text: String = rows.iter().map(|row| row.plan.to_string()).collect();
    for member in [
        "tool",
        "code",
        "command",
        "wait",
        "signal",
        "approve",
        "parallel",
        "sequential",
        "pipeline",
        "race",
        "map",
        "loop",
        "flow",
        "needs",
        "when",
        "retry",
        "timeout",
        "on_error",
        "compensate",
        "failure",
        "quorum",
        "max_parallel",
        "output",
        "input",
        "variables",
        "limit",
        "heartbeat",
        "cache",
        "as",
        "until",
    ] {
        assert!(text.contains(&format!("\"{member}\":")), "no row has `{member}`");
    }
    let names: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names.len(), rows.len(), "two rows have one name");
}

#[test]
fn rows_end_as_they_say_with_durability_none() {
    each_row(
        |row| {
            if row.needs_store() { Ok(()) } else { block_on(undisturbed(row, Durability::None)).map(drop) }
        },
    );
}

#[test]
fn rows_end_as_they_say_with_durability_normal() {
    each_row(|row| block_on(undisturbed(row, Durability::Normal)).map(drop));
}

#[test]
fn rows_end_as_they_say_with_durability_full() {
    each_row(|row| block_on(undisturbed(row, Durability::Full)).map(drop));
}

/// Stops each row at each of its commits. The first commit is the run itself.
fn stop_each_row(durability: Durability, after: bool) {
    let stops = AtomicUsize::new(0);
    each_row(|row| {
        if row.unstopped {
            return Ok(());
        }
        let commits = block_on(undisturbed(row, durability))?;
        for at in if after { 1 } else { 2 }..=commits {
            let is_stopped = block_on(stopped(row, durability, at, after))
                .map_err(|problem| format!("stopped at commit {at} of {commits}: {problem}"))?;
            stops.fetch_add(usize::from(is_stopped), Ordering::SeqCst);
        }
        Ok(())
    });
    let stops = stops.into_inner();
    assert!(stops > rows().len(), "only {stops} runs were stopped");
}

#[test]
fn rows_stopped_before_each_commit_resume_with_durability_full() {
    stop_each_row(Durability::Full, false);
}

#[test]
fn rows_stopped_after_each_commit_resume_with_durability_full() {
    stop_each_row(Durability::Full, true);
}

#[test]
fn rows_stopped_before_each_commit_resume_with_durability_normal() {
    stop_each_row(Durability::Normal, false);
}

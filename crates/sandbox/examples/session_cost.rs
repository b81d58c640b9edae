//! The cost of a session: its start, a cell, a reset, and forks of interpreters of three sizes.
//!
//! `cargo run --release -p toolpost-sandbox --example session_cost -- [--json] [--samples N]`

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use toolpost_sandbox::{
    Cancel, CellLimits, Language, Level, Limits, Reset, Sandbox, Session, SessionLimits, Source,
};

type Failure = Box<dyn std::error::Error>;

struct Row {
    name: String,
    samples: Vec<Duration>,
    /// The most that is promised, in milliseconds.
    promise: Option<f64>,
}

fn sandbox() -> Sandbox {
    Sandbox::new().level(Level::Strict).limits(Limits::default().with_memory(6 << 30))
}

fn run(session: &Session, code: &str) -> Result<(), Failure> {
    let outcome = session.run(code, &CellLimits::default(), &Cancel::new(), &mut |_| {})?;
    if outcome.verdict.is_ok() { Ok(()) } else { Err(outcome.stderr.text().into()) }
}

fn timed(samples: usize, mut work: impl FnMut() -> Result<(), Failure>) -> Result<Vec<Duration>, Failure> {
    work()?;
    (0..samples)
        .map(|_| {
            let start = Instant::now();
            work()?;
            Ok(start.elapsed())
        })
        .collect()
}

/// Forks of an interpreter that holds so much memory: the whole call, and the interpreter's part of it.
fn forks(mebibytes: usize, samples: usize, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let session = Session::start(&sandbox(), Language::Python)?;
    // An interpreter by itself has about 12 MiB.
    let own = mebibytes.saturating_sub(12);
    run(
        &session,
        &format!("held = bytearray({own} << 20)\nfor n in range(0, len(held), 4096): held[n] = 1"),
    )?;
    session.upload("file", &Source::Bytes(vec![7; 64 << 10]))?;
    let mut inner = Vec::new();
    let whole = timed(samples, || {
        let fork = session.fork(1)?;
        inner.extend(fork.first().and_then(Session::fork_time));
        Ok(())
    })?;
    let promise = match mebibytes {
        124 => Some(1.0),
        2048 => Some(3.0),
        _ => None,
    };
    rows.push(Row { name: format!("session fork at {mebibytes} MiB"), samples: inner, promise });
    rows.push(Row {
        name: format!("session fork and end at {mebibytes} MiB, workspace included"),
        samples: whole,
        promise: None,
    });
    Ok(())
}

/// Forks of an interpreter that holds small objects, whose pages are small until it has had time to merge them.
fn small_objects(mebibytes: usize, samples: usize, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let session = Session::start(&sandbox(), Language::Python)?;
    run(&session, &format!("held = [n * 1000003 for n in range({mebibytes} * 1024 * 1024 // 40)]"))?;
    for (when, time) in [("at once", Duration::ZERO), ("after 10 s", Duration::from_secs(10))] {
        std::thread::sleep(time);
        let mut inner = Vec::new();
        timed(samples, || {
            inner.extend(session.fork(1)?.first().and_then(Session::fork_time));
            Ok(())
        })?;
        let name = format!("session fork at {mebibytes} MiB of small objects, {when}");
        rows.push(Row { name, samples: inner, promise: None });
        // What forks shared is looked at again after a cell.
        run(&session, "1")?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let samples = match arguments.iter().position(|argument| argument == "--samples") {
        Some(place) => arguments.get(place + 1).ok_or("--samples needs a number")?.parse::<usize>()?.max(10),
        None => 100,
    };
    let mut rows = Vec::new();
    let limits = SessionLimits::default();
    let starts = timed(samples / 4, || {
        Session::start_with(&sandbox(), Language::Python, &limits)?;
        Ok(())
    })?;
    rows.push(Row { name: "session start and end".into(), samples: starts, promise: None });
    let session = Session::start(&sandbox(), Language::Python)?;
    let cells = timed(samples * 4, || run(&session, "1 + 1"))?;
    rows.push(Row { name: "session run".into(), samples: cells, promise: Some(1.0) });
    let resets = timed(samples, || Ok(session.reset(Reset::KeepFiles)?))?;
    rows.push(Row { name: "session reset".into(), samples: resets, promise: None });
    drop(session);
    let mut left_out = Vec::new();
    for mebibytes in [24, 124, 2048] {
        if let Err(error) = forks(mebibytes, if mebibytes > 1000 { samples / 4 } else { samples }, &mut rows)
        {
            left_out.push(format!("forks at {mebibytes} MiB: {error}"));
        }
    }
    if let Err(error) = small_objects(512, samples / 10, &mut rows) {
        left_out.push(format!("forks at 512 MiB of small objects: {error}"));
    }
    let mut text = String::new();
    for Row { name, samples, promise } in &mut rows {
        let (low, middle) = (percentile(samples, 10), percentile(samples, 50));
        if json {
            let separator = if text.is_empty() { "" } else { "," };
            write!(text, "{separator}{{\"name\":\"{name}, p10\",\"value\":{low:.3},\"unit\":\"ms\"}}")?;
            write!(text, ",{{\"name\":\"{name}, p50\",\"value\":{middle:.3},\"unit\":\"ms\"")?;
            if let Some(promise) = promise {
                write!(text, ",\"promise\":\"≤ {promise} ms\",\"promise_max\":{promise}")?;
            }
            text.push('}');
        } else {
            writeln!(text, "{name:60} p10 {low:8.3} ms   p50 {middle:8.3} ms")?;
        }
    }
    if json {
        text = format!("{{\"rows\":[{text}],\"left_out\":{left_out:?}}}");
    } else {
        for line in left_out {
            writeln!(text, "left out: {line}")?;
        }
    }
    std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", text.trim_end()).as_bytes())?;
    Ok(())
}

fn percentile(samples: &mut [Duration], percent: usize) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() * percent / 100).copied().unwrap_or_default().as_secs_f64() * 1000.0
}

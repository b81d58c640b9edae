//! Tests of figures, reports and processes, with fake results.

use std::time::{Duration, Instant};

use toolpost_sandbox::Cancel;

use super::figures::{Comparison, Figure, Machine, Results, Row, Status, Version, median};
use super::process::{Process, Watch, words};
use super::report::{differences, markdown, number, table};
use super::{Metric, Subject, chart, compare, parse};

fn figure(value: f64) -> Figure {
    Figure { value, low: value * 0.9, high: value * 1.1 }
}

fn row(name: &str, value: Option<f64>, ratio: Option<f64>) -> Row {
    Row {
        name: name.to_owned(),
        toolpost: name == "Toolpost",
        status: if value.is_some() { Status::Measured } else { Status::Failed },
        rounds: 10,
        figure: value.map(figure),
        ratio: ratio.map(figure),
        reason: value.is_none().then(|| "exit status 3: a|b <c>".to_owned()),
        fix: None,
    }
}

fn comparison(rows: Vec<Row>) -> Comparison {
    Comparison {
        id: "loop-cpu".to_owned(),
        title: "Agent loop: processor time".to_owned(),
        about: "The processor time of one iteration.".to_owned(),
        unit: "ms".to_owned(),
        higher_is_better: false,
        rows,
    }
}

fn results(rows: Vec<Row>) -> Results {
    Results {
        v: 1,
        version: "0.1.0".to_owned(),
        started: "2026-11-28T18:00:00Z".to_owned(),
        seconds: 250,
        rounds: 10,
        machine: Machine {
            processor: "A processor".to_owned(),
            cores: 2,
            memory_bytes: Some(24 << 30),
            system: "Linux 6.18 x86_64".to_owned(),
            level: Some("strict".to_owned()),
            layers: vec!["pid_namespace".to_owned(), "seccomp".to_owned()],
        },
        versions: vec![Version { name: "peer".to_owned(), version: "1.2.3".to_owned() }],
        comparisons: vec![comparison(rows)],
    }
}

#[test]
fn a_report_has_the_machine_figures_failures_and_fixes() {
    let mut skipped = row("absent", None, None);
    skipped.status = Status::Skipped;
    (skipped.reason, skipped.fix) = (Some("not on PATH".into()), Some("`apt install absent`".into()));
    let rows = vec![
        row("Toolpost", Some(0.1), None),
        row("peer", Some(4.56), Some(45.6)),
        row("broken", None, None),
        skipped,
    ];
    let text = markdown(&results(rows), None);
    for line in [
        "| memory | 24.0 GiB |",
        "| sandbox | level strict: pid_namespace, seccomp |",
        "| peer | 1.2.3 |",
        "![Agent loop: processor time](loop-cpu.svg)",
        "| Toolpost | 0.1 | 0.09 to 0.11 | – |",
        "| peer | 4.56 | 4.1 to 5.02 | 45.6 × |",
        "| broken | failed: exit status 3: a\\|b &lt;c> | – |",
        "| absent | skipped: not on PATH | `apt install absent` |",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn figures_agree_if_their_intervals_overlap() {
    let run = |value| results(vec![row("Toolpost", Some(value), None)]);
    assert!(differences(&run(1.0), &run(1.15)).starts_with("1 of 1 figures agree"));
    let text = differences(&run(1.0), &run(1.3));
    assert!(text.starts_with("0 of 1 figures agree"), "{text}");
    assert!(
        text.contains("- Agent loop: processor time, Toolpost: 1 ms (0.9 to 1.1), before 1.3 (1.17 to 1.43)")
    );
}

#[test]
fn an_interval_covers_the_median_and_most_rounds_narrow_it() {
    let rounds: Vec<f64> = (1..=9).map(f64::from).collect();
    let few = Figure::from_rounds(&rounds).unwrap();
    assert_eq!((few.value, median(&[1.0, 4.0])), (5.0, 2.5));
    assert!(few.low < 5.0 && few.low >= 2.0 && few.high > 5.0 && few.high <= 8.0, "{few:?}");
    let many = Figure::from_rounds(&rounds.repeat(20)).unwrap();
    assert!(many.high - many.low < few.high - few.low, "{many:?}");
    assert_eq!(Figure::from_rounds(&[]), None);
}

#[test]
fn numbers_have_three_digits_and_separators() {
    let numbers = [0.000_123_4, 0.0456, 1.0, 5.678, 94.04, 560.0, 1234.6, 12_345.6, 1_234_567.0, 0.0];
    let texts = ["0.000123", "0.0456", "1", "5.68", "94", "560", "1235", "12,346", "1,234,567", "0"];
    assert_eq!(numbers.map(number), texts.map(str::to_owned));
}

#[test]
fn a_chart_fits_its_frame_and_escapes_text() {
    let name = "a <peer> & \"a friend\" with a very long name\u{7}, longer than all the other names";
    let rows = || vec![row("Toolpost", Some(0.1), None), row(name, Some(99.0), Some(990.0))];
    let svg = chart::draw(&comparison(rows())).unwrap();
    assert!(svg.contains("a &lt;peer&gt; &amp; &quot;a friend&quot;") && !svg.contains('\u{7}'));
    assert!(svg.contains("logarithmic scale") && svg.contains("prefers-color-scheme:dark"));
    assert!(
        svg.contains("<title id=\"title\">")
            && svg.contains("<desc id=\"desc\">lower is better. Toolpost: 0.1 ms")
    );
    let attribute = |text: &str, name: &str| -> f64 {
        let start = text.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        text[start..].split('"').next().unwrap().parse().unwrap()
    };
    let width = attribute(&svg, "width");
    // The estimate of a text's width is on the wide side.
    let mut texts = 0;
    for part in svg.split("<text ").skip(1) {
        let content = part.split_once('>').unwrap().1.split("</text>").next().unwrap();
        let content =
            content.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
        let (x, length) = (attribute(&format!(" {part}"), "x"), content.chars().count() as f64 * 7.0);
        let (left, right) = match part {
            part if part.contains("\"end\"") => (x - length, x),
            part if part.contains("\"middle\"") => (x - length / 2.0, x + length / 2.0),
            _ => (x, x + length),
        };
        assert!(left >= 0.0 && right <= width, "{content}: {left} to {right} of {width}");
        texts += 1;
    }
    assert!(texts >= 8, "{svg}");
    // The axis begins below the lower end of the smallest interval, 0.117.
    let wide = vec![row("Toolpost", Some(0.13), None), row("peer", Some(99.0), None)];
    assert!(chart::draw(&comparison(wide)).unwrap().contains(">0.01</text>"));
    let near = vec![row("Toolpost", Some(10.0), None), row("peer", Some(20.0), None)];
    assert!(!chart::draw(&comparison(near)).unwrap().contains("logarithmic"));
    assert_eq!(chart::draw(&comparison(vec![row("broken", None, None)])), None);
}

#[test]
fn a_failing_subject_has_a_row_with_its_reason() {
    const METRIC: Metric = Metric("m", "title", "about", "ms", false);
    let mut left = 3;
    let mut subjects = [
        Subject::new("Toolpost", |_| Ok(vec![("m", 2.0)])).toolpost(),
        Subject::new("peer", |_| Ok(vec![("m", 5.0)])),
        Subject::new("flaky", move |_| {
            left -= 1;
            if left > 0 { Ok(vec![("m", 1.0)]) } else { Err("it crashed".to_owned()) }
        }),
        Subject::new("absent", |_| unreachable!()).missing(Some("not on PATH".into())).fix("install it"),
    ];
    let watch = Watch::new(&Cancel::new());
    for _ in 0..4 {
        for subject in &mut subjects {
            subject.round(&watch);
        }
    }
    let compared = compare(&METRIC, &subjects);
    let found: Vec<_> = compared
        .rows
        .iter()
        .map(|row| (row.status, row.figure.map(|figure| figure.value), row.ratio.map(|ratio| ratio.value)))
        .collect();
    let expected = [
        (Status::Measured, Some(2.0), None),
        (Status::Measured, Some(5.0), Some(2.5)),
        (Status::Failed, None, None),
        (Status::Skipped, None, None),
    ];
    assert_eq!(found, expected);
    assert_eq!(compared.rows[2].reason.as_deref(), Some("it crashed"));
    assert!(table(&compared).lines().count() == 4, "{}", table(&compared));
}

#[test]
fn a_process_that_fails_or_hangs_gives_a_reason() {
    let watch = Watch::with_limit(&Cancel::new(), Duration::from_millis(300));
    let begun = Instant::now();
    // The grandchild has the pipe too.
    let hanging = watch.output(&words(&["sh", "-c", "sleep 60 & wait"]));
    assert_eq!(hanging, Err("no result after 0.3 s".to_owned()));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let failing = watch.output(&words(&["sh", "-c", "echo 'Error: broken' >&2; echo hint >&2; exit 3"]));
    assert_eq!(failing, Err("exit status 3: Error: broken".to_owned()));
    assert!(watch.output(&words(&["no-such-program-here"])).is_err());
    assert_eq!(watch.output(&words(&["printf", "text"])), Ok("text".to_owned()));
    assert!(watch.time(&words(&["true"])).is_ok() && watch.time(&words(&["false"])).is_err());
}

#[test]
fn ctrl_c_ends_a_process_at_once() {
    let cancel = Cancel::new();
    let watch = Watch::new(&cancel);
    let mut process = Process::start(&watch, &words(&["sleep", "60"])).unwrap();
    cancel.cancel();
    let begun = Instant::now();
    assert_eq!(process.line(&mut String::new()), Err("cancelled".to_owned()));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn output_of_a_peer_is_checked() {
    let fields = &[("loop-cpu", "cpu"), ("loop-memory", "memory")];
    assert_eq!(parse(r#"{"cpu": 2, "memory": null}"#, fields), Ok(vec![("loop-cpu", 2.0)]));
    for text in ["Warning: x", "{}x", r#"{"cpu": -1}"#, r#"{"cpu": "2"}"#, r#"{"cpu": 0}"#] {
        assert!(parse(text, fields).is_err(), "{text}");
    }
}

//! JavaScript sessions: the contract of Python sessions, without forks.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{
    Cancel, Error, Interruption, Language, Layer, Outcome, Reset, Session, Source, Verdict,
};

use crate::sessions::{interrupt_at_any_moment, limits, run, run_interrupted, value};
use crate::support::{Mode, eventually};

/// A session in each mode, if Node.js is installed.
fn sessions(test: &str) -> Vec<(Mode, Session)> {
    let start = |mode: Mode| match Session::start(&mode.sandbox(), Language::JavaScript) {
        Ok(session) => Some((mode, session)),
        Err(error @ Error::LanguageMissing { .. }) => {
            println!("SKIP {test}: {error}");
            None
        }
        Err(error) => panic!("{mode:?}: {error}"),
    };
    Mode::available().into_iter().filter_map(start).collect()
}

fn within(session: &Session, code: &str, wall: u64) -> Outcome {
    let short = limits().with_wall(Duration::from_millis(wall)).with_grace(Duration::from_millis(500));
    session.run(code, &short, &Cancel::new(), &mut |_| {}).unwrap()
}

#[test]
fn cells_of_javascript_build_on_each_other() {
    for (mode, session) in sessions("cells_of_javascript") {
        let rows = [
            ("let x = 20; const one = 1; function twice(a) { return a * 2 }; class Kind {}", json!(null)),
            ("x + 22", json!(42)),
            ("const late = await new Promise((done) => setTimeout(() => done(5), 20)); late", json!(5)),
            ("late + twice(one)", json!(7)),
            ("[1, 'ä', null, { a: 1.5 }]", json!([1, "ä", null, { "a": 1.5 }])),
            ("undefined", json!(null)),
            ("require('fs').writeFileSync('made', 'm'); process.argv.length", json!(1)),
            ("(await import('node:fs')).readFileSync('made', 'utf8')", json!("m")),
        ];
        for (code, expected) in rows {
            assert_eq!(value(&session, code), expected, "{mode:?} {code}");
        }
        let outcome =
            run(&session, "console.log('out'); console.error('err'); require('fs').writeFileSync('n', '')");
        assert_eq!((outcome.stdout.text(), outcome.stderr.text()), ("out\n".into(), "err\n".into()));
        assert_eq!(outcome.changes.new, [std::path::PathBuf::from("n")]);
        assert!(outcome.report.has(Layer::NoCapabilities), "{mode:?} {:?}", outcome.report.missing);
        let large = format!("{}\nx + 1", "// padding padding padding\n".repeat(5000));
        assert_eq!(value(&session, &large), json!(21));
        session.upload("in", &Source::Bytes(b"given".to_vec())).unwrap();
        assert_eq!(value(&session, "require('fs').readFileSync('in', 'utf8')"), json!("given"));
    }
}

#[test]
fn an_error_or_exit_ends_the_cell_of_javascript_and_not_the_session() {
    for (mode, session) in sessions("an_error_or_exit") {
        run(&session, "let kept = 1;\nfunction fail() { throw new TypeError('no') }");
        let rows = [
            ("\nfail()", Verdict::Exit { code: 1 }, "<cell 2>:2"),
            ("kept (", Verdict::Exit { code: 1 }, "SyntaxError"),
            ("await Promise.reject(new Error('later'))", Verdict::Exit { code: 1 }, "later"),
            (
                "setTimeout(() => { throw new Error('timer') }, 5); await new Promise(() => {})",
                Verdict::Exit { code: 1 },
                "timer",
            ),
            ("process.exit(3)", Verdict::Exit { code: 3 }, ""),
            ("process.exit()", Verdict::Ok, ""),
        ];
        for (code, verdict, part) in rows {
            let outcome = run(&session, code);
            let text = outcome.stderr.text();
            assert_eq!(outcome.verdict, verdict, "{mode:?} {code}: {text}");
            assert!(text.contains(part), "{code}: {text}");
        }
        assert_eq!(value(&session, "kept"), json!(1));
    }
}

#[test]
fn javascript_is_interrupted_at_a_limit_and_by_the_caller() {
    for (mode, session) in sessions("javascript_is_interrupted") {
        run(&session, "let kept = 1");
        for code in ["while (true) {}", "await new Promise((done) => setTimeout(done, 60000))"] {
            let outcome = within(&session, code, 700);
            assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Wall }, "{mode:?} {code}");
            let outcome = run_interrupted(&session, &format!("console.log('started')\n{code}"));
            assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Caller }, "{mode:?} {code}");
        }
        assert_eq!(value(&session, "kept"), json!(1), "{mode:?}");
        // A cell that ignores the interrupt is killed.
        let outcome = within(&session, "for (;;) { try { for (;;) {} } finally { continue } }", 300);
        assert!(
            matches!(outcome.verdict, Verdict::Timeout { .. } | Verdict::Interrupted { .. }),
            "{:?}",
            outcome.verdict
        );
    }
}

/// The signal after an unanswered interrupt comes where the evaluation of a cell begins or ends.
#[test]
fn an_early_interrupt_ends_no_session_of_javascript() {
    let Some((_, session)) = sessions("an_early_interrupt_ends_no_session_of_javascript").pop() else {
        return;
    };
    interrupt_at_any_moment(&session, 150, |number| match number % 3 {
        0 => "1 + 1".into(),
        1 => "await new Promise((done) => setTimeout(done, 60000))".into(),
        _ => format!("for (const end = Date.now() + {}; Date.now() < end; ) {{}}", 46 + number % 16),
    });
}

#[test]
fn a_session_of_javascript_is_reset_and_cannot_be_forked() {
    for (mode, session) in sessions("a_session_of_javascript_is_reset") {
        run(&session, "let x = 1; require('fs').writeFileSync('kept', 'k')");
        let error = session.fork(1).unwrap_err();
        assert!(matches!(error, Error::SessionRejected { .. }) && error.hint().is_some(), "{error}");
        assert!(error.to_string().contains("threads"), "{error}");
        session.reset(Reset::KeepFiles).unwrap();
        assert_eq!(
            value(&session, "[typeof x, require('fs').readFileSync('kept', 'utf8')]"),
            json!(["undefined", "k"]),
            "{mode:?}"
        );
        session.reset(Reset::Fresh).unwrap();
        assert_eq!(value(&session, "require('fs').readdirSync('.')"), json!([]), "{mode:?}");
    }
}

#[test]
fn no_javascript_cell_hangs_or_deceives_the_host() {
    let attacks = [
        (
            "junk",
            "for (let n = 0; n < 50; n++) require('fs').writeSync(4, 'E' + '\\0'.repeat(16) + 'o\\0'); 1",
            true,
        ),
        (
            "other sizes",
            "for (const n of [1, 16, 17, 18, 60017]) require('fs').writeSync(4, 'E'.repeat(n)); 1",
            true,
        ),
        ("a flood", "for (;;) require('fs').writeSync(4, 'E' + '\\0'.repeat(16) + 'o\\0')", false),
        ("closed", "require('fs').closeSync(4)", false),
        ("streams closed", "require('fs').closeSync(1); require('fs').closeSync(2); 1", true),
        ("the end", "process.reallyExit(0)", false),
        ("a crash", "process.abort()", false),
        ("a kill", "process.kill(process.pid, 'SIGKILL')", false),
        ("stopped", "process.kill(process.pid, 'SIGSTOP')", false),
    ];
    let Some(mode) = sessions("no_cell_of_javascript").into_iter().map(|(mode, _)| mode).next() else {
        return;
    };
    for (name, code, lives_on) in attacks {
        let session = Session::start(&mode.sandbox(), Language::JavaScript).unwrap();
        let begin = Instant::now();
        let outcome = within(&session, code, 2000);
        assert!(begin.elapsed() < Duration::from_secs(10), "{name}: {:?}", begin.elapsed());
        if lives_on {
            assert_eq!(outcome.verdict, Verdict::Ok, "{name}: {}", outcome.stderr.text());
            assert_eq!(value(&session, "20 + 1"), json!(21), "{name}");
        } else {
            eventually("the session has ended", || session.ended().is_some());
            let error = session.run("1", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
            assert!(matches!(error, Error::SessionEnded { .. }), "{name}: {error}");
        }
    }
}

//! A custom backend: the requests that it receives, and the outcomes that it returns.

use std::sync::{Arc, Mutex};

use toolpost_sandbox::{
    Backend, BackendRequest, Cancel, Captured, Error, Language, Level, LevelAvailability, Limits, Outcome,
    Processes, Program, Report, Sandbox, SandboxArtifact, SandboxEvent, Source, Stdin, Verdict, Workspace,
};

/// A backend that runs nothing: it records the request and returns the program's text.
#[derive(Debug, Default)]
struct Echo {
    asked: Mutex<Vec<String>>,
}

impl Backend for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        Processes.availability(level)
    }

    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        let text = match request.program() {
            Program::Code { source, .. } => source.clone().into_bytes(),
            _ => b"a program".to_vec(),
        };
        on_event(SandboxEvent::Stdout(&text));
        let verdict = if request.cancel().is_cancelled() { Verdict::Cancelled } else { Verdict::Ok };
        let level = request.level().unwrap_or(Level::Strict);
        let mut outcome = Outcome::new(verdict, Report::new("", request.level(), level));
        outcome.stdout = Captured::keep(&text, request.limits(Level::Strict).stdout);
        for (name, source) in request.files() {
            if let Source::Bytes(bytes) = source {
                outcome.artifacts.push(SandboxArtifact::from_bytes(name.as_str(), bytes.clone())?);
            }
        }
        Ok(outcome)
    }
}

#[test]
fn a_custom_backend_returns_complete_outcomes() {
    let echo = Arc::new(Echo::default());
    let sandbox = Sandbox::new()
        .backend(echo.clone())
        .level(Level::Strict)
        .limits(Limits::default().with_stdout(10))
        .file("plot.png", Source::Bytes(b"\x89PNG\r\n\x1a\nrest".to_vec()))
        .clone();
    let mut events = Vec::new();
    let outcome = sandbox
        .run(&Program::code(Language::Python, "0123456789abcdef"), &Cancel::new(), &mut |event| {
            if let SandboxEvent::Stdout(bytes) = event {
                events.extend_from_slice(bytes);
            }
        })
        .unwrap();
    assert_eq!(events, b"0123456789abcdef");
    assert_eq!((&outcome.stdout.head[..], &outcome.stdout.tail[..]), (&b"01234"[..], &b"bcdef"[..]));
    assert_eq!(outcome.stdout.dropped, 6);
    assert_eq!(outcome.report.backend, "echo", "an empty name is filled in");
    assert_eq!((outcome.report.requested, outcome.report.degraded), (Some(Level::Strict), false));
    let artifact = &outcome.artifacts[0];
    assert_eq!((artifact.media_type, artifact.size), ("image/png", 12));
    assert_eq!(artifact.read().unwrap(), b"\x89PNG\r\n\x1a\nrest");
    let directory = tempfile::tempdir().unwrap();
    let paths = outcome.export(directory.path()).unwrap();
    assert_eq!(std::fs::read(paths[0].as_ref().unwrap()).unwrap(), b"\x89PNG\r\n\x1a\nrest");
}

#[test]
fn a_backend_sees_every_setting() {
    /// Compares the getters with the settings.
    #[derive(Debug)]
    struct Reader;
    impl Backend for Reader {
        fn name(&self) -> &'static str {
            "reader"
        }
        fn availability(&self, level: Level) -> LevelAvailability {
            Processes.availability(level)
        }
        fn run(
            &self,
            request: &BackendRequest<'_>,
            _: &mut dyn FnMut(SandboxEvent<'_>),
        ) -> Result<Outcome, Error> {
            assert_eq!(request.level(), Some(Level::Standard));
            assert!(request.allow_degraded());
            assert_eq!(request.limits(Level::Strict).processes, 7);
            assert_eq!(request.workspace(), &Workspace::Host("/w".into()));
            assert_eq!(request.directory(), Some("sub"));
            assert_eq!(request.files(), [("a".to_owned(), Source::Bytes(vec![1]))]);
            assert_eq!(request.environment(), [("A".to_owned(), "b".into())]);
            assert_eq!(request.stdin(), &Stdin::Bytes(vec![2]));
            assert_eq!(request.read_only(), [std::path::PathBuf::from("/r")]);
            assert_eq!(request.search_path(), Some("/p".as_ref()));
            let report = Report::new("another", request.level(), Level::Standard);
            Ok(Outcome::new(Verdict::Exit { code: 3 }, report))
        }
    }
    let outcome = Sandbox::new()
        .backend(Arc::new(Reader))
        .level(Level::Standard)
        .allow_degraded(true)
        .limits(Limits::default().with_processes(7))
        .workspace(Workspace::Host("/w".into()))
        .directory("sub")
        .file("a", Source::Bytes(vec![1]))
        .env("A", "b")
        .stdin(Stdin::Bytes(vec![2]))
        .read_only("/r")
        .search_path("/p")
        .run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {})
        .unwrap();
    assert_eq!((outcome.verdict, outcome.report.backend.as_str()), (Verdict::Exit { code: 3 }, "another"));
}

#[test]
fn invalid_requests_never_reach_a_backend() {
    let echo = Arc::new(Echo::default());
    let sandbox = Sandbox::new().backend(echo.clone());
    let run = |sandbox: &Sandbox, program: &Program| sandbox.run(program, &Cancel::new(), &mut |_| {});
    run(&sandbox, &Program::code(Language::Python, "a\0b")).unwrap_err();
    run(&sandbox.clone().env("LD_PRELOAD", "x"), &Program::argv(["true"])).unwrap_err();
    run(&sandbox.clone().limits(Limits::default().with_memory(0)), &Program::argv(["true"])).unwrap_err();
    assert!(echo.asked.lock().unwrap().is_empty());
    assert!(
        SandboxArtifact::from_bytes("../x", vec![]).is_err()
            && SandboxArtifact::from_bytes("a\nb", vec![]).is_err()
    );
}

#[test]
fn a_run_reports_the_process_backend() {
    if !Processes.availability(Level::Strict).available {
        println!("SKIP a_run_reports_the_process_backend: level strict is not available");
        return;
    }
    let program = Program::argv(["true"]);
    let plain = Sandbox::new().run(&program, &Cancel::new(), &mut |_| {}).unwrap();
    let named =
        Sandbox::new().backend(Arc::new(Processes)).run(&program, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((plain.report.backend.as_str(), named.report.backend.as_str()), ("process", "process"));
}

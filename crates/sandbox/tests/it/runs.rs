//! Programs and code: their input, environment and results.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_runtimes::Unmet;
use toolpost_sandbox::{
    Cancel, Error, Host, Language, Layer, Level, Limits, Program, Sandbox, SandboxEvent, SandboxHint, Source,
    Stdin, Verdict,
};

use crate::support::{Mode, bash, python, quick, run};

#[test]
fn a_program_runs_and_returns_its_status() {
    for mode in Mode::available() {
        let outcome =
            run(&mode.sandbox(), &Program::argv(["sh", "-c", "echo out; echo err >&2; exit 3"])).unwrap();
        assert_eq!(outcome.verdict, Verdict::Exit { code: 3 }, "{mode:?} {outcome:?}");
        assert_eq!(outcome.exit_code, Some(3));
        assert_eq!((outcome.stdout.text().as_str(), outcome.stderr.text().as_str()), ("out\n", "err\n"));
        assert!(outcome.usage.wall > Duration::ZERO && outcome.usage.largest_process > 100_000);
        assert!(outcome.report.has(Layer::Seccomp) && outcome.report.has(Layer::NoCapabilities));
    }
}

#[test]
fn code_returns_its_value() {
    let cases = [
        (Language::Python, "x = 20\nx * 2 + 2", json!(42)),
        (Language::Python, "{'a': [1, 2.5, None, 'ü']}", json!({"a": [1, 2.5, null, "ü"]})),
        (Language::Python, "True", json!(true)),
        (Language::Python, "print('x')\n'last'", json!("last")),
        (Language::JavaScript, "const x = 40; x + 2", json!(42)),
        (Language::JavaScript, "({a: [1, 'ü']})", json!({"a": [1, "ü"]})),
        (Language::JavaScript, "Promise.resolve([7])", json!([7])),
        (
            Language::JavaScript,
            "import os from 'node:os'; console.log('::result', JSON.stringify(await 5))",
            json!(5),
        ),
        (Language::Bash, "echo '::result {\"a\": 1}'", json!({"a": 1})),
        (Language::Python, "print('::result [1]')\n2", json!([1])),
    ];
    for mode in Mode::available() {
        for (language, code, expected) in &cases {
            let program = Program::code(*language, *code);
            let outcome = match run(&mode.sandbox(), &program) {
                Err(Error::LanguageMissing { .. }) => {
                    println!("SKIP {language}: not installed");
                    continue;
                }
                other => other.unwrap(),
            };
            assert_eq!(outcome.value.as_ref(), Some(expected), "{mode:?} {language} {code} {outcome:?}");
            assert_eq!(outcome.verdict, Verdict::Ok);
        }
    }
}

#[test]
fn invalid_json_of_the_code_itself_is_a_note() {
    let outcome = python(&Mode::available()[0].sandbox(), "import os\nos.write(4, b'{')\n1");
    assert_eq!((outcome.value, outcome.verdict), (None, Verdict::Ok));
    assert!(outcome.report.notes.iter().any(|note| note.contains("the value is not JSON")));
}

/// A file of the workspace may have the name of the code.
#[test]
fn the_lines_of_an_error_are_those_of_the_code() {
    let sandbox = Mode::available()[0]
        .sandbox()
        .file("main.py", Source::Bytes(b"other 1\nother 2\nother 3\nother 4\n".to_vec()));
    let fails = "def f():\n    return 1 / 0 # mine\n";
    for code in [
        format!("{fails}f()"),
        format!("import traceback\n{fails}try: f()\nexcept ArithmeticError: traceback.print_exc()"),
        format!("import logging\n{fails}try: f()\nexcept ArithmeticError: logging.exception('x')"),
        format!("{fails}import inspect, sys\nprint(inspect.getsource(f), file=sys.stderr)"),
        format!("{fails}class A:\n    def __del__(self): f()\nA()"),
        format!(
            "{fails}import threading\nthread = threading.Thread(target=f)\nthread.start()\nthread.join()"
        ),
        "import warnings\nwarnings.warn('x') # mine".to_owned(),
        "x = 1\nx is 1 # mine".to_owned(),
        "x = = 1 # mine".to_owned(),
        "x = 1\nreturn 1 # mine".to_owned(),
    ] {
        let text = python(&sandbox, &code).stderr.text();
        assert!(text.contains("# mine") && !text.contains("other"), "{code}: {text}");
    }
}

#[test]
fn python_errors_show_only_the_code() {
    let outcome = python(&Mode::available()[0].sandbox(), "def f():\n    return 1 / 0\nf()");
    let text = outcome.stderr.text();
    assert_eq!(outcome.verdict, Verdict::Exit { code: 1 });
    assert!(text.contains("main.py\", line 2, in f") && text.contains("return 1 / 0"), "{text}");
    assert!(text.contains("ZeroDivisionError") && !text.contains("<string>"), "{text}");
    let outcome = python(&Mode::available()[0].sandbox(), "def f(:");
    assert!(outcome.stderr.text().contains("SyntaxError"), "{:?}", outcome.stderr.text());
    let outcome = python(&Mode::available()[0].sandbox(), "import sys\nsys.exit(5)");
    assert_eq!(outcome.verdict, Verdict::Exit { code: 5 });
}

#[test]
fn code_longer_than_an_argument_runs() {
    let padding = format!("# {}\n", "x".repeat(100)).repeat(40_000);
    for (language, end) in [(Language::Python, "7"), (Language::Bash, "echo '::result 7'")] {
        let program = Program::code(language, format!("{padding}{end}"));
        let outcome = run(&Mode::available()[0].sandbox(), &program).unwrap();
        assert_eq!(outcome.value, Some(json!(7)), "{language} {:?}", outcome.stderr.text());
    }
    let program = Program::code(Language::Python, "1".repeat(100 << 20));
    assert!(matches!(run(&Sandbox::new(), &program), Err(Error::TooLarge { what: "code", .. })));
}

#[test]
fn the_environment_has_only_defaults_and_the_callers_variables() {
    for mode in Mode::available() {
        let outcome = python(
            &mode.sandbox().env("TOKEN_NAME", "a b=c"),
            "import os\nprint(os.getcwd())\n[sorted(os.environ), os.environ['TOKEN_NAME'], os.environ['HOME'] == os.getcwd()]",
        );
        let names = ["HOME", "LANG", "PATH", "TERM", "TMPDIR", "TOKEN_NAME", "USER"];
        // Only without another private directory.
        let expected = json!([names, "a b=c", mode == Mode::Shared]);
        assert_eq!(outcome.value.unwrap(), expected, "{mode:?}");
        if mode == Mode::Strict {
            assert_eq!(outcome.stdout.text(), "/workspace\n");
        }
    }
}

#[test]
fn files_in_the_home_directory_are_no_artifacts() {
    let code = "import os, pwd\nplace = os.path.expanduser('~/.cache/fontconfig')\nos.makedirs(place)\n\
        open(place + '/fonts', 'w').write('x')\nopen('figure.png', 'w').write('x')\n\
        pwd.getpwuid(os.getuid()).pw_dir";
    for mode in Mode::available().into_iter().filter(|mode| *mode != Mode::Shared) {
        let sandbox = mode.sandbox();
        let pool =
            toolpost_sandbox::Pool::builder(&sandbox).language(Language::Python).idle_workers(1).build();
        let pooled = pool.map(|pool| sandbox.clone().backend(std::sync::Arc::new(pool)));
        for sandbox in std::iter::once(sandbox).chain(pooled) {
            let made = |outcome: &toolpost_sandbox::Outcome| -> Vec<String> {
                outcome.artifacts.iter().map(|artifact| artifact.path.clone()).collect()
            };
            let outcome = python(&sandbox, code);
            assert_eq!(made(&outcome), ["figure.png"], "{mode:?} {:?}", outcome.value);
            assert_eq!(outcome.value, Some(json!("/tmp")), "{mode:?}");
            let outcome = python(&sandbox.env("HOME", "mine"), code);
            assert_eq!(made(&outcome), ["figure.png", "mine/.cache/fontconfig/fonts"], "{mode:?}");
        }
    }
}

#[test]
fn the_home_directory_at_minimal_is_private_and_ends_with_the_run() {
    let code = "import os\nhome = os.path.expanduser('~')\nos.makedirs(home + '/.cache/fontconfig')\n\
        open(home + '/.cache/fontconfig/fonts', 'w').write('x')\nopen('figure.png', 'w').write('x')\n\
        [home, os.stat(home).st_mode & 0o777]";
    let outcome = python(&Sandbox::new().level(toolpost_sandbox::Level::Minimal), code);
    let made: Vec<_> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(made, ["figure.png"]);
    let value = outcome.value.unwrap();
    assert_eq!(value[1], 0o700);
    assert!(!std::path::Path::new(value[0].as_str().unwrap()).exists(), "{value}");
}

/// The part of matplotlib that the driver uses: figures that draw their titles.
const FIGURES: [(&str, &str); 3] = [
    ("matplotlib/__init__.py", ""),
    (
        "matplotlib/figure.py",
        "class Figure:\n    def savefig(self, target, format=None, bbox_inches=None):\n        data = b'PNG ' + self.title.encode()\n\
         \x20       target.write(data) if format else open(target, 'wb').write(data)\n",
    ),
    (
        "matplotlib/pyplot.py",
        "from matplotlib.figure import Figure\nopened = {}\n\
         def figure(number=None):\n    number = number or len(opened) + 1\n\
         \x20   return opened.setdefault(number, Figure())\n\
         def title(text):\n    figure(max(opened, default=1)).title = text\n    return Figure()\n\
         def get_fignums():\n    return sorted(opened)\n\
         def close(which):\n    opened.clear()\n\
         def show():\n    raise SystemError('this one shows nothing')\n",
    ),
];

#[test]
fn shown_and_open_figures_become_files() {
    let before = "import matplotlib.pyplot as plt\n";
    for (code, expected) in [
        ("plt.title('a')", vec![("figure-1.png", "PNG a")]),
        // Each `show` starts anew, as a window does.
        (
            "plt.title('a'); plt.show(block=False); plt.title('b'); plt.figure(); plt.title('c')",
            vec![("figure-1.png", "PNG a"), ("figure-2.png", "PNG b"), ("figure-3.png", "PNG c")],
        ),
        // A figure that the code saved is not saved again, and none of the code's files is overwritten.
        ("plt.title('a'); plt.figure(1).savefig('mine.png')", vec![("mine.png", "PNG a")]),
        (
            "open('figure-1.png', 'w').write('mine'); plt.title('a')",
            vec![("figure-1-1.png", "PNG a"), ("figure-1.png", "mine")],
        ),
        ("plt.title('a'); raise SystemExit(0)", vec![("figure-1.png", "PNG a")]),
        ("plt.title('a'); 1 / 0", vec![]),
    ] {
        let sandbox = FIGURES.iter().fold(Mode::available()[0].sandbox(), |sandbox, (name, text)| {
            sandbox.file(*name, Source::Bytes(text.as_bytes().to_vec()))
        });
        let outcome = python(&sandbox, &format!("{before}{code}"));
        let made: Vec<(&str, String)> = outcome
            .artifacts
            .iter()
            .map(|file| (file.path.as_str(), String::from_utf8(file.read().unwrap()).unwrap()))
            .collect();
        let expected: Vec<(&str, String)> =
            expected.into_iter().map(|(name, text)| (name, text.to_owned())).collect();
        assert_eq!(made, expected, "{code} {}", outcome.stderr.text());
        assert_eq!(outcome.value, None, "{code}: what drawing gives back is not a result");
    }
}

#[test]
fn a_failed_python_connection_names_its_target() {
    let code = "import urllib.request\nurllib.request.urlopen('http://name.invalid:8080/')";
    let outcome = python(&Mode::available()[0].sandbox(), code);
    let text = outcome.stderr.text();
    assert!(text.ends_with("\nno connection to name.invalid:8080\n"), "{text}");
    let found = Unmet::find(&Program::code(Language::Python, code), "", &text, &outcome.report);
    let [Unmet::Connection { host, .. }] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(host.as_deref(), Some("name.invalid:8080"));
    let fine = python(&Mode::available()[0].sandbox(), "import socket\nopen('missing')");
    assert!(!fine.stderr.text().contains("no connection"), "{}", fine.stderr.text());
}

#[test]
fn modules_of_the_workspace_leave_no_compiled_files() {
    let sandbox = Mode::available()[0].sandbox().file("helper.py", Source::Bytes(b"x = 42".to_vec()));
    let outcome = python(&sandbox, "import helper\nhelper.x");
    assert_eq!((outcome.value, outcome.artifacts.len()), (Some(json!(42)), 0));
}

#[test]
fn input_is_read_to_its_end_or_ignored() {
    let megabytes = vec![b'x'; 3 << 20];
    for mode in Mode::available() {
        let count = Program::argv(["wc", "-c"]);
        let outcome = run(&mode.sandbox().stdin(Stdin::Bytes(megabytes.clone())), &count).unwrap();
        assert_eq!(outcome.stdout.text().trim(), megabytes.len().to_string());
        let outcome = run(&mode.sandbox(), &count).unwrap();
        assert_eq!(outcome.stdout.text().trim(), "0");
        let outcome =
            run(&mode.sandbox().stdin(Stdin::Bytes(megabytes.clone())), &Program::argv(["true"])).unwrap();
        assert_eq!(outcome.verdict, Verdict::Ok);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    let sandbox = Mode::available()[0].sandbox().stdin(Stdin::File(file.path().to_owned()));
    assert_eq!(run(&sandbox, &Program::argv(["cat"])).unwrap().stdout.text(), "from a file");
}

#[test]
fn output_arrives_while_the_program_runs() {
    let start = Instant::now();
    let mut first = None;
    let mut both = (Vec::new(), Vec::new());
    let program = Program::code(Language::Bash, "echo one; sleep 0.5; echo two >&2");
    let outcome = Mode::available()[0]
        .sandbox()
        .run(&program, &Cancel::new(), &mut |event| match event {
            SandboxEvent::Stdout(bytes) => {
                first.get_or_insert_with(|| start.elapsed());
                both.0.extend_from_slice(bytes);
            }
            SandboxEvent::Stderr(bytes) => both.1.extend_from_slice(bytes),
            _ => {}
        })
        .unwrap();
    assert!(
        first.unwrap() + Duration::from_millis(300) < outcome.usage.wall,
        "{first:?} {:?}",
        outcome.usage
    );
    assert_eq!(both, (b"one\n".to_vec(), b"two\n".to_vec()));
}

#[test]
fn a_run_is_cancelled_from_another_thread() {
    for mode in Mode::available() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            other.cancel();
        });
        let start = Instant::now();
        let program = Program::argv(["sleep", "30"]);
        let outcome = mode.sandbox().run(&program, &cancel, &mut |_| {}).unwrap();
        assert_eq!((outcome.verdict, outcome.exit_code), (Verdict::Cancelled, None));
        assert!(start.elapsed() < Duration::from_secs(5));
        thread.join().unwrap();
        let again = mode.sandbox().run(&program, &cancel, &mut |_| {}).unwrap();
        assert_eq!(again.verdict, Verdict::Cancelled);
    }
}

#[test]
fn a_panic_in_the_callers_callback_leaves_nothing_running() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox();
        let result = std::panic::catch_unwind(|| {
            let program = Program::code(Language::Bash, "echo x; exec sleep 76543");
            sandbox.run(&program, &Cancel::new(), &mut |_| panic!("from the callback"))
        });
        assert!(result.is_err());
        crate::support::eventually("the program is dead", || !crate::support::is_running("sleep 76543"));
    }
}

#[test]
fn programs_that_cannot_start_are_errors_that_name_them() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox();
        let start = |program: Program| run(&sandbox, &program).unwrap_err();
        assert!(matches!(start(Program::argv(["no-such-program"])), Error::ProgramNotFound { .. }));
        assert!(matches!(start(Program::argv(["/no/such/program"])), Error::ProgramNotFound { .. }));
        let error = start(Program::argv(["./missing"]));
        assert!(
            matches!(&error, Error::ProgramNotStarted { program, .. } if program == "./missing"),
            "{error}"
        );
    }
}

#[test]
fn a_program_outside_the_system_directories_is_shown_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = crate::support::open_directory();
    let tool = directory.path().join("tool");
    std::fs::write(&tool, "#!/bin/sh\necho \"$0 $1\"; ls \"$(dirname \"$0\")\"; cat \"$2\"\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(directory.path().join("beside"), "content").unwrap();
    let beside = directory.path().join("beside");
    let program = Program::operator_argv([tool.as_os_str(), "hello".as_ref(), beside.as_os_str()]);
    for mode in Mode::available() {
        let outcome = run(&mode.sandbox(), &program).unwrap();
        let text = outcome.stdout.text();
        assert!(
            text.starts_with(&format!("{} hello", tool.display())),
            "{mode:?} {text} {}",
            outcome.stderr.text()
        );
        assert!(!text.contains("content"), "{mode:?} {text}");
        let outcome = run(&mode.sandbox().read_only(directory.path()), &program).unwrap();
        assert!(outcome.stdout.text().contains("content"), "{mode:?} {outcome:?}");
        let write = format!("echo x > {}/new", directory.path().display());
        let outcome = bash(&mode.sandbox().read_only(directory.path()), &write);
        assert!(!outcome.verdict.is_ok() && !directory.path().join("new").exists());
    }
}

#[test]
fn an_interpreter_in_a_private_home_is_used_without_showing_the_home() {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own_home = users.lines().find_map(|line| line.strip_prefix("root:x:0:0:")?.split(':').nth(1));
    let Ok(home) = std::fs::canonicalize(std::path::Path::new(own_home.unwrap_or("/")).join(".pyenv")) else {
        println!("SKIP an_interpreter_in_a_private_home: there is none");
        return;
    };
    let search = format!("{}/shims:/usr/bin", home.display());
    let sandbox = Sandbox::new().level(Level::Strict).limits(quick()).search_path(search);
    let code = format!(
        "import sys, os, sqlite3\ndef names(directory):\n    try: return os.listdir(directory)\n    \
         except OSError as error: return type(error).__name__\n[sys.prefix, names({:?}), names({:?})]",
        home.parent().unwrap(),
        home
    );
    let Ok(outcome) = run(&sandbox, &Program::code(Language::Python, code)) else {
        println!("SKIP an_interpreter_in_a_private_home: strict is not available");
        return;
    };
    let value = outcome.value.unwrap_or_else(|| panic!("{}", outcome.stderr.text()));
    for names in [&value[1], &value[2]] {
        assert_eq!(*names, json!("PermissionError"), "{value}");
    }
}

#[test]
fn a_limited_host_fails_or_reports_degradation() {
    let poor = Host::probe().without_namespaces();
    let program = Program::argv(["true"]);
    let strict = Sandbox::new().level(Level::Strict).host(poor.clone()).limits(quick());
    let error = run(&strict, &program).unwrap_err();
    assert!(matches!(&error, Error::LevelUnavailable { level: Level::Strict, .. }), "{error}");
    assert_eq!(error.hint(), Some(SandboxHint::ChooseLevel));
    if poor.availability(Level::Standard).unwrap().available {
        let outcome = run(&strict.clone().allow_degraded(true), &program).unwrap();
        assert!(outcome.report.degraded && outcome.report.effective == Level::Standard);
        let outcome = run(&Sandbox::new().host(poor.clone()).limits(quick()), &program).unwrap();
        assert!(!outcome.report.degraded && outcome.report.requested.is_none());
        assert!(outcome.report.missing.iter().any(|missing| missing.layer == Layer::PidNamespace));
    }
    let nothing = poor.with_landlock(0);
    let error = run(&Sandbox::new().host(nothing).limits(quick()), &program).unwrap_err();
    assert!(matches!(error, Error::LevelUnavailable { .. }), "{error}");
}

#[test]
fn without_a_cgroup_the_memory_limit_is_never_claimed() {
    let host = Host::probe().without_cgroups();
    let outcome = run(&Sandbox::new().host(host).limits(quick()), &Program::argv(["true"])).unwrap();
    assert!(!outcome.report.has(Layer::MemoryLimit));
    let missing = outcome.report.missing.iter().find(|missing| missing.layer == Layer::MemoryLimit).unwrap();
    assert!(missing.reason.contains("not their sum"), "{missing:?}");
    assert_eq!(outcome.usage.peak_memory, None);
}

#[test]
fn exaggerated_facts_end_in_an_error() {
    // The host's Landlock version is the maximum; facts can only lower it.
    let host = Host::probe().with_landlock(99);
    let outcome = run(&Sandbox::new().host(host).limits(quick()), &Program::argv(["true"])).unwrap();
    assert_eq!(outcome.verdict, Verdict::Ok);
}

#[test]
fn invalid_requests_are_rejected_before_anything_starts() {
    let program = Program::argv(["true"]);
    let refused = |sandbox: Sandbox| run(&sandbox, &program).unwrap_err();
    assert!(matches!(
        refused(Sandbox::new().limits(Limits::default().with_wall(Duration::ZERO))),
        Error::InvalidLimit { .. }
    ));
    assert!(matches!(refused(Sandbox::new().env("LD_PRELOAD", "x")), Error::InvalidName { .. }));
    assert!(matches!(refused(Sandbox::new().read_only("/")), Error::File { .. }));
    assert!(matches!(refused(Sandbox::new().read_only("/no/such")), Error::File { .. }));
    let missing = Sandbox::new().search_path("/nowhere");
    let error = run(&missing, &Program::code(Language::Python, "1")).unwrap_err();
    assert!(matches!(error, Error::LanguageMissing { .. }), "{error}");
}

#[test]
fn the_hosts_umask_changes_nothing() {
    let script = format!(
        "umask 077; exec {} --exact runs::helper_with_a_strict_mask --nocapture",
        std::env::current_exe().unwrap().display()
    );
    #[expect(clippy::disallowed_methods, reason = "the test program itself, with another file mask")]
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn helper_with_a_strict_mask() {
    // For the_hosts_umask_changes_nothing.
    if !crate::support::is_helper() {
        return;
    }
    for mode in Mode::available() {
        let sandbox = mode.sandbox().file("d/in", toolpost_sandbox::Source::Bytes(b"x".to_vec()));
        let outcome = bash(&sandbox, "umask; cat d/in; touch d/new; ls /usr/bin > /dev/null && echo ok");
        assert_eq!(outcome.stdout.text(), "0022\nxok\n", "{mode:?} {}", outcome.stderr.text());
    }
}

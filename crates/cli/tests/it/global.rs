//! Global options.

use serde_json::json;
use toolpost_core::Schema;

use crate::support::TestEnv;

const SUM: [&str; 3] = ["call", "calculate", "expression=6*7"];

fn sum(words: &[&'static str]) -> Vec<&'static str> {
    SUM.iter().chain(words).copied().collect()
}

#[test]
pub(crate) fn format() {
    let env = TestEnv::new();
    assert_eq!(env.run(sum(&["--format", "text"])).ok().out, "42\n");
    assert_eq!(env.run(sum(&["--format", "json"])).ok().json()["status"], "success");
    assert_eq!(env.run(sum(&["--format", "jsonl"])).ok().lines().len(), 2);
}

#[test]
pub(crate) fn json() {
    let env = TestEnv::new();
    assert_eq!(env.run(sum(&["--json"])).ok().json()["status"], "success");
    env.run(sum(&["--json", "--format", "text"])).exit(2);
}

#[test]
fn an_invalid_command_line_is_reported_in_its_format() {
    let env = TestEnv::new();
    for form in [&["--json"][..], &["--format", "json"], &["--format=jsonl"]] {
        let error = env.run(["run", "--nosuch"].iter().chain(form)).exit(2).error();
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!("USAGE"), &json!("unexpected argument '--nosuch' found"))
        );
        let nothing = env.run(form).exit(2).error();
        assert_eq!(nothing["message"], "missing command");
    }
    let person = env.run([""; 0]).exit(2);
    assert!(person.err.contains("Usage: toolpost") && person.out.is_empty(), "{person}");
}

#[test]
pub(crate) fn verbose() {
    let env = TestEnv::new();
    let told = |words: &[&'static str]| env.run(sum(words)).ok().err;
    assert!(!told(&[]).contains("toolpost::call"));
    assert!(told(&["-v"]).contains("INFO toolpost::call: call finished"));
    assert!(!told(&["-v"]).contains("DEBUG"));
    assert!(told(&["--verbose", "--verbose"]).contains("DEBUG toolpost::call: call started"));
}

#[test]
pub(crate) fn quiet() {
    let env = TestEnv::new();
    assert!(env.run(sum(&[])).ok().err.contains("→ calculate"));
    for option in ["-q", "--quiet"] {
        let finished = env.run(sum(&[option])).ok();
        assert_eq!((finished.out.as_str(), finished.err.as_str()), ("42\n", ""));
        let failed = env.run(["call", "nosuch", option]).exit(2);
        assert!(failed.err.starts_with("error: "), "{failed}");
    }
}

#[test]
pub(crate) fn log() {
    let env = TestEnv::new();
    let told = |filter| env.run(sum(&["-q", "--log", filter])).ok().err;
    assert_eq!(told("off"), "");
    assert_eq!(told("toolpost::run=trace"), "");
    assert!(told("toolpost::call=debug").contains("DEBUG toolpost::call: call started"));
    // Python's names of levels are known, and every other word is rejected.
    for level in ["warning", "WARNING", "critical"] {
        assert_eq!(told(level), "");
    }
    assert!(told("DEBUG").contains("DEBUG toolpost::call: call started"));
    let wrong = env.run(sum(&["--log", "loud"])).exit(2);
    assert!(wrong.err.contains("`loud` is not a level"), "{wrong}");
    // Sandboxes have a target of their own.
    for words in [&["exec", "--", "true"][..], &["call", "run_code", "language=bash", "code=true"]] {
        let filter = ["--log", "toolpost::sandbox=debug"];
        let finished = env.run(filter.iter().chain(words)).ok();
        assert!(finished.err.contains("DEBUG toolpost::sandbox: sandbox ended"), "{finished}");
        assert!(!finished.err.contains("toolpost::call"), "{finished}");
    }
    // It overrides `-v`.
    assert!(!env.run(sum(&["-vvv", "--log", "off"])).ok().err.contains("toolpost::call"));
}

#[test]
pub(crate) fn log_file() {
    let env = TestEnv::new();
    let finished = env.run(sum(&["--log-file", "log.txt"])).ok();
    assert!(!finished.err.contains("INFO"), "{finished}");
    assert_eq!(env.read("log.txt").matches("call finished").count(), 1);
    // The log is appended.
    env.run(sum(&["--log-file", "log.txt", "-vv"])).ok();
    let log = env.read("log.txt");
    assert_eq!((log.matches("call finished").count(), log.matches("call started").count()), (2, 1));
    // A link that code left in the directory creates no file elsewhere.
    std::os::unix::fs::symlink(env.path("elsewhere"), env.path("link.txt")).unwrap();
    let rejected = env.run(sum(&["--log-file", "link.txt"])).exit(2);
    assert!(rejected.err.contains("the log file `link.txt`"), "{rejected}");
    assert!(!env.path("elsewhere").exists());
}

const GREEN: &str = "\u{1b}[32m✓";

#[test]
pub(crate) fn color() {
    let env = TestEnv::new();
    assert!(env.run(sum(&["--color", "always"])).ok().err.contains(GREEN));
    for words in [&[][..], &["--color", "auto"], &["--color", "never"]] {
        assert!(!env.run(sum(words)).ok().err.contains('\u{1b}'), "{words:?}");
    }
    let terminal = TestEnv::new().with("TERM", "xterm");
    assert!(terminal.on_terminal("", sum(&[])).ok().out.contains(GREEN));
    assert!(!terminal.on_terminal("", sum(&["--color", "never"])).ok().out.contains('\u{1b}'));
    // Help and errors of the command line have the same colors.
    for words in [&["--help"][..], &["run", "--help"], &["help", "run"], &["run", "--nosuch"]] {
        let shown = |when| {
            let finished = env.run(words.iter().chain(&["--color", when]));
            finished.out + &finished.err
        };
        assert!(shown("always").contains("\u{1b}["), "{words:?}");
        assert!(
            !terminal.on_terminal("", words.iter().chain(&["--color", "never"])).out.contains('\u{1b}'),
            "{words:?}"
        );
    }
}

#[test]
fn a_closed_stderr_does_no_harm() {
    let env = TestEnv::new();
    let finished = env.run_with_closed_errors(sum(&["-vvv"])).ok();
    assert_eq!(finished.out, "42\n");
}

#[test]
fn version() {
    let env = TestEnv::new();
    let expected = format!("toolpost {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((env.run(["--version"]).ok().out, env.run(["-V"]).ok().out), (expected.clone(), expected));
}

#[test]
fn the_version_as_json() {
    let env = TestEnv::new();
    let report = env.run(["--version", "--json"]).ok().json();
    Schema::new(env.run(["schema", "version"]).ok().json()).check(&report).unwrap();
    for words in [&["--json", "-V"][..], &["--format", "jsonl", "--version"], &["exec", "-V", "--json"]] {
        assert_eq!(env.run(words).ok().json(), report);
    }
    // What follows `--` is of another program.
    assert_eq!(env.run(["-V", "--", "--json"]).ok().out, format!("toolpost {}\n", env!("CARGO_PKG_VERSION")));
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&json!([report["formats"], report["protocols"]])).unwrap()
    );
}

//! Hostile arguments, hostile output, and programs that are not there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Cancellation, Code, LogLevel, OutputFiles, OutputStore};
use toolpost_testkit::{MemoryPort, eventually};

use crate::command::support::{Run, description};
use crate::host::{is_running, sandbox_or_skip};

const X: &str = "[tool.parameters.x]\ntype = \"string\"\noptional = true\ndescription = \"X.\"\n";

#[tokio::test]
async fn arguments_arrive_as_they_are() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = description("printf", "", &format!("args = [\"[%s]\", \"--x={{x}}\"]\n{X}"));
    for value in ["$(touch made)", "a\nb", "`id`; rm -rf / #", "*", "\u{1b}[2J", "'\"\\", "--help"] {
        assert_eq!(Run::new(&text, json!({ "x": value })).text().await, format!("[--x={value}]"));
    }
}

#[tokio::test]
async fn arguments_that_cannot_be_passed_are_rejected() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = description("printf", "", &format!("args = [\"%s\", \"--x={{x}}\"]\n{X}"));
    let error = Run::new(&text, json!({ "x": "a\0b" })).error().await;
    assert_eq!((error.code(), &error.context()["pointer"]), (Code::InvalidInput, &json!("/x")), "{error}");
    let error = Run::new(&text, json!({ "x": "x".repeat(300_000) })).error().await;
    assert_eq!(error.code(), Code::Limit, "{error}");
    assert!(error.to_string().len() < 1000, "{error}");
    let list = description(
        "printf",
        "",
        "args = [\"%s\", \"{x}\"]\n[tool.parameters.x]\ntype = \"array\"\ndescription = \"X.\"",
    );
    let error = Run::new(&list, json!({ "x": vec!["y".repeat(1000); 2000] })).error().await;
    assert_eq!(error.code(), Code::Limit, "{error}");
    let error = Run::new(&list, json!({ "x": ["a", "b\0"] })).error().await;
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
}

#[tokio::test]
async fn a_path_stays_beneath_the_working_directory() {
    use std::os::unix::fs::symlink;
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/file"), "in\n").unwrap();
    for (target, link) in [
        (root.join("a").as_path(), "absolute"),
        ("a/b/../file".as_ref(), "inner"),
        ("../a".as_ref(), "a/back"),
        ("/workspace/a".as_ref(), "elsewhere"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    let parameter = |kind: &str| {
        format!("[tool.parameters.x]\n{kind}\ndescription = \"X.\"\ndefault = \"/etc/hostname\"\n")
    };
    let text = |kind: &str, keys: &str| {
        description(
            "cat",
            "",
            &format!("read_only = true\nargs = [\"--\", \"{{x}}\"]\n{keys}{}", parameter(kind)),
        )
    };
    let file = text("type = \"file\"", "");
    let absolute = root.join("a/file").display().to_string();
    for path in ["a/file", "./a//file", &absolute, "absolute/file", "inner", "a/back/file"] {
        let run = Run::new(&file, json!({ "x": path })).directory(&root);
        assert_eq!(run.text().await, "in\n", "{path}");
    }
    // The program reports a missing file.
    for path in ["missing", "a/missing/more", "a/file/more"] {
        let error = Run::new(&file, json!({ "x": path })).directory(&root).error().await;
        assert_eq!(error.code(), Code::Dependency, "{path}: {error}");
    }
    let beside = format!("{absolute}/../../../secret");
    let sibling = format!("{}x/a", root.display());
    for path in ["/etc/hostname", "elsewhere/file", "a/../a/file", &beside, &sibling, "../\u{1b}[2J"] {
        let error = Run::new(&file, json!({ "x": path })).directory(&root).error().await;
        let found = (error.code(), error.context()["pointer"].as_str());
        assert_eq!(found, (Code::InvalidPath, Some("/x")), "{path}: {error}");
        assert!(error.message().starts_with("/x: expected a path beneath the working directory"), "{error}");
        assert!(!error.message().contains('\u{1b}'), "{error}");
    }
    // Defaults, calls without a working directory, and the format instead of the type are checked as well.
    let list = "type = \"array\"\nitems = { type = \"string\", format = \"file\" }";
    let list = text(list, "").replace("\"/etc/hostname\"", "[\"a\", \"/etc/hostname\"]");
    let none = text("type = \"file\"", "working_directory = \"none\"\n");
    for (run, pointer) in [
        (Run::new(&file, json!({})).directory(&root), "/x"),
        (Run::new(&file, json!({})), "/x"),
        (Run::new(&file, json!({ "x": "../x" })), "/x"),
        (Run::new(&none, json!({ "x": absolute })).directory(&root), "/x"),
        (Run::new(&text("type = \"string\"\nformat = \"file\"", ""), json!({})).directory(&root), "/x"),
        (Run::new(&list, json!({})).directory(&root), "/x/1"),
    ] {
        let error = run.error().await;
        let found = (error.code(), error.context()["pointer"].as_str());
        assert_eq!(found, (Code::InvalidPath, Some(pointer)), "{error}");
    }
    // A path is relative to the directory in which the program starts.
    symlink("/etc/hostname", root.join("a/b/out")).unwrap();
    let start = text("type = \"file\"", "directory = \"{where}\"\n")
        + "[tool.parameters.where]\ntype = \"file\"\ndescription = \"W.\"\n";
    let inside = Run::new(&start, json!({ "x": "file", "where": "a" })).directory(&root);
    assert_eq!(inside.text().await, "in\n");
    for (args, pointer) in [
        (json!({ "x": "out", "where": "a/b" }), "/x"),
        (json!({ "x": "file", "where": "../a" }), "/where"),
        (json!({ "x": "file", "where": "elsewhere" }), "/where"),
    ] {
        let error = Run::new(&start, args.clone()).directory(&root).error().await;
        let found = (error.code(), error.context()["pointer"].as_str());
        assert_eq!(found, (Code::InvalidPath, Some(pointer)), "{args}: {error}");
    }
    // A plain string is not checked.
    let string = text("type = \"string\"", "").replace("/etc/hostname", "/usr/bin/../share/x");
    assert_eq!(Run::new(&string, json!({})).directory(&root).error().await.code(), Code::Dependency);
}

#[tokio::test]
async fn large_input_to_a_program_that_does_not_read_is_no_error() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = |program: &str| description(program, "", &format!("stdin = \"{{x}}\"\n{X}"));
    let large = "0123456789abcdef".repeat(1 << 16);
    assert_eq!(
        Run::new(
            &description("wc", "", &format!("args = [\"-c\"]\nstdin = \"{{x}}\"\n{X}")),
            json!({ "x": large })
        )
        .text()
        .await,
        "1048576\n"
    );
    assert_eq!(Run::new(&text("true"), json!({ "x": large })).text().await, "");
}

#[tokio::test]
async fn binary_output_is_shown_lossily() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = |format: &str| {
        description(
            "printf",
            "",
            &format!("args = ['a\\xff\\nb\\xc3\\n']\n[tool.output]\nformat = \"{format}\""),
        )
    };
    assert_eq!(Run::new(&text("text"), json!({})).text().await, "a\u{fffd}\nb\u{fffd}\n");
    let lines = Run::new(&text("lines"), json!({})).value().await;
    assert_eq!(lines, json!({ "items": ["a\u{fffd}", "b\u{fffd}"], "truncated": false }));
    let broken = description("printf", "", "args = ['\"a\\xff']\n[tool.output]\nformat = \"json\"");
    assert_eq!(Run::new(&broken, json!({})).error().await.code(), Code::Dependency);
}

#[tokio::test]
async fn a_read_only_tool_stops_at_its_output_limit() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = |output: &str| {
        description("yes", "", &format!("read_only = true\nargs = [\"line\"]\n[tool.output]\n{output}"))
    };
    let few = Run::new(&text("format = \"lines\"\nlimit = 3"), json!({})).value().await;
    assert_eq!(few, json!({ "items": ["line", "line", "line"], "truncated": true }));
    let fields =
        Run::new(&text("format = \"fields\"\ncolumns = [\"a\"]\nlimit = 1"), json!({})).value().await;
    assert_eq!(fields, json!({ "items": [{ "a": "line" }], "truncated": true }));
    let captured = text("format = \"captures\"\npattern = '^(?<a>never)$'\nlimit_bytes = 1000");
    assert_eq!(Run::new(&captured, json!({})).value().await, json!({ "items": [], "truncated": true }));
}

#[tokio::test]
async fn endless_output_is_truncated() {
    let Some(()) = sandbox_or_skip() else { return };
    let run = |size: &str, format: &str| {
        let tool = format!(
            "args = [\"-c\", \"{size}\", \"/dev/zero\"]\n[tool.output]\nformat = \"{format}\"\nlimit_bytes = 1000"
        );
        let limits = toolpost_sandbox::Limits::default().with_output_total(100 << 20);
        Run::new(&description("head", "", &tool), json!({})).settings(|settings| settings.limits = limits)
    };
    let cut = run("50000000", "text").text().await;
    assert!(cut.len() < 3000 && cut.contains("bytes dropped"), "{}", cut.len());
    let error = run("50000000", "json").error().await;
    assert_eq!(error.code(), Code::Limit, "{error}");
    assert!(error.message().contains("1000 bytes, the limit of this tool"), "{error}");
    let error = run("1000000000000", "text").error().await;
    assert_eq!(error.code(), Code::Limit, "{error}");
    assert!(error.message().contains("printed more than 100 MiB"), "{error}");
}

/// Stored outputs.
#[derive(Clone, Default)]
struct Files(Arc<Mutex<Vec<String>>>);

impl OutputStore for Files {
    fn directory(&self) -> &Path {
        "/outputs".as_ref()
    }

    fn store(&self, text: &str) -> std::io::Result<PathBuf> {
        self.0.lock().unwrap().push(text.to_owned());
        Ok("/outputs/1".into())
    }
}

#[tokio::test]
async fn the_whole_output_is_a_file_for_a_model() {
    let Some(()) = sandbox_or_skip() else { return };
    for (output, is_stored) in [
        ("format = \"text\"\nlimit_bytes = 1000", true),
        ("format = \"captures\"\npattern = '^(?<a>never)$'\nlimit_bytes = 1000", true),
        ("format = \"text\"", false),
    ] {
        let files = Files::default();
        let tool = format!("args = [\"1\", \"9000\"]\n[tool.output]\n{output}");
        let mut run = Run::new(&description("seq", "", &tool), json!({}));
        run.call.values.provide(OutputFiles::new(files.clone()));
        let text = run.text().await;
        assert_eq!(text.contains("`/outputs/1`"), is_stored, "{output} {text}");
        let expected = (1..=9000).fold(String::new(), |text, number| text + &number.to_string() + "\n");
        let expected = if is_stored { vec![expected] } else { Vec::new() };
        assert_eq!(*files.0.lock().unwrap(), expected, "{output}");
    }
}

#[tokio::test]
async fn a_timeout_kills_the_program_and_its_children() {
    let Some(()) = sandbox_or_skip() else { return };
    let mark = format!("99{}", std::process::id());
    let tool = format!(
        "args = [\"-c\", \"trap '' TERM INT; sleep {mark} & sleep {mark}\"]\n[tool.policy]\ntimeout = \"1s\""
    );
    let started = Instant::now();
    let error = Run::new(&description("bash", "", &tool), json!({})).error().await;
    assert_eq!(error.code(), Code::Timeout, "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(!is_running(&mark));

    let tool = format!("args = [\"-c\", \"sleep {mark}\"]");
    let mut run = Run::new(&description("bash", "", &tool), json!({}));
    let cancellation = Cancellation::new();
    run.call.cancellation = cancellation.clone();
    let stop = async {
        eventually("the program runs", async || is_running(&mark)).await;
        cancellation.cancel();
    };
    let (error, ()) = tokio::join!(run.error(), stop);
    assert_eq!(error.code(), Code::Cancelled, "{error}");
    assert!(!is_running(&mark));
}

#[tokio::test]
async fn a_missing_program_has_an_install_hint() {
    let Some(()) = sandbox_or_skip() else { return };
    let error =
        Run::new(&description("no-such-program", "install = \"ask for it\"", ""), json!({})).error().await;
    assert_eq!((error.code(), error.suggestion()), (Code::Dependency, Some("Install it: ask for it.")));
    assert!(error.message().starts_with("`no-such-program` is not installed"), "{error}");
    let error = Run::new(&description("/no/such/program", "", ""), json!({})).error().await;
    assert_eq!(error.code(), Code::Dependency, "{error}");
    assert!(error.suggestion().is_some());
}

#[tokio::test]
async fn invalid_arguments_are_rejected_before_the_start() {
    let text = description(
        "no-such-program",
        "",
        "args = [\"{n}\"]\n[tool.parameters.n]\ntype = \"integer\"\nmaximum = 3\ndescription = \"N.\"",
    );
    for (args, code) in [
        (json!({ "n": 4 }), Code::InvalidInput),
        (json!({}), Code::MissingParam),
        (json!({ "n": 1, "m": 1 }), Code::InvalidInput),
    ] {
        assert_eq!(Run::new(&text, args).error().await.code(), code);
    }
}

#[tokio::test]
async fn output_is_logged_while_the_program_runs() {
    let Some(()) = sandbox_or_skip() else { return };
    let tool = "args = [\"-c\", \"echo one; echo bad >&2; printf two; head -c 100000 /dev/zero | tr '\\\\0' x; echo $TOKEN >&2\"]\nenv = { TOKEN = \"{token}\" }\n[tool.parameters.token]\ntype = \"string\"\nsensitive = true\ndescription = \"T.\"";
    let mut run = Run::new(&description("bash", "", tool), json!({ "token": "canary-11" }));
    let port = MemoryPort::new(100, 0);
    run.call.port = port.clone();
    run.output().await;
    let heard = port.heard();
    let lines: Vec<(LogLevel, &str)> =
        heard.log.iter().map(|line| (line.level, line.message.as_str())).collect();
    assert!(lines.contains(&(LogLevel::Info, "one")), "{lines:?}");
    assert!(
        lines.contains(&(LogLevel::Warn, "bad")) && lines.contains(&(LogLevel::Warn, "[secret]")),
        "{lines:?}"
    );
    assert!(lines.iter().all(|(_, line)| line.len() < 5000));
}

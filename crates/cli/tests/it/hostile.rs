//! Untrusted text is escaped on terminals, and secrets are in no output.

use serde_json::json;

use crate::support::{Anthropic, TestEnv, calls, says, says_in_pieces};

/// A window title, a color, a bell, a C1 control, and a bidirectional control.
const EVIL: &str = "safe\u{1b}]0;owned\u{7}\u{1b}[31mred\u{9b}5m\u{202e}back";

/// The escapes of that text, as a terminal would get them.
const ESCAPES: [&str; 5] = ["\u{1b}]0", "\u{7}", "\u{1b}[31mred", "\u{9b}", "\u{202e}"];

#[track_caller]
fn is_harmless(shown: &str) {
    assert!(shown.contains("safe"), "the text is not there: {shown:?}");
    for escape in ESCAPES {
        assert!(!shown.contains(escape), "{escape:?} in {shown:?}");
    }
}

#[test]
fn a_model_cannot_control_the_terminal() {
    let replies = || vec![calls(EVIL, &json!({"x": EVIL, EVIL: 1})), says(EVIL)];
    // Progress and the answer, on a terminal and with forced colors in a pipe.
    let terminal = Anthropic::start(replies());
    is_harmless(&terminal.env.with("TERM", "xterm").on_terminal("", ["run", "-p", "hi"]).ok().out);
    let pipe = Anthropic::start(replies());
    is_harmless(&pipe.env.run(["run", "-p", "hi", "--color", "always", "-vvv"]).ok().err);
    // JSON on a terminal.
    for format in ["json", "jsonl"] {
        let model = Anthropic::start(replies());
        is_harmless(&model.env.on_terminal("", ["run", "-p", "hi", "--format", format]).ok().out);
    }
}

#[test]
fn a_provider_s_error_cannot_control_the_terminal() {
    let body =
        json!({"type": "error", "error": {"type": "authentication_error", "message": EVIL}}).to_string();
    let model = Anthropic::start(vec![toolpost_testkit::provider::Reply::json(401, body)]);
    is_harmless(&model.env.run(["run", "-p", "hi", "--color", "always"]).exit(3).err);
}

#[test]
fn a_program_cannot_control_the_terminal() {
    let env = TestEnv::new().with("TERM", "xterm");
    env.write("evil.txt", EVIL);
    let tell = [
        "exec",
        "--attach",
        "evil.txt",
        "--",
        "sh",
        "-c",
        "cat evil.txt; cat evil.txt >&2; echo > $(printf 'safe\\033]0;x\\007')",
    ];
    is_harmless(&env.on_terminal("", tell).ok().out);
    is_harmless(&env.on_terminal("", ["call", "read_file", "path=evil.txt"]).ok().out);
    is_harmless(&env.on_terminal("", ["call", "run_command", r#"{"argv": ["cat", "evil.txt"]}"#]).ok().out);
    // Without a terminal the bytes are unchanged.
    assert_eq!(env.run(["exec", "--attach", "evil.txt", "--", "cat", "evil.txt"]).ok().out, EVIL);
}

#[test]
fn a_question_cannot_control_the_terminal() {
    let env = TestEnv::new().with("TERM", "xterm");
    let argument = format!("expression={EVIL}");
    is_harmless(&env.answering(&["n\n"], ["call", "calculate", &argument, "--ask"]).exit(5).out);
}

#[test]
fn a_file_name_cannot_control_the_terminal() {
    let env = TestEnv::new().with("TERM", "xterm");
    let shown = env.on_terminal("", ["run", "-p", "x", "--model", &format!("script:{EVIL}")]).exit(2);
    is_harmless(&shown.out);
}

#[test]
fn the_key_is_in_no_output_record_log_or_recording() {
    let key = Anthropic::KEY;
    // The model repeats the key, and tools search their environment and files for it.
    let look = json!({"language": "bash", "code": "env; cat /proc/self/environ /proc/1/environ; echo $ANTHROPIC_API_KEY"});
    let replies = || vec![calls("run_code", &look), says("done")];
    let words =
        ["run", "-p", "hi", "--record", "said.jsonl", "-vvv", "--log", "trace", "--log-file", "log.txt"];
    for format in ["text", "json", "jsonl"] {
        let model = Anthropic::start(replies());
        let finished = model.env.run(words.iter().chain(&["--format", format])).ok();
        assert_eq!(model.server.requests()[0].header("x-api-key"), Some(key));
        let bodies = model.bodies().iter().map(ToString::to_string).collect::<String>();
        for (what, text) in [
            ("standard output", &finished.out),
            ("standard error", &finished.err),
            ("the log", &model.env.read("log.txt")),
            ("the recording", &model.env.read("said.jsonl")),
            ("what the model is sent", &bodies),
        ] {
            assert!(!text.contains(key), "the key is in {what} ({format})");
        }
    }
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", key);
    for words in [
        &["exec", "--", "env"][..],
        &["exec", "--", "cat", "/proc/self/environ"],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        let finished = env.run(words);
        assert!(!finished.out.contains(key) && !finished.err.contains(key), "{finished}");
    }
}

#[test]
fn a_key_that_the_model_repeats_is_masked_in_the_recording() {
    let model = Anthropic::start(vec![says(&format!("your key is {}", Anthropic::KEY))]);
    model.env.run(["run", "-p", "hi", "--record", "said.jsonl"]).ok();
    assert!(!model.env.read("said.jsonl").contains(Anthropic::KEY));
}

#[test]
fn a_key_in_streamed_pieces_is_never_drawn() {
    let key = Anthropic::KEY;
    let (first, last) = key.split_at(9);
    let pieces = ["Your key: ", first, last, ". It is ", key, "; it begins with ", first];
    let said = format!("Your key: [secret]. It is [secret]; it begins with {first}");
    let events = Anthropic::start(vec![says_in_pieces(&pieces)]);
    let lines = events.env.run(["run", "-p", "hi", "--format", "jsonl"]).ok().lines();
    let deltas = lines.iter().filter(|line| line["type"] == "text.delta");
    assert_eq!(deltas.map(|line| line["text"].as_str().unwrap()).collect::<String>(), said);
    // Text before a call goes to standard error, the last text to standard output.
    let printed = Anthropic::start(vec![says_in_pieces(&pieces)]);
    assert_eq!(printed.env.run(["run", "-p", "hi", "-o", "answer.txt"]).ok().out, format!("{said}\n"));
    assert_eq!(printed.env.read("answer.txt"), format!("{said}\n"));
    for words in [&[][..], &["--plain"]] {
        let command = json!({"argv": ["echo", key]});
        let mut model = Anthropic::start(vec![calls("run_command", &command), says_in_pieces(&pieces)]);
        model.env = model.env.with("TERM", "xterm").with("COLUMNS", "200");
        let usual = ["run", "-p", "hi", "--tools", "run_command", "--yes"];
        let finished = model.env.on_terminal("", usual.iter().chain(words)).ok();
        assert!(!finished.out.contains(last), "{finished}");
        assert!(finished.out.contains("echo") && finished.out.contains("[secret]"), "{finished}");
        // Once: drawn text is not printed again.
        assert_eq!(finished.out.matches("it begins with").count(), 1, "{finished}");
    }
}

#[test]
fn a_key_that_the_provider_repeats_in_an_error_is_masked() {
    let message = format!("invalid key {}", Anthropic::KEY);
    let body =
        json!({"type": "error", "error": {"type": "authentication_error", "message": message}}).to_string();
    let model = Anthropic::start(vec![toolpost_testkit::provider::Reply::json(401, body)]);
    let finished = model.env.run(["run", "-p", "hi", "--json", "-vvv", "--log-file", "log.txt"]).exit(3);
    for text in [&finished.out, &finished.err, &model.env.read("log.txt")] {
        assert!(!text.contains(Anthropic::KEY), "{finished}");
    }
}

#[test]
fn a_key_that_the_model_repeats_is_in_no_record_event_or_log() {
    let key = Anthropic::KEY;
    for format in ["text", "json", "jsonl"] {
        let replies =
            vec![calls(&format!("x_{key}"), &json!({ "a": key })), says(&format!("your key is {key}"))];
        let model = Anthropic::start(replies);
        let finished =
            model.env.run(["run", "-p", "hi", "--format", format, "-v", "--log-file", "log.txt"]).ok();
        for (what, text) in [
            ("standard output", &finished.out),
            ("standard error", &finished.err),
            ("the log", &model.env.read("log.txt")),
        ] {
            assert!(!text.contains(key), "the key is in {what} ({format}): {text}");
        }
        assert!(finished.out.contains("your key is [secret]"), "{finished}");
        assert!(model.env.read("log.txt").contains("x_[secret]"));
    }
}

#[test]
fn a_line_feed_in_a_name_is_escaped() {
    let env = TestEnv::new();
    let code = json!({"language": "bash", "code": "echo hi > $'report.txt (10 bytes)\nerror: forged'"});
    let turns = json!({"turns": [{"calls": [{"tool": "run_code", "args": code}]}, {"text": "done"}]});
    env.write("script.yaml", turns.to_string());
    let run = ["run", "-p", "x", "--model", "script:script.yaml"];
    let finished = env.run(run).ok();
    assert!(finished.err.contains("report.txt (10 bytes)_error: forged (3 bytes)"), "{finished}");
    assert!(!finished.err.contains("\nerror:"), "{finished}");
    let refused = env.run(run.iter().chain(&["--attach", "no\nerror: such"])).exit(2);
    assert!(refused.err.contains("no␊error: such"), "{refused}");
}

#[test]
fn artifacts_are_not_written_through_a_link() {
    let env = TestEnv::new().leaving_files();
    env.write("out/kept", "");
    std::fs::create_dir(env.path("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", env.path("out/d")).unwrap();
    let call =
        json!({"tool": "write_file", "args": {"path": "d/e/g", "content": "x", "create_directories": true}});
    env.write("script.yaml", json!({"turns": [{"calls": [call]}, {"text": "done"}]}).to_string());
    let refused = env.run(["run", "-p", "x", "--model", "script:script.yaml", "--artifacts", "out"]).exit(2);
    assert!(refused.err.contains("`d` is a link") && refused.err.contains("are still in"), "{refused}");
    assert_eq!(std::fs::read_dir(env.path("outside")).unwrap().count(), 0);
}

#[test]
fn devices_and_pipes_are_not_read() {
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", "x");
    env.write("script.yaml", r#"{"turns": [{"text": "hi"}]}"#);
    let fifo = |name: &str| {
        let path = env.write(name, "");
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    fifo("pipe");
    let run = ["run", "-p", "x", "--model"];
    for words in [
        &["script:script.yaml", "--config", "models.file=/dev/zero"][..],
        &["script:script.yaml", "--config", "models.file=pipe"],
        &["anthropic/claude-x", "--config", "models.ca_file=/dev/zero"],
        &["anthropic/claude-x", "--config", "models.ca_file=pipe"],
        &["script:script.yaml", "--output-schema", "pipe"],
        &["script:pipe"],
        &["replay:pipe"],
    ] {
        let refused = env.run(run.iter().chain(words)).exit(2);
        assert!(refused.err.contains("regular file"), "{refused}");
        assert!(!words[0].starts_with("replay") || !refused.err.contains("script"), "{refused}");
    }
    fifo("../home/.config/toolpost/config.toml");
    let refused = env.run(["tools"]).exit(2);
    assert!(refused.err.contains("the settings") && refused.err.contains("not a regular file"), "{refused}");
    let env = TestEnv::new().with("SSL_CERT_FILE", "/dev/zero");
    let refused = env.run(["tools"]).exit(2);
    assert!(refused.err.contains("SSL_CERT_FILE") && refused.err.contains("not a regular file"), "{refused}");
}

#[test]
fn omitted_files_are_reported() {
    let env = TestEnv::new();
    env.write("in/a.txt", "a");
    std::fs::create_dir(env.path("in/empty")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", env.path("in/link")).unwrap();
    let code = json!({"language": "bash", "code": "ls in/empty && ln -s /etc/passwd made && echo x > file"});
    let turns =
        json!({"turns": [{"calls": [{"tool": "run_code", "args": code}]}, {"text": "{{ last.text }}"}]});
    env.write("script.yaml", turns.to_string());
    let run = ["run", "-p", "x", "--model", "script:script.yaml", "--attach", "in"];
    let finished = env.run(run).ok();
    for notice in ["not copied from attachments: `in/link`", "`made`"] {
        assert_eq!(finished.err.matches(notice).count(), 1, "{notice}: {finished}");
    }
    let notices = env.run(run.iter().chain(&["--json"])).ok().json()["notices"].to_string();
    assert!(
        notices.contains("not copied from attachments: `in/link`") && notices.contains("`made`"),
        "{notices}"
    );
}

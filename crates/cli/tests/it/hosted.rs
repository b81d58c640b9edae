//! Hosted tools: where code runs, its files, containers and cost.

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use crate::support::{Anthropic, TestEnv, calls, fits, says};

const KEY: &str = "sk-canary-hosted-5c0d";
const CONTAINER: &str = "container_1";
const HOSTED: &str = "the provider runs code";
const HERE: &str = "the local sandbox runs code";

/// An answer with these blocks, whose code ran in a container.
fn answer(blocks: &[Value]) -> Reply {
    Reply::events(stream(blocks))
}

/// The events of such an answer.
fn stream(blocks: &[Value]) -> String {
    let message = json!({
        "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-opus-5-5", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 7, "output_tokens": 1},
        "container": {"id": CONTAINER, "expires_at": "2099-01-01T00:00:00Z"},
    });
    let mut events = vec![json!({"type": "message_start", "message": message})];
    for (index, block) in blocks.iter().enumerate() {
        let (mut begun, mut delta) = (block.clone(), None);
        if let Some(text) = block["text"].as_str() {
            begun["text"] = "".into();
            delta = Some(json!({"type": "text_delta", "text": text}));
        }
        if block["type"] == "server_tool_use" {
            begun["input"] = json!({});
            delta = Some(json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}));
        }
        events.push(json!({"type": "content_block_start", "index": index, "content_block": begun}));
        events.extend(
            delta.map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
        );
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 5}}));
    events.push(json!({"type": "message_stop"}));
    let lines: Vec<String> = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()))
        .collect();
    lines.concat()
}

/// An answer whose code wrote these files.
fn plots(files: &[&str]) -> Reply {
    let made: Vec<Value> =
        files.iter().map(|id| json!({"type": "bash_code_execution_output", "file_id": id})).collect();
    answer(&[
        json!({"type": "server_tool_use", "id": "s1", "name": "bash_code_execution",
            "input": {"command": "python plot.py"}}),
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": {
            "type": "bash_code_execution_result", "stdout": "ok\n", "stderr": "", "return_code": 0,
            "content": made}}),
        json!({"type": "text", "text": "Here it is."}),
    ])
}

/// A world whose environment leads to a provider.
fn world(provider: &str, server: &LoopbackProvider) -> TestEnv {
    let name = provider.to_uppercase();
    TestEnv::new()
        .with(&format!("{name}_API_KEY"), KEY)
        .with(&format!("{name}_BASE_URL"), server.base_url())
        .with("TOOLPOST_MODELS_RETRY_WAIT", "1ms")
}

/// The requests to models, without those of the files API.
fn asked(server: &LoopbackProvider) -> Vec<Value> {
    let is_about_files = |request: &ReceivedRequest| request.path.contains("files");
    server.requests().iter().filter(|request| !is_about_files(request)).map(ReceivedRequest::json).collect()
}

/// The names and types of the tools of a request.
fn tools(body: &Value) -> Vec<String> {
    let name = |tool: &Value| {
        let name = tool["name"].as_str().unwrap_or_default();
        tool["type"].as_str().filter(|kind| *kind != "custom").unwrap_or(name).to_owned()
    };
    body["tools"].as_array().map(|tools| tools.iter().map(name).collect()).unwrap_or_default()
}

/// The tools of a run's request, and the notices of its record and the terminal.
fn place(words: &[&str]) -> (Vec<String>, Vec<String>) {
    let model = Anthropic::start(vec![says("hi"), says("hi")]);
    let run = |more: &str| {
        let words = ["run", "-p", "x", "--no-save"].iter().chain(words).chain([&more]);
        model.env.run(words.filter(|word| !word.is_empty())).ok()
    };
    let text = run("");
    let record = run("--json").json();
    fits("run-record", &record);
    let notices: Vec<String> = serde_json::from_value(record["notices"].clone()).unwrap_or_default();
    for notice in &notices {
        assert!(text.err.contains(notice.as_str()), "{notice}: {text}");
    }
    (tools(&model.bodies()[1]), notices)
}

#[test]
pub(crate) fn code() {
    const NEW: [&str; 2] = ["--model", "claude-opus-5-5"];
    const OLD: [&str; 2] = ["--model", "anthropic/claude-3-5-sonnet"];
    let words = |model: [&'static str; 2], more: &[&'static str]| [&model[..], more].concat();
    let only = ["--tools", "code_execution"];
    // A model with hosted code, one without, and an unknown one.
    let (tools, told) = place(&words(NEW, &only));
    assert_eq!((tools, told), (vec!["code_execution_20260521".to_owned()], vec![HOSTED.to_owned()]));
    for model in [OLD, ["--model", "anthropic/claude-9-mystery"]] {
        let (tools, told) = place(&words(model, &only));
        assert_eq!(tools, ["code_execution"]);
        assert!(told[0].starts_with(HERE), "{told:?}");
    }
    // The option overrides the setting.
    for more in [&["--code", "local"][..], &["--config", "code.place=local"]] {
        assert_eq!(place(&words(NEW, &[&only[..], more].concat())).0, ["code_execution"]);
    }
    let both = [&only[..], &["--config", "code.place=local", "--code", "hosted"]].concat();
    assert_eq!(place(&words(NEW, &both)).1, [HOSTED]);
    // The option adds the tool instead of `run_code`; the setting does not.
    let (tools, _) = place(&words(NEW, &["--code", "auto"]));
    assert!(tools.contains(&"code_execution_20260521".to_owned()) && tools.contains(&"calculate".to_owned()));
    assert!(!tools.contains(&"run_code".to_owned()), "{tools:?}");
    let (tools, told) = place(&words(NEW, &["--config", "code.place=hosted"]));
    assert!(tools.contains(&"run_code".to_owned()) && told.is_empty(), "{tools:?}");
    // A fallback model must support it too.
    let (tools, told) =
        place(&words(NEW, &[&only[..], &["--fallback", "anthropic/claude-3-5-sonnet"]].concat()));
    assert_eq!(tools, ["code_execution"]);
    assert!(told[0].contains("claude-3-5-sonnet, a fallback"), "{told:?}");
    // Errors are found before a request.
    let model = Anthropic::start(Vec::new());
    let wrong = ["run", "-p", "x", "--code", "hosted", "--model", "anthropic/claude-3-5-sonnet", "--json"];
    let error = model.env.run(wrong).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    for part in ["anthropic/claude-opus-5-5", "`local`"] {
        assert!(error["message"].as_str().unwrap().contains(part), "{part}: {error}");
    }
    assert!(model.env.run(["run", "-p", "x", "--code", "both"]).exit(2).err.contains("`hosted`"));
    assert!(model.bodies().is_empty());
}

#[test]
fn local_code_answers_in_the_providers_blocks() {
    let code = json!({"code": "print(6 * 7)"});
    let model = Anthropic::start(vec![calls("code_execution", &code), says("42")]);
    let words = ["run", "-p", "x", "--tools", "code_execution", "--code", "local"];
    model.env.run(words).ok();
    let bodies = model.bodies();
    let result = bodies[1]["messages"][2]["content"][0]["content"].to_string();
    if result.contains("PRECONDITION") {
        println!("SKIP local_code_answers_in_the_providers_blocks: no sandbox or no Python");
        return;
    }
    assert!(result.contains("code_execution_result") && result.contains("42"), "{result}");
    // A direct call gets the same tool.
    let called = model.env.run(["call", "code_execution", "code=print(2)", "--json"]).ok().json();
    assert!(called.to_string().contains("return_code"), "{called}");
}

#[test]
fn an_untrusted_id_is_never_part_of_a_command() {
    let gone = json!({"type": "error", "error": {"type": "not_found_error", "message": "gone"}}).to_string();
    let ids: Vec<String> = (0..300).map(|number| format!("$(touch INJ{number})")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).chain(["--help"]).collect();
    let answers = std::sync::Mutex::new(vec![plots(&ids)].into_iter());
    let server = LoopbackProvider::start_with(move |request| {
        if request.path.contains("files") {
            return Reply::json(404, gone.clone());
        }
        answers.lock().unwrap().next().unwrap()
    })
    .unwrap();
    let env = world("anthropic", &server);
    let finished = env.run(["run", "-p", "Plot it.", "--code", "hosted", "--model", "claude-opus-5-5"]).ok();
    assert_eq!(finished.err.matches("was not downloaded").count(), 5, "{finished}");
    assert!(finished.err.contains("and 296 more files were not downloaded"), "{finished}");
    assert!(!finished.err.contains("files get"), "{finished}");
}

#[test]
fn files_of_hosted_code_are_downloaded_and_its_container_is_resumed() {
    let answers = std::sync::Mutex::new(vec![plots(&["f1", "f2", "f3"]), plots(&["f3", "f4"])].into_iter());
    let server = LoopbackProvider::start_with(move |request| {
        let Some(path) = request.path.strip_prefix("/v1/files/") else {
            return answers.lock().unwrap().next().unwrap();
        };
        if let Some(id) = path.strip_suffix("/content") {
            return Reply::new(200, "image/png", format!("content of {id}"));
        }
        let gone = json!({"type": "error", "error": {"type": "not_found_error", "message": "gone"}});
        match path {
            "f1" | "f4" => Reply::json(200, json!({"id": path, "filename": "../plot.png"}).to_string()),
            "f2" => Reply::json(200, json!({"id": path, "filename": "plot.png"}).to_string()),
            _ => Reply::json(404, gone.to_string()),
        }
    })
    .unwrap();
    let env = world("anthropic", &server);
    let words = ["run", "-p", "Plot it.", "--code", "hosted", "--model", "claude-opus-5-5"];
    let finished = env.run(words.iter().chain(&["--artifacts", "out"])).ok();
    assert_eq!(finished.out, "Here it is.\n");
    assert_eq!(env.read("out/plot.png"), "content of f1");
    assert_eq!(env.read("out/plot-1.png"), "content of f2");
    for part in ["out/plot.png", "out/plot-1.png", "`f3` was not downloaded", "files get f3", "5 min"] {
        assert!(finished.err.contains(part), "{part}: {finished}");
    }
    // The stored run has the files too, and the missing ones.
    let ran = env.run(["runs", "ls", "--json"]).ok().json()["runs"][0]["id"].as_str().unwrap().to_owned();
    let shown = env.run(["runs", "show", &ran, "--json"]).ok().json();
    let names: Vec<&Value> =
        shown["record"]["artifacts"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["out/plot.png", "out/plot-1.png"]);
    assert!(shown["record"]["notices"].to_string().contains("`f3` was not downloaded"), "{shown}");
    let page = env.run(["runs", "show", &ran]).ok().out;
    assert!(page.contains("made out/plot-1.png (13 bytes)"), "{page}");
    // The next command is another process: it knows the container, its result and its paid time.
    let record = env.run(words.iter().chain(&["--continue", "--json"])).ok().json();
    fits("run-record", &record);
    let bodies = asked(&server);
    assert!(bodies[0].get("container").is_none());
    assert_eq!(bodies[1]["container"], CONTAINER);
    let directory = format!("artifacts/{}", record["id"].as_str().unwrap());
    let artifacts = record["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), 1, "{artifacts:?}");
    assert_eq!(artifacts[0]["name"], format!("{directory}/plot.png"));
    assert_eq!(env.read(&format!("{directory}/plot.png")), "content of f4");
    assert!(record["usage"].get("hosted_code_seconds").is_none(), "{}", record["usage"]);
    let listed = env.run(["runs", "ls", "--json"]).ok().json();
    let runs = listed["runs"].as_array().unwrap();
    let cost = |at: usize| runs[at]["cost_usd"].as_f64().unwrap();
    assert_eq!(runs[1]["usage"]["hosted_code_seconds"], 300, "{listed}");
    let least = 0.05 * 5.0 / 60.0;
    assert!((cost(1) - cost(0) - least).abs() < 1e-9, "{listed}");
}

#[test]
fn a_conversation_resumes_its_container_and_pays_the_minimum_charge_once() {
    let answers = std::sync::Mutex::new(vec![plots(&["f1"]), plots(&["f2"])].into_iter());
    let server = LoopbackProvider::start_with(move |request| match request.path.strip_prefix("/v1/files/") {
        None => answers.lock().unwrap().next().unwrap(),
        Some(path) if path.ends_with("/content") => Reply::new(200, "image/png", "png"),
        Some(path) => Reply::json(200, json!({"id": path, "filename": format!("{path}.png")}).to_string()),
    })
    .unwrap();
    let env = world("anthropic", &server);
    let words = ["chat", "--code", "auto", "--model", "claude-opus-5-5", "--artifacts", "out"];
    let finished = env.run_with("Plot it.\nAgain.\n/usage\n", words).ok();
    assert!(finished.err.contains(HOSTED), "{finished}");
    assert_eq!(asked(&server)[1]["container"], CONTAINER);
    assert_eq!((env.read("out/f1.png").as_str(), env.read("out/f2.png").as_str()), ("png", "png"));
    assert!(
        finished.err.contains("out/f2.png") && finished.err.contains("5 min 0 s of hosted code"),
        "{finished}"
    );
    let listed = env.run(["runs", "ls", "--json"]).ok().json();
    let files: Vec<String> = [1, 0]
        .map(|at| env.run(["runs", "show", listed["runs"][at]["id"].as_str().unwrap(), "--json"]).ok().json())
        .map(|shown| shown["record"]["artifacts"][0]["name"].as_str().unwrap().to_owned())
        .into();
    assert_eq!(files, ["out/f1.png", "out/f2.png"]);
}

/// An answer of Gemini in these pieces, each a list of parts.
fn gemini(pieces: &[Value]) -> Reply {
    let last = pieces.len() - 1;
    let events = pieces.iter().enumerate().map(|(at, parts)| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}});
        if at == last {
            candidate["finishReason"] = "STOP".into();
        }
        let usage = json!({"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12});
        format!(
            "data: {}\n\n",
            json!({"candidates": [candidate], "usageMetadata": usage, "responseId": "r1"})
        )
    });
    Reply::events(events.collect::<String>())
}

/// Parts of Gemini with code, its output, and an image.
fn drawn(code: &str, picture: &str) -> [Value; 3] {
    [
        json!({"executableCode": {"language": "PYTHON", "code": code}}),
        json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "ok\n"}}),
        json!({"inlineData": {"mimeType": "image/png", "data": picture}}),
    ]
}

#[test]
fn inline_images_of_an_answer_are_saved() {
    // Two runs of one conversation; the second answer repeats the first image and has a part that is not an image.
    let [code, result, picture] = drawn("plot()", "cG5nIDE=");
    let [_, _, other] = drawn("plot()", "cG5nIDI=");
    let [_, _, broken] = drawn("plot()", "not base64");
    let first = gemini(&[json!([code, result]), json!([picture, other]), json!([{"text": "Here."}])]);
    let second = gemini(&[json!([code, result, picture]), json!([broken, {"text": "Here."}])]);
    let server = LoopbackProvider::start(vec![first, second]).unwrap();
    let env = world("gemini", &server);
    let words = ["--code", "hosted", "--model", "gemini-3.8-flash", "--artifacts", "out"];
    env.write("out/image.png", "mine");
    let finished = env.run(["run", "-p", "Plot it."].iter().chain(&words)).ok();
    assert_eq!(env.read("out/image.png"), "mine");
    assert_eq!(env.read("out/image-1.png"), "png 1");
    assert_eq!(env.read("out/image-2.png"), "png 2");
    assert!(finished.err.contains("made") && finished.err.contains("out/image-1.png"), "{finished}");
    let record = env.run(["run", "-p", "Again.", "--continue", "--json"].iter().chain(&words)).ok().json();
    fits("run-record", &record);
    assert!(record["artifacts"].as_array().is_none_or(Vec::is_empty), "{record}");
    let told = record["notices"].to_string();
    assert!(told.contains("a file of the answer (image/png) was not saved"), "{record}");
    assert!(!env.path("out/image-3.png").exists());
}

#[test]
fn hosted_tools_are_printed_and_sent_as_events() {
    let server = LoopbackProvider::start_with(|_| plots(&["f1"])).unwrap();
    let env = world("anthropic", &server);
    let words = ["run", "-p", "x", "--code", "hosted", "--model", "claude-opus-5-5"];
    let finished = env.run(words).ok();
    for part in [
        "→ bash_code_execution command=python plot.py",
        "✓ bash_code_execution (exit status 0)",
        "│ ok",
        "file f1",
    ] {
        assert!(finished.err.contains(part), "{part}: {finished}");
    }
    assert!(!env.run(words.iter().chain(&["--quiet"])).ok().err.contains("plot.py"));
    let lines = env.run(words.iter().chain(&["--format", "jsonl"])).ok().lines();
    for line in &lines {
        fits("event", line);
    }
    let hosted: Vec<&Value> =
        lines.iter().filter(|line| line["type"].as_str().unwrap().starts_with("hosted.")).collect();
    let [started, result] = hosted.as_slice() else { panic!("{lines:?}") };
    assert_eq!(started["type"], "hosted.started");
    assert_eq!((&started["id"], &started["input"]["command"]), (&json!("s1"), &json!("python plot.py")));
    assert_eq!((&result["id"], &result["tool"]), (&json!("s1"), &json!("bash_code_execution")));
    assert_eq!(
        result["output"],
        json!({"is_error": false, "text": "ok\n", "return_code": 0, "files": [{"id": "f1"}]})
    );
    // A provider with whole texts prints it in order too.
    let [code, result, _] = drawn("print(1)\nprint(2)", "");
    let answer = [json!([{"text": "First code."}]), json!([code, result]), json!([{"text": "Done."}])];
    let server = LoopbackProvider::start(vec![gemini(&answer)]).unwrap();
    let words = ["run", "-p", "x", "--code", "hosted", "--model", "gemini-3.8-flash", "--format", "jsonl"];
    let lines = world("gemini", &server).run(words).ok().lines();
    let told = lines.iter().filter_map(|line| match line["type"].as_str().unwrap() {
        "text.delta" => line["text"].as_str(),
        "hosted.started" => line["input"]["code"].as_str(),
        "hosted.finished" => line["output"]["text"].as_str(),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["First code.", "print(1)\nprint(2)", "ok\n", "Done."]);
}

#[test]
fn a_search_shows_its_query_its_sources_and_its_errors() {
    let results: Vec<Value> = (0..30)
        .map(|number| json!({"type": "web_search_result", "url": format!("https://a.example/{number}"), "title": "\u{1b}[2JT"}))
        .collect();
    let blocks = [
        json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rust \u{1b}[31m"}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": results}),
        json!({"type": "server_tool_use", "id": "s2", "name": "web_search", "input": {"query": "again"}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "s2",
            "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}),
        json!({"type": "text", "text": "Found."}),
    ];
    let server = LoopbackProvider::start(vec![answer(&blocks)]).unwrap();
    let env = world("anthropic", &server);
    let words = ["run", "-p", "x", "--tools", "hosted:web_search", "--model", "claude-opus-5-5"];
    let finished = env.run(words).ok();
    for part in [
        "→ web_search query=rust",
        "https://a.example/0",
        "and 20 sources more",
        "✗ web_search max_uses_exceeded",
    ] {
        assert!(finished.err.contains(part), "{part}: {finished}");
    }
    assert!(!finished.err.contains('\u{1b}') && !finished.err.contains("a.example/10"), "{finished}");
}

#[test]
fn hosted_tools_are_drawn_before_the_answer_continues() {
    let body = stream(&[
        json!({"type": "text", "text": "I **plot** it."}),
        json!({"type": "server_tool_use", "id": "s1", "name": "bash_code_execution",
            "input": {"command": "python plot.py\npython more.py"}}),
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": {
            "type": "bash_code_execution_result", "stdout": "", "stderr": "no such file", "return_code": 2,
            "content": []}}),
        json!({"type": "text", "text": "It failed."}),
    ]);
    for options in [&[][..], &["--plain"]] {
        let end = body.find("It failed.").unwrap();
        let reply = Reply::events(body.as_str()).in_pieces(end, std::time::Duration::from_mins(3));
        let server = LoopbackProvider::start(vec![reply]).unwrap();
        let env = world("anthropic", &server).with("TERM", "xterm");
        let words = ["chat", "--code", "hosted", "--model", "claude-opus-5-5"];
        let (screen, running) = env.start_on_terminal("", words.iter().chain(options));
        screen.wait_for("\u{1b}[?2004h", 1);
        screen.press("plot\r");
        screen.wait_for("exit status 2", 1);
        screen.wait_for("no such file", 1);
        let shown = screen.text();
        let place = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text:?}: {shown}"));
        let order =
            ["plot", "│ python plot.py", "│ python more.py", "exit status 2", "│ no such file"].map(place);
        assert!(order.is_sorted(), "{order:?}: {shown}");
        running.signal(Signal::TERM);
        running.finish().exit(130);
    }
}

/// A provider that accepts files and answers nothing.
fn takes_files(provider: &'static str) -> (LoopbackProvider, TestEnv) {
    let server = LoopbackProvider::start_with(move |request| match request.path.as_str() {
        "/v1/files" => Reply::json(200, r#"{"id":"file-1","filename":"sales.csv"}"#),
        "/upload/v1beta/files" => {
            let session = format!("http://{}/session/files", request.header("host").unwrap());
            Reply::json(200, "{}").header("x-goog-upload-url", &session)
        }
        "/session/files" => Reply::json(
            200,
            r#"{"file":{"name":"files/file-1","displayName":"sales.csv","mimeType":"text/csv"}}"#,
        ),
        _ => Reply::json(400, r#"{"error":{"message":"enough","type":"invalid_request_error"}}"#),
    })
    .unwrap();
    let env = world(provider, &server);
    env.write("sales.csv", "region,sales\nnorth,3\n");
    (server, env)
}

#[test]
pub(crate) fn enable_file_support() {
    for (provider, model, expected) in [
        ("anthropic", "claude-opus-5-5", json!({"type": "container_upload", "file_id": "file-1"})),
        ("openai", "gpt-6.1-sol", json!({"type": "auto", "file_ids": ["file-1"]})),
        ("xai", "grok-4.7", json!({"type": "input_file", "file_id": "file-1"})),
        (
            "gemini",
            "gemini-3.8-flash",
            json!("https://generativelanguage.googleapis.com/v1beta/files/file-1"),
        ),
    ] {
        let (server, env) = takes_files(provider);
        let words = ["run", "-p", "x", "--attach", "sales.csv", "--code", "hosted", "--model", model];
        // Only the question leaves this machine, and a notice has the fix.
        let finished = env.run(words).exit(2);
        assert!(finished.err.contains("`--enable-file-support` uploads them"), "{provider}: {finished}");
        let bodies = asked(&server);
        assert_eq!((server.requests().len(), bodies.len()), (1, 1), "{provider}");
        assert!(!bodies[0].to_string().contains("file-1"));
        let finished = env.run(words.iter().chain(&["--enable-file-support"])).exit(2);
        let has_it = |request: &ReceivedRequest| String::from_utf8_lossy(&request.body).contains("north,3\n");
        let upload = server.requests().into_iter().find(has_it).unwrap();
        assert!(upload.path.contains("files"), "{}", upload.path);
        let body = asked(&server).pop().unwrap().to_string();
        assert!(body.contains(&expected.to_string()), "{provider}: {body}");
        for part in ["uploaded sales.csv as", "file-1"] {
            assert!(finished.err.contains(part), "{part}: {finished}");
        }
        assert!(!finished.err.contains(KEY), "{finished}");
    }
    // Local code has the file in its directory.
    let (server, env) = takes_files("anthropic");
    let words = ["run", "-p", "x", "--attach", "sales.csv", "--code", "local", "--enable-file-support"];
    let finished = env.run(words).exit(2);
    assert_eq!(server.requests().len(), 1);
    assert!(!finished.err.contains("uploaded"), "{finished}");
    // The record has the upload and the command that removes it.
    let (_server, env) = takes_files("anthropic");
    let words = ["--code", "hosted", "--model", "claude-opus-5-5", "--attach", "sales.csv"];
    let more = ["run", "-p", "x", "--enable-file-support", "--json"];
    let record = env.run(more.iter().chain(&words)).exit(2).json();
    assert!(
        record["notices"].to_string().contains("toolpost files rm file-1 --provider anthropic"),
        "{record}"
    );
    // In a conversation it goes with the first question.
    let (server, env) = takes_files("anthropic");
    env.run_with("one\n", ["chat", "--enable-file-support"].iter().chain(&words)).exit(2);
    assert!(asked(&server)[0].to_string().contains("container_upload"));
}

#[test]
fn hosted_tools_are_checked_before_a_request() {
    let model = Anthropic::start(vec![says("hi")]);
    let words = ["run", "-p", "x", "--tools", "hosted:web_search,calculate,hosted:web_fetch"];
    model.env.run(words.iter().chain(&["--model", "claude-opus-5-5"])).ok();
    let sent = tools(&model.bodies()[0]);
    assert_eq!(sent.len(), 3, "{sent:?}");
    for start in ["calculate", "web_search_20", "web_fetch_20"] {
        assert!(sent.iter().any(|name| name.starts_with(start)), "{start}: {sent:?}");
    }
    let model = Anthropic::start(Vec::new());
    for (words, code, part) in [
        (["run", "-p", "x", "--tools", "hosted:web_serch"], "USAGE", "`web_search`"),
        (["run", "-p", "x", "--tools", "hosted:code_execution"], "USAGE", "`--code hosted`"),
        (["tools", "hosted:web_search", "-q", "--format", "json"], "USAGE", "toolpost run"),
    ] {
        let finished =
            model.env.run(words.iter().chain(&["--json"][usize::from(words[0] == "tools")..])).exit(2);
        let error = finished.error();
        assert_eq!(error["code"], code);
        assert!(error["hints"].to_string().contains(part), "{part}: {error}");
    }
    assert!(model.bodies().is_empty());
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    let words = ["run", "-p", "x", "--tools", "hosted:web_fetch", "--model", "gpt-6.1-sol", "--json"];
    let error = world("openai", &server).run(words).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    assert!(error["message"].as_str().unwrap().contains("web_fetch"), "{error}");
    assert!(server.requests().is_empty());
}

#[test]
fn x_search_needs_a_provider_with_it() {
    let refused = Reply::json(400, r#"{"error":{"message":"enough","type":"invalid_request_error"}}"#);
    let server = LoopbackProvider::start(vec![refused]).unwrap();
    let env = world("xai", &server);
    env.run(["run", "-p", "x", "--model", "grok-4.7", "--tools", "hosted:x_search,calculate"]).exit(2);
    let body = asked(&server).remove(0);
    assert!(body["tools"].to_string().contains(r#"{"type":"x_search"}"#), "{body}");
    let model = Anthropic::start(Vec::new());
    let words = ["run", "-p", "x", "--model", "claude-opus-5-5", "--json", "--tools", "hosted:x_search"];
    let error = model.env.run(words).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    assert!(error["message"].as_str().unwrap().contains("x_search"), "{error}");
}

#[test]
fn file_search_needs_a_model_with_it() {
    let stores = "hosted:file_search=vs_1,calculate,hosted:file_search=vs_2,hosted:file_search=vs_1";
    for (provider, model, member, expected) in [
        ("openai", "gpt-6.1-sol", "vector_store_ids", json!(["vs_1", "vs_2"])),
        ("xai", "grok-4.7", "vector_store_ids", json!(["vs_1", "vs_2"])),
        ("gemini", "gemini-3.8-flash", "fileSearchStoreNames", json!(["vs_1", "vs_2"])),
    ] {
        let refused = Reply::json(400, r#"{"error":{"message":"enough","type":"invalid_request_error"}}"#);
        let server = LoopbackProvider::start(vec![refused]).unwrap();
        let env = world(provider, &server);
        env.run(["run", "-p", "x", "--model", model, "--tools", stores]).exit(2);
        let body = asked(&server).remove(0);
        let expected = format!("\"{member}\":{expected}");
        let tools = body["tools"].to_string();
        assert_eq!(tools.matches(&expected).count(), 1, "{provider}: {tools}");
        assert!(tools.contains("calculate"), "{provider}: {tools}");
    }
    let model = Anthropic::start(Vec::new());
    let words = ["run", "-p", "x", "--model", "claude-opus-5-5", "--json", "--tools"];
    let error = model.env.run(words.iter().chain(&["hosted:file_search=vs_1"])).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    for part in ["file_search", "Models that support it: ", "gemini/"] {
        assert!(error["message"].as_str().unwrap().contains(part), "{part}: {error}");
    }
    for (word, part) in [
        ("hosted:file_search", "hosted:file_search=STORE"),
        ("hosted:file_search=", "hosted:file_search=STORE"),
        ("hosted:web_search=x", "`hosted:web_search` alone"),
        ("hosted:x_search=x", "`hosted:x_search` alone"),
        ("hosted:file_serch=x", "file_search"),
        ("hosted:telepathy=x", "There are: "),
    ] {
        let error = model.env.run(words.iter().chain(&[word])).exit(2).error();
        assert!(error["hints"].to_string().contains(part), "{word}: {error}");
    }
    assert!(model.bodies().is_empty());
}

#[test]
fn another_provider_gets_its_own_upload() {
    let uploads = std::sync::atomic::AtomicUsize::new(0);
    let server = LoopbackProvider::start_with(move |request| match request.path.as_str() {
        "/v1/files" => {
            let number = uploads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Reply::json(200, json!({"id": format!("file-{number}"), "filename": "sales.csv"}).to_string())
        }
        "/v1/messages" => says("Seen."),
        _ => Reply::json(400, r#"{"error":{"message":"enough","type":"invalid_request_error"}}"#),
    })
    .unwrap();
    let env = ["ANTHROPIC", "OPENAI"].into_iter().fold(TestEnv::new(), |env, name| {
        env.with(&format!("{name}_API_KEY"), KEY).with(&format!("{name}_BASE_URL"), server.base_url())
    });
    env.write("sales.csv", "region,sales\nnorth,3\n");
    let words = ["chat", "--code", "hosted", "--model", "claude-opus-5-5", "--attach", "sales.csv"];
    let said = "one\n/model openai/gpt-6.1-sol\ntwo\n/model claude-opus-5-5\nthree\n";
    let finished = env.run_with(said, words.iter().chain(&["--enable-file-support"])).exit(2);
    let bodies: Vec<String> = asked(&server).iter().map(Value::to_string).collect();
    let has = |at: usize, text: &str| bodies[at].contains(text);
    assert_eq!(bodies.len(), 3, "{finished}");
    assert!(has(0, "file-0") && !has(0, "file-1"));
    assert!(has(1, "file-1") && !has(1, "file-0") && has(1, "uploaded to anthropic"), "{}", bodies[1]);
    // Back at the first provider, nothing is uploaded again.
    assert!(has(2, "file-0") && !has(2, "file-1") && !has(2, "uploaded to"), "{}", bodies[2]);
    assert!(
        finished.err.contains("the file `file-0` was not sent: it was uploaded to anthropic"),
        "{finished}"
    );
    assert_eq!(server.requests().iter().filter(|request| request.path == "/v1/files").count(), 2);
    assert!(!finished.err.contains(KEY), "{finished}");
}

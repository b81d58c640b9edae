//! Encoded requests match the strict types of the providers' Python libraries.
#![expect(clippy::disallowed_methods, reason = "the libraries are another language's")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use toolpost_llm::{
    CacheLifetime, ContextEdit, Effort, ErrorKind, HostedTool, Media, ModelId, ModelSettings, OutputFormat,
    PROVIDERS, Part, PromptCaching, Request, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::recordings;

use crate::fidelity::{model_of, of_dialects, value};

/// A request and its source.
struct Case {
    name: String,
    wire: &'static str,
    body: Value,
}

/// The defect of each body, if any, by the official libraries. `None` if they are not installed.
fn judged(test: &str, cases: &[Case]) -> Option<Vec<Option<String>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".dev/llm-env/bin/python3");
    if !python.exists() {
        println!("SKIP {test}: `cargo xtask test` installs the providers' Python libraries");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/official_types.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python can be started");
    let mut input = child.stdin.take().expect("it has a standard input");
    let output = BufReader::new(child.stdout.take().expect("it has a standard output"));
    let answers: Vec<Option<String>> = std::thread::scope(|scope| {
        scope.spawn(move || {
            for case in cases {
                let line = json!({"wire": case.wire, "body": case.body});
                writeln!(input, "{line}").expect("the input takes lines");
            }
        });
        let lines = output.lines().map(|line| {
            let answer: String = serde_json::from_str(&line.expect("a line")).expect("a line is JSON");
            (answer != "ok").then_some(answer)
        });
        lines.collect()
    });
    assert!(child.wait().expect("it ends").success());
    assert_eq!(answers.len(), cases.len());
    Some(answers)
}

/// A provider of each wire.
fn models() -> Vec<(Wire, ModelId)> {
    let mut models: Vec<(Wire, ModelId)> = Vec::new();
    for provider in PROVIDERS {
        if !models.iter().any(|(wire, _)| *wire == provider.wire) {
            models.push((provider.wire, ModelId::new(provider.name, "model-of-tomorrow")));
        }
    }
    models
}

/// One request per feature.
fn features() -> Vec<(&'static str, Request)> {
    let look = || {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "style": {"enum": ["short", "long"]},
                "place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        });
        ToolDefinition::new("look", "Looks.", &schema)
    };
    let with = |change: &dyn Fn(&mut Request)| {
        let mut request = Request::new("hi");
        change(&mut request);
        request
    };
    let settings = |change: &dyn Fn(&mut ModelSettings)| with(&|request| change(&mut request.settings));
    let tool = |change: &dyn Fn(&mut ToolDefinition)| {
        let mut definition = look();
        change(&mut definition);
        with(&|request| request.tools = vec![definition.clone()].into())
    };
    let choice = |choice: ToolChoice| {
        let mut request = tool(&|_| {});
        request.tool_choice = Some(choice);
        request
    };
    let part = |part: Part| with(&|request| request.turns = vec![Turn::User(vec![part.clone()])]);
    let hosted = |tool: HostedTool| with(&|request| request.hosted_tools = vec![tool.clone()]);
    let pixel = Media::from_bytes("image/png", b"not really a picture");
    let domains = || vec!["example.com".to_owned()];
    vec![
        ("plain", with(&|_| {})),
        ("instructions", with(&|request| request.system = Some("Be kind.".into()))),
        (
            "instructions in between",
            with(&|request| request.turns.push(Turn::System(vec![Part::text("now")]))),
        ),
        ("output tokens", settings(&|all| all.max_output_tokens = Some(9))),
        ("stop", settings(&|all| all.stop = vec!["END".into()])),
        ("seed", settings(&|all| all.seed = Some(7))),
        ("thinking off", settings(&|all| all.thinking = Some(Thinking::Off))),
        ("thinking adaptive", settings(&|all| all.thinking = Some(Thinking::Adaptive))),
        ("thinking budget", settings(&|all| all.thinking = Some(Thinking::Budget(2_000)))),
        ("effort", settings(&|all| all.effort = Some(Effort::High))),
        (
            "schema",
            settings(&|all| {
                all.output = Some(OutputFormat::schema(
                    &json!({"type": "object", "properties": {"a": {"type": "string"}}}),
                ));
            }),
        ),
        ("any JSON", settings(&|all| all.output = Some(OutputFormat::Json))),
        ("no cache", settings(&|all| all.prompt_caching = PromptCaching::Off)),
        (
            "cache for long",
            settings(&|all| all.prompt_caching = PromptCaching::AutomaticFor(CacheLifetime::OneHour)),
        ),
        (
            "marks",
            settings(&|all| all.prompt_caching = PromptCaching::Breakpoints(CacheLifetime::FiveMinutes)),
        ),
        ("a tool", tool(&|_| {})),
        ("a strict tool", tool(&|tool| tool.strict = true)),
        ("a deferred tool", tool(&|tool| tool.deferred = true)),
        ("a deferred tool and the search for it", {
            let mut request = tool(&|tool| tool.deferred = true);
            request.hosted_tools = vec![HostedTool::ToolSearch { version: None }];
            request
        }),
        (
            "summaries of the provider",
            with(&|request| request.context_edits = vec![ContextEdit::Compact { at_tokens: Some(60_000) }]),
        ),
        (
            "results left out",
            with(&|request| {
                request.context_edits =
                    vec![ContextEdit::ClearToolResults { at_tokens: Some(9), keep: Some(2) }];
            }),
        ),
        ("auto", choice(ToolChoice::Auto)),
        ("any", choice(ToolChoice::Any)),
        ("none", choice(ToolChoice::None)),
        ("this one", choice(ToolChoice::Tool("look".into()))),
        ("one at a time", {
            let mut request = tool(&|_| {});
            request.settings.parallel_tool_calls = Some(false);
            request
        }),
        ("a picture", part(Part::Image(pixel.clone()))),
        (
            "a picture at an address",
            part(Part::Image(Media::from_url("image/png", "https://example.com/a.png"))),
        ),
        ("a document", part(Part::Document(Media::from_bytes("application/pdf", b"%PDF")))),
        ("an uploaded document", part(Part::Document(Media::from_file_id("application/pdf", "file_1")))),
        (
            "web search",
            hosted(HostedTool::WebSearch {
                max_uses: None,
                allowed_domains: domains(),
                blocked_domains: vec![],
            }),
        ),
        (
            "web fetch",
            hosted(HostedTool::WebFetch { max_uses: None, allowed_domains: vec![], blocked_domains: vec![] }),
        ),
        (
            "file search",
            hosted(HostedTool::FileSearch { stores: vec!["store_1".into()], max_results: Some(3) }),
        ),
        ("code execution", hosted(HostedTool::CodeExecution { version: None, file_ids: vec![] })),
        ("results", {
            // A call of another provider's model, with an image in its result.
            let mut request = tool(&|_| {});
            let script = toolpost_llm::ScriptModel::parse(
                "s",
                "turns: [{ text: Looking., calls: [{ tool: look, args: { city: Oslo } }, { tool: look, args: { city: Rome } }] }]",
            );
            let model = script.expect("the script can be read");
            let answer =
                futures_util::FutureExt::now_or_never(toolpost_llm::Model::respond(&model, &request));
            let answer = answer.expect("a script answers at once").expect("a script answers");
            request.push_response(&answer);
            let mut with_picture = ToolResult::text("call_1_1", "look", "seen");
            with_picture.content.push(Part::Image(pixel));
            let mut failed = ToolResult::text("call_1_2", "look", "it is dark");
            failed.is_error = true;
            request.turns.push(Turn::ToolResults(vec![with_picture, failed]));
            request
        }),
    ]
}

#[test]
fn every_feature_matches_the_official_types() {
    let mut cases = Vec::new();
    let mut unsupported = 0;
    for (wire, model) in models() {
        for (name, request) in features() {
            for stream in [false, true] {
                match wire.write_body(&model, &request, stream) {
                    Ok(body) => cases.push(Case {
                        name: format!("{}, {name}, stream {stream}", wire.as_str()),
                        wire: wire.as_str(),
                        body: value(&body),
                    }),
                    Err(error) if error.kind == ErrorKind::Unsupported => unsupported += 1,
                    Err(error) => panic!("{}, {name}: {error}", wire.as_str()),
                }
            }
        }
    }
    let Some(judged) = judged("every_feature_matches_the_official_types", &cases) else { return };
    let wrong: Vec<String> = cases
        .iter()
        .zip(judged)
        .filter_map(|(case, answer)| Some(format!("{}: {}\n  {}", case.name, answer?, case.body)))
        .collect();
    println!("{} bodies, {unsupported} refused before they were sent", cases.len());
    assert!(wrong.is_empty(), "{} of {} bodies:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() > 40);
}

/// Members that older models accept and the official types lack.
const GONE: &[&str] = &["temperature", "top_p", "top_k"];

#[test]
fn recorded_requests_match_the_official_types() {
    let test = "recorded_requests_match_the_official_types";
    let Some(found) = of_dialects(test) else { return };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (dialect, recordings) in found.dialects {
        for recording in recordings {
            for interaction in &recording.interactions {
                let Some(recorded) = interaction.request.as_ref().and_then(|request| request.body.as_ref())
                else {
                    continue;
                };
                let request =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dialect.request(recorded)));
                let Ok(Some(request)) = request else { continue };
                let stream = recorded["stream"] == true;
                let written = dialect.wire().write_body(&model_of(dialect, interaction), &request, stream);
                let Ok(written) = written else { continue };
                let case = |body: &Value| {
                    let mut body = body.clone();
                    if dialect.wire() == Wire::Messages {
                        for name in GONE {
                            body.as_object_mut().and_then(|body| body.shift_remove(*name));
                        }
                    }
                    Case { name: recording.path.clone(), wire: dialect.wire().as_str(), body }
                };
                ours.push(case(&value(&written)));
                theirs.push(case(recorded));
            }
        }
    }
    let (Some(ours_judged), Some(theirs_judged)) = (judged(test, &ours), judged(test, &theirs)) else {
        return;
    };
    // A body may be invalid if the recorded client's body is invalid too.
    let mut wrong = Vec::new();
    let (mut fine, mut both) = (0, 0);
    for ((case, answer), theirs) in ours.iter().zip(ours_judged).zip(theirs_judged) {
        match (answer, theirs) {
            (None, _) => fine += 1,
            (Some(_), Some(_)) => both += 1,
            (Some(answer), None) => wrong.push(format!("{}: {answer}", case.name)),
        }
    }
    println!(
        "{fine} of {} bodies are fine; {both} are not, and the recorded ones are not either",
        ours.len()
    );
    if recordings::is_known() {
        wrong.truncate(20);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(fine > 400, "{fine}");
    }
}

#[test]
fn the_official_types_reject_invalid_bodies() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let cases: Vec<(&'static str, Value)> = vec![
        (
            "messages",
            json!({"model": "m", "max_tokens": 1, "messages": [user(json!([{"type": "tool_result"}]))]}),
        ),
        ("messages", json!({"model": "m", "max_tokens": 1, "messages": [user(json!("x"))], "temprature": 1})),
        ("messages", json!({"model": "m", "max_tokens": 1, "messages": [{"role": "usr", "content": "x"}]})),
        (
            "responses",
            json!({"model": "m", "input": [{"type": "function_call_output", "output": "x", "callid": "1"}]}),
        ),
        ("responses", json!({"model": "m", "input": "x", "tools": [{"type": "function", "name": "f"}]})),
        ("chat_completions", json!({"model": "m", "messages": [{"role": "tool", "content": "x"}]})),
        ("generate_content", json!({"contents": [{"role": "user", "parts": [{"txt": "x"}]}]})),
        ("generate_content", json!({"contents": [], "generationConfig": {"maxTokens": 3}})),
    ];
    let cases: Vec<Case> =
        cases.into_iter().map(|(wire, body)| Case { name: String::new(), wire, body }).collect();
    let Some(judged) = judged("the_official_types_reject_invalid_bodies", &cases) else { return };
    for (case, answer) in cases.iter().zip(judged) {
        assert!(answer.is_some(), "{}", case.body);
    }
}

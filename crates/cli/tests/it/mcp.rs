//! MCP servers on the command line.

use std::sync::Arc;

use serde_json::json;
use toolpost_core::{Output, ParameterType, Secret, ToolError, ToolSpec, tool_fn};
use toolpost_mcp::server::{RunningServer, Server};
use toolpost_toolbox::Toolbox;

use crate::support::TestEnv;

/// A minimal stdio server.
const SCRIPT: &str = r#"import sys, json, os
for line in sys.stdin:
    message = json.loads(line)
    method, i = message.get("method"), message.get("id")
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "greet", "description": "Greet someone by name.", "inputSchema": {"type": "object",
            "properties": {"who": {"type": "string"}}, "required": ["who"]}}]}
    elif method == "tools/call":
        text = "Hello, " + message["params"]["arguments"]["who"] + os.environ.get("MARK", "")
        result = {"content": [{"type": "text", "text": text}]}
    elif i is None:
        continue
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": i, "result": result}), flush=True)
"#;

/// A local server on a free port, for the lifetime of the runtime.
fn serve(token: Option<&str>) -> (tokio::runtime::Runtime, RunningServer) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let double =
        ToolSpec::new("double", "Double a number.").parameter("number", ParameterType::Integer, "It.");
    let double =
        tool_fn(double, async |args, _| Ok(Output::json((args.decode::<i64>("number")? * 2).into())));
    let fail =
        tool_fn(ToolSpec::new("fail", "Fail."), async |_, _| Err(ToolError::not_found("no such city")));
    let toolbox = Toolbox::builder().tool(double).tool(fail).build().unwrap();
    let mut builder = Server::builder(Arc::new(toolbox)).name("calc");
    if let Some(token) = token {
        builder = builder.bearer(Secret::new(token));
    }
    let server = builder.build().unwrap();
    let running = runtime.block_on(server.http("127.0.0.1:0".parse().unwrap())).unwrap();
    (runtime, running)
}

#[test]
fn a_server_with_a_url_is_listed_and_called() {
    let (_runtime, running) = serve(None);
    let (env, url) = (TestEnv::new(), running.connection_url());
    let listed = env.run(["tools", &url]).ok();
    assert!(listed.out.contains("double") && listed.out.contains("Double a number."), "{listed}");
    for url in [&url, &running.websocket_url()] {
        let answer = env.run(["call", url, "double", "number=21", "--json"]).ok().json();
        assert_eq!(answer["result"], json!({ "result": 42 }));
    }
    let error = env.run(["call", &url, "fail", "--json"]).exit(1).error();
    assert_eq!((&error["code"], &error["message"]), (&json!("NOT_FOUND"), &json!("no such city")));
    let error = env.run(["call", &url, "double", "number=x", "--json"]).exit(1).error();
    assert_eq!(error["code"], "INVALID_INPUT");
    let error = env.run(["tools", "http://127.0.0.1:1/mcp", "--json"]).exit(4).error();
    assert_eq!(error["code"], "DEPENDENCY");
    let error = env.run(["tools", "https://example.com/mcp", "--json"]).exit(5).error();
    assert!(error["message"].as_str().unwrap().contains("TOOLPOST_NO_NETWORK"), "{error}");
}

#[test]
pub(crate) fn token_places() {
    let (_runtime, running) = serve(Some("hunter2hunter2"));
    let (env, url) = (
        TestEnv::new().with("CALC_TOKEN", "hunter2hunter2").with("BAD_TOKEN", "wrong"),
        running.connection_url(),
    );
    let refused = env.run(["tools", &url, "--json"]).exit(3);
    assert!(refused.error()["hints"].to_string().contains("--token-env"), "{refused}");
    let refused = env.run(["tools", &url, "--token-env", "BAD_TOKEN", "--json"]).exit(3);
    assert!(!refused.err.contains("wrong"), "{refused}");
    env.run(["tools", &url, "--token-env", "NO_SUCH_TOKEN", "--json"]).exit(3);
    let file = env.write("token", "hunter2hunter2\n");
    for place in [["--token-env", "CALC_TOKEN"], ["--token-file", file.to_str().unwrap()]] {
        let words = ["call", &url, "double", "number=4", "--format", "jsonl"].into_iter().chain(place);
        let answer = env.run(words).ok();
        assert!(!format!("{answer}").contains("hunter2"), "{answer}");
        let listed = env.run(["tools", &url].into_iter().chain(place)).ok();
        assert!(listed.out.contains("double"), "{listed}");
    }
    let unclear = env.run(["tools", "builtin", "--token-env", "CALC_TOKEN"]).exit(2);
    assert!(unclear.err.contains("the token is for one server"), "{unclear}");
}

#[test]
pub(crate) fn mcp_server() {
    let (_runtime, running) = serve(Some("hunter2hunter2"));
    let env = TestEnv::new().with("CALC_TOKEN", "hunter2hunter2");
    let file = env.write("token", "hunter2hunter2\n");
    env.write(
        "say.yaml",
        "turns:\n  - calls: [{ tool: double, args: { number: 21 } }]\n  - text: \"It is {{ last.text }}.\"\n",
    );
    let words = ["run", "-p", "x", "--model", "script:say.yaml"];
    let url = running.connection_url();
    for place in [["--token-env", "CALC_TOKEN"], ["--token-file", file.to_str().unwrap()]] {
        let ran = env.run(words.into_iter().chain(["--mcp-server", &url]).chain(place)).ok();
        assert_eq!(ran.out.trim(), "It is 42.", "{ran}");
    }
    env.run(words.into_iter().chain(["--mcp-server", &url])).exit(3);
}

#[test]
fn a_stdio_server_is_started_from_its_command() {
    let env = TestEnv::new();
    let script = env.write("server.py", SCRIPT);
    let target = format!("stdio:python3 '{}'", script.display());
    let refused = env.run(["tools", "stdio:no-such-program-anywhere", "--json"]).exit(4).error();
    assert!(refused["message"].as_str().unwrap().contains("no-such-program-anywhere"), "{refused}");
    let greeted = env.run(["call", &target, "who=Ada", "--level", "minimal"]).ok();
    assert_eq!(greeted.out, "Hello, Ada\n");
    // Arguments are checked against the listed schema before they reach the server.
    let error = env.run(["call", &target, "who=1", "more=2", "--level", "minimal", "--validate", "--json"]);
    assert!(error.out.contains("valid"), "{error}");
}

#[test]
fn the_stderr_of_a_server_whose_tool_fails_is_logged_for_its_operator() {
    let env = TestEnv::new().with("GREETING_KEY", "hunter2hunter2");
    let failing = r#"import time
        sys.stderr.write("no luck with " + os.environ["GREETING_KEY"] + "\n")
        sys.stderr.flush()
        time.sleep(0.2)
        result = {"content": [{"type": "text", "text": "it failed"}], "isError": True}"#;
    let begin = SCRIPT.find("text = \"Hello").unwrap();
    let end = begin + SCRIPT[begin..].find("\n    elif i is").unwrap();
    let script = env.write("server.py", format!("{}{failing}{}", &SCRIPT[..begin], &SCRIPT[end..]));
    let target = format!("stdio:python3 '{}'", script.display());
    let words = ["call", &target, "who=Ada", "--level", "minimal", "--secret-raw", "GREETING_KEY"];
    let quiet = env.run(words).exit(1);
    assert!(quiet.err.contains("it failed") && !quiet.err.contains("no luck"), "{quiet}");
    let logged = env.run(words.iter().chain(&["-v"])).exit(1);
    assert!(logged.err.contains("last stderr output") && logged.err.contains("no luck with"), "{logged}");
    assert!(!logged.err.contains("hunter2"), "{logged}");
}

#[test]
fn servers_of_other_clients_files_need_trust() {
    let env = TestEnv::new().with("GREETING", "!");
    let script = env.write("server.py", SCRIPT);
    let servers = |mark: &str| {
        json!({ "mcpServers": { "greeter": { "command": "python3", "args": [script], "env": { "MARK": mark } } } }).to_string()
    };
    env.write(".mcp.json", servers("${GREETING}${NO_SUCH:-?}"));
    let refused = env.run(["tools", "greeter"]).exit(5);
    assert!(refused.err.contains("starts `python3") && refused.err.contains("toolpost trust"), "{refused}");
    assert!(refused.err.contains("server.py`, with the raw variables MARK,"), "{refused}");
    let trusted = env.run(["trust", ".mcp.json"]).ok();
    assert!(trusted.err.contains("greeter: starts `python3"), "{trusted}");
    let greeted = env.run(["call", "greeter", "who=Ada", "--level", "minimal"]).ok();
    assert_eq!(greeted.out, "Hello, Ada!?\n");
    env.write(".mcp.json", servers("changed"));
    let refused = env.run(["tools", "greeter"]).exit(5);
    assert!(refused.err.contains("has changed since it was trusted"), "{refused}");
    let unknown = env.run(["tools", "greter"]).exit(2);
    assert!(unknown.err.contains("greeter"), "{unknown}");

    // Claude Code rewrites its file all the time: only its servers are pinned.
    let home = env.path("../home/.claude.json");
    let claude = |used: u32| {
        json!({ "used": used, "mcpServers": { "other": { "command": "python3", "args": [script] } } })
            .to_string()
    };
    std::fs::write(&home, claude(1)).unwrap();
    env.run(["tools", "other"]).exit(5);
    env.run(["trust", home.to_str().unwrap()]).ok();
    std::fs::write(&home, claude(2)).unwrap();
    let greeted = env.run(["call", "other", "who=Bo", "--level", "minimal"]).ok();
    assert_eq!(greeted.out, "Hello, Bo\n");
}

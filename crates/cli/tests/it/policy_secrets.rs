//! Secrets of an egress policy: a program that gets one in spite of the proxy puts it into no output, record, store and
//! log.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::serve::modern;
use crate::support::TestEnv;

const CANARY: &str = "canary-of-a-policy-5d81";

/// A server that returns the secret backwards, a form that the proxy does not recognize, and as the name of a header.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let token =
                head.iter().find_map(|line| line.split_once("Bearer ")).map_or("none", |(_, token)| token);
            let body: String = token.chars().rev().collect();
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\n{token}: v\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    address
}

/// The code: its last value, and what it prints, are the secret.
fn code(address: SocketAddr) -> String {
    format!(
        "import json, os, sys, urllib.request as u\n\
         r = u.urlopen(u.Request('http://{address}/', headers={{'Authorization': 'Bearer ' + os.environ['API_TOKEN']}}))\n\
         names = str(dict(r.headers))\n\
         secret = r.read().decode()[::-1]\n\
         print('printed', secret, json.dumps(secret), names)\n\
         print('error', secret, file=sys.stderr)\n\
         {{'value': [secret, names], secret: 1}}\n"
    )
}

/// Whether this host supports egress; if not, the test is skipped.
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
fn has_egress(test: &str) -> bool {
    let there = Host::probe().availability(Level::Strict).is_some_and(|level| level.available);
    if !there {
        println!("SKIP {test}: this host gives no namespaces");
    }
    there
}

/// The files below a directory that have the secret.
fn files_with_it(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_with_it(&path));
        } else if path.is_file()
            && std::fs::read(&path).unwrap().windows(CANARY.len()).any(|part| part == CANARY.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_secret_of_a_policy_is_in_no_output_record_store_and_log() {
    if !has_egress("a_secret_of_a_policy") {
        return;
    }
    let address = server();
    let env = TestEnv::new().with("API_TOKEN", CANARY).with("TERM", "xterm");
    env.write(
        "policy.toml",
        format!("addresses = [\"{address}\"]\n[[secrets]]\nvariable = \"API_TOKEN\"\nhosts = [\"{address}\"]\nplain_http = true\n"),
    );
    let code = code(address);
    env.write("c.py", &code);
    let call = json!({ "tool": "run_code", "args": { "language": "python", "code": code } });
    let said = format!("It is {CANARY}.");
    let turns = json!({ "turns": [{ "calls": [call] }, { "text": said }] });
    env.write("s.yaml", turns.to_string());
    let step = json!({ "id": "a", "tool": "run_code", "with": { "language": "python", "code": code } });
    env.write(
        "flow.yaml",
        json!({ "kind": "flow", "name": "f", "tools": ["run_code"], "steps": [step] }).to_string(),
    );
    let arguments = call["args"].to_string();
    let setting =
        ["--config", "egress_policy=policy.toml", "-vvv", "--log", "trace", "--log-file", "log.txt"];
    let lines: [&[&str]; 9] = [
        &["exec", "--egress-policy", "policy.toml", "c.py"],
        &["exec", "c.py"],
        &["exec", "--session", "one", "c.py"],
        &["exec", "--session", "one", "c.py"],
        &["run", "-p", "x", "--model", "script:s.yaml", "--record", "record.jsonl"],
        &["chat", "--model", "script:s.yaml", "x"],
        &["call", "run_code", &arguments],
        &["flow", "run", "flow.yaml", "--yes"],
        &["runs", "show", "last"],
    ];
    let mut masked = 0;
    for words in lines {
        for format in ["text", "json", "jsonl"] {
            let words: Vec<&str> =
                words.iter().chain(&setting).copied().chain(["--format", format]).collect();
            let _ = std::fs::remove_file(env.path("record.jsonl"));
            let on_terminal = (format == "text").then(|| env.on_terminal("/exit\n", &words));
            let _ = std::fs::remove_file(env.path("record.jsonl"));
            for finished in on_terminal.into_iter().chain([env.run(&words)]) {
                let shown = format!("{} {}", finished.out, finished.err);
                assert!(!shown.contains(CANARY), "{finished}");
                assert!(!shown.contains("Traceback"), "{finished}");
                masked += shown.matches("[secret]").count();
                let _ = std::fs::remove_file(env.path("record.jsonl"));
            }
        }
    }
    assert!(masked > 30, "{masked}");
    // Where sessions have no egress, none is live.
    env.run(["exec", "--session", "one", "--end"]);
    // A client of a server.
    let params = json!({ "name": "run_code", "arguments": { "language": "python", "code": code } });
    let line = modern(1, "tools/call", params) + "\n";
    // Its own log is where no tool reaches it.
    let apart = setting.map(|word| if word == "log.txt" { "../home/log.txt" } else { word });
    let served = env.run_with(line, ["serve", "run_code"].iter().chain(&apart));
    assert!(served.out.contains("printed [secret]") && !served.out.contains(CANARY), "{served}");
    assert!(!served.err.contains(CANARY), "{served}");
    // The script, which the test wrote, has the words of the model.
    std::fs::remove_file(env.path("s.yaml")).unwrap();
    assert_eq!(files_with_it(&env.path("..")), Vec::<String>::new());
    assert!(env.read("log.txt").len() > 100);
}

#[test]
fn a_granted_placeholder_is_masked_in_all_output_of_the_command() {
    if !has_egress("a_granted_placeholder") {
        return;
    }
    let address = server().to_string();
    let env = TestEnv::new().with("API_TOKEN", CANARY);
    let program = "kind = \"command\"\nv = 1\nprogram = \"cat\"\n[[tool]]\nname = \"t\"\ndescription = \"d\"\nread_only = true\nargs = [\"-\"]\nstdin = \"{text}\"\n[tool.parameters.text]\ntype = \"string\"\ndescription = \"T.\"\n[tool.output]\nformat = \"text\"\n";
    env.write("cat.toml", program);
    env.run(["trust", "cat.toml"]).ok();
    let argument = format!("text=so {CANARY}");
    let words = ["call", "cat.toml", "t", &argument, "--secret", "API_TOKEN", "--allow-address", &address];
    for format in ["text", "json", "jsonl"] {
        let finished = env.run(words.iter().chain(&["-vvv", "--format", format])).ok();
        assert!(finished.out.contains("so [secret]"), "{finished}");
        assert!(!format!("{} {}", finished.out, finished.err).contains(CANARY), "{finished}");
    }
    assert_eq!(files_with_it(&env.path("..")), Vec::<String>::new());
}

/// The events of a run have masked arguments, and so has everything that stays of it.
#[test]
fn an_authorization_argument_is_in_no_event_store_recording_and_log() {
    let env = TestEnv::new().with("TERM", "xterm");
    let secret = format!("Bearer {CANARY}");
    let headers = json!({ "url": "http://127.0.0.1:1/x", "headers": { "Authorization": secret } });
    let argv = json!({ "argv": ["echo", "-H", format!("Authorization: {secret}")] });
    let calls = json!([{ "tool": "http_request", "args": headers }, { "tool": "run_command", "args": argv }]);
    let script = json!({ "turns": [{ "calls": calls }, { "text": format!("I sent {CANARY}.") }] });
    env.write("s.yaml", script.to_string());
    for format in ["text", "json", "jsonl"] {
        let words = [
            "run",
            "-p",
            "x",
            "--model",
            "script:s.yaml",
            "--tools",
            "http_request,run_command",
            "--yes",
            "--record",
            "record.jsonl",
            "-vvv",
            "--log-file",
            "log.txt",
            "--format",
            format,
        ];
        let finished = env.run(words);
        assert_eq!(finished.status.code(), Some(0), "{finished}");
        let recorded = env.read("record.jsonl");
        assert!(!recorded.contains(CANARY) && recorded.contains("[secret]"), "{recorded}");
        std::fs::remove_file(env.path("record.jsonl")).unwrap();
    }
    env.run(["runs", "export", "last", "exported.jsonl"]).ok();
    let shown: Vec<Value> = env.run(["runs", "show", "last", "--json"]).ok().lines();
    assert!(shown[0].to_string().contains("[secret]"), "{shown:?}");
    std::fs::remove_file(env.path("s.yaml")).unwrap();
    assert_eq!(files_with_it(&env.path("..")), Vec::<String>::new());
}

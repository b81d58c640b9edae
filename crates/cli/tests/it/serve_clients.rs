//! The reach of a server's tools and clients: not its own files, and no files of other clients.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::gateway::executable;
use crate::serve::{free, get, post, tools};
use crate::support::{Running, TestEnv, eventually};

/// A server of two clients, which answers.
fn serve(env: &TestEnv, tokens: &str, words: &[&str]) -> (Running, SocketAddr) {
    env.write("../home/tokens.txt", tokens);
    let address = free();
    let text = address.to_string();
    let fixed = ["serve", "--http", &text, "--token-file", "../home/tokens.txt"];
    let running = env.start([&fixed[..], words].concat());
    eventually("it answers", || get(address, "/health", "").is_some());
    (running, address)
}

/// The text of the result of a call.
fn call(address: SocketAddr, token: &str, tool: &str, arguments: &Value) -> String {
    let header = format!("Authorization: Bearer {token}\r\n");
    let params = json!({ "name": tool, "arguments": arguments });
    let answer = post(address, "tools/call", params, &header).unwrap();
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn stop(running: Running) -> String {
    running.signal(Signal::TERM);
    running.finish().exit(0).to_string()
}

/// Paths relative to the working directory.
#[test]
pub(crate) fn no_tool_reaches_an_own_file_of_the_server() {
    let env = TestEnv::new();
    executable(&env, "program", "#!/bin/sh\nexit 0\n");
    for directory in ["inner", "../apart", "../home/own"] {
        std::fs::create_dir_all(env.path(directory)).unwrap();
    }
    for (link, target) in [
        ("../to-work", "work"),
        ("../through", "work/out"),
        ("out", "../home"),
        ("../dangling", "work/missing"),
    ] {
        std::os::unix::fs::symlink(target, env.path(link)).unwrap();
    }
    env.write(
        "named.toml",
        "kind = \"command\"\nv = 1\nprogram = \"true\"\n[[tool]]\nname = \"t\"\ndescription = \"T.\"\n",
    );
    env.write(
        "granted.toml",
        "kind = \"command\"\nv = 1\nprogram = \"true\"\n[grants]\nwritable = [\".\"]\n[[tool]]\nname = \"t\"\ndescription = \"T.\"\n",
    );
    for name in ["named.toml", "granted.toml"] {
        env.run(["trust", name]).ok();
    }
    let (http, ws) = (&["--http", "127.0.0.1:0"], &["--ws", "127.0.0.1:0"]);
    let oauth = [
        "--oauth-issuer",
        "https://a.example",
        "--oauth-resource",
        "https://b.example/mcp",
        "--shared-workdir",
    ];
    // The targets and directories, the own file, and what the error names.
    for (own, named) in [
        (&["--task-store", "DIR/tasks.db"][..], "the task store"),
        (&["--task-store", "DIR/missing/a/tasks.db"], "the task store"),
        (&["--store", "DIR/store.db"], "the store"),
        (&["--log-file", "DIR/log"], "the log file"),
        (&["--http", "127.0.0.1:0", "--token-file", "DIR/tokens.txt"], "the token file"),
        (&[&http[..], &["--oauth-keys", "DIR/keys.json"], &oauth].concat(), "the key file of the issuer"),
        (&[&http[..], &["--tls-cert", "DIR/c", "--tls-key", "/nowhere"]].concat(), "the certificate"),
        (&[&ws[..], &["--tls-cert", "/nowhere", "--tls-key", "DIR/k"]].concat(), "the private key"),
    ] {
        for (reach, directories) in [
            (&["builtin"][..], &[".", "inner", "../to-work", "../through/..", "../dangling"][..]),
            (&["builtin:read_file"], &["."]),
            (&["builtin:run_code", "--workdir", "../apart"], &["../apart", "../apart/more"]),
            (&["command:jq"], &["."]),
            (&["named.toml"], &["."]),
            (&["builtin:calculate", "granted.toml", "--workdir", "../apart"], &["inner"]),
            (&["./program", "--writable", "../home/own"], &["../home/own"]),
            (&["./program", "--writable", "../home/own/", "--workdir", "../apart"], &["../home/own/deeper"]),
            (&["./program", "--readable", "../home"], &["../home/own", "../home"]),
            (&["./program", "--target-workdir", "inner"], &["inner"]),
            (&["stdio:python3 nothing.py"], &[".", "inner"]),
            (&["stdio:python3 nothing.py", "--target-workdir", "../apart"], &["../apart"]),
            (&["builtin", "--workdir", "inner/.."], &["../to-work/inner"]),
        ] {
            for directory in directories {
                let place = env.path(directory);
                if ["the log file", "the token file"].contains(&named) {
                    // The command opens these first.
                    if !place.is_dir() {
                        continue;
                    }
                    std::fs::write(place.join("tokens.txt"), "canary-of-a-token\n").unwrap();
                }
                let own: Vec<String> = own.iter().map(|word| word.replace("DIR", directory)).collect();
                let words = ["serve"].into_iter().chain(reach.iter().copied()).map(str::to_owned);
                let rejected = env.run(words.chain(own.iter().cloned())).exit(2);
                let text = format!("can reach {named} `");
                assert!(rejected.err.contains(&text), "{reach:?} {own:?}: {rejected}");
                assert!(!rejected.err.contains("canary"), "{rejected}");
            }
        }
    }
    for (words, named) in [
        (&["builtin", "--http", "127.0.0.1:0", "--workdir", ".."][..], "the settings directory"),
        (&["builtin", "--ws", "127.0.0.1:0", "--workdir", "../home"], "the settings directory"),
        (&["builtin", "--http", "127.0.0.1:0", "--workdir", "../home/.local/state"], "the state directory"),
        (&["builtin", "--http", "127.0.0.1:0", "--workdir", "../home/.local/state/toolpost"], "the state"),
        (&["builtin", "--http", "127.0.0.1:0", "--workdir", "../home/.local/share/toolpost/x"], "the data"),
        (&["builtin", "--http", "127.0.0.1:0", "--workdir", "../home/.cache"], "the cache"),
        (&["./program", "--http", "127.0.0.1:0", "--readable", "../home/.config/toolpost"], "the settings"),
    ] {
        for directory in [".local/state/toolpost", ".local/share/toolpost/x", ".cache", ".config/toolpost"] {
            std::fs::create_dir_all(env.path("../home").join(directory)).unwrap();
        }
        let rejected = env.run(["serve"].iter().chain(words)).exit(2);
        assert!(rejected.err.contains(&format!("can reach {named}")), "{words:?}: {rejected}");
    }
}

/// The client of standard input and output is the operator's own program.
#[test]
fn a_server_starts_beside_its_own_files() {
    let env = TestEnv::new();
    executable(&env, "program", "#!/bin/sh\nexit 0\n");
    std::fs::create_dir_all(env.path("inner")).unwrap();
    for words in [
        &["builtin", "--task-store", "../home/tasks.db"][..],
        &["builtin", "--task-store", "tasks.db", "--workdir", "inner"],
        &["builtin", "--workdir", "../home"],
        &["builtin", "--workdir", ".."],
        &["builtin:calculate", "--task-store", "tasks.db"],
        &["builtin:calculate", "builtin:hash_text", "--store", "store.db", "--log-file", "log"],
    ] {
        env.run(["serve"].iter().chain(words)).ok();
    }
}

#[test]
pub(crate) fn several_clients_share_no_files_without_the_option() {
    let names = "ada canary-1\neve canary-2\n";
    let unnamed = "canary-1\ncanary-2\n";
    let one = "ada canary-1\nada canary-2\n";
    for (tokens, words, is_shared) in [
        (names, &[][..], false),
        (unnamed, &[], false),
        (names, &["--shared-workdir"], true),
        // Two tokens of one client, such as during a rotation.
        (one, &[], true),
    ] {
        let env = TestEnv::new();
        env.write("host.txt", "of the host");
        let (running, address) = serve(&env, tokens, &[&["builtin"], words].concat());
        let (ada, eve) = ("canary-1", "canary-2");
        call(address, ada, "write_file", &json!({ "path": "notes", "content": "of ada" }));
        let code = |code: &str| json!({ "language": "sh", "code": code });
        call(address, ada, "run_code", &code("printf 'of ada' >by-code"));
        let home = if is_shared { "" } else { "clients/ada/" };
        for path in ["notes", "by-code"].into_iter().filter(|_| tokens != unnamed) {
            assert_eq!(env.read(&format!("{home}{path}")), "of ada", "{tokens} {words:?}");
        }
        for (tool, arguments) in [
            ("read_file", json!({ "path": "notes" })),
            ("read_file", json!({ "path": "by-code" })),
            ("read_file", json!({ "path": env.path("notes") })),
            ("read_file", json!({ "path": env.path("clients/ada/notes") })),
            (
                "run_code",
                code("cat notes by-code ../ada/* ../../clients/*/* /workspace/../clients/*/*; true"),
            ),
            ("run_command", json!({ "argv": ["cat", "notes"] })),
        ] {
            let text = call(address, eve, tool, &arguments);
            assert!(is_shared || !text.contains("of ada"), "{tool} {arguments}: {text}");
        }
        let listed = call(address, eve, "list_directory", &json!({ "path": "." }));
        assert_eq!(listed.contains("by-code") && listed.contains("host.txt"), is_shared, "{listed}");
        let own = call(address, ada, "run_command", &json!({ "argv": ["cat", "notes", "by-code"] }));
        assert!(own.contains("of adaof ada"), "{tokens} {words:?}: {own}");
        let shared = call(address, eve, "read_file", &json!({ "path": "notes" }));
        assert_eq!(shared.contains("of ada"), is_shared, "{tokens} {words:?}: {shared}");
        call(address, eve, "write_file", &json!({ "path": "notes", "content": "of eve" }));
        let after = call(address, ada, "read_file", &json!({ "path": "notes" }));
        assert_eq!(after.contains("of eve"), is_shared, "{tokens} {words:?}: {after}");
        let report = stop(running);
        assert_eq!(report.contains("each client has its own directory"), !is_shared, "{report}");
        assert!(!report.contains("canary"), "{report}");
        assert_eq!(env.path("clients").exists(), !is_shared);
    }
}

/// A service whose home is its working directory, as many are.
#[test]
fn clients_reach_no_state_of_the_service_above_their_directories() {
    let env = TestEnv::new();
    let work = env.path("");
    let env = env.with("HOME", work.as_os_str());
    for start in 0..2 {
        let (running, address) =
            serve(&env, "canary-1\ncanary-2\n", &["builtin", "--task-store", "tasks.db"]);
        let write = |token, path: &str| {
            call(
                address,
                token,
                "write_file",
                &json!({ "path": path, "content": "{}", "create_directories": true }),
            )
        };
        write("canary-2", "tasks.db");
        let code = json!({ "language": "sh", "code": "echo garbage >tasks.db; cat ../../tasks.db ../../.local/*/*/*" });
        let text = call(address, "canary-2", "run_code", &code);
        assert!(!text.contains("SQLite"), "{text}");
        for path in [".local/state/toolpost/trust.json", ".config/toolpost/config.toml"] {
            assert!(write("canary-2", path).contains("PERMISSION"), "{path}");
        }
        stop(running);
        let bytes = std::fs::read(env.path("tasks.db")).unwrap();
        assert!(bytes.starts_with(b"SQLite format 3"), "start {start}");
    }
    // One client works in the directory itself, which has the task store.
    env.write("../home/one.txt", "canary-1\n");
    let words = ["serve", "builtin", "--http", "127.0.0.1:0", "--token-file", "../home/one.txt"];
    let rejected = env.run(words).exit(2);
    assert!(rejected.err.contains("tools can reach the settings directory"), "{rejected}");
    let rejected = env.run([&words[..], &["--shared-workdir", "--task-store", "tasks.db"]].concat()).exit(2);
    assert!(rejected.err.contains("tools can reach the task store"), "{rejected}");
}

/// Agents, flows, gateways and programs work where their client works.
#[test]
fn nested_tools_work_in_the_directory_of_their_client() {
    let env = TestEnv::new();
    env.write("host.txt", "of the host");
    env.write(
        "reader.toml",
        "kind = \"agent\"\nv = 1\nname = \"reader\"\ndescription = \"Reads.\"\nmodel = \"script:reader.yaml\"\ntools = [\"read_file\"]\n",
    );
    env.write(
        "reader.yaml",
        "turns:\n  - calls: [{ tool: read_file, args: { path: notes } }]\n  - text: \"agent: {{ last.text }}\"\n",
    );
    env.write(
        "reading.yaml",
        "kind: flow\nname: reading\ndescription: Reads.\ntools: [read_file]\nsteps:\n  - id: read\n    tool: read_file\n    with: { path: notes }\noutput: \"flow: ${{ steps.read.output }}\"\n",
    );
    env.write(
        "gateway.toml",
        "kind = \"gateway\"\n[[upstreams]]\nname = \"files\"\ntarget = \"builtin:read_file\"\n",
    );
    for name in ["reader.toml", "reading.yaml", "gateway.toml"] {
        env.run(["trust", name]).ok();
    }
    let targets = ["builtin:write_file", "reader.toml", "reading.yaml", "gateway.toml"];
    let (running, address) = serve(&env, "ada canary-1\neve canary-2\n", &targets);
    for (client, token) in [("ada", "canary-1"), ("eve", "canary-2")] {
        let content = format!("of {client}");
        call(address, token, "write_file", &json!({ "path": "notes", "content": content }));
    }
    env.write("notes", "of the host");
    let listed = post(address, "tools/list", json!({}), "Authorization: Bearer canary-1\r\n").unwrap();
    let named = |tool: &str| tools(&listed).into_iter().find(|name| name.ends_with(tool)).unwrap().to_owned();
    for (client, token) in [("ada", "canary-1"), ("eve", "canary-2")] {
        for (tool, arguments) in [
            ("reader", json!({ "prompt": "Read." })),
            ("reading", json!({})),
            ("files__read_file", json!({ "path": "notes" })),
        ] {
            let text = call(address, token, &named(tool), &arguments);
            assert!(text.contains(&format!("of {client}")), "{client} {tool}: {text}");
        }
    }
    stop(running);
}

/// One process serves all clients, so it may not work where one of them does.
#[test]
fn a_server_of_all_clients_works_apart_from_their_directories() {
    let env = TestEnv::new();
    env.write("../home/tokens.txt", "canary-1\ncanary-2\n");
    std::fs::create_dir_all(env.path("../apart")).unwrap();
    env.write(
        "writes.toml",
        "kind = \"command\"\nv = 1\nprogram = \"true\"\n[grants]\nwritable = [\"clients/x\"]\n[[tool]]\nname = \"t\"\ndescription = \"T.\"\n",
    );
    env.run(["trust", "writes.toml"]).ok();
    for more in [
        &["builtin:read_file", "stdio:python3 nothing.py"][..],
        &["builtin:read_file", "stdio:python3 nothing.py", "--target-workdir", "clients"],
        &["builtin:read_file", "command:jq", "--readable", "clients/ada"],
        &["builtin:read_file", "command:jq", "--writable", "."],
        &["writes.toml"],
    ] {
        let fixed = ["serve", "--http", "127.0.0.1:0", "--token-file", "../home/tokens.txt"];
        let rejected = env.run(fixed.iter().chain(more)).exit(2);
        assert!(rejected.err.contains("can reach the directories of clients"), "{more:?}: {rejected}");
    }
}

#[test]
fn a_link_in_place_of_the_directories_of_clients_is_rejected() {
    let env = TestEnv::new();
    env.write("../home/tokens.txt", "canary-1\ncanary-2\n");
    let words = ["serve", "builtin", "--http", "127.0.0.1:0", "--token-file", "../home/tokens.txt"];
    std::fs::create_dir_all(env.path("../apart")).unwrap();
    std::fs::create_dir_all(env.path("../home/.local/state/toolpost")).unwrap();
    for (target, exit) in [("../apart", 1), ("../missing", 1), ("../home/.local/state", 2)] {
        std::os::unix::fs::symlink(target, env.path("clients")).unwrap();
        let rejected = env.run(words).exit(exit);
        assert!(rejected.err.contains("clients"), "{target}: {rejected}");
        std::fs::remove_file(env.path("clients")).unwrap();
        assert_eq!(std::fs::read_dir(env.path("../apart")).unwrap().count(), 0);
    }
}

#[test]
fn a_token_file_has_a_token_or_a_name_and_a_token_on_each_line() {
    let env = TestEnv::new();
    for (tokens, part) in [
        ("a b canary", "line 1 of the file"),
        ("ok canary\n\n a b c canary\n", "line 3 of the file"),
        ("Ada canary", "the name of a client is invalid: `Ada`"),
        ("../x canary", "the name of a client is invalid"),
        ("token-1 canary", "the name of a client is invalid: `token-1`"),
        ("oauth:ada canary", "the name of a client is invalid"),
        ("\n \n", "has no token"),
    ] {
        env.write("../home/tokens.txt", tokens);
        let words = ["serve", "builtin:calculate", "--http", "127.0.0.1:0", "--token-file"];
        let rejected = env.run([&words[..], &["../home/tokens.txt"]].concat()).exit(2);
        assert!(rejected.err.contains(part) && !rejected.err.contains("canary"), "{tokens}: {rejected}");
    }
    // Names are those of rules and records.
    let rules = ["builtin:calculate", "builtin:hash_text", "--deny-for", "laptop=hash_*"];
    let (running, address) = serve(&env, "laptop canary-1\nlaptop canary-2\ncanary-3\n", &rules);
    for (token, count) in [("canary-1", 1), ("canary-2", 1), ("canary-3", 2)] {
        let header = format!("Authorization: Bearer {token}\r\n");
        let listed = post(address, "tools/list", json!({}), &header).unwrap();
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), count, "{token}: {listed}");
    }
    stop(running);
}

//! `npx` and `uvx`: packages are installed in a separate run, and the server starts without a registry.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::packages;
use crate::support::TestEnv;

/// A Node.js server that reports what it sees; its scripts leave a file.
const NODE: &str = r#"#!/usr/bin/env node
const fs = require("fs"), path = require("path");
const ran = fs.existsSync(path.join(__dirname, "ran"));
let writes = true;
try { fs.writeFileSync(path.join(__dirname, "own"), ""); } catch { writes = false; }
const registry = Object.keys(process.env).some((name) => name.toLowerCase().includes("proxy"));
const seen = JSON.stringify({ ran, writes, registry, args: process.argv.slice(2), here: fs.existsSync("here.txt") });
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.id === undefined) return;
  const answers = {
    initialize: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "n", version: "1" } },
    "tools/list": { tools: [{ name: "look", description: seen, inputSchema: { type: "object" } }] },
  };
  const result = answers[message.method];
  const answer = result ? { result } : { error: { code: -32601, message: "no" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id: message.id, ...answer }));
});
"#;

/// A variant in Python.
const PYTHON: &str = r#"
import json, os, sys
def main():
    registry = any("proxy" in name.lower() for name in os.environ)
    try:
        open(os.path.join(os.path.dirname(__file__), "own"), "w")
        writes = True
    except OSError:
        writes = False
    seen = json.dumps({"writes": writes, "registry": registry, "args": sys.argv[1:], "here": os.path.exists("here.txt")})
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answers = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}},
            "tools/list": {"tools": [{"name": "look", "description": seen, "inputSchema": {"type": "object"}}]},
        }
        result = answers.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"#;

/// Writes the registry's files: the Node.js package as `package.tgz`.
const PACK: &str = r#"
import io, json, tarfile
manifest = {"name": "@toolpost-test/server", "version": "1.2.3", "bin": {"other-name": "server.js"},
    "scripts": {"postinstall": "node -e \"require('fs').writeFileSync('ran', '')\""}}
with tarfile.open("package.tgz", "w:gz") as archive:
    for name, text in {"package.json": json.dumps(manifest), "server.js": open("server.js").read()}.items():
        entry = tarfile.TarInfo("package/" + name)
        entry.size, entry.mode = len(text), 0o755
        archive.addfile(entry, io.BytesIO(text.encode()))
"#;

/// A local npm registry with one package, which it sends after a delay; returns its address and the requested paths.
fn registry(package: PathBuf, delay: Duration) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (own, paths) = (address.clone(), Arc::clone(&asked));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
            let version = json!({
                "name": "@toolpost-test/server", "version": "1.2.3", "bin": { "other-name": "server.js" },
                "hasInstallScript": true, "scripts": { "postinstall": "node -e \"require('fs').writeFileSync('ran', '')\"" },
                "dist": { "tarball": format!("{own}/package.tgz") },
            });
            let metadata = json!({
                "name": "@toolpost-test/server", "dist-tags": { "latest": "1.2.3" }, "versions": { "1.2.3": version },
            });
            let (status, body) = match path.as_str() {
                "/package.tgz" => (200, std::fs::read(&package).unwrap()),
                path if path.to_lowercase().starts_with("/@toolpost-test%2fserver") => {
                    (200, metadata.to_string().into_bytes())
                }
                _ => (404, b"{}".to_vec()),
            };
            let delay = if path == "/package.tgz" { delay } else { Duration::ZERO };
            paths.lock().unwrap().push(path);
            let head =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            });
        }
    });
    (address, asked)
}

/// A world with a registry; skipped without an installer.
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
pub(crate) fn with_registry(test: &str, delay: Duration) -> Option<(TestEnv, Arc<Mutex<Vec<String>>>)> {
    let env = TestEnv::new();
    let probe = env.run(["exec", "--level", "strict", "--", "npm", "--version"]);
    if !probe.status.success() {
        println!("SKIP {test}: no level strict, or no npm");
        return None;
    }
    env.write("server.js", NODE);
    env.run_with(PACK, ["exec", "--workdir", ".", "--lang", "python", "-"]).ok();
    let (address, asked) = registry(env.path("package.tgz"), delay);
    env.write("here.txt", "");
    Some((env.with("npm_config_registry", address), asked))
}

const NPX: &str = "stdio:npx -y @toolpost-test/server@1 --flag";

#[test]
fn npx_installs_without_scripts_and_starts_without_a_registry() {
    let Some((env, asked)) =
        with_registry("npx_installs_without_scripts_and_starts_without_a_registry", Duration::ZERO)
    else {
        return;
    };
    let seen = r#"{"ran":false,"writes":false,"registry":false,"args":["--flag"],"here":true}"#;
    let listed = env.run(["tools", NPX]).ok();
    assert!(listed.out.contains(seen), "{listed}");
    assert!(!asked.lock().unwrap().is_empty());
    asked.lock().unwrap().clear();
    // The package is installed.
    assert!(env.run(["call", NPX, "look"]).err.contains("look"));
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new());
    let missing = env.run(["tools", "stdio:npx -y toolpost-no-such-package"]).exit(1);
    assert!(missing.err.contains("toolpost-no-such-package"), "{missing}");
    assert!(missing.err.contains("--install-scripts"), "{missing}");
    let entry = json!({ "command": "npx", "args": ["-y", "@toolpost-test/server@1"] });
    env.write(".mcp.json", json!({ "mcpServers": { "packed": entry } }).to_string());
    let trusted = env.run(["trust", ".mcp.json"]).ok();
    assert!(trusted.err.contains("packed: installs @toolpost-test/server@1 without scripts"), "{trusted}");
    let listed = env.run(["tools", "packed"]).ok();
    assert!(listed.out.contains(r#""args":[],"here":true"#), "{listed}");
}

#[test]
pub(crate) fn install_scripts() {
    let Some((env, _)) = with_registry("install_scripts", Duration::ZERO) else { return };
    env.write("say.yaml", "turns:\n  - calls: [{ tool: look, args: {} }]\n  - text: done\n");
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {} } } });
    let requirement = |words: &[&str], is_granted: bool| {
        let option = is_granted.then_some("--install-scripts");
        let finished = env.run_with(format!("{list}\n"), words.iter().copied().chain(option));
        format!("{finished}")
    };
    for words in [&["tools", NPX][..], &["serve", NPX]] {
        for is_granted in [false, true] {
            let shown = requirement(words, is_granted).replace('\\', "");
            assert!(shown.contains(&format!("\"ran\":{is_granted}")), "{words:?} {shown}");
        }
    }
    // These show no description: each has its own package to install.
    let packages = || std::fs::read_dir(env.path("../home/.cache/toolpost/packages")).unwrap().count();
    let run = ["run", "-p", "x", "--model", "script:say.yaml", "--no-save", "--tools"];
    for (words, package) in [(&["call"][..], "a"), (&run[..], "b")] {
        let target =
            format!("stdio:npx -p @toolpost-test/server@1 -p @toolpost-test/server@1.2 other-name {package}");
        let words: Vec<&str> = words.iter().copied().chain([target.as_str()]).collect();
        requirement(&words, false);
        let before = packages();
        requirement(&words, true);
        let first = package == "a";
        assert_eq!(packages() > before, first, "{words:?}: scripts are part of what is installed");
    }
}

#[test]
fn uvx_starts_the_entry_point_of_what_it_installs() {
    let Some(env) = packages::with_wheels("uvx_starts_the_entry_point_of_what_it_installs") else { return };
    let script = format!(
        r#"
import zipfile
tag = "toolpost_server-1.0"
with zipfile.ZipFile(f"links/{{tag}}-py3-none-any.whl", "w") as archive:
    archive.writestr("toolpost_server.py", {PYTHON:?})
    archive.writestr(f"{{tag}}.dist-info/METADATA", "Metadata-Version: 2.1\nName: toolpost-server\nVersion: 1.0\nRequires-Dist: hello-toolpost\n")
    archive.writestr(f"{{tag}}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    archive.writestr(f"{{tag}}.dist-info/entry_points.txt", "[console_scripts]\ntoolpost-server = toolpost_server:main\n")
    archive.writestr(f"{{tag}}.dist-info/RECORD", "")
"#
    );
    env.run_with(script, ["exec", "--workdir", ".", "--lang", "python", "-"]).ok();
    env.write("here.txt", "");
    for target in [
        "stdio:uvx toolpost-server --flag",
        "stdio:uv tool run --from toolpost-server==1.0 toolpost-server --flag",
    ] {
        let listed = env.run(["tools", target]).ok();
        let seen = r#"{"writes": false, "registry": false, "args": ["--flag"], "here": true}"#;
        assert!(listed.out.contains(seen), "{listed}");
    }
    let wrong = env.run(["tools", "stdio:uvx --from toolpost-server other"]).exit(1);
    assert!(wrong.err.contains("it has toolpost-server"), "{wrong}");
}

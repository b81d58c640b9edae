//! What serving costs over HTTP: one client, 32 clients, start to ready, idle memory, and 10,000 sessions that nobody ends,
//! beside a bare server of the library below with the same settings.
//!
//! Prints one object for `cargo xtask bench`. Each server is a process of its own; the client is this one.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for the bench, which starts itself as a server"
)]

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
use toolpost_mcp::server::Server;
use toolpost_toolbox::Toolbox;

const SAMPLES: usize = 2_000;
const CLIENTS: usize = 32;
const LOAD: Duration = Duration::from_secs(3);
const STARTS: usize = 20;
const SESSIONS: usize = 10_000;

/// Our server with one tool, until it is killed.
async fn ours() {
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
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    println!("{}", running.address());
    std::future::pending::<()>().await;
}

/// The same tool on the library alone, with the settings that make it fast.
mod bare {
    use hyper_util::rt::TokioIo;
    use rmcp::model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig, Tool,
    };
    use rmcp::service::RequestContext;
    use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
    use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
    use rmcp::{ErrorData, RoleServer, ServerHandler};
    use serde_json::{Value, json};

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

    pub(super) async fn serve() {
        let mut config = StreamableHttpServerConfig::default();
        config.json_response = true;
        let service = StreamableHttpService::new(
            || Ok(Add),
            std::sync::Arc::new(LocalSessionManager::default()),
            config,
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
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
}

/// A server in a process of its own.
struct Started {
    child: Child,
    address: SocketAddr,
    ready: Duration,
}

impl Started {
    fn new(which: &str) -> Self {
        let begun = Instant::now();
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program).arg(which).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = begun.elapsed();
        Self { child, address: line.trim().parse().unwrap(), ready }
    }

    /// Its resident memory, in MiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
    }

    /// The processor time that it has used, in µs.
    fn processor(&self) -> f64 {
        let schedule =
            std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).unwrap_or_default();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let tasks: f64 = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
            .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
            .sum();
        tasks.max(schedule.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)) / 1e3
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that keeps its connection.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr, headers: &str, body: &Value) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let body = body.to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { stream, request: request.into_bytes(), answer: Vec::new() }
    }

    fn calling(address: SocketAddr) -> Self {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": "add", "arguments": { "a": 20, "b": 22 }, "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: add\r\n";
        Self::new(address, headers, &body)
    }

    /// One request and its whole answer, which has a length.
    fn call(&mut self) -> &[u8] {
        self.stream.write_all(&self.request).unwrap();
        self.answer.clear();
        let mut piece = [0; 16 * 1024];
        loop {
            let read = self.stream.read(&mut piece).unwrap();
            assert_ne!(read, 0, "the server went away");
            self.answer.extend_from_slice(piece.get(..read).unwrap());
            if let Some(whole) = whole(&self.answer) {
                assert!(self.answer.len() >= whole);
                return &self.answer;
            }
        }
    }
}

/// The length of an answer, once all of it is there.
fn whole(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(answer.get(..head)?).ok()?.to_ascii_lowercase();
    let length: usize = match text.split_once("content-length: ") {
        Some((_, rest)) => rest.split_once("\r\n")?.0.parse().ok()?,
        // Chunks, whose last one is empty.
        None => return answer.ends_with(b"0\r\n\r\n").then_some(answer.len()),
    };
    (answer.len() >= head + length).then_some(head + length)
}

fn percentile(mut samples: Vec<f64>, share: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() * share / 100).copied().unwrap()
}

/// The median at one client in ms, calls per second at 32, and processor time per call in µs.
fn load(server: &Started) -> (f64, f64, f64) {
    let mut client = Client::calling(server.address);
    let warm = client.call();
    assert!(String::from_utf8_lossy(warm).contains("\"sum\":42"), "{}", String::from_utf8_lossy(warm));
    let samples = (0..SAMPLES).map(|_| {
        let begun = Instant::now();
        client.call();
        begun.elapsed().as_secs_f64() * 1e3
    });
    let median = percentile(samples.collect(), 50);
    let (before, begun) = (server.processor(), Instant::now());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::calling(server.address);
            std::thread::spawn(move || {
                let mut calls = 0_u64;
                while begun.elapsed() < LOAD {
                    client.call();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let calls: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    let rate = calls as f64 / begun.elapsed().as_secs_f64();
    (median, rate, (server.processor() - before) / calls as f64)
}

fn main() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match std::env::args().nth(1).as_deref() {
        Some("ours") => return runtime().block_on(ours()),
        Some("bare") => return runtime().block_on(bare::serve()),
        _ => {}
    }
    let starts: Vec<f64> = (0..STARTS).map(|_| Started::new("ours").ready.as_secs_f64() * 1e3).collect();
    let server = Started::new("ours");
    std::thread::sleep(Duration::from_millis(200));
    let idle = server.memory();
    let (median, rate, processor) = load(&server);
    let (bare_median, bare_rate, bare_processor) = load(&Started::new("bare"));
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } } });
    let flooded = Started::new("ours");
    let mut client = Client::new(flooded.address, "MCP-Protocol-Version: 2025-11-25\r\n", &initialize);
    for _ in 0..SESSIONS {
        client.call();
    }
    let flood = flooded.memory();
    let rows = json!({"rows": [
        {"name": "MCP over HTTP, one client, p50", "value": median, "unit": "ms", "promise": "≤ 0.2 ms", "promise_max": 0.2},
        {"name": "the same on the bare library", "value": bare_median, "unit": "ms"},
        {"name": "MCP over HTTP, 32 clients", "value": rate, "unit": "calls/s"},
        {"name": "the same on the bare library, 32 clients", "value": bare_rate, "unit": "calls/s"},
        {"name": "processor time per call", "value": processor, "unit": "µs"},
        {"name": "processor time per call, beside the bare library", "value": processor / bare_processor, "unit": "×", "promise": "≤ 1.3 ×", "promise_max": 1.3},
        {"name": "MCP server, start to ready, process included", "value": percentile(starts, 10), "unit": "ms", "promise": "≤ 20 ms", "promise_max": 20.0},
        {"name": "MCP server, idle memory", "value": idle, "unit": "MiB", "promise": "≤ 15 MiB", "promise_max": 15.0},
        {"name": "MCP server, memory after 10,000 sessions that nobody ended", "value": flood, "unit": "MiB", "promise": "≤ 128 MiB", "promise_max": 128.0},
    ]});
    println!("{rows}");
}

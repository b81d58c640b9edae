//! A tool program for clients of the Model Context Protocol: `--mcp` and `--mcp-http`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use toolpost_core::ToolError;
use toolpost_exec::server::Program;
use toolpost_mcp::server::Server;
use toolpost_toolbox::Toolbox;

const HTTP: &str = "--mcp-http";

/// Whether the words ask for it.
pub(super) fn is_asked(words: &[OsString]) -> bool {
    words.first().is_some_and(|word| {
        let word = word.to_string_lossy();
        word == "--mcp" || word == HTTP || word.starts_with("--mcp-http=")
    })
}

/// Serves until the client is gone, or until the program is asked to end.
pub(super) async fn serve(
    toolbox: Arc<Toolbox>,
    program: &Program,
    words: &[OsString],
    input: Option<io::Result<File>>,
    output: io::Result<File>,
) -> Result<u8, ToolError> {
    let server = Server::builder(toolbox).name(&program.name).version(&program.version).build()?;
    let Some(address) = address(words)? else {
        match (input, output) {
            (Some(Ok(input)), Ok(output)) => server.serve_files(input, output).await?,
            _ => server.stdio().await?,
        }
        return Ok(0);
    };
    let running = server.http(address).await?;
    let line = format!("{}\n", running.connection_url());
    match output {
        Ok(mut output) => output.write_all(line.as_bytes())?,
        Err(_) => io::stdout().write_all(line.as_bytes())?,
    }
    asked_to_end().await;
    running.stop().await;
    Ok(0)
}

/// Where to listen; `None` for standard streams.
fn address(words: &[OsString]) -> Result<Option<SocketAddr>, ToolError> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let given = match words.iter().map(|word| &**word).collect::<Vec<_>>().as_slice() {
        ["--mcp"] => return Ok(None),
        [HTTP, address] => (*address).to_owned(),
        [word] => word.strip_prefix("--mcp-http=").unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    given.parse().map(Some).map_err(|_| {
        ToolError::invalid_input(format!(
            "expected `--mcp`, or `--mcp-http ADDRESS:PORT` such as `--mcp-http 127.0.0.1:8080`, found `{}`",
            words.join(" ").chars().take(200).collect::<String>()
        ))
    })
}

/// Waits for Ctrl-C, or for what ends a service.
async fn asked_to_end() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

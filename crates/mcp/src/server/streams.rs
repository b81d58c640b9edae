//! Connections that are one conversation: stdio and stream pairs.

use std::fs::File;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use toolpost_core::{CallError, ToolError};

use super::handler::{Handler, Shared};
use super::wire::Lines;
use super::{Principal, Server};

impl Server {
    /// Serves the parent process over stdio until stdin closes. Running calls then have 5 s to answer.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client violates the protocol during initialization.
    pub async fn stdio(&self) -> Result<(), CallError> {
        #[cfg(unix)]
        {
            use std::os::fd::AsFd as _;
            let streams = (
                std::io::stdin().as_fd().try_clone_to_owned(),
                std::io::stdout().as_fd().try_clone_to_owned(),
            );
            if let (Ok(input), Ok(output)) = streams {
                return self.serve_files(input.into(), output.into()).await;
            }
        }
        Ok(self.serve_streams(tokio::io::stdin(), tokio::io::stdout()).await?)
    }

    /// Serves one client over two open files, such as duplicated standard streams. Linux pipes need no
    /// thread.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client violates the protocol during initialization.
    pub async fn serve_files(&self, input: File, output: File) -> Result<(), CallError> {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd as _;
            // Reopened pipes have their own non-blocking flag, so other users of the pipe stay blocking.
            let path = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
            let options = tokio::net::unix::pipe::OpenOptions::new();
            let pipes = (options.open_receiver(path(&input)), options.open_sender(path(&output)));
            if let (Ok(receiver), Ok(sender)) = pipes {
                // The originals would keep the pipes open.
                drop((input, output));
                return Ok(self.serve_streams(receiver, sender).await?);
            }
        }
        Ok(self.serve_streams(tokio::fs::File::from_std(input), tokio::fs::File::from_std(output)).await?)
    }

    /// Serves one client over a pair of streams, one message per line, until the input ends.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client violates the protocol during initialization.
    pub async fn serve_streams(
        &self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), ToolError> {
        self.0.prepare().await?;
        let lines = Lines::new(input, output, &self.0.limits);
        serve(&self.0, Principal(None), lines, CancellationToken::new()).await
    }
}

/// Serves one conversation until it ends.
pub(super) async fn serve<T>(
    shared: &Arc<Shared>,
    principal: Principal,
    transport: T,
    stop: CancellationToken,
) -> Result<(), ToolError>
where
    T: Transport<RoleServer> + 'static,
{
    let handler = Handler::of_connection(Arc::clone(shared), principal);
    // rmcp cancels this token when the connection ends, so the shared token gets a child.
    let running = match serve_server_with_ct(handler, transport, stop.child_token()).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => {
            return Err(ToolError::dependency(format!("initializing the client failed: {error}")));
        }
    };
    match running.waiting().await {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::internal("the connection task panicked").caused_by(error)),
    }
}

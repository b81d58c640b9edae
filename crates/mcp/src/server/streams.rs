//! Connections that are one conversation: stdio, stream pairs, Unix sockets.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use toolpost_core::ToolError;

use super::handler::{Handler, Shared};
use super::wire::Lines;
use super::{Principal, Server};

impl Server {
    /// Serves the parent process over stdio until stdin closes. Running calls then have 5 s to answer.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client violates the protocol during initialization.
    pub async fn stdio(&self) -> Result<(), ToolError> {
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
        self.serve_streams(tokio::io::stdin(), tokio::io::stdout()).await
    }

    /// Serves one client over two open files, such as duplicated standard streams. Linux pipes need no
    /// thread.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client violates the protocol during initialization.
    pub async fn serve_files(&self, input: File, output: File) -> Result<(), ToolError> {
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
                return self.serve_streams(receiver, sender).await;
            }
        }
        self.serve_streams(tokio::fs::File::from_std(input), tokio::fs::File::from_std(output)).await
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

    /// Serves clients of this user over a Unix socket, one message per line, until the returned value is
    /// stopped or dropped. A stale socket file is replaced.
    ///
    /// # Errors
    /// `DEPENDENCY` if the server cannot listen on the path.
    #[cfg(unix)]
    pub async fn unix(&self, path: impl AsRef<Path>) -> Result<RunningUnixServer, ToolError> {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let path = path.as_ref();
        let failed = |error: std::io::Error| {
            ToolError::dependency(format!("cannot listen on the socket `{}`: {error}", path.display()))
        };
        let is_stale = std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if is_stale {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let owner = std::fs::metadata(path).map_err(failed)?.uid();
        self.0.prepare().await?;
        let stop = CancellationToken::new();
        let (shared, stopping) = (Arc::clone(&self.0), stop.clone());
        let task = tokio::spawn(async move {
            let permits = Arc::new(tokio::sync::Semaphore::new(shared.limits.connections));
            let connections = tokio_util::task::TaskTracker::new();
            loop {
                let accepted = async {
                    let permit = Arc::clone(&permits).acquire_owned().await;
                    (permit, listener.accept().await)
                };
                let (permit, accepted) = tokio::select! {
                    () = stopping.cancelled() => break,
                    accepted = accepted => accepted,
                };
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                };
                // The file mode also ensures this, but only after `set_permissions`.
                if !stream.peer_cred().is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0) {
                    continue;
                }
                let (shared, stopping) = (Arc::clone(&shared), stopping.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    let (input, output) = stream.into_split();
                    let lines = Lines::new(input, output, &shared.limits);
                    if let Err(error) = serve(&shared, Principal(None), lines, stopping).await {
                        tracing::debug!("Unix socket client: {error}");
                    }
                });
            }
            connections.close();
            connections.wait().await;
        });
        Ok(RunningUnixServer { path: path.to_owned(), stop, task: Some(task) })
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

/// A server on a Unix socket. Dropping it stops the server.
#[cfg(unix)]
#[derive(Debug)]
pub struct RunningUnixServer {
    path: PathBuf,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

#[cfg(unix)]
impl RunningUnixServer {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops listening and waits up to 2 s for running calls.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

#[cfg(unix)]
impl Drop for RunningUnixServer {
    fn drop(&mut self) {
        self.stop.cancel();
        // The file may be gone or belong to another server.
        let _ = std::fs::remove_file(&self.path);
    }
}

//! Connections that are one conversation: standard streams, any pair of streams, unix sockets.

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
    /// Serves the process that started this one, over standard input and output, until the input ends. Calls that run
    /// then have 5 s to answer.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client breaks the protocol before it has begun.
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

    /// Serves one client over two files that were opened already, such as the standard streams that a program has kept
    /// for the protocol. Pipes of Linux are read and written without a thread.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client breaks the protocol before it has begun.
    pub async fn serve_files(&self, input: File, output: File) -> Result<(), ToolError> {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd as _;
            // Opened again, they have a mode of their own: who shares the pipe keeps waiting reads and writes.
            let place = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
            let options = tokio::net::unix::pipe::OpenOptions::new();
            let pipes = (options.open_receiver(place(&input)), options.open_sender(place(&output)));
            if let (Ok(receiver), Ok(sender)) = pipes {
                // The ones that came in would keep the pipes open after these are closed.
                drop((input, output));
                return self.serve_streams(receiver, sender).await;
            }
        }
        self.serve_streams(tokio::fs::File::from_std(input), tokio::fs::File::from_std(output)).await
    }

    /// Serves one client over a pair of streams, a message a line, until the input ends.
    ///
    /// # Errors
    /// `DEPENDENCY` if the client breaks the protocol before it has begun.
    pub async fn serve_streams(
        &self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), ToolError> {
        self.0.prepare().await?;
        let lines = Lines::new(input, output, &self.0.limits);
        serve(&self.0, Principal(None), lines, CancellationToken::new()).await
    }

    /// Serves clients of this user over a unix socket, a message a line each way, until the value is stopped or dropped.
    /// A socket at the path that nobody listens on any more gives way.
    ///
    /// # Errors
    /// `DEPENDENCY` if the path cannot be listened on.
    #[cfg(unix)]
    pub async fn unix(&self, path: impl AsRef<Path>) -> Result<UnixRunning, ToolError> {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let path = path.as_ref();
        let failed = |error: std::io::Error| {
            ToolError::dependency(format!("cannot listen on the socket `{}`: {error}", path.display()))
        };
        let is_left_over = std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if is_left_over {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let owner = std::fs::metadata(path).map_err(failed)?.uid();
        self.0.prepare().await?;
        let stop = CancellationToken::new();
        let (shared, stopping) = (Arc::clone(&self.0), stop.clone());
        let task = tokio::spawn(async move {
            let places = Arc::new(tokio::sync::Semaphore::new(shared.limits.connections));
            let connections = tokio_util::task::TaskTracker::new();
            loop {
                let accepted = async {
                    let place = Arc::clone(&places).acquire_owned().await;
                    (place, listener.accept().await)
                };
                let (place, accepted) = tokio::select! {
                    () = stopping.cancelled() => break,
                    accepted = accepted => accepted,
                };
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                };
                // The file's mode says the same; between its making and its mode there is a moment.
                if !stream.peer_cred().is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0) {
                    continue;
                }
                let (shared, stopping) = (Arc::clone(&shared), stopping.clone());
                connections.spawn(async move {
                    let _place = place;
                    let (input, output) = stream.into_split();
                    let lines = Lines::new(input, output, &shared.limits);
                    if let Err(error) = serve(&shared, Principal(None), lines, stopping).await {
                        tracing::debug!("a client of the socket: {error}");
                    }
                });
            }
            connections.close();
            connections.wait().await;
        });
        Ok(UnixRunning { path: path.to_owned(), stop, task: Some(task) })
    }
}

/// Serves one conversation until its end.
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
    // The library cancels what it is given when the connection ends; what others share must not end with it.
    let running = match serve_server_with_ct(handler, transport, stop.child_token()).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => {
            return Err(ToolError::dependency(format!(
                "the client did not begin as the protocol says: {error}"
            )));
        }
    };
    match running.waiting().await {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::internal("the connection broke").caused_by(error)),
    }
}

/// A server on a unix socket. Dropping it ends it.
#[cfg(unix)]
#[derive(Debug)]
pub struct UnixRunning {
    path: PathBuf,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

#[cfg(unix)]
impl UnixRunning {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops listening, lets calls that run answer for 2 s, and ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

#[cfg(unix)]
impl Drop for UnixRunning {
    fn drop(&mut self) {
        self.stop.cancel();
        // It may be another's by now, or gone; either way it is not ours any more.
        let _ = std::fs::remove_file(&self.path);
    }
}

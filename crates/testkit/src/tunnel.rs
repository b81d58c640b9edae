//! A proxy on 127.0.0.1 that opens tunnels, all of them to one place.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A proxy that answers `CONNECT` with a tunnel to a server of the test, whatever host was asked for. It ends when it is
/// dropped.
#[derive(Debug)]
pub struct LoopbackTunnel {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoopbackTunnel {
    /// Starts a proxy whose tunnels end at a server.
    pub fn start(target: SocketAddr) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&asked);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("loopback-tunnel".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, target, noted) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, asked, stop: Some(stop), thread: Some(thread) })
    }

    /// The proxy's address, with a user and a password if there are any: `me:secret`.
    pub fn url(&self, user: Option<&str>) -> String {
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        format!("http://{user}{}", self.address)
    }

    /// The head of every request so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LoopbackTunnel {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the proxy has already been printed.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, target: SocketAddr, asked: Arc<Mutex<Vec<String>>>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        let asked = Arc::clone(&asked);
        // An error here is the client's going away.
        tokio::spawn(async move { serve(stream, target, &asked).await });
    }
}

async fn serve(stream: TcpStream, target: SocketAddr, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await? > 0 {}
    let is_tunnel = head.starts_with("CONNECT ");
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    if !is_tunnel {
        return stream.write_all(b"HTTP/1.1 405 Told\r\ncontent-length: 0\r\n\r\n").await;
    }
    let mut server = TcpStream::connect(target).await?;
    stream.write_all(b"HTTP/1.1 200 Told\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await.map(|_| ())
}

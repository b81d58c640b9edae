//! A stream with a timeout for writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails when the peer accepts no data for a time.
pub(super) struct WriteTimeout<Stream> {
    stream: Stream,
    limit: Duration,
    /// The timer of a pending write.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<Stream> WriteTimeout<Stream> {
    pub(super) fn new(stream: Stream, limit: Duration) -> Self {
        Self { stream, limit, timer: None }
    }

    fn check<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.timer = None;
            return done;
        }
        let limit = self.limit;
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "writing to the peer timed out")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for WriteTimeout<Stream> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.check(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check(context, done)
    }
}

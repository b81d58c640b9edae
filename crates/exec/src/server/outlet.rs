//! Non-blocking output: a bounded queue that a thread writes.

use std::io::Write;

use tokio::sync::{mpsc, oneshot};
use toolpost_core::Delivery;

/// Maximum number of queued lines.
const QUEUE: usize = 256;
/// Maximum size of a batched write, in bytes.
const BATCH: usize = 64 * 1024;

enum Item {
    Line(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

/// The queue of an output stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outlet(mpsc::Sender<Item>);

impl Outlet {
    pub(crate) fn new(stream: Box<dyn Write + Send>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // The thread ends with the last sender. If it cannot start, the stream counts as closed.
        let _ = std::thread::Builder::new().name("outlet".into()).spawn(move || drain(receiver, stream));
        Self(sender)
    }

    /// Queues a line, waiting for space. False if the stream is closed.
    pub(crate) async fn send(&self, line: Vec<u8>) -> bool {
        self.0.send(Item::Line(line)).await.is_ok()
    }

    /// Queues a line if there is space.
    pub(crate) fn offer(&self, line: Vec<u8>) -> Delivery {
        match self.0.try_send(Item::Line(line)) {
            Ok(()) => Delivery::Delivered,
            Err(_) => Delivery::Dropped,
        }
    }

    /// Waits until the stream is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Waits until all lines are written. False if a write failed.
    pub(crate) async fn flush(&self) -> bool {
        let (done, written) = oneshot::channel();
        self.0.send(Item::Flush(done)).await.is_ok() && written.await.is_ok()
    }
}

fn drain(mut receiver: mpsc::Receiver<Item>, mut stream: Box<dyn Write + Send>) {
    let mut batch = Vec::new();
    let mut flushed = Vec::new();
    while let Some(first) = receiver.blocking_recv() {
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Item::Line(line) => batch.extend_from_slice(&line),
                Item::Flush(done) => flushed.push(done),
            }
            next = if batch.len() < BATCH { receiver.try_recv().ok() } else { None };
        }
        if stream.write_all(&batch).and_then(|()| stream.flush()).is_err() {
            // The reader is gone; senders see a closed queue.
            return;
        }
        batch.clear();
        batch.shrink_to(BATCH);
        for done in flushed.drain(..) {
            let _ = done.send(());
        }
    }
}

//! Workflows on a cluster: runs, pools of workers and the state of tools on [Restate](https://restate.dev).
//!
//! A [`Worker`] is a server that Restate calls. It executes the steps of its pools with a toolbox; a worker of the pool
//! `default` also executes runs. A [`Cluster`] is a client: it starts runs, waits for them, signals and cancels them.
//!
//! A run is a Restate workflow. Its handler drives the machine of [`toolpost_flow::driver`], as the driver of one machine
//! does: each call of a step is a durable call of the service of its pool, each wait a durable timer, and what comes from
//! outside a signal of the invocation. Restate's journal of these is the only source of truth; the events in the state of
//! the workflow are for those who read the run.
//!
//! Read `workflow` first, then `pool`.
//!
//! # Invariants
//!
//! - The handler of a run is deterministic: time and everything else from outside comes from the journal.
//! - An ended step is never run again. A step in flight may be, with the same idempotency key.
//! - The error of a tool is data. Restate retries a call only if a worker or a server fails.
//! - At most 64 calls of a run are in flight, unless its start says otherwise.
//! - Secrets of a worker's environment are masked in what leaves it; see [`Worker::masks`].
//! - The crate starts no server and no process.
#![forbid(unsafe_code)]

mod client;
mod drive;
mod object;
mod pool;
mod store;
mod wire;
mod worker;
mod workflow;

pub use self::client::{Cluster, ClusterOutcome, StartOptions, is_loopback};
pub use self::store::ClusterStore;
pub use self::worker::{DEFAULT_POOL, Worker, WorkerError, register};

//! Three servers that store everything twice, and three workers: one of each is killed in the middle of a load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpStream};
use toolpost_core::RunId;
use toolpost_flow::RunStatus;
use toolpost_flow_restate::{Cluster, StartOptions, Worker, register};
use toolpost_toolbox::Toolbox;

use crate::one_node::chain;
use crate::server::{self, Servers, free_ports};
use crate::worker::{Ledger, Process};

/// The runs of a load, each a chain of steps.
const RUNS: usize = 12;
const STEPS: usize = 20;
const STEP_MS: u64 = 100;
/// The possible cost of the two crashes.
const FAILOVER: Duration = Duration::from_secs(10);

/// The load balancer in front of the workers: a connection goes to the next one that accepts it.
async fn balance(workers: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (workers, next) = (workers.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                for _ in 0..workers.len() {
                    let worker = workers[next.fetch_add(1, Ordering::SeqCst) % workers.len()];
                    if let Ok(mut server) = TcpStream::connect(worker).await {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Starts the runs of a load.
async fn load(cluster: &Cluster) -> Vec<RunId> {
    let plan = chain(STEPS, STEP_MS);
    let starts = (0..RUNS).map(|_| cluster.start(&plan, Value::Null, StartOptions::default()));
    futures_util::future::join_all(starts).await.into_iter().map(Result::unwrap).collect()
}

async fn end(cluster: &Cluster, runs: &[RunId]) {
    for outcome in futures_util::future::join_all(runs.iter().map(|run| cluster.outcome(*run))).await {
        let outcome = outcome.unwrap();
        assert_eq!((outcome.status, outcome.succeeded), (RunStatus::Succeeded, STEPS as u64), "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_and_a_killed_worker_cost_at_most_ten_seconds() {
    let test = "a_killed_server_and_a_killed_worker_cost_at_most_ten_seconds";
    // Its result is a time, which two busy cores do not give twice.
    #[expect(clippy::disallowed_methods, reason = "who has the machine for it asks for this test")]
    if std::env::var_os("TOOLPOST_TEST_CLUSTER").is_none() {
        println!("SKIP {test}: it needs a machine of its own; set TOOLPOST_TEST_CLUSTER=1 to run it");
        return;
    }
    let Some(binary) = server::binary(test) else { return };
    let mut servers = Servers::start(&binary, 3, 2).await;
    let file = NamedTempFile::new().unwrap();
    let ledger = Ledger::new(file.path());
    let addresses: Vec<SocketAddr> =
        free_ports(3).into_iter().map(|port| ([127, 0, 0, 1], port).into()).collect();
    let mut workers: Vec<Process> =
        addresses.iter().map(|address| Process::start(*address, file.path())).collect();
    let url = format!("http://{}", balance(addresses).await);
    let services = Worker::new(Toolbox::builder().build().unwrap()).services();
    register(&servers.nodes[1].admin, &url, &services).await.unwrap();
    let cluster = Cluster::new(&servers.nodes[1].ingress).unwrap();

    // A node learns of the services a moment after they are registered.
    let begun = Instant::now();
    let runs = loop {
        match cluster.start(&chain(1, 0), Value::Null, StartOptions::default()).await {
            Ok(_) => break load(&cluster).await,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let begun = Instant::now();
    end(&cluster, &runs).await;
    let undisturbed = begun.elapsed();

    // The servers may move partitions by themselves just after their start.
    let (ended, before) = (ledger.ends(), ledger.repeats().len());
    let begun = Instant::now();
    let runs = load(&cluster).await;
    ledger.wait_for_ends(ended + RUNS * STEPS / 2).await;
    servers.nodes[0].kill();
    workers[0].kill();
    end(&cluster, &runs).await;
    let disturbed = begun.elapsed();
    for run in &runs {
        ledger.check_run(&cluster.show(*run).await.unwrap());
    }
    let repeats = ledger.repeats().len() - before;
    // Each run has one step in flight at each crash.
    assert!(repeats <= 2 * RUNS, "{repeats}");
    println!(
        "undisturbed {:.2} s, with two crashes {:.2} s, {} of {} steps repeated",
        undisturbed.as_secs_f64(),
        disturbed.as_secs_f64(),
        repeats,
        RUNS * STEPS
    );
    assert!(disturbed < undisturbed + FAILOVER, "{disturbed:?} after {undisturbed:?}");
}

//! `toolpost flow worker`, and `flow` with `--cluster`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;
use toolpost_core::{DocStore, Event, Masks, RunId, Scope, ToolSpec};
use toolpost_flow::{Durability, Plan, RunStatus};
use toolpost_flow_restate::{Cluster, ClusterStore, StartOptions, Worker, is_loopback, register};

use super::{
    EndedRun, answer, finish, print_progress, show, signal_failure, signal_value, valid, working_directory,
};
use crate::args::{FlowCommand, FlowDriveArgs, FlowRunArgs, FlowTools, FlowWorkerArgs};
use crate::arguments::arguments;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{GOOD, HINT, paint};
use crate::target::{self, OpenOptions};
use crate::{env, grants, interrupt, logs};

/// Does a command for a cluster; `None` for a command without one.
pub(super) async fn obey(
    command: &FlowCommand,
    config: &Config,
    printer: &Printer,
) -> Option<Result<Exit, Failure>> {
    let url = match command {
        FlowCommand::Run(args) => &args.cluster,
        FlowCommand::Resume(args) => &args.cluster,
        FlowCommand::Ls(args) => &args.cluster,
        FlowCommand::Show { cluster, .. }
        | FlowCommand::Signal { cluster, .. }
        | FlowCommand::Approve { cluster, .. }
        | FlowCommand::Cancel { cluster, .. } => cluster,
        _ => return None,
    };
    let url = url.url.as_deref()?;
    Some(obey_at(url, command, config, printer).await)
}

async fn obey_at(
    url: &str,
    command: &FlowCommand,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let cluster = open(url, config)?;
    match command {
        FlowCommand::Run(args) => {
            check_options(&args.drive, &[("--durability", args.durability != Durability::Full)])?;
            start(url, &cluster, args, printer).await
        }
        FlowCommand::Resume(args) => {
            check_options(&args.drive, &[("--max-parallel", args.drive.max_parallel.is_some())])?;
            let run = cluster.show(cluster.find(&args.id).await?).await?;
            follow(url, &cluster, run.summary.id, &run.plan, printer).await
        }
        FlowCommand::Ls(args) => show::list(&cluster.list(show::filter(args), args.limit).await?, printer),
        FlowCommand::Show { id, .. } => {
            let run = cluster.show(cluster.find(id).await?).await?;
            if run.summary.status == RunStatus::Running {
                warn_of_pools(&cluster, &run.plan, printer).await?;
            }
            show::print(run, printer)
        }
        FlowCommand::Signal { id, name, value, .. } => {
            let value = signal_value(value.as_deref());
            cluster.signal(cluster.find(id).await?, name, value).await.map_err(signal_failure)?;
            sent(&format!("the signal `{name}`"), id, printer)
        }
        FlowCommand::Approve { id, step, deny, comment, .. } => {
            let answer = answer(*deny, comment.as_deref());
            let step = cluster.answer(cluster.find(id).await?, step.as_deref(), answer).await?;
            let what = if *deny { "denial" } else { "approval" };
            sent(&format!("the {what} of `{step}`"), id, printer)
        }
        FlowCommand::Cancel { id, reason, .. } => {
            cluster.cancel(cluster.find(id).await?, reason).await?;
            sent("the request to end", id, printer)
        }
        _ => Err(Failure::usage("this command has no `--cluster`")),
    }
}

/// A client, which honors the setting that allows no network.
fn open(url: &str, config: &Config) -> Result<Cluster, Failure> {
    check_network(url, config)?;
    Ok(Cluster::new(url)?)
}

fn check_network(url: &str, config: &Config) -> Result<(), Failure> {
    if config.settings.no_network && !is_loopback(url) {
        return Err(Failure::new(
            Exit::Failed,
            "PERMISSION",
            format!("`no_network` denies the cluster at `{url}`"),
        )
        .hint("Unset `no_network`, or use a cluster on this machine."));
    }
    Ok(())
}

fn sent(what: &str, id: &str, printer: &Printer) -> Result<Exit, Failure> {
    if printer.is_text() {
        printer.note(&format!("{} {what} is sent", paint(GOOD, "✓")));
    } else {
        printer.json(&serde_json::json!({ "id": id, "sent": true }))?;
    }
    Ok(Exit::Ok)
}

/// Rejects what a client cannot decide: the workers have the tools, and the cluster stores all runs.
fn check_options(drive: &FlowDriveArgs, more: &[(&str, bool)]) -> Result<(), Failure> {
    let FlowTools { tools, grants, permission } = &drive.tools;
    let given = [
        ("--workdir", drive.workdir != Path::new(".")),
        ("--tools", !tools.is_empty()),
        ("--approve", !permission.approve.is_empty()),
        ("--ask", permission.ask),
        ("--yes", permission.yes),
        ("--no-input", permission.no_input),
        ("--level", permission.level.is_some()),
        ("--live", permission.directory.live),
        ("--allow-protected", !permission.directory.allow_protected.is_empty()),
        ("a grant", !grants::of_args(grants)?.is_empty()),
    ];
    match more.iter().chain(&given).find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!("{option} has no effect on a cluster"))
            .hint("Give the options of tools to `toolpost flow worker`.")),
    }
}

/// Starts a run and follows it to its end. Ctrl-C cancels the run; a termination signal ends this command alone.
async fn start(url: &str, cluster: &Cluster, args: &FlowRunArgs, printer: &Printer) -> Result<Exit, Failure> {
    let plan = target::plan(&args.file)?;
    let spec = ToolSpec::new(plan.name(), plan.description()).input(plan.input().as_value().clone());
    let input = arguments(&args.input, plan.name(), Some(&spec))?;
    if args.dry_run {
        return valid(&plan, &input, printer);
    }
    let mut options = StartOptions::default();
    if let Some(calls) = args.drive.max_parallel {
        options.max_parallel = calls;
    }
    let id = cluster.start(&plan, input, options).await?;
    follow(url, cluster, id, &plan, printer).await
}

/// Warns of pools without a worker, whose steps wait.
async fn warn_of_pools(cluster: &Cluster, plan: &Plan, printer: &Printer) -> Result<(), Failure> {
    for pool in cluster.missing_pools(plan).await? {
        printer.warn(&format!(
            "the cluster has no worker of the pool `{pool}`, so its steps wait; start one: \
             `toolpost flow worker --pool {pool} --register ADMIN_URL`"
        ));
    }
    Ok(())
}

/// Follows a run to its end.
async fn follow(
    url: &str,
    cluster: &Cluster,
    id: RunId,
    plan: &Plan,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let begun = Instant::now();
    let option = format!(" --cluster {url}");
    let command = format!("toolpost flow show {id}{option}");
    printer.note(&format!("run {id}  {}", paint(HINT, &command)));
    warn_of_pools(cluster, plan, printer).await?;
    let interrupted = interrupt::watch_with(true, |_| {})?;
    let cancel = async {
        interrupted.cancelled().await;
        if let Err(error) = cluster.cancel(id, "the caller cancelled it").await {
            printer.warn(error.message());
        }
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = cluster.follow(id, |progress| print_progress(progress, id, &option, None, printer)) => outcome?,
        () = cancel => return Ok(Exit::Interrupted),
    };
    let hint = Some(format!("`{command}` shows the run."));
    let (status, output, error, truncated) =
        (outcome.status, outcome.output, outcome.error, outcome.truncated);
    let (succeeded, failed, duration) = (outcome.succeeded, outcome.failed, begun.elapsed());
    finish(EndedRun { id, status, output, error, truncated, succeeded, failed, duration, hint }, printer)
}

/// Serves until it is interrupted.
pub(super) async fn worker(
    args: &FlowWorkerArgs,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let workdir = working_directory(&args.workdir)?;
    let toolbox = toolbox(args, &workdir, config, printer).await?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let mut worker = Worker::new(toolbox)
        .caller(crate::toolbox::caller())
        .scope(Scope::new(owner).with_working_dir(&workdir))
        .masks(Masks::new(env::secrets()));
    for pool in &args.pool {
        worker = worker.pool(pool);
    }
    for key in &args.identity_key {
        worker = worker.identity_key(key);
    }
    let wrong = |message: String| Failure::new(Exit::Failed, "PRECONDITION", message);
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        let message = format!("cannot listen on `{}`: {error}", args.listen);
        Failure::new(Exit::Unreachable, "DEPENDENCY", message).hint("Use another port, or 0 for a free one.")
    })?;
    let address = listener.local_addr().map_err(|error| wrong(error.to_string()))?;
    let services = worker.services();
    let interrupted = interrupt::watch()?;
    let mut serving = std::pin::pin!(worker.serve(listener, interrupted.cancelled()));
    let registering = async {
        let Some(admin) = &args.register else { return Ok(()) };
        check_network(admin, config)?;
        let url = args.url.clone().unwrap_or_else(|| format!("http://{address}"));
        register(admin, &url, &services).await.map_err(|error| wrong(error.to_string()))?;
        printer.note(&format!("{} registered {url} at {admin}", paint(GOOD, "✓")));
        Ok::<(), Failure>(())
    };
    // Restate asks the worker for its services, so both continue at once.
    let registered = tokio::select! {
        served = &mut serving => return served.map(|()| Exit::Ok).map_err(|error| wrong(error.to_string())),
        registered = registering => registered,
    };
    registered?;
    printer.note(&format!("serving {} on {address}", services.join(", ")));
    serving.await.map(|()| Exit::Ok).map_err(|error| wrong(error.to_string()))
}

async fn toolbox(
    args: &FlowWorkerArgs,
    workdir: &Path,
    config: &Config,
    printer: &Printer,
) -> Result<toolpost_toolbox::Toolbox, Failure> {
    let targets =
        if args.tools.tools.is_empty() { vec!["builtin".to_owned()] } else { args.tools.tools.clone() };
    let options = OpenOptions::new(&args.tools.permission, &args.tools.grants)?;
    let mut opened = target::open(&targets, config, options).await?;
    opened.max_parallel = args.max_parallel;
    opened.warnings.iter().for_each(|warning| printer.warn(warning));
    let events = Arc::new(|event: &Event| logs::event(event));
    let documents = match &args.state.url {
        Some(url) => Some(Arc::new(ClusterStore::new(open(url, config)?)) as Arc<dyn DocStore>),
        None => None,
    };
    let root = toolpost_tools::FileRoot::new(workdir);
    crate::toolbox::build_in(opened, root, &args.tools.permission, config, None, events, documents).await
}

//! The subjects of Toolpost that run in a process of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_agent::{Agent, RunStopReason};
use toolpost_core::{Output, ParameterType, Secret, Tool, ToolSpec, tool_fn};
use toolpost_flow::{Durability, Flows, Plan, RunStatus};
use toolpost_llm::{HostedModel, HttpClient, HttpOptions, Provider, ProviderAccess};
use toolpost_mcp::server::Server;
use toolpost_toolbox::Toolbox;

use super::provider::CALLS;
use crate::args::BenchSubjectArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::runtime;

/// Agents that run at once.
pub(super) const AGENTS: usize = 20;
/// The minimum time of one round of agents.
pub(super) const LOOP_TIME: Duration = Duration::from_millis(500);
/// The steps of the flow without dependencies.
pub(super) const WIDE: usize = 1_000;
/// The steps of the flow in which each step needs the one before.
pub(super) const CHAIN: usize = 100;
/// The minimum time of one round of a flow.
pub(super) const FLOW_TIME: Duration = Duration::from_millis(300);

/// The line before the measurement of agents.
pub(super) const READY: &str = "ready";

pub(crate) fn run(args: &BenchSubjectArgs, printer: &Printer) -> Result<Exit, Failure> {
    let runtime = runtime::start()?;
    let place = args.place.as_deref().unwrap_or_default();
    let result = match args.name.as_str() {
        "loop" => runtime.block_on(agents(place, printer))?,
        "server" => return runtime.block_on(serve(place)).map(|()| Exit::Ok),
        "flow" => runtime.block_on(flows())?,
        name => return Err(Failure::usage(format!("unknown subject `{name}`"))),
    };
    printer.result(&result.to_string())?;
    Ok(Exit::Ok)
}

fn broken(what: &str, error: &impl std::fmt::Debug) -> Failure {
    Failure::new(Exit::Failed, "INTERNAL", format!("{what}: {error:?}"))
}

/// The tool that every subject has.
fn add() -> impl Tool {
    let spec = ToolSpec::new("add", "Add two numbers.")
        .parameter("a", ParameterType::Integer, "The first.")
        .parameter("b", ParameterType::Integer, "The second.")
        .output(
            json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] }),
        );
    tool_fn(spec, async |args, _| {
        Ok(Output::json(json!({ "sum": args.decode::<i64>("a")? + args.decode::<i64>("b")? })))
    })
}

fn toolbox(tool: impl Tool + 'static) -> Result<Toolbox, Failure> {
    Toolbox::builder().tool(tool).build().map_err(|error| broken("the toolbox", &error))
}

/// Agents against a provider: processor milliseconds of an iteration, iterations per second, peak MiB.
async fn agents(url: &str, printer: &Printer) -> Result<Value, Failure> {
    let mut access = ProviderAccess::new(Secret::new("key"));
    access.base_url = Some(url.to_owned());
    let client = HttpClient::new(HttpOptions::default()).map_err(|error| broken("the client", &error))?;
    let provider = Provider::find("openai-compatible").ok_or_else(|| Failure::usage("unknown provider"))?;
    let model =
        HostedModel::new(provider, "x", access, client).map_err(|error| broken("the model", &error))?;
    let agent = Agent::builder(Arc::new(model), toolbox(add())?).build();
    converse(&agent).await?;
    printer.result(READY)?;
    let (before, begun, mut iterations) = (processor_time(), Instant::now(), 0_u32);
    while begun.elapsed() < LOOP_TIME {
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..AGENTS {
            let agent = agent.clone();
            runs.spawn(async move { converse(&agent).await });
        }
        while let Some(run) = runs.join_next().await {
            run.map_err(|error| broken("an agent", &error))??;
            iterations += CALLS as u32 + 1;
        }
    }
    let (wall, processor) = (begun.elapsed(), processor_time().saturating_sub(before));
    Ok(json!({
        "cpu": processor.as_secs_f64() * 1e3 / f64::from(iterations),
        "rate": f64::from(iterations) / wall.as_secs_f64(),
        "memory": peak_memory(),
    }))
}

async fn converse(agent: &Agent) -> Result<(), Failure> {
    let outcome = agent.run("What is 2 + 3?").finish().await;
    if outcome.stop == RunStopReason::EndTurn && outcome.text() == "done" {
        return Ok(());
    }
    Err(broken("the conversation", &outcome.error))
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The peak resident memory of this process, in MiB; null where the system does not tell.
fn peak_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().split(' ').next()?.parse::<f64>().ok().map(|kibibytes| kibibytes / 1024.0)
}

async fn serve(place: &str) -> Result<(), Failure> {
    let server = Server::builder(Arc::new(toolbox(add())?)).name("calc");
    let server = server.build().map_err(|error| broken("the server", &error))?;
    if place == "stdio" {
        return server.stdio().await.map_err(|error| broken("the server", &error));
    }
    let port = place.parse::<u16>().map_err(|error| broken("the port", &error))?;
    let address = ([127, 0, 0, 1], port).into();
    let _running = server.http(address).await.map_err(|error| broken("the server", &error))?;
    std::future::pending().await
}

/// Flows in memory: microseconds of a step.
async fn flows() -> Result<Value, Failure> {
    let noop = tool_fn(ToolSpec::new("noop", "Do nothing."), async |_, _| Ok(Output::json(json!(1))));
    let flows = Flows::new(toolbox(noop)?);
    let wide = measure(&flows, &plan(WIDE, false)?, WIDE).await?;
    let chain = measure(&flows, &plan(CHAIN, true)?, CHAIN).await?;
    Ok(json!({ "wide": wide, "chain": chain }))
}

fn plan(count: usize, is_chain: bool) -> Result<Arc<Plan>, Failure> {
    let steps: Vec<Value> = (0..count)
        .map(|number| {
            let needs: Vec<String> = number
                .checked_sub(1)
                .filter(|_| is_chain)
                .map(|before| format!("s{before}"))
                .into_iter()
                .collect();
            json!({ "id": format!("s{number}"), "tool": "noop", "needs": needs })
        })
        .collect();
    let plan = Plan::from_value(&json!({ "steps": steps })).map_err(|error| broken("the plan", &error))?;
    Ok(Arc::new(plan))
}

async fn measure(flows: &Flows, plan: &Arc<Plan>, count: usize) -> Result<f64, Failure> {
    let mut samples = Vec::new();
    let mut begun = Instant::now();
    // The first run is not counted.
    while samples.len() < 2 || begun.elapsed() < FLOW_TIME {
        if samples.len() == 1 {
            begun = Instant::now();
        }
        let start = Instant::now();
        let outcome = flows.run(Arc::clone(plan), Value::Null).durability(Durability::None).await;
        let outcome = outcome.map_err(|error| broken("the flow", &error))?;
        if outcome.status != RunStatus::Succeeded {
            return Err(broken("the flow", &outcome.error));
        }
        samples.push(start.elapsed().as_secs_f64() * 1e6 / count as f64);
    }
    Ok(super::figures::median(&samples[1..]))
}

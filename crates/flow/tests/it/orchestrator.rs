//! Tasks and workflows: order, slots, failures, figures and states.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use toolpost_core::{
    Alias, Args, Cancellation, Code, Ctx, Output, ParameterType, Priority, ToolError, ToolSpec, tool_fn,
    with_aliases,
};
use toolpost_flow::{
    AgentOrchestrator, AgentResult, AgentState, AgentTask, ExecutionMode, ExecutionOutcome, Flows, Format,
    Plan, RunStatus, StepStatus, TaskAgent, Workflow, WorkflowStep,
};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::tools::{Ledger, toolbox};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn orchestrator() -> (AgentOrchestrator, Ledger) {
    let ledger = Ledger::default();
    (AgentOrchestrator::new(toolbox(&ledger)).retry_delay(Duration::from_millis(1)), ledger)
}

fn task(name: &str, tool: &str, parameters: Value) -> AgentTask {
    AgentTask::new(name, tool).parameters(parameters)
}

fn sleep(name: &str, ms: u64) -> AgentTask {
    task(name, "sleep", json!({ "ms": ms, "name": name }))
}

fn echo(name: &str, value: impl Into<Value>) -> AgentTask {
    task(name, "echo", json!({ "value": value.into() }))
}

fn effect(name: &str) -> AgentTask {
    task(name, "effect", json!({ "value": name }))
}

fn fail(name: &str) -> AgentTask {
    task(name, "fail", json!({ "name": name })).retry_count(0)
}

fn statuses(outcome: &ExecutionOutcome) -> Vec<(&str, StepStatus)> {
    outcome.results.iter().map(|result| (&*result.name, result.status)).collect()
}

fn output(outcome: &ExecutionOutcome, name: &str) -> Value {
    Value::clone(&outcome.result(name).unwrap().result)
}

use StepStatus::{Blocked, Cancelled, Failed, Skipped, Succeeded};

/// A tool with two slots, which writes into the ledger when it begins and ends.
fn with_slots(ledger: &Ledger, slots: u32) -> Toolbox {
    let toolbox = toolbox(ledger);
    let inner = toolbox.own_tool("sleep").unwrap();
    let mut spec = ToolSpec::clone(&inner.spec());
    spec.policy.concurrency = Some(slots);
    "slow".clone_into(&mut spec.name);
    let own = toolbox.clone();
    let slow = tool_fn(spec, move |args: Args, _: Ctx| {
        let own = own.clone();
        async move { Ok(own.run("sleep", args.as_value().clone()).await?) }
    });
    toolbox.add(slow).unwrap();
    toolbox
}

#[test]
fn ten_tasks_on_a_tool_with_two_slots_all_succeed_in_the_order_of_their_priorities() {
    let ledger = Ledger::default();
    let orchestrator = AgentOrchestrator::new(with_slots(&ledger, 2));
    let priorities = [Priority::Low, Priority::Normal, Priority::High, Priority::Critical, Priority::Normal];
    let tasks = (0..10).map(|number| {
        let name = format!("t{number}");
        task(&name, "slow", json!({ "ms": 10, "name": name })).priority(priorities[number % 5])
    });
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Succeeded);
    assert!(outcome.results.iter().all(|result| result.success && result.retries_used == 0));
    let began: Vec<String> = ledger
        .entries()
        .iter()
        .filter_map(|entry| entry.strip_suffix(" begins").map(str::to_owned))
        .collect();
    assert_eq!(began, ["t3", "t8", "t2", "t7", "t1", "t4", "t6", "t9", "t0", "t5"]);
    assert_eq!(most_at_once(&ledger), 2);
}

#[test]
fn dependent_tasks_never_overlap_and_read_each_other() {
    let (orchestrator, ledger) = orchestrator();
    let tasks = [
        sleep("last", 1).dependencies(["second"]),
        sleep("second", 15).dependencies(["the first"]),
        task("the first", "sleep", json!({ "ms": 15, "name": "first" })),
        // By the id, and by what it reads.
        echo("by id", "x").dependencies(["the_first"]),
        echo("read", "${{ steps.second.output }}, ${{ steps.by_id.output }}"),
    ];
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Succeeded, "{:?}", outcome.error);
    assert_eq!(output(&outcome, "read"), json!("second, x"));
    assert_eq!(output(&outcome, "by_id"), output(&outcome, "by id"));
    assert_eq!(
        ledger.entries(),
        ["first begins", "first ends", "second begins", "second ends", "last begins", "last ends"]
    );
}

#[test]
fn a_failed_task_blocks_its_dependents_only() {
    let (orchestrator, ledger) = orchestrator();
    let tasks = [
        fail("bad"),
        effect("after bad").dependencies(["bad"]),
        effect("after that").dependencies(["after bad"]),
        effect("other"),
    ];
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);
    assert_eq!(
        statuses(&outcome),
        [("bad", Failed), ("after bad", Blocked), ("after that", Blocked), ("other", Succeeded)]
    );
    assert_eq!(outcome.result("bad").unwrap().error.as_ref().unwrap().message(), "it failed");
    assert_eq!(ledger.entries(), ["attempt 1 of bad", "other"]);
}

#[test]
fn a_task_is_tried_as_often_as_it_says() {
    let (orchestrator, ledger) = orchestrator();
    let flaky = |name: &str, times: u32| task(name, "fail", json!({ "name": name, "times": times }));
    let tasks = [flaky("default", 9), flaky("two", 2).retry_count(2), flaky("none", 1).retry_count(0)];
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    let retries: Vec<_> =
        outcome.results.iter().map(|result| (&*result.name, result.success, result.retries_used)).collect();
    assert_eq!(retries, [("default", false, 3), ("two", true, 2), ("none", false, 0)]);
    assert_eq!(output(&outcome, "two"), json!(3));
    assert_eq!(ledger.entries().len(), 4 + 3 + 1);
}

#[test]
fn only_a_step_with_retry_on_failure_tries_lasting_errors_again() {
    for (retries, expected) in [(false, (Failed, 0)), (true, (Succeeded, 2))] {
        let ledger = Ledger::default();
        let toolbox = toolbox(&ledger);
        let attempts = Arc::new(Mutex::new(0));
        let lasting = tool_fn(ToolSpec::new("lasting", "Fail twice."), move |_: Args, _: Ctx| {
            let attempts = Arc::clone(&attempts);
            async move {
                let mut attempts = attempts.lock().unwrap();
                *attempts += 1;
                if *attempts < 3 { Err(ToolError::precondition("not yet")) } else { Ok(Output::text("now")) }
            }
        });
        toolbox.add(lasting).unwrap();
        let orchestrator = AgentOrchestrator::new(toolbox).retry_delay(Duration::from_millis(1));
        let step = WorkflowStep::new("s", [AgentTask::new("t", "lasting")]);
        let step = if retries { step.retry_on_failure() } else { step };
        let outcome =
            block_on(orchestrator.execute_workflow(Workflow::new("w", [step])).into_future()).unwrap();
        let result = outcome.result("t").unwrap();
        assert_eq!((result.status, result.retries_used), expected);
    }
}

/// A workflow, the statuses of its tasks, and what they did.
#[test]
fn each_workflow_ends_as_its_row_says() {
    type Row =
        (&'static str, Vec<WorkflowStep>, RunStatus, Vec<(&'static str, StepStatus)>, Vec<&'static str>);
    let rows: Vec<Row> = vec![
        (
            "steps follow their dependencies, and a task of another step is one",
            vec![
                WorkflowStep::new("c", [effect("c1").dependencies(["b1"])]),
                WorkflowStep::new("b", [effect("b1")]).depends_on(["the a"]),
                WorkflowStep::new("the a", [sleep("a1", 10), sleep("a2", 20)]),
            ],
            RunStatus::Succeeded,
            vec![("c1", Succeeded), ("b1", Succeeded), ("a1", Succeeded), ("a2", Succeeded)],
            vec!["a1 begins", "a2 begins", "a1 ends", "a2 ends", "b1", "c1"],
        ),
        (
            "a sequential step runs one task after another",
            vec![WorkflowStep::new("s", [sleep("a", 10), sleep("b", 1)]).mode(ExecutionMode::Sequential)],
            RunStatus::Succeeded,
            vec![("a", Succeeded), ("b", Succeeded)],
            vec!["a begins", "a ends", "b begins", "b ends"],
        ),
        (
            "a pipeline passes outputs",
            vec![
                WorkflowStep::new(
                    "p",
                    [echo("a", 2), echo("b", "${{ previous * 3 }}"), echo("c", "${{ previous + 1 }}")],
                )
                .mode(ExecutionMode::Pipeline),
                WorkflowStep::new("q", [task("out", "effect", json!({ "value": "${{ steps.p.output }}" }))]),
            ],
            RunStatus::Succeeded,
            vec![("a", Succeeded), ("b", Succeeded), ("c", Succeeded), ("out", Succeeded)],
            vec!["7"],
        ),
        (
            "a false condition skips a step, and the step after it runs",
            vec![
                WorkflowStep::new("check", [echo("count", 0)]),
                WorkflowStep::new("work", [effect("a"), effect("b")])
                    .mode(ExecutionMode::Conditional)
                    .condition("steps.check.output.count > 0"),
                WorkflowStep::new("end", [effect("c")]).depends_on(["work"]),
            ],
            RunStatus::Succeeded,
            vec![("count", Succeeded), ("a", Skipped), ("b", Skipped), ("c", Succeeded)],
            vec!["c"],
        ),
        (
            "a true condition runs a step",
            vec![
                WorkflowStep::new("check", [echo("count", 1)]),
                WorkflowStep::new("work", [effect("a")]).condition("steps.check.output.count > 0"),
            ],
            RunStatus::Succeeded,
            vec![("count", Succeeded), ("a", Succeeded)],
            vec!["a"],
        ),
        (
            "a condition that fails is a failure",
            vec![
                WorkflowStep::new("check", [echo("count", "many")]),
                WorkflowStep::new("work", [effect("a")]).condition("steps.check.output.count + 1 > 0"),
            ],
            RunStatus::Failed,
            vec![("count", Succeeded), ("a", Blocked)],
            vec![],
        ),
        (
            "a failure ends the workflow",
            vec![
                WorkflowStep::new("s", [fail("bad"), sleep("slow", 10_000)]),
                WorkflowStep::new("t", [effect("later")]).depends_on(["s"]),
            ],
            RunStatus::Failed,
            vec![("bad", Failed), ("slow", Cancelled), ("later", Blocked)],
            vec!["attempt 1 of bad", "slow begins", "slow is stopped"],
        ),
        (
            "with continue_on_failure the other tasks and the later steps run",
            vec![
                WorkflowStep::new(
                    "s",
                    [fail("bad"), sleep("slow", 1), effect("dependent").dependencies(["bad"])],
                )
                .continue_on_failure(),
                WorkflowStep::new("t", [effect("later")]).depends_on(["s"]),
            ],
            RunStatus::Succeeded,
            vec![("bad", Failed), ("slow", Succeeded), ("dependent", Blocked), ("later", Succeeded)],
            vec!["attempt 1 of bad", "slow begins", "slow ends", "later"],
        ),
        (
            "with continue_on_failure a sequence continues after a failure",
            vec![
                WorkflowStep::new("s", [fail("bad"), effect("next")])
                    .mode(ExecutionMode::Sequential)
                    .continue_on_failure(),
            ],
            RunStatus::Succeeded,
            vec![("bad", Failed), ("next", Succeeded)],
            vec!["attempt 1 of bad", "next"],
        ),
        (
            "a step has a time limit",
            vec![WorkflowStep::new("s", [sleep("slow", 10_000)]).timeout(Duration::from_millis(300))],
            RunStatus::Failed,
            vec![("slow", Cancelled)],
            vec!["slow begins", "slow is stopped"],
        ),
        (
            "a task has a time limit",
            vec![WorkflowStep::new(
                "s",
                [sleep("slow", 10_000).timeout(Duration::from_millis(200)).retry_count(1)],
            )],
            RunStatus::Failed,
            vec![("slow", Failed)],
            vec!["slow begins", "slow begins"],
        ),
        (
            "batches follow each other, whatever fails",
            Workflow::batches("b", [sleep("a", 15), fail("bad"), effect("c"), effect("d"), effect("e")], 2)
                .steps,
            RunStatus::Succeeded,
            vec![("a", Succeeded), ("bad", Failed), ("c", Succeeded), ("d", Succeeded), ("e", Succeeded)],
            vec!["a begins", "attempt 1 of bad", "a ends", "c", "d", "e"],
        ),
    ];
    for (name, steps, status, tasks, effects) in rows {
        let (orchestrator, ledger) = orchestrator();
        let outcome = block_on(orchestrator.execute_workflow(Workflow::new(name, steps)).into_future())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(outcome.status, status, "{name}: {:?}", outcome.error);
        assert_eq!(statuses(&outcome), tasks, "{name}");
        assert_eq!(ledger.entries(), effects, "{name}");
        assert_eq!(outcome.error.is_some(), status == RunStatus::Failed, "{name}");
        let open = orchestrator
            .agents()
            .iter()
            .map(|agent| agent.current_tasks + agent.waiting_tasks)
            .sum::<usize>();
        assert_eq!(open, 0, "{name}");
    }
}

#[test]
fn a_workflow_has_a_time_limit_and_an_input() {
    let (orchestrator, _) = orchestrator();
    let slow = Workflow::new("w", [WorkflowStep::new("s", [sleep("slow", 10_000)])]);
    let outcome = block_on(
        orchestrator
            .execute_workflow(slow.timeout(Duration::from_millis(30)).description("Slow."))
            .into_future(),
    );
    assert_eq!(outcome.unwrap().status, RunStatus::Failed);
    let text = "from elsewhere ${{ run.id }}";
    let given = orchestrator.execute_task(echo("given", "${{ input.text }}")).input(json!({ "text": text }));
    assert_eq!(output(&block_on(given.into_future()).unwrap(), "given"), json!(text));
}

#[test]
fn what_cannot_run_is_an_error_before_a_task_runs() {
    let (orchestrator, ledger) = orchestrator();
    let e = |name: &str| effect(name);
    let of_tasks = |tasks: Vec<AgentTask>| block_on(orchestrator.execute_tasks(tasks).into_future());
    let of_steps = |steps: Vec<WorkflowStep>| {
        block_on(orchestrator.execute_workflow(Workflow::new("w", steps)).into_future())
    };
    for (ended, code, expected) in [
        (
            of_tasks(vec![e("load"), e("b").dependencies(["laod"])]),
            Code::InvalidInput,
            "the task `b` depends on `laod`, which does not exist (Did you mean `load`?)",
        ),
        (of_tasks(vec![e("a"), e("a")]), Code::InvalidInput, "two tasks have the name `a`"),
        (of_tasks(vec![e("a b"), e("a_b")]), Code::InvalidInput, "or names with the id `a_b`"),
        (
            of_tasks(vec![e("a").dependencies(["b"]), e("b").dependencies(["a"])]),
            Code::InvalidInput,
            "these steps wait for each other: ",
        ),
        (
            of_tasks(vec![e("good"), task("a", "efect", json!({}))]),
            Code::NotFound,
            "the task `a` has the unknown tool `efect`",
        ),
        (
            of_tasks(vec![task("a", "effect", json!({ "valeu": 1 }))]),
            Code::InvalidInput,
            "the arguments of `effect`",
        ),
        (of_tasks(vec![]), Code::InvalidInput, "a plan has `steps`"),
        (of_steps(vec![WorkflowStep::new("s", [])]), Code::InvalidInput, "a block has at least one step"),
        (
            of_steps(vec![WorkflowStep::new("s", [e("a")]).depends_on(["t"])]),
            Code::InvalidInput,
            "the step `s` depends on `t`, which does not exist",
        ),
        (
            of_steps(vec![WorkflowStep::new("s", [e("a")]), WorkflowStep::new("t", [e("a")])]),
            Code::InvalidInput,
            "two tasks have the name `a`",
        ),
        (
            of_steps(vec![
                WorkflowStep::new("s", [e("a")]).depends_on(["t"]),
                WorkflowStep::new("t", [e("b")]).depends_on(["s"]),
            ]),
            Code::InvalidInput,
            "these steps wait for each other: ",
        ),
        (
            of_steps(vec![WorkflowStep::new("s", [e("a")]).mode(ExecutionMode::Conditional)]),
            Code::InvalidInput,
            "the step `s` is conditional and has no condition",
        ),
        (
            of_steps(vec![WorkflowStep::new("s", [e("a")]).condition("results['t']['x'] == 1")]),
            Code::InvalidInput,
            "there is no `results` here",
        ),
    ] {
        let error = ended.map(drop).expect_err(expected);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error}");
    }
    let few = AgentOrchestrator::with_agents(toolbox(&ledger), [TaskAgent::new("echoes", ["echo"])]).unwrap();
    let error = block_on(few.execute_task(e("a")).into_future()).map(drop).unwrap_err();
    assert_eq!(error.message(), "no agent has the tool `effect` of the task `a`");
    let error = few.add_agent(TaskAgent::new("echoes", ["echo"])).unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Conflict, "there is an agent `echoes` already"));
    let error = few.add_agent(TaskAgent::new("x", ["ehco"])).unwrap_err();
    assert_eq!(error.message(), "the agent `x` has the unknown tool `ehco`");
    assert!(ledger.entries().is_empty());
    assert!(
        orchestrator.agents().iter().all(|agent| agent.state == AgentState::Idle && agent.waiting_tasks == 0)
    );
}

#[test]
fn the_figures_are_those_of_the_tasks() {
    let (orchestrator, _) = orchestrator();
    let stats = orchestrator.stats();
    assert_eq!((stats.agents_created, stats.total_agents, stats.tasks_completed), (1, 1, 0));
    assert_eq!((stats.success_rate, stats.average_execution_time), (0.0, 0.0));
    let tasks = [sleep("a", 30), sleep("b", 50), effect("c"), fail("d"), effect("e").dependencies(["d"])];
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    let skipped = WorkflowStep::new("s", [effect("f")]).condition("1 > 2");
    block_on(orchestrator.execute_workflow(Workflow::new("w", [skipped])).into_future()).unwrap();
    let stats = orchestrator.stats();
    let time: f64 = outcome.results.iter().map(|result| result.execution_time).sum();
    let slow = |name: &str| outcome.result(name).unwrap().execution_time;
    assert!(slow("a") >= 0.03 && slow("b") >= 0.05 && slow("e") == 0.0, "{outcome:?}");
    assert!((stats.total_execution_time - time).abs() < 1e-6, "{stats:?}");
    assert_eq!(
        serde_json::to_value(&stats).unwrap(),
        json!({
            "tasks_completed": 3, "tasks_failed": 1, "total_execution_time": stats.total_execution_time,
            "agents_created": 1, "workflows_executed": 1, "total_agents": 1, "active_agents": 0, "current_tasks": 0,
            "success_rate": 0.75, "average_execution_time": stats.total_execution_time / 4.0,
        })
    );
    let result = serde_json::to_value(outcome.result("c").unwrap()).unwrap();
    assert_eq!(
        result,
        json!({
            "name": "c", "task_id": "c", "agent_id": "custom_agent", "status": "succeeded", "success": true,
            "result": "c", "error": null, "execution_time": result["execution_time"], "retries_used": 0,
        })
    );
}

/// A tool that waits until the test opens it once for each call.
#[derive(Clone)]
struct Gate {
    entries: Arc<Mutex<Vec<String>>>,
    permits: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { entries: Arc::default(), permits: Arc::new(Semaphore::new(0)) }
    }
}

impl Gate {
    /// The tools of the tests, and the gate in the category `system`.
    fn toolbox(&self) -> Toolbox {
        let toolbox = toolbox(&Ledger::default());
        let mut spec = ToolSpec::new("gate", "Wait.").parameter("name", ParameterType::String, "A name.");
        spec.category = Some("system".to_owned());
        let own = self.clone();
        let gate = tool_fn(spec, move |args: Args, _: Ctx| {
            let own = own.clone();
            async move {
                own.entries.lock().unwrap().push(args.decode("name")?);
                own.permits.acquire().await.unwrap().forget();
                Ok::<_, ToolError>(Output::text("through"))
            }
        });
        toolbox.add(gate).unwrap();
        toolbox
    }

    fn task(name: &str) -> AgentTask {
        task(name, "gate", json!({ "name": name }))
    }

    fn entries(&self) -> Vec<String> {
        self.entries.lock().unwrap().clone()
    }

    fn open(&self, calls: usize) {
        self.permits.add_permits(calls);
    }

    /// Waits until so many calls have begun.
    async fn begun(&self, calls: usize) {
        until(|| self.entries().len() >= calls).await;
    }
}

async fn until(is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never came true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn agents_have_states_over_time() {
    use AgentState::{Completed, Failed, Idle, Running, Waiting};
    let gate = Gate::default();
    let orchestrator = AgentOrchestrator::new(gate.toolbox());
    let states = || orchestrator.agents().iter().map(|agent| agent.state).collect::<Vec<_>>();
    assert_eq!(states(), [Idle, Idle]);
    let tasks = [
        Gate::task("a"),
        Gate::task("b"),
        echo("c", 1).dependencies(["a", "b"]),
        Gate::task("d").dependencies(["c"]),
    ];
    block_on(async {
        let execution = orchestrator.execute_tasks(tasks).into_future();
        assert_eq!(states(), [Idle, Idle]);
        let observer = async {
            gate.begun(2).await;
            assert_eq!(states(), [Waiting, Running]);
            let (custom, system) =
                (orchestrator.agent("custom_agent").unwrap(), orchestrator.agent("system_agent").unwrap());
            assert_eq!((custom.current_tasks, custom.waiting_tasks, custom.load), (0, 1, 1.0 / 3.0));
            assert_eq!((system.current_tasks, system.waiting_tasks, system.load), (2, 1, 1.0));
            let figures = orchestrator.stats();
            assert_eq!((figures.current_tasks, figures.active_agents, figures.tasks_completed), (2, 1, 0));
            gate.open(1);
            until(|| orchestrator.stats().tasks_completed == 1).await;
            assert_eq!(orchestrator.agent("system_agent").unwrap().current_tasks, 1);
            gate.open(1);
            gate.begun(3).await;
            assert_eq!(states(), [Completed, Running]);
            gate.open(1);
        };
        tokio::join!(execution, observer).0.unwrap();
    });
    assert_eq!(states(), [Completed, Completed]);
    block_on(orchestrator.execute_task(fail("e")).into_future()).unwrap();
    assert_eq!(states(), [Failed, Completed]);
    let custom = orchestrator.agent("custom_agent").unwrap();
    assert_eq!((custom.completed_tasks, custom.failed_tasks, custom.success_rate), (1, 1, 0.5));
    assert_eq!((custom.id.as_str(), custom.name.as_str()), ("custom_agent", "custom_agent"));
    assert_eq!(custom.capabilities, ["echo", "effect", "fail", "sleep"]);
    assert!(custom.last_activity.is_some() && custom.total_execution_time > 0.0);
}

#[test]
fn cancellation_reaches_the_tasks() {
    let (orchestrator, ledger) = orchestrator();
    let begun = |times| ledger.entries().iter().filter(|entry| *entry == "slow begins").count() == times;
    let token = Cancellation::new();
    let tasks = [sleep("slow", 60_000), effect("later").dependencies(["slow"])];
    let execution = orchestrator.execute_tasks(tasks.clone()).cancellation(token.clone());
    let outcome = block_on(async {
        let (outcome, ()) = tokio::join!(execution.into_future(), async {
            until(|| begun(1)).await;
            token.cancel();
        });
        outcome.unwrap()
    });
    assert_eq!(outcome.status, RunStatus::Cancelled);
    assert_eq!(statuses(&outcome), [("slow", Cancelled), ("later", Cancelled)]);
    assert_eq!(ledger.entries(), ["slow begins", "slow is stopped"]);
    assert_eq!(orchestrator.agents()[0].state, AgentState::Cancelled);
    // A dropped execution leaves no task behind.
    block_on(async {
        let execution = orchestrator.execute_tasks(tasks.clone()).into_future();
        tokio::select! {
            _ = execution => panic!("it waits"),
            () = until(|| begun(2)) => {}
        }
    });
    let agent = &orchestrator.agents()[0];
    assert_eq!((agent.state, agent.current_tasks, agent.waiting_tasks), (AgentState::Cancelled, 0, 0));
    // All of them.
    let outcome = block_on(async {
        let execution = orchestrator.execute_tasks(tasks.clone()).cancellation(Cancellation::new());
        let (outcome, ()) = tokio::join!(execution.into_future(), async {
            until(|| begun(3)).await;
            orchestrator.cancel();
        });
        outcome.unwrap()
    });
    assert_eq!(outcome.status, RunStatus::Cancelled);
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Cancelled, "the orchestrator is cancelled");
    assert_eq!(orchestrator.stats().tasks_failed, 0);
}

#[test]
fn tasks_go_to_the_agent_with_the_least_load() {
    let ledger = Ledger::default();
    let agents = [
        TaskAgent::new("small", ["sleep"]).max_concurrent_tasks(1),
        TaskAgent::new("large", ["sleep", "echo"]).max_concurrent_tasks(3),
    ];
    let orchestrator = AgentOrchestrator::with_agents(toolbox(&ledger), agents).unwrap();
    let tasks: Vec<AgentTask> =
        (0..8).map(|number| sleep(&format!("t{number}"), 5)).chain([echo("e", 1)]).collect();
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Succeeded);
    let agents: Vec<&str> = outcome.results.iter().map(|result| &*result.agent_id).collect();
    assert_eq!(agents, ["small", "large", "large", "large", "small", "large", "large", "large", "large"]);
}

/// The most calls of `sleep` at once.
fn most_at_once(ledger: &Ledger) -> usize {
    let count = |(now, most): (usize, usize), entry: &String| {
        let now = if entry.ends_with("begins") { now + 1 } else { now - 1 };
        (now, most.max(now))
    };
    ledger.entries().iter().fold((0, 0), count).1
}

#[test]
fn an_agent_runs_as_many_tasks_at_once_as_it_has_slots() {
    let gate = Gate::default();
    let agent = TaskAgent::new("two", ["gate"]).max_concurrent_tasks(2);
    let orchestrator = AgentOrchestrator::with_agents(gate.toolbox(), [agent]).unwrap();
    let tasks = |name: &str| {
        let priorities = [Priority::Low, Priority::Normal, Priority::Critical];
        let task = |number: usize| Gate::task(&format!("{name}{number}")).priority(priorities[number]);
        (0..3).map(task).collect::<Vec<_>>()
    };
    // Two executions share the slots.
    let observer = async {
        gate.begun(2).await;
        // Whatever else could begin.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let agent = orchestrator.agent("two").unwrap();
        assert_eq!((agent.state, agent.load), (AgentState::Running, 3.0));
        assert_eq!((agent.current_tasks, agent.waiting_tasks, agent.max_concurrent_tasks), (2, 4, 2));
        assert_eq!(orchestrator.stats().current_tasks, 2);
        for begun in 2..=6 {
            gate.begun(begun).await;
            assert_eq!(gate.entries().len(), begun);
            gate.open(1);
        }
        gate.open(1);
    };
    let (first, second, ()) = block_on(async {
        tokio::join!(
            orchestrator.execute_tasks(tasks("a")).into_future(),
            orchestrator.execute_tasks(tasks("b")).into_future(),
            observer,
        )
    });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.results.iter().chain(&second.results).all(|result| result.success));
    assert_eq!(gate.entries(), ["a2", "a1", "b2", "b1", "a0", "b0"]);
    // The queue is not a time of a task.
    let time = |outcome: &ExecutionOutcome, name| outcome.result(name).unwrap().execution_time;
    assert!(time(&second, "b0") < time(&first, "a2"), "{first:?} {second:?}");
}

/// The workflow as a file.
const FILE: &str = "kind: flow
name: pipeline
steps:
  - id: load
    parallel:
      - id: a
        tool: echo
        limit:
          key: agent custom_agent
          concurrency: 3
        with:
          value: 1
        priority: high
        retry:
          max: 3
          initial: 1ms
      - id: b
        tool: echo
        limit:
          key: agent custom_agent
          concurrency: 3
        with:
          value: 2
        retry:
          max: 3
          initial: 1ms
  - id: sum
    parallel:
      - id: c
        tool: echo
        limit:
          key: agent custom_agent
          concurrency: 3
        with:
          value: ${{ steps.load.output.a + steps.load.output.b }}
        retry:
          max: 3
          initial: 1ms
";

#[test]
fn an_execution_is_a_plan_that_is_stored() {
    let (orchestrator, ledger) = orchestrator();
    let store = Arc::new(MemoryStore::new());
    let orchestrator = orchestrator.store(store.clone());
    let workflow = Workflow::new(
        "pipeline",
        [
            WorkflowStep::new("load", [echo("a", 1).priority(Priority::High), echo("b", 2)]),
            WorkflowStep::new("sum", [echo("c", "${{ steps.load.output.a + steps.load.output.b }}")]),
        ],
    );
    let execution = orchestrator.execute_workflow(workflow);
    let plan = execution.plan().unwrap();
    assert_eq!(Plan::parse(&plan.to_yaml(), Format::Yaml).unwrap().hash(), plan.hash());
    assert_eq!(plan.to_yaml(), FILE);
    let outcome = block_on(execution.into_future()).unwrap();
    assert_eq!(output(&outcome, "c"), json!(3));
    let stored = block_on(Flows::new(toolbox(&ledger)).store(store).load(outcome.run)).unwrap();
    assert_eq!((stored.plan.hash(), stored.summary.name.as_str()), (plan.hash(), "pipeline"));
    assert_eq!(stored.output, json!({ "c": 3 }));
    assert_eq!(stored.summary.succeeded, 5);
}

#[test]
fn a_stored_execution_is_resumed_where_it_ended() {
    let gate = Gate::default();
    let store = Arc::new(MemoryStore::new());
    let orchestrator = AgentOrchestrator::new(gate.toolbox()).store(store.clone());
    let tasks = [Gate::task("a"), Gate::task("b").dependencies(["a"]), echo("c", "${{ steps.b.output }}")];
    let flows = Flows::new(gate.toolbox()).store(store);
    let outcome = block_on(async {
        gate.open(1);
        tokio::select! {
            _ = orchestrator.execute_tasks(tasks).into_future() => panic!("it waits"),
            () = gate.begun(2) => {}
        }
        gate.open(1);
        let run = flows.find("last").await.unwrap();
        flows.resume(run).keep_steps().await.unwrap()
    });
    assert_eq!(outcome.status, RunStatus::Succeeded);
    assert_eq!(*outcome.step("c").unwrap().output, json!("through"));
    assert_eq!(gate.entries(), ["a", "b", "b"], "a task that has ended is not run again");
}

#[test]
fn a_task_may_name_its_tool_by_an_alias() {
    let toolbox = toolbox(&Ledger::default());
    let echo = toolbox.own_tool("echo").unwrap();
    toolbox.remove("echo");
    toolbox.add(with_aliases(echo, [Alias::new("repeat").parameter("text", "value")])).unwrap();
    let orchestrator = AgentOrchestrator::new(toolbox);
    let agent = TaskAgent::new("second", ["repeat"]);
    orchestrator.add_agent(agent).unwrap();
    assert_eq!(orchestrator.agent("second").unwrap().capabilities, ["echo"]);
    let task = task("t", "repeat", json!({ "text": "hello" }));
    let outcome = block_on(orchestrator.execute_task(task).into_future()).unwrap();
    assert_eq!(output(&outcome, "t"), json!("hello"));
}

#[test]
fn many_tasks_take_little_time() {
    let (orchestrator, _) = orchestrator();
    let begun = Instant::now();
    let tasks = (0..5_000).map(|number| echo(&format!("t{number}"), number));
    let outcome = block_on(orchestrator.execute_tasks(tasks).into_future()).unwrap();
    assert_eq!(outcome.results.iter().filter(|result: &&AgentResult| result.success).count(), 5_000);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

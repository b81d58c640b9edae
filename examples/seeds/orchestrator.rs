//! Tasks and a workflow for agents, beside `orchestrator.py`.
#![expect(clippy::print_stdout, reason = "a program with a terminal")]

use toolpost::call::Priority;
use toolpost::flow::{AgentOrchestrator, AgentTask, ExecutionMode, Workflow, WorkflowStep};
use toolpost::prelude::*;
use toolpost::tools::{FileRoot, builtin};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let toolbox = Toolbox::builder().tools(builtin()).provide(FileRoot::new(".")).build()?;
    let orchestrator = AgentOrchestrator::new(toolbox);

    let analyze = AgentTask::new("analyze_data", "data_analyzer")
        .parameters(json!({ "data": [1, 2, 3, 4, 5] }))
        .priority(Priority::High);
    let process = AgentTask::new("process_file", "read_file")
        .parameters(json!({ "path": "examples/seeds/README.md" }))
        .dependencies(["analyze_data"]); // Runs after analyze_data

    // Execute tasks in parallel
    let outcome = orchestrator.execute_tasks([analyze.clone(), process.clone()]).await?;
    for result in outcome.results {
        println!("{}: {}", result.task_id, result.success);
    }

    // Or create a workflow
    let workflow = Workflow::new(
        "data_pipeline",
        [
            WorkflowStep::new("parallel_analysis", [analyze]),
            WorkflowStep::new("final_processing", [process])
                .depends_on(["parallel_analysis"])
                .mode(ExecutionMode::Sequential),
        ],
    );
    orchestrator.execute_workflow(workflow).await?;

    let stats = orchestrator.stats();
    println!("Success rate: {:.2}%", stats.success_rate * 100.0);
    println!("Average execution time: {:.2}s", stats.average_execution_time);

    for agent in orchestrator.agents() {
        println!("Agent {}: {}", agent.name, agent.state.as_str());
    }
    Ok(())
}

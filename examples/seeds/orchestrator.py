import asyncio
from src.application.agents import (
    AgentOrchestrator, AgentTask, Workflow, WorkflowStep,
    ExecutionMode, TaskPriority
)
from src.domain.tools import get_tool_registry

async def main():
    # Create orchestrator
    orchestrator = AgentOrchestrator(tool_registry=get_tool_registry())
    await orchestrator.initialize()

    # Create tasks
    tasks = [
        AgentTask(
            name="analyze_data",
            tool_name="data_analyzer",
            parameters={"data": [1, 2, 3, 4, 5]},
            priority=TaskPriority.HIGH
        ),
        AgentTask(
            name="process_file",
            tool_name="read_file",
            parameters={"path": "examples/seeds/README.md"},
            dependencies=["analyze_data"]  # Runs after analyze_data
        )
    ]

    # Execute tasks in parallel
    results = await orchestrator.execute_tasks(tasks)
    for result in results:
        print(f"{result.task_id}: {result.success}")

    # Or create a workflow
    workflow = Workflow(
        name="data_pipeline",
        steps=[
            WorkflowStep(
                name="parallel_analysis",
                tasks=tasks[:1],
                mode=ExecutionMode.PARALLEL
            ),
            WorkflowStep(
                name="final_processing",
                tasks=tasks[1:],
                depends_on=["parallel_analysis"],
                mode=ExecutionMode.SEQUENTIAL
            )
        ]
    )

    results = await orchestrator.execute_workflow(workflow)

    # Get system statistics
    stats = await orchestrator.get_system_stats()
    print(f"Success rate: {stats['success_rate']:.2%}")
    print(f"Average execution time: {stats['average_execution_time']:.2f}s")

    # Agent status
    agent_status = await orchestrator.get_agent_status()
    for agent in agent_status:
        print(f"Agent {agent['name']}: {agent['state']}")

asyncio.run(main())

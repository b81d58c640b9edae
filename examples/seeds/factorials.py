from claude_agent_toolkit import BaseTool, tool
from typing import Any, Dict, List

class AdvancedTool(BaseTool):
    def __init__(self):
        super().__init__()
        # State is automatically managed with versioning
        self.state = {
            "operations": [],
            "cache": {},
            "config": {"max_operations": 100}
        }

    @tool(
        description="CPU-intensive operation with worker process",
        cpu_bound=True,
        timeout_s=300,
        snapshot=["config"],  # Snapshot specific state fields
        conflict_policy="retry",
        max_retries=3
    )
    async def heavy_computation(self, numbers: List[int]) -> Dict[str, Any]:
        # This runs in a separate process with state snapshot
        import math
        results = [math.factorial(n) for n in numbers if n < 20]

        # State changes are merged back after process completion
        self.state["cache"]["last_computation"] = {
            "input_count": len(numbers),
            "results_count": len(results)
        }
        return {"factorials": results}

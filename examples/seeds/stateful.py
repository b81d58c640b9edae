from claude_agent_toolkit import BaseTool, tool
from typing import Any, Dict
import time

class StatefulTool(BaseTool):
    def __init__(self):
        super().__init__()
        self.state = {"counter": 0, "items": []}

    @tool(
        description="Increment counter with retry on conflict",
        conflict_policy="retry",
        max_retries=5,
        backoff_initial_ms=10,
        backoff_max_ms=1000
    )
    async def increment_counter(self) -> Dict[str, Any]:
        # If state conflict occurs, this will automatically retry
        # with exponential backoff
        old_value = self.state["counter"]
        self.state["counter"] += 1
        return {"old_value": old_value, "new_value": self.state["counter"]}

    @tool(
        description="Add item with error on conflict",
        conflict_policy="error"  # Fail immediately on conflict
    )
    async def add_item(self, item: str) -> Dict[str, Any]:
        # This will raise an exception if state conflict occurs
        self.state["items"].append({
            "value": item,
            "timestamp": time.time()
        })
        return {"item_count": len(self.state["items"])}

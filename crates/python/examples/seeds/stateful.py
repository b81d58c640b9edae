"""Tools with versioned documents: after a conflict, the first one runs its change again, the second one fails."""

import time
from itertools import count
from typing import Any

from toolpost import Ctx, Toolbox, ToolError, tool


@tool
async def increment_counter(ctx: Ctx) -> dict[str, int]:
    """Increment the counter."""
    value = await ctx.state("counter").update(lambda old: (old or 0) + 1)
    return {"old_value": value - 1, "new_value": value}


@tool
async def add_item(item: str, ctx: Ctx) -> dict[str, int]:
    """Add an item."""
    runs = count()

    def add(items: list[Any] | None) -> list[Any]:
        if next(runs):
            raise ToolError.conflict("the items have changed")
        return [*(items or []), {"value": item, "timestamp": time.time()}]

    return {"item_count": len(await ctx.state("items").update(add))}


toolbox = Toolbox(increment_counter, add_item)
print(toolbox.call_sync("increment_counter").value)
print(toolbox.call_sync("add_item", {"item": "apple"}).value)

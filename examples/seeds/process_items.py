from toolable import toolable, AgentCLI, stream
from toolable.streaming import StreamEvent

@toolable(summary="Process items with progress", streaming=True)
def process_items(items: list[str]) -> stream:
    """Process a list of items with progress updates."""
    total = len(items)
    for i, item in enumerate(items):
        yield StreamEvent.progress(f"Processing {item}...", percent=int((i / total) * 100))
        # ... do work ...

    yield StreamEvent.result({
        "status": "success",
        "result": {"processed": total}
    })

if __name__ == "__main__":
    AgentCLI(process_items).run()

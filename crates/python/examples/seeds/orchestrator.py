"""Tools as the steps of a workflow, with the figures of its run."""

from pathlib import Path
from statistics import mean

from toolpost import Flow, Step, Toolbox


def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text()


toolbox = Toolbox()
toolbox.connect_sync("builtin")
toolbox.remove("read_file")
toolbox.add(read_file)

analyze = Step("analyze_data", tool="analyze_data", args={"data": [1, 2, 3, 4, 5]}, priority="high")
process = Step("process_file", tool=read_file, args={"path": __file__}, needs=analyze)
flow = Flow("data_pipeline", [analyze, process], output={"mean": analyze.output.mean, "text": process.output})

result = flow.run_sync(toolbox)
for record in toolbox.records:
    print(f"{record['tool']}: {record['status']}")
print(f"Success rate: {result.succeeded / (result.succeeded + result.failed):.2%}")
print(f"Average execution time: {mean(record['duration_ms'] for record in toolbox.records) / 1000:.4f}s")

"""An agent runs Python code in a sandbox: `MODEL=openai/gpt-4o-mini python code_execution.py`."""

import os

from toolpost import Agent, Outcome, Sandbox, ScriptModel, tool

sandbox = Sandbox()


@tool
async def code_execution(code: str) -> Outcome:
    """Execute Python code. The file `sales.csv` has the columns `month` and `sales`."""
    return await sandbox.run(code, files={"sales.csv": "month,sales\n1,10\n2,20\n3,60\n"})


CODE = """
import csv, statistics
sales = [float(row["sales"]) for row in csv.DictReader(open("sales.csv"))]
{"mean": statistics.mean(sales), "deviation": statistics.stdev(sales)}
"""
script = [
    {"calls": [{"tool": "code_execution", "args": {"code": CODE}}]},
    "The mean is {{ last.structured.value.mean }}.",
]
agent = Agent(os.environ.get("MODEL") or ScriptModel(script), tools=[code_execution])
print(agent.run_sync("Calculate the mean and standard deviation of the sales.").text)

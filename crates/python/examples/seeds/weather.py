"""A tool with a text for the model and data for the application: `MODEL=openai/gpt-4o-mini python weather.py`."""

import os

from toolpost import Agent, Output, ScriptModel, tool


@tool(category="data", tags=["weather", "api"], group="api.weather")
def get_weather(location: str) -> Output:
    """Gets current weather for a location

    Args:
        location: City name
    """
    data = {"temp": 20, "condition": "sunny", "location": location}
    return Output(data, content=[f"{data['temp']}C and {data['condition']} in {location}"])


script = [
    {"calls": [{"tool": "get_weather", "args": {"location": "London"}}]},
    "Today: {{ last.text }}.",
]
agent = Agent(os.environ.get("MODEL") or ScriptModel(script), tools=[get_weather])
result = agent.run_sync("What's the weather in London?")
print(result.text)
print([message["value"] for message in result.messages if message["role"] == "tool"])

import asyncio
from llm_factory_toolkit import LLMClient, ToolFactory, ToolExecutionResult

def get_weather(location: str) -> ToolExecutionResult:
    """Get weather for a location."""
    data = {"temp": 20, "condition": "sunny", "location": location}
    return ToolExecutionResult(content=f"{data['temp']}C and {data['condition']} in {location}", payload=data)

async def main():
    tool_factory = ToolFactory()
    tool_factory.register_tool(
        function=get_weather,
        name="get_weather",
        description="Gets current weather for a location",
        parameters={
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City name"}
            },
            "required": ["location"],
        },
        category="data",           # Optional: for catalog discovery
        tags=["weather", "api"],   # Optional: for catalog search
        group="api.weather",       # Optional: group namespace for hierarchical filtering
    )

    client = LLMClient(model="openai/gpt-4o-mini", tool_factory=tool_factory)

    result = await client.generate(
        input=[{"role": "user", "content": "What's the weather in London?"}],
        use_tools=["get_weather"],
    )
    print(result.content)  # LLM response incorporating the weather data

asyncio.run(main())

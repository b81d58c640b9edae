"""One library's agents against the loopback provider: `peers.py LIBRARY URL AGENTS`. Prints one JSON object.

Every agent has a conversation of ten calls of one tool and an answer: eleven requests. Agents run at once. Processor
time is that of this process, imports not counted.
"""

import asyncio
import json
import resource
import sys
import time

LIBRARY, URL, AGENTS = sys.argv[1], sys.argv[2], int(sys.argv[3])
REQUESTS = 11
PROMPT = "What is 2 + 3?"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def pydantic_ai_anthropic():
    from anthropic import AsyncAnthropic
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=URL, api_key="key")
    agent = Agent(AnthropicModel("claude-x", provider=AnthropicProvider(anthropic_client=client)), tools=[add])

    async def run():
        return (await agent.run(PROMPT)).output

    return run


def pydantic_ai_responses():
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=URL + "/v1", api_key="key")
    agent = Agent(OpenAIResponsesModel("gpt-x", provider=OpenAIProvider(openai_client=client)), tools=[add])

    async def run():
        return (await agent.run(PROMPT)).output

    return run


def openai_agents():
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="key")
    model = OpenAIResponsesModel(model="gpt-x", openai_client=client)
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[function_tool(add)])

    async def run():
        return (await Runner.run(agent, PROMPT, max_turns=30)).final_output

    return run


def litellm():
    import os

    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as library

    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": schema}}]

    async def run():
        messages = [{"role": "user", "content": PROMPT}]
        while True:
            answer = await library.acompletion(
                model="openai/x", api_base=URL + "/v1", api_key="key", messages=messages, tools=tools
            )
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump())
            for call in message.tool_calls:
                result = add(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})

    return run


def llm_factory_toolkit():
    import os

    os.environ["OPENAI_API_KEY"] = "key"
    os.environ["OPENAI_BASE_URL"] = URL + "/v1"
    from llm_factory_toolkit import LLMClient, ToolFactory
    from llm_factory_toolkit.tools.models import ToolExecutionResult

    def tool(a: int, b: int) -> ToolExecutionResult:
        return ToolExecutionResult(content=str(a + b))

    factory = ToolFactory()
    factory.register_tool(
        function=tool,
        name="add",
        description="Add two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    )
    client = LLMClient(model="openai/gpt-x", tool_factory=factory)

    async def run():
        result = await client.generate(input=[{"role": "user", "content": PROMPT}])
        return result.content

    return run


async def measure(run):
    assert "done" in await run()
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for answer in await asyncio.gather(*[run() for _ in range(AGENTS)]):
        assert "done" in answer, answer
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    iterations = AGENTS * REQUESTS
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({
        "cpu_ms": processor * 1000 / iterations,
        "per_second": iterations / wall,
        "mib": after.ru_maxrss / 1024,
    }))


asyncio.run(measure(globals()[LIBRARY]()))

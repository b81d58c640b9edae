"""Agents of one library against a loopback provider: `loop.py PEER URL AGENTS SECONDS`.

A conversation has ten calls of one tool and an answer: eleven requests. Prints `ready` after the first conversation, then
one JSON object. Imports are part of the start, not of the processor time.
"""

import asyncio
import json
import resource
import sys
import time

PEER, URL, AGENTS, SECONDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
REQUESTS = 11
PROMPT = "What is 2 + 3?"


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def pydantic_ai():
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=URL, api_key="key")
    agent = Agent(OpenAIChatModel("x", provider=OpenAIProvider(openai_client=client)), tools=[add])

    async def run():
        return (await agent.run(PROMPT)).output

    return run


def openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="x", openai_client=AsyncOpenAI(base_url=URL, api_key="key"))
    agent = Agent(name="a", model=model, tools=[function_tool(add)])

    async def run():
        return (await Runner.run(agent, PROMPT, max_turns=30)).final_output

    return run


def toolpost():
    from toolpost import Agent, Model

    agent = Agent(Model("openai-compatible/x", api_key="key", base_url=URL), tools=[add])

    async def run():
        return (await agent.run(PROMPT)).text

    return run


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main():
    run = globals()[PEER]()
    assert await run() == "done"
    print("ready", flush=True)
    before, begin, iterations = processor_seconds(), time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        for answer in await asyncio.gather(*[run() for _ in range(AGENTS)]):
            assert answer == "done", answer
        iterations += AGENTS * REQUESTS
    wall, processor = time.perf_counter() - begin, processor_seconds() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps({"cpu": processor * 1e3 / iterations, "rate": iterations / wall, "memory": peak}), flush=True)


asyncio.run(main())

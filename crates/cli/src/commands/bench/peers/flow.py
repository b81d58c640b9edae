"""Steps that do nothing, in one library: `flow.py PEER WIDE CHAIN SECONDS`. Prints microseconds per step as JSON.

Wide: WIDE steps that need nothing. Chain: CHAIN steps, each of which needs the one before.
"""

import asyncio
import json
import statistics
import sys
import time

PEER, WIDE, CHAIN, SECONDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


def langgraph():
    import operator
    from typing import Annotated, TypedDict

    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    class State(TypedDict):
        out: Annotated[list, operator.add]

    async def noop(state):
        return {"out": [1]}

    wide = StateGraph(State)
    wide.add_node("start", lambda state: {})
    wide.add_node("noop", noop)
    wide.add_edge(START, "start")
    wide.add_conditional_edges("start", lambda state: [Send("noop", {}) for _ in range(WIDE)], ["noop"])
    wide.add_edge("noop", END)
    chain = StateGraph(State)
    names = [f"s{number}" for number in range(CHAIN)]
    for name in names:
        chain.add_node(name, noop)
    for before, after in zip([START, *names], [*names, END]):
        chain.add_edge(before, after)

    def runner(graph, count):
        async def run():
            state = await graph.ainvoke({"out": []}, {"recursion_limit": CHAIN + 10})
            assert len(state["out"]) == count

        return run

    return runner(wide.compile(), WIDE), runner(chain.compile(), CHAIN)


def tasks():
    """Tasks of asyncio, without a graph, checks and records: the lower limit in Python."""

    async def noop():
        return 1

    async def wide():
        await asyncio.gather(*[asyncio.create_task(noop()) for _ in range(WIDE)])

    async def chain():
        for _ in range(CHAIN):
            await asyncio.create_task(noop())

    return wide, chain


async def measure(run, count):
    await run()
    samples, begin = [], time.perf_counter()
    while not samples or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        await run()
        samples.append((time.perf_counter() - start) * 1e6 / count)
    return statistics.median(samples)


async def main():
    wide, chain = globals()[PEER]()
    print(json.dumps({"wide": await measure(wide, WIDE), "chain": await measure(chain, CHAIN)}), flush=True)


asyncio.run(main())

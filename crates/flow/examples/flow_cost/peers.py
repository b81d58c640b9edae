"""One library's cost per task, tasks that do nothing: `peers.py LIBRARY`. Prints `SHAPE COUNT MICROSECONDS` lines.

Wide: tasks that need nothing. Chain: each task needs the one before. Layered: layers of ten tasks, each of which needs two
of the layer above. The fastest round counts. Nothing is stored, but for Prefect, which has a database of its own.
"""

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import time


def measure(shape, count, run, rounds=3):
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    print(shape, count, best / count * 1e6, flush=True)


def above(number):
    """The tasks that a task of the layered shape needs."""
    start = number // 10 * 10 - 10
    return [start + number % 10, start + (number + 1) % 10] if number >= 10 else []


def use_asyncio():
    async def noop():
        return 1

    async def wide(count):
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(noop())

    async def chain(count):
        for _ in range(count):
            await asyncio.create_task(noop())

    async def layered(count):
        for start in range(0, count, 10):
            async with asyncio.TaskGroup() as group:
                for _ in range(start, start + 10):
                    group.create_task(noop())

    for count in (1_000, 10_000, 100_000):
        measure("wide", count, lambda: asyncio.run(wide(count)))
    measure("chain", 10_000, lambda: asyncio.run(chain(10_000)))
    measure("layered", 10_000, lambda: asyncio.run(layered(10_000)))


def use_langgraph():
    import operator
    from typing import Annotated, TypedDict

    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    class State(TypedDict):
        out: Annotated[list, operator.add]

    def wide(count):
        graph = StateGraph(State)
        graph.add_node("start", lambda state: {})
        graph.add_node("noop", lambda state: {"out": [1]})
        graph.add_edge(START, "start")
        graph.add_conditional_edges("start", lambda state: [Send("noop", {}) for _ in range(count)], ["noop"])
        graph.add_edge("noop", END)
        return graph.compile()

    def chain(count):
        graph = StateGraph(State)
        names = [f"s{number}" for number in range(count)]
        for name in names:
            graph.add_node(name, lambda state: {"out": [1]})
        for before, after in zip([START, *names], [*names, END]):
            graph.add_edge(before, after)
        return graph.compile()

    for count, rounds in ((1_000, 2), (10_000, 1)):
        graph = wide(count)
        measure("wide", count, lambda: graph.invoke({"out": []}), rounds)
    graph = chain(1_000)
    measure("chain", 1_000, lambda: graph.invoke({"out": []}, {"recursion_limit": 2_000}), 1)


def use_dask():
    from dask.threaded import get

    def noop(*_):
        return 1

    def graph(count, needs):
        tasks = {f"s{number}": (noop, *(f"s{need}" for need in needs(number))) for number in range(count)}
        tasks["end"] = (noop, [f"s{number}" for number in range(count)])
        return tasks

    shapes = (
        ("wide", 1_000, lambda number: []),
        ("wide", 10_000, lambda number: []),
        ("chain", 10_000, lambda number: [number - 1] if number else []),
        ("layered", 10_000, above),
    )
    for shape, count, needs in shapes:
        tasks = graph(count, needs)
        measure(shape, count, lambda: get(tasks, "end"), 2)


def use_prefect():
    home = tempfile.mkdtemp()
    os.environ.update(
        PREFECT_HOME=home,
        PREFECT_LOGGING_LEVEL="CRITICAL",
        PREFECT_SERVER_LOGGING_LEVEL="CRITICAL",
        PREFECT_SERVER_ANALYTICS_ENABLED="false",
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE="true",
        DO_NOT_TRACK="1",
    )
    try:
        from prefect import flow, task

        @task
        def noop():
            return 1

        @flow
        def wide(count):
            for future in [noop.submit() for _ in range(count)]:
                future.result()

        @flow
        def chain(count):
            for _ in range(count):
                noop()

        # The first run starts the server.
        wide(1)
        measure("wide", 200, lambda: wide(200), 1)
        measure("chain", 100, lambda: chain(100), 1)
    finally:
        shutil.rmtree(home, ignore_errors=True)


{"asyncio": use_asyncio, "langgraph": use_langgraph, "dask": use_dask, "prefect": use_prefect}[sys.argv[1]]()

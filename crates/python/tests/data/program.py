#!/usr/bin/env python3
"""A program of every kind of tool."""

import asyncio
import dataclasses
import os
import sys
import time
from typing import Annotated, List, Optional

from author import Ctx, Output, Param, Partial, ToolError, main, prompt, resource, tool

__version__ = "1.2.3"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@tool(tags=["text"], examples=[{"name": "Ada"}], read_only=True)
def greet(name: str, times: Annotated[int, Param("Number of greetings.", ge=1, le=10)] = 1) -> str:
    """Greet a person.

    More about it.

    Args:
        name: Name of the person.
    """
    print("a stray print")
    os.write(1, b"a stray write\n")
    return " ".join([f"Hello, {name}."] * times)


@tool
async def add(a: float, b: float, ctx: Ctx) -> float:
    "Add two numbers."
    ctx.progress("adding", 50)
    ctx.warning("slow")
    await asyncio.sleep(0)
    return a + b


@tool
def move(point: Point, by: Optional[List[int]] = None) -> Point:
    "Move a point."
    return Point(point.x + sum(by or []), point.y)


@tool(mode="streaming")
def count(to: int, ctx: Ctx) -> int:
    "Count."
    for number in range(to):
        ctx.progress(f"{number}", 100 * number / to)
    ctx.artifact_sync("log.txt", b"done")
    return to


@tool(mode="session")
def guess(ctx: Ctx) -> str:
    "Guess a number."
    first = ctx.ask_sync("First?", int)
    second = ctx.ask_sync("Second?")
    return f"{first!r} {second!r}"


@tool
async def ask(ctx: Ctx) -> str:
    "Ask a question and sample."
    answer, sample = await asyncio.gather(ctx.ask("Sure?", bool), ctx.sample("Why?", max_tokens=5))
    return f"{answer} {sample.content}"


@tool
def sample(ctx: Ctx) -> str:
    "Sample a model."
    return ctx.sample_sync("Why?", system="short").content


@tool
def fail(code: str = "") -> None:
    "Fail."
    if code:
        raise ToolError(code, "it failed", suggestion="Do not call it.", fact=1)
    try:
        raise KeyError("inner secret")
    except KeyError as cause:
        raise ValueError("outer secret") from cause


@tool
def rows(good: int, bad: int) -> Output:
    "Return rows."
    errors = [ToolError.not_found(f"row {number}") for number in range(bad)]
    return Output({"rows": list(range(good))}, partial=Partial(good, errors))


@tool(timeout=0.2)
def nap(seconds: float) -> float:
    "Sleep."
    time.sleep(seconds)
    return seconds


@tool(timeout=0.2)
async def doze(seconds: float) -> float:
    "Sleep without blocking."
    await asyncio.sleep(seconds)
    return seconds


@tool
def wait(ctx: Ctx) -> str:
    "Wait for the cancellation."
    print("waiting", file=sys.stderr, flush=True)
    while not ctx.is_cancelled:
        time.sleep(0.005)
    raise ToolError.cancelled("as requested")


@tool
def here(working_dir: str = ".", dry_run: bool = False, verbose: bool = False, ctx: Optional[Ctx] = None) -> str:
    "Print the directory."
    assert ctx is not None
    ctx.info("looking")
    return os.getcwd()


@tool
def facts(ctx: Ctx, **rest: int) -> dict:
    "Facts of the call."
    return {"id": ctx.id, "front": ctx.caller["front"], "metadata": ctx.metadata, "rest": rest}


@tool
def read_input() -> str:
    "Read standard input, which is empty."
    return sys.stdin.read()


@resource("notes://{user}", mime_types=["text/plain"])
def note(user: str) -> str:
    "A note."
    if user == "nobody":
        raise ToolError.not_found("no such user")
    return f"Note of {user}."


@prompt
async def review(text: str, style: str = "short") -> str:
    "Review a text."
    return f"Review in a {style} style: {text}"


if __name__ == "__main__":
    main()

"""The tools of the table of command lines that the Rust half of the protocol is tested with, in Python."""

import math
import sys
from typing import Annotated, Any, List, Optional

from author import Ctx, Output, Param, Partial, ToolError, main, prompt, resource, tool


@tool(tags=["math"], examples=[{"a": 1, "b": 2}], idempotent=True)
def add(a: Annotated[int, "The first."], b: Annotated[int, "The second."] = 10) -> int:
    "Add two numbers."
    return a + b


@tool
async def greet(
    name: Annotated[str, Param("Whom.", min_length=1)],
    titles: Annotated[List[str], "Titles, one flag each."] = [],
    numbers: Annotated[List[int], "Whole numbers."] = [],
    loud: Annotated[bool, "In capitals."] = False,
    extra: Annotated[Any, "Anything."] = None,
) -> Output:
    """Greet a person.

    With titles."""
    return Output({"name": name, "titles": titles, "numbers": numbers, "loud": loud, "extra": extra})


@tool
def order() -> Output:
    "Order a thing; the answer has a status of its own."
    return Output({"status": "shipped", "id": 7})


@tool(mode="streaming")
async def count(ctx: Ctx, to: Annotated[int, Param("How far.", ge=1)]) -> int:
    "Count, and report progress."
    for number in range(1, to + 1):
        ctx.progress(f"{number}", number * 100 / to)
    ctx.warning("counted")
    await ctx.artifact("count.txt", str(to), "text/plain")
    if to == 13:
        raise ToolError.conflict("13 is unlucky")
    return to


@tool(mode="session")
def guess(ctx: Ctx, number: int = 7) -> Output:
    "Guess a number."
    tries, question = 0, "Guess."
    while True:
        guessed = ctx.ask_sync(question)
        if guessed is None:
            return Output()
        tries += 1
        if guessed == number:
            return Output({"tries": tries})
        question = "More." if guessed < number else "Less."


@tool
def summarize(ctx: Ctx, text: str) -> str:
    "Say it shorter."
    return ctx.sample_sync(f"Short: {text}", system="Be brief.", temperature=0.5, stop_sequences=["END"]).content


@tool
def divide(numbers: List[float], by: List[float]) -> Output:
    "Divide numbers by numbers."
    errors = [ToolError.invalid_input("division by 0") for divisor in by if not divisor]
    quotients = [number / divisor for number, divisor in zip(numbers, by) if divisor]
    return Output({"quotients": quotients}, partial=Partial(len(quotients), errors))


@tool
def find(
    ctx: Ctx,
    name: Annotated[str, "A part of the name."],
    working_dir: Optional[str] = None,
    timeout: Optional[float] = None,
    dry_run: bool = False,
    verbose: bool = False,
) -> dict:
    "Find a file."
    if "/" in name:
        raise ToolError.invalid_input("/name: expected a name, found a path")
    ctx.info("looking")
    return {
        "name": name,
        "directory": ctx.working_dir,
        "seconds": math.ceil(ctx.remaining or 0),
        "verbose": ctx.is_verbose,
        "given": [working_dir is not None, timeout, dry_run, verbose],
    }


@tool(dry_run=True, destructive=True)
def delete(ctx: Ctx, thing: str, dry_run: bool = False) -> dict:
    "Delete a thing; it knows what it would do."
    return {"thing": thing, "deleted": not ctx.is_dry_run, "asked": dry_run}


@tool(timeout=1.2)
def sleep(milliseconds: int, timeout: Optional[float] = None) -> int:
    "Sleep."
    import time

    time.sleep(milliseconds / 1000)
    return milliseconds


@tool
def fail(code: str) -> None:
    "Fail."
    raise ToolError(code, "hunter2", suggestion="Do it later.")


@tool
def explode() -> None:
    "Fail without a code."
    raise RuntimeError("hunter2")


@tool
async def nested(ctx: Ctx, tool: str, arguments: dict) -> Any:
    "Call another tool."
    return await ctx.call(tool, arguments)


@tool
def give(ctx: Ctx) -> dict:
    "Return a file and facts of the caller."
    ctx.artifact_sync("a.bin", bytes([0, 255]), "application/octet-stream")
    return {
        "front": ctx.caller["front"],
        "identity": ctx.caller.get("identity"),
        "metadata": ctx.metadata,
        "key": ctx.idempotency_key,
        "level": ctx.level,
        "scope": ctx.scope,
    }


@resource("notes://{user}/{page}", mime_types=["text/plain"], tags=["notes"])
def note(user: str, page: int) -> dict:
    "A note."
    if page > 9:
        raise ToolError.not_found("no such page")
    return {"user": user, "page": page}


@prompt(tags=["writing"])
def review(text: Annotated[str, "The text."], tone: Annotated[str, "How strict."] = "kind") -> str:
    "Ask for a review."
    return f"{tone}: {text}"


if __name__ == "__main__":
    if sys.argv[1] == "single":
        del sys.argv[1]
        main(greet, name="demo", version="1.2.3")
    main(name="demo", version="1.2.3")

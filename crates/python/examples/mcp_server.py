"""An MCP server of notes. It has the features of the table in `docs/moving/fastmcp.md`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from toolpost import Ctx, Output, Toolbox, ToolError

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f80f00010101001bb6ee56"
    "0000000049454e44ae426082"
)

images = Toolbox()
notes = Toolbox(images, name="notes")


@dataclass
class Note:
    id: int
    text: str


@asynccontextmanager
async def database() -> AsyncIterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    try:
        yield connection
    finally:
        connection.close()


@images.tool(read_only=True)
def dot() -> Output:
    """Draw a dot."""
    return Output(content=["A dot.", Output.image("image/png", DOT)])


@notes.tool
def add_note(text: Annotated[str, Field(description="The text.", min_length=1)], ctx: Ctx) -> Note:
    """Add a note."""
    with ctx.context as db:
        id = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
    ctx.info(f"added note {id}")
    return Note(id, text)


@notes.tool(title="Import notes")
async def import_notes(texts: list[str], ctx: Ctx) -> int:
    """Add several notes."""
    for done, text in enumerate(texts, 1):
        add_note(text, ctx)
        ctx.progress(f"{done} of {len(texts)}", 100 * done / len(texts))
    return len(texts)


@notes.tool(read_only=True)
async def summarize_note(id: int, ctx: Ctx) -> str:
    """Summarize a note."""
    summary = await ctx.sample(f"Summarize: {note(id, ctx)}", max_tokens=100)
    return str(summary)


@notes.tool(destructive=True)
async def delete_notes(ctx: Ctx) -> str:
    """Delete all notes."""
    if not await ctx.ask("Delete all notes?", bool):
        return "kept"
    with ctx.context as db:
        db.execute("DELETE FROM notes")
    return "deleted"


@notes.resource("notes://{id}", mime_types=["text/plain"])
def note(id: int, ctx: Ctx) -> str:
    """The text of a note."""
    row = ctx.context.execute("SELECT text FROM notes WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise ToolError.not_found(f"no note has the id {id}")
    return str(row[0])


@notes.prompt
def review(id: int, style: str = "short") -> str:
    return f"Write a {style} review of notes://{id}."


async def main() -> None:
    async with database() as db:
        await notes.serve(context=db)


if __name__ == "__main__":
    asyncio.run(main())

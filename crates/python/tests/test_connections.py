"""Servers that end, and programs that call the tools of their caller."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from toolpost import Sandbox, Toolbox, ToolError, author, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="ask")
def danger() -> int:
    """Do something dangerous."""
    return 1


@tool
async def hang() -> None:
    """Hang."""
    await asyncio.sleep(60)


def call(url: str, name: str, arguments: dict[str, Any]) -> Any:
    client = Toolbox()
    client.connect_sync(url)
    return client.call_sync(name, arguments).value


async def serve_once(port: int) -> tuple[int, float]:
    """Serve until a client has called; return the port, and the time to the end."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        await Toolbox(add, hang).serve(http=f"127.0.0.1:{port}", on_ready=ready.set_result)

    server = asyncio.create_task(serve())
    url = await ready
    assert await asyncio.to_thread(call, url, "add", {"a": 1, "b": 2}) == 3
    pending = asyncio.create_task(asyncio.to_thread(call, url, "hang", {}))
    await asyncio.sleep(0.05)
    begin = time.monotonic()
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server
    seconds = time.monotonic() - begin
    port = int(url.split(":")[2].split("/")[0])
    socket.create_server(("127.0.0.1", port)).close()
    with pytest.raises(ToolError):
        await pending
    return port, seconds


def test_a_server_frees_its_port_before_it_returns() -> None:
    async def main() -> None:
        port, seconds = await serve_once(0)
        for _ in range(10):
            assert seconds < 1
            again, seconds = await serve_once(port)
            assert again == port

    asyncio.run(main())


def test_the_exception_of_on_ready_ends_the_server() -> None:
    def on_ready(url: str) -> None:
        raise ValueError(url)

    with pytest.raises(ToolError, match="ValueError: http") as caught:
        Toolbox(add).serve_sync(http="127.0.0.1:0", on_ready=on_ready)
    assert isinstance(caught.value.__cause__, ValueError)


PROGRAM = """#!/usr/bin/env python3
from author import Ctx, ToolError, main, tool

@tool
async def sum_up(ctx: Ctx, numbers: list) -> int:
    "Sum numbers up."
    total = 0
    for number in numbers:
        total = await ctx.call("add", {"a": total, "b": number})
    return total

@tool
def forward(ctx: Ctx, name: str) -> str:
    "Call any tool."
    try:
        return str(ctx.call_sync(name))
    except ToolError as error:
        return f"{error.code}: {error.message}"

main()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    shutil.copytree(Path(author.__file__).parent, tmp_path / "author")
    return str(path)


DESCRIPTION = """
kind = "command"
v = 1
program = "answer"

[[tool]]
name = "answer"
description = "Answer."

[tool.output]
format = "text"
"""


def test_targets_use_the_search_path_and_the_toolchains_of_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, elsewhere, work = (tmp_path / name for name in ("home/.pyenv/versions/1/bin", "elsewhere", "work"))
    work.mkdir()
    for directory in (installed, elsewhere):
        directory.mkdir(parents=True)
        script = directory / "answer"
        script.write_text("#!/bin/sh\necho 42\n")
        script.chmod(0o755)
    # As in a virtual environment, whose links lead to its base.
    (work / "shown").symlink_to(installed / "answer")
    (work / "hidden").symlink_to(elsewhere / "answer")
    description = tmp_path / "answer.toml"
    description.write_text(DESCRIPTION)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{installed}:/usr/bin:/bin")
    toolbox = Toolbox()
    for target in ("builtin:run_command", str(description)):
        toolbox.connect_sync(target)
    assert toolbox.call_sync("answer").text.strip() == "42"

    def run(program: str) -> Any:
        return toolbox.call_sync("run_command", {"argv": [program]}, working_dir=work, approve="allow").value["stdout"]

    assert run("./shown") == "42\n"
    with pytest.raises(ToolError, match="did not start"):
        run("./hidden")


def test_a_program_calls_the_tools_that_its_connection_names(program: str) -> None:
    toolbox = Toolbox(add, danger, hang)
    toolbox.connect_sync(program, calls=["add", "danger", "missing"])
    assert toolbox.call_sync("sum_up", {"numbers": [1, 2, 3]}).value == 6
    assert [child["tool"] for child in toolbox.records[-1]["children"]][:3] == ["add"] * 3

    def forward(name: str, **options: Any) -> Any:
        return toolbox.call_sync("forward", {"name": name}, **options).value

    # The checks are those of a nested call in this process.
    assert forward("add").startswith("MISSING_PARAM")
    assert forward("danger").startswith("PERMISSION: `danger` was not run")
    assert forward("danger", approve="allow") == "1"
    assert forward("missing").startswith("NOT_FOUND")
    assert forward("hang") == "PERMISSION: the program may not call `hang`"


def test_a_program_calls_no_tools_by_default(program: str) -> None:
    toolbox = Toolbox(add)
    toolbox.connect_sync(program)
    assert toolbox.call_sync("forward", {"name": "add"}).value == "PRECONDITION: this caller cannot call other tools"
    with pytest.raises(ToolError, match="takes no `calls`"):
        toolbox.connect_sync("builtin", calls=["add"])


def test_errors_name_the_options_of_python(tmp_path: Path) -> None:
    found = []
    for options in ({"read_write": [tmp_path]}, {"workdir": tmp_path, "live": True}):
        sandbox = Sandbox("strict", **options)
        for command in (["no-such-program"], [str(tmp_path / "missing")], ["./file"]):
            try:
                sandbox.exec_sync(command, files={"file": b"#!/no/such/interpreter\n"})
            except (ToolError, ValueError) as error:
                found.append(str(error))
    with pytest.raises(ToolError) as denied:
        Toolbox(danger).call_sync("danger")
    found.append(str(denied.value))
    assert len(found) > 3
    assert not [message for message in found if "`--" in message or "::" in message], found

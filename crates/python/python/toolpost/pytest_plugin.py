"""Fixtures for tests of tools and agents: scripted and recorded models, no network, a fresh toolbox.

A tool's unexpected exception in a run of an agent is raised in the test; see `toolpost_bugs`.
pytest loads this module at its start, so it imports the engine at the first use of a fixture.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from toolpost import Model, Toolbox

Json = dict[str, Any]

Turns = Iterable[str | Json] | Callable[[list[Json]], str | Json]

_CHECKS = pytest.StashKey[list[Callable[[], None]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("toolpost").addoption(
        "--toolpost-record",
        choices=("none", "once", "all"),
        default="none",
        help="Record models for toolpost_cassette: missing cassettes (once) or every one (all)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    # A check in the call fails the test; one in a teardown would add an error to a passed test.
    checks = item.stash.setdefault(_CHECKS, [])
    try:
        yield
        for check in checks:
            check()
    finally:
        checks.clear()


def _check_after(request: pytest.FixtureRequest, check: Callable[[], None]) -> None:
    request.node.stash.setdefault(_CHECKS, []).append(check)


# Bugs of tools


class _Bugs:
    """What happens to unexpected exceptions of tools in runs of agents."""

    def __init__(self) -> None:
        self.is_raised = False
        """Whether they end the run and arise in the test."""
        self.expected: list[Exception] | None = None


_bugs = _Bugs()


def ends_run(error: Exception) -> bool:
    """Whether an unexpected exception of a tool ends the run. The engine asks."""
    if _bugs.expected is None:
        return _bugs.is_raised
    _bugs.expected.append(error)
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, bool, bool]:
    # A test may run pytest itself.
    outer = vars(_bugs).copy()
    _bugs.is_raised, _bugs.expected = True, None
    try:
        return (yield)
    finally:
        vars(_bugs).update(outer)


@pytest.fixture
def toolpost_bugs() -> Iterator[list[Exception]]:
    """Collect the unexpected exceptions of tools in runs of agents, instead of raising them in the test."""
    outer, _bugs.expected = _bugs.expected, []
    try:
        yield _bugs.expected
    finally:
        _bugs.expected = outer


# Scripted models


@dataclass(frozen=True)
class ModelRequest:
    """A request that a scripted model got."""

    system: str | None
    """The system prompt."""
    messages: list[Json]
    """The messages, as `Conversation.messages`."""
    tools: list[Json]
    """The offered tools: dicts with `name`, `description` and `input_schema`."""
    settings: Json
    """The settings of the answer, such as `temperature`."""


def _messages(request: Json) -> list[Json]:
    from toolpost import Conversation

    return Conversation.from_json(json.dumps({"turns": request["turns"]})).messages


@dataclass(frozen=True)
class _Script:
    model: Model
    file: Path
    turns: list[Any] | None
    """None if a function makes them."""

    def exchanges(self) -> list[Json]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def check(self) -> None:
        if self.turns is None:
            return
        played = set()
        for exchange in self.exchanges():
            if error := exchange.get("error"):
                last = _messages(exchange["request"])[-1]
                pytest.fail(f"{self.model.name}: {error['message']}\n  last message: {last!r:.300}", pytrace=False)
            # The id of an answer ends with the number of its turn in the conversation.
            played.add(int(exchange["response"]["id"].rpartition("_")[2]))
        numbered = enumerate(self.turns, 1)
        if unused := [f"turn {number}: {str(turn):.200}" for number, turn in numbered if number not in played]:
            head = f"{self.model.name}: {len(unused)} of {len(self.turns)} turns of the script were not played"
            pytest.fail("\n  ".join([head, *unused]), pytrace=False)


class ScriptModels:
    """Makes scripted models. At the end of the test, every turn must have been played, and no further one requested."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._scripts: list[_Script] = []

    def __call__(self, turns: Turns, *, name: str = "script") -> Model:
        """Return a model that plays turns, as `ScriptModel` does. The turns of a function are not counted."""
        from toolpost import RecordingModel, ScriptModel

        if not callable(turns):
            turns = list(turns)
        file = self._directory / f"{len(self._scripts)}.jsonl"
        model = RecordingModel(ScriptModel(turns, name=name), file)
        self._scripts.append(_Script(model, file, None if callable(turns) else turns))
        return model

    def requests(self, model: Model | None = None) -> list[ModelRequest]:
        """Return the requests that a model got, oldest first; without a model, those of one model after the other."""
        scripts = [script for script in self._scripts if model is None or script.model is model]
        if model is not None and not scripts:
            raise ValueError(f"{model!r} is not a model of `toolpost_script`; pass one that this fixture returned")
        requests = [exchange["request"] for script in scripts for exchange in script.exchanges()]
        return [
            ModelRequest(request.get("system"), _messages(request), request.get("tools", []), request["settings"])
            for request in requests
        ]

    def check(self) -> None:
        """Fail the test if a turn was not played, or the model was asked for more."""
        for script in self._scripts:
            script.check()


@pytest.fixture
def toolpost_script(request: pytest.FixtureRequest) -> Iterator[ScriptModels]:
    """Make scripted models of which every turn must be played: `toolpost_script([{"calls": […]}, "Done."])`."""
    with tempfile.TemporaryDirectory() as directory:
        scripts = ScriptModels(Path(directory))
        _check_after(request, scripts.check)
        yield scripts


# No network


class NetworkBlocked(RuntimeError):
    """A connection to another host while `no_network` is active. No OSError, so that clients do not retry it."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"no_network blocks the connection to `{target}`. Use a scripted or recorded model, or a local server."
        )


class _Guard:
    """Rejects connections of Python to other hosts, on every thread."""

    LOCAL = {getattr(socket, name, None) for name in ("AF_UNIX", "AF_NETLINK", "AF_ALG")}

    def __init__(self) -> None:
        self.is_active = False
        self._is_installed = False

    @contextmanager
    def active(self) -> Iterator[None]:
        if not self._is_installed:
            # It sees the sockets that no patch reaches. An audit hook cannot be removed.
            sys.addaudithook(self._audit)
            self._is_installed = True
        with pytest.MonkeyPatch.context() as patch:
            for method in ("connect", "connect_ex", "sendto"):
                # The interpreter resolves a host name before the audit event.
                patch.setattr(socket.socket, method, self._checked(getattr(socket.socket, method)))
            patch.setenv("TOOLPOST_NO_NETWORK", "1")
            self.is_active = True
            try:
                yield
            finally:
                self.is_active = False

    def lift(self) -> None:
        if self.is_active:
            self.is_active = False
            del os.environ["TOOLPOST_NO_NETWORK"]

    def _checked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def checked(connection: socket.socket, *args: Any) -> Any:
            if self.is_active and args:
                self._check(connection, args[-1])
            return method(connection, *args)

        return checked

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_active or not event.startswith("socket."):
            return
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self._check(args[0], args[1])
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
            # An address is not a connection yet: a server that listens needs it too.
            if host and not _address(host) and host not in ("localhost", socket.gethostname()):
                raise NetworkBlocked(host)

    def _check(self, connection: socket.socket, address: Any) -> None:
        # A message on a connected socket has no address.
        if connection.family in self.LOCAL or not isinstance(address, tuple):
            return
        host = address[0]
        found = _address(str(host))
        if not (found.is_loopback or found.is_unspecified if found else host in ("", "localhost")):
            raise NetworkBlocked(f"{host}:{address[1]}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


_guard = _Guard()


@pytest.fixture
def no_network() -> Iterator[None]:
    """Reject connections to other hosts: those of Python's sockets, of models, and new ones of toolboxes."""
    with _guard.active():
        yield


# Toolboxes


@pytest.fixture
def toolpost_tools() -> Sequence[Any]:
    """Return the tools of `toolbox`: none, until a test module or conftest.py overrides this fixture."""
    return ()


@pytest.fixture
def toolbox(toolpost_tools: Any) -> Iterator[Toolbox]:
    """Return a new toolbox of `toolpost_tools`. Its documents and records are in memory."""
    from toolpost import Toolbox

    tools = toolpost_tools if isinstance(toolpost_tools, (list, tuple)) else [toolpost_tools]
    yield Toolbox(*tools)


# Cassettes


class Cassettes:
    """Makes models that replay the cassette of the test, or record it."""

    def __init__(self, path: Path, scratch: Path, mode: str) -> None:
        self._path, self._scratch, self._mode = path, scratch, mode
        self._names: list[Path] = []
        self._recorded: list[tuple[Path, Path]] = []

    def __call__(self, model: str | Model) -> Model:
        """Return a model that replays the cassette of this test; the second model of a test has a second cassette."""
        from toolpost import Model, RecordingModel

        number = len(self._names) + 1
        path = self._path if number == 1 else self._path.with_name(f"{self._path.stem}-{number}.jsonl")
        self._names.append(path)
        if self._mode != "all" and path.exists():
            return Model(f"replay:{path}")
        if self._mode == "none":
            pytest.fail(
                f"the cassette {path} is missing. Record it with `pytest --toolpost-record=once` and the API key of "
                f"{model if isinstance(model, str) else model.name}.",
                pytrace=False,
            )
        # The option asks for the provider.
        _guard.lift()
        scratch = self._scratch / path.name
        self._recorded.append((scratch, path))
        return RecordingModel(model, scratch)

    def store(self) -> None:
        for scratch, path in self._recorded:
            if not scratch.stat().st_size:
                pytest.fail(f"nothing to record in {path}: the test did not run the model", pytrace=False)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(scratch, path)


@pytest.fixture
def toolpost_cassette(request: pytest.FixtureRequest) -> Iterator[Cassettes]:
    """Replay a model from the cassette of the test: `toolpost_cassette("anthropic/claude-sonnet-5-5")`.

    `--toolpost-record` records it. A test that fails leaves the cassette as it was.
    """
    path = request.node.path
    cassette = path.parent / "cassettes" / path.stem / f"{_file_name(request.node.nodeid.partition('::')[2])}.jsonl"
    with tempfile.TemporaryDirectory() as directory:
        cassettes = Cassettes(cassette, Path(directory), str(request.config.getoption("--toolpost-record")))
        _check_after(request, cassettes.store)
        yield cassettes


def _file_name(test: str) -> str:
    """Return the name of a test, such as `TestAgent::test_city[Oslo]`, as that of a file."""
    name = test.replace("::", ".").replace("[", "-").removesuffix("]")
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
        return name
    # Parameters with other characters or of great length stay apart.
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:90] + f"-{zlib.crc32(test.encode()):08x}"

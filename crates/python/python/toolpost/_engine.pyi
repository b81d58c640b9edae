from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, TypedDict, TypeVar

from typing_extensions import Unpack

T = TypeVar("T", covariant=True)

Json = dict[str, Any]
Level = Literal["minimal", "standard", "strict", "maximum"]
Priority = Literal["background", "low", "normal", "high", "critical"]

class Awaitable(Coroutine[Any, Any, T], Generic[T]):
    """A call that an event loop awaits. It starts at the first await and can be awaited once."""

    def __await__(self) -> Generator[Any, Any, T]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(
        self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /
    ) -> Any: ...
    def close(self) -> None: ...

class CallOptions(TypedDict, total=False):
    """The options of a call. They can only tighten the policy of its tool."""

    timeout: float
    """Seconds of one attempt."""
    deadline: float
    """Seconds until the end of the whole call, queueing included."""
    retries: int
    """Maximum number of retries."""
    priority: Priority
    """Its order among queued calls."""
    idempotency_key: str
    """Calls with the same key have one external effect."""
    user: str
    """The user behind the call."""
    metadata: Mapping[str, Any]
    """Facts that the record stores unchanged."""
    level: Level
    """The sandbox level of tools that run code."""
    working_dir: str | PathLike[str]
    """The working directory."""
    no_cache: bool
    """Neither read nor write the cache."""
    dry_run: bool
    """Validate everything, and report what would run."""
    validate: bool
    """Validate the arguments, and run nothing."""
    mock: bool
    """Answer from the tool's examples or output schema."""

class Reply:
    """The reply to a call: its output and its record."""

    @property
    def value(self) -> Any:
        """The structured value, or else the text; None if the tool returned nothing."""
    @property
    def text(self) -> str:
        """The text that a model gets."""
    @property
    def content(self) -> list[Json]:
        """The content blocks: dicts with a `type`."""
    @property
    def artifacts(self) -> list[Json]:
        """The artifacts: dicts with `name`, `media_type`, `size`, and `data` or `path`."""
    @property
    def record(self) -> Json:
        """The record of the call: its id, times, attempts, usage and nested calls."""

class StateDoc:
    """One document of a store: read it, change it, inspect its history. Each change commits immediately."""

    @property
    def id(self) -> str:
        """The document's id."""
    def get(self) -> Awaitable[Any]:
        """Return the latest value; None before the first commit."""
    def get_sync(self) -> Any: ...
    def version(self) -> Awaitable[int]:
        """Return the number of commits."""
    def version_sync(self) -> int: ...
    def set(self, value: Any) -> Awaitable[int]:
        """Replace the value, and return the new version."""
    def set_sync(self, value: Any) -> int: ...
    def update(self, function: Callable[[Any], Any]) -> Awaitable[Any]:
        """Replace the value with the result of a function of it, and return it.

        After a conflict with another writer, the function runs again on the latest value.
        """
    def update_sync(self, function: Callable[[Any], Any]) -> Any: ...
    def at(self, version: int) -> Awaitable[Any]:
        """Return the value at a version, from 1."""
    def at_sync(self, version: int) -> Any: ...
    def log(self, after: int = 0, limit: int = 100) -> Awaitable[list[Json]]:
        """Return the changes after a version, oldest first: dicts with `version`, `at`, `call` and `patch`."""
    def log_sync(self, after: int = 0, limit: int = 100) -> list[Json]: ...

class Toolbox:
    """A set of tools, and the one way to call them: checked, limited and recorded.

    >>> from toolpost import Toolbox
    >>> def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> Toolbox(add).call_sync("add", {"a": 1, "b": 2}).value
    3
    """

    def __init__(
        self,
        *tools: Any,
        name: str = "toolpost",
        store: str | PathLike[str] | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        on_event: Callable[[Json], object] | None = None,
    ) -> None:
        """Create a toolbox of functions, `@tool` functions, objects with `@tool` methods, modules, or lists of these.

        store: file of the documents; without one, they are lost with the toolbox.
        concurrency: maximum number of calls that run at once; others wait in order of priority.
        timeout: seconds of one attempt of a tool without a timeout of its own; defaults to 60.
        on_event: gets each event of the calls: dicts with a `type`.
        """
    def add(self, *tools: Any) -> None:
        """Add tools."""
    def remove(self, name: str) -> bool:
        """Remove a tool, and return whether it existed. Running calls continue."""
    @property
    def specs(self) -> list[Json]:
        """The definitions of all tools, in the order of registration."""
    @property
    def records(self) -> list[Json]:
        """The records of the latest calls, oldest first."""
    def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[CallOptions]
    ) -> Awaitable[Reply]:
        """Call a tool.

        Raises `ToolError`; an exception of a Python tool is its `__cause__`. A sync function runs on a thread.
        """
    def call_sync(
        self, tool: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[CallOptions]
    ) -> Reply:
        """Call a tool, and wait. A sync function runs on this thread; a coroutine runs on a background loop."""
    def state(self, document: str) -> StateDoc:
        """Return a document of the tools, by its full name."""
    def connect(
        self,
        target: str,
        *,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        level: Level | None = None,
    ) -> Awaitable[None]:
        """Add the tools of a target: a URL, `stdio:COMMAND`, a path, `command:NAME` or `builtin`."""
    def connect_sync(
        self,
        target: str,
        *,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        level: Level | None = None,
    ) -> None: ...
    def serve(
        self,
        *,
        http: str | None = None,
        token: str | None = None,
        name: str = "toolpost",
        version: str | None = None,
        instructions: str | None = None,
        on_ready: Callable[[str], object] | None = None,
    ) -> Awaitable[None]:
        """Serve the tools over MCP: on standard input and output, or over HTTP on an address such as 127.0.0.1:8000.

        It ends when the client disconnects or the await is cancelled. `on_ready` gets the URL.
        """
    def serve_sync(
        self,
        *,
        http: str | None = None,
        token: str | None = None,
        name: str = "toolpost",
        version: str | None = None,
        instructions: str | None = None,
        on_ready: Callable[[str], object] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...

class CallContext:
    """The engine's half of `toolpost.Ctx`."""

    attempt: int
    remaining: float | None
    is_cancelled: bool
    def facts(self) -> Json: ...
    def progress(self, body: Json, /) -> None: ...
    def log(self, body: Json, /) -> None: ...
    def request(self, verb: str, body: Json, /) -> Awaitable[Any]: ...
    def request_sync(self, verb: str, body: Json, /) -> Any: ...
    def state(self, id: str, /) -> StateDoc: ...

def begin_exit() -> list[int]: ...
def reset_after_fork() -> None: ...

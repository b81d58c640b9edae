from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, TypedDict, TypeVar, final

from typing_extensions import Self, Unpack

T = TypeVar("T", covariant=True)

Json = dict[str, Any]
Level = Literal["minimal", "standard", "strict", "maximum"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
Approve = Literal["allow", "deny"] | Callable[[str, Json], bool | Coroutine[Any, Any, bool]]
Priority = Literal["background", "low", "normal", "high", "critical"]

class Awaitable(Coroutine[Any, Any, T], Generic[T]):
    """A call that an event loop awaits. It starts at the first await and can be awaited once."""

    def __await__(self) -> Generator[Any, Any, T]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(
        self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /
    ) -> Any: ...
    def close(self) -> None: ...

class Callbacks(TypedDict, total=False):
    """Functions of the application that serve tools, plain or async."""

    context: Any
    """An object for tools, as `ctx.context`. No model and no record gets it."""
    approve: Approve
    """Decides calls of tools with `approval="ask"`: `allow`, `deny`, or a function of the tool's name and arguments."""
    ask: Callable[[str, Json | None], Any]
    """Answers questions of tools: a message and a JSON Schema. None declines."""
    on_progress: Callable[[str, float | None], object]
    """Gets the progress of tools: a message and a percentage. A plain function that returns at once."""
    on_log: Callable[[str, str], object]
    """Gets the log lines of tools: a level and a message. A plain function that returns at once."""
    on_artifact: Callable[[Json], Any]
    """Accepts the files of tools: dicts with `name`, `media_type`, and `data` or `path`."""

class CallOptions(Callbacks, total=False):
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
    sample: Callable[[Json], str | Coroutine[Any, Any, str]]
    """Answers prompts of tools; in a run, the model of the run does."""

class RunOptions(Callbacks, total=False):
    """The options of a run."""

    user: str
    """The user behind the run."""
    metadata: Mapping[str, Any]
    """Facts for the records of its calls and for its usage events."""
    deadline: float
    """Seconds until the end of the run, besides the agent's `max_time`."""

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

class Model:
    """A model by its name, such as `anthropic/claude-sonnet-5-5`, `script:FILE` or `replay:FILE`.

    The API key and the base URL come from the environment, as `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
    """

    def __new__(cls, name: str) -> Self: ...
    @property
    def name(self) -> str:
        """The provider and its name of the model."""

@final
class ScriptModel(Model):
    """A model that plays turns instead of asking a provider, for tests.

    A turn is a string, or a dict as in a script file: `text`, `calls`, `expect`, `stop`, `usage`. Instead of a list, a
    function may return the next turn for the messages so far, in the form of `Conversation.messages`.

    >>> ScriptModel([{"calls": [{"tool": "add", "args": {"a": 1, "b": 2}}]}, "The sum is {{ last.text }}."])
    """

    def __new__(
        cls,
        turns: Iterable[str | Json] | Callable[[list[Json]], str | Json],
        *,
        name: str = "script",
    ) -> Self: ...

@final
class RecordingModel(Model):
    """A model that records its exchanges in a new file, for `replay:FILE`. API keys are masked.

    Agents that share the model share the file.
    """

    def __new__(cls, model: str | Model, file: str | PathLike[str]) -> Self: ...

@final
class Agent:
    """A model with tools. It is immutable, and can run many times at once.

    `tools` are functions, `@tool` functions, objects with `@tool` methods, toolboxes, and agents with a name and a
    description. An agent that is a tool spends from the limits of its caller, and its caller approves its calls.

    `answer` is the type of the answer: a pydantic model, a dataclass, a TypedDict or a JSON Schema. The model corrects
    an answer that does not match.

    >>> agent = Agent("anthropic/claude-sonnet-5-5", tools=[forecast], max_cost_usd=0.10)
    >>> print(agent.run_sync("Will it rain in Oslo?").text)
    """

    def __new__(
        cls,
        model: str | Model,
        *,
        tools: Any = None,
        system: str | None = None,
        answer: Any = None,
        max_iterations: int | None = None,
        max_tool_calls: int | None = None,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        max_time: float | None = None,
        max_parallel_tools: int | None = None,
        temperature: float | None = None,
        effort: Effort | None = None,
        tool_timeout: float | None = None,
        approve: Approve | None = None,
        name: str | None = None,
        description: str | None = None,
        on_event: Callable[[Json], object] | None = None,
    ) -> Self:
        """Create an agent.

        The limits are those of one run: requests to the model (25), tool calls, tokens, US dollars and seconds (all
        unlimited), and tools at once (8). `tool_timeout` is in seconds, if the tool's own is not shorter.

        `approve` decides calls of tools with `approval="ask"`: a function of the tool's name and arguments that
        returns a bool, plain or async. Without it, these calls are denied.

        `on_event` gets the events of runs without `stream`, those of nested agents included. The run waits for it.
        """

    def run(
        self,
        prompt: str,
        *,
        conversation: Conversation | RunResult | None = None,
        **options: Unpack[RunOptions],
    ) -> Awaitable[RunResult]:
        """Run the agent on a prompt, and await the result.

        Async tools of one answer run at once, each in a task on the loop of the caller; other tools run in threads. A
        cancelled await ends after these tasks.

        Raises:
            RunError: The run has no answer: it reached a limit, or the model failed or refused.
        """

    def run_sync(
        self,
        prompt: str,
        *,
        conversation: Conversation | RunResult | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run the agent on a prompt, and wait for the result. Plain tools run in this thread, one after another.

        Raises:
            RunError: As `run`.
        """

    def stream(
        self,
        prompt: str,
        *,
        conversation: Conversation | RunResult | None = None,
        **options: Unpack[RunOptions],
    ) -> RunEvents:
        """Run the agent on a prompt while its events are read.

        >>> async for event in agent.stream("Sum up the news."):
        ...     if event["type"] == "text.delta":
        ...         print(event["text"], end="")
        """

    @property
    def name(self) -> str | None:
        """The name as a tool of another agent."""

    @property
    def description(self) -> str | None:
        """The description as a tool of another agent."""

@final
class Conversation:
    """The messages so far, for the next run: `agent.run(prompt, conversation=result.conversation)`.

    It has everything that providers sent, so a run with the same provider continues without a loss.
    """

    @property
    def messages(self) -> list[Json]:
        """The messages as dicts with `role` and `text`.

        An assistant's has `calls` (`id`, `tool`, `args`); a tool's has `tool`, `call_id`, `value` and `is_error`. It is
        a view: `to_json` has everything.
        """

    def to_json(self) -> str:
        """Return the whole conversation as JSON, to store it."""

    @staticmethod
    def from_json(text: str) -> Conversation:
        """Return a conversation from its JSON."""

    def __len__(self) -> int: ...

@final
class RunResult:
    """The result of a run."""

    @property
    def answer(self) -> Any:
        """The answer: a value of the agent's `answer` type, else the text. None if the run has no answer."""

    @property
    def text(self) -> str:
        """The text of the answer; without one, the model's last text."""

    @property
    def stop_reason(self) -> str:
        """Why the run ended, such as `end_turn` or `max_iterations`."""

    @property
    def success(self) -> bool:
        """Whether the run has an answer."""

    @property
    def usage(self) -> Json:
        """The tokens of the run and of nested agents."""

    @property
    def cost_usd(self) -> float | None:
        """The cost in US dollars; None if unknown."""

    @property
    def calls(self) -> list[Json]:
        """The records of the tool calls, in the order of the calls."""

    @property
    def messages(self) -> list[Json]:
        """The messages of the conversation, as `conversation.messages`."""

    @property
    def conversation(self) -> Conversation:
        """The conversation, for the next run."""

    @property
    def record(self) -> Json:
        """The record of the run, as stored: its id, times, calls, usage, notices and nested runs."""

@final
class RunEvents(AsyncIterator[Json]):
    """The events of a run: an asynchronous iterator of dicts with a `type`.

    Types are `run.started`, `turn.started`, `text.delta`, `thinking.delta`, `turn.finished`, `usage`, `call.started`,
    `call.progress`, `call.log`, `call.artifact`, `call.retry`, `call.finished`, `notice` and `run.finished`. The last
    event has the `result`; a run without an answer raises `RunError` after it.

    The run advances only while an event is awaited, so no queue grows. Only tools in threads emit meanwhile: of these
    events, at most 10,000 are queued, and further ones dropped.

    Dropping or closing the iterator, or cancelling an await, ends the run. `async with` also waits for its tasks.
    """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Json]: ...
    def aclose(self) -> Awaitable[None]:
        """End the run, and wait for the tasks of its tools."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class CallContext:
    """The engine's half of `toolpost.Ctx`."""

    attempt: int
    remaining: float | None
    is_cancelled: bool
    context: Any
    def facts(self) -> Json: ...
    def progress(self, body: Json, /) -> None: ...
    def log(self, body: Json, /) -> None: ...
    def request(self, verb: str, body: Json, /) -> Awaitable[Any]: ...
    def request_sync(self, verb: str, body: Json, /) -> Any: ...
    def state(self, id: str, /) -> StateDoc: ...

def begin_exit() -> list[int]: ...
def reset_after_fork() -> None: ...

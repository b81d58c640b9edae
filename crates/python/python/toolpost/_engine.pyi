from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, Unpack, final, overload

from typing_extensions import TypeVar as DefaultTypeVar
from typing_extensions import disjoint_base

from toolpost.author import Ctx, Prompt, Resource, Tool
from toolpost.flow import Step

T = TypeVar("T", covariant=True)
A = DefaultTypeVar("A", default=Any)
P = ParamSpec("P")
R = TypeVar("R")

Json = dict[str, Any]
Level = Literal["minimal", "standard", "strict", "maximum"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
Approve = Literal["allow", "deny"] | Callable[[str, Json], bool | Coroutine[Any, Any, bool]]
Priority = Literal["background", "low", "normal", "high", "critical"]

@final
class Awaitable(Coroutine[Any, Any, T], Generic[T]):
    """A call that an event loop awaits. It starts at the first await and can be awaited once."""

    def __await__(self) -> Generator[Any, Any, T]: ...
    def send(self, value: Any) -> Any: ...
    def throw(
        self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None
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
    parent: Ctx[Any]
    """The context of the tool that starts the run. The run spends from the limits of the tool's caller, which approves
    its calls; of the other options, only `context` applies. Defaults to the `context` of the caller."""

class AgentOptions(TypedDict, total=False):
    """The options of an agent, besides its answer."""

    tools: Any
    """Functions, `@tool` functions, objects with `@tool` methods, toolboxes, agents."""
    system: str | Callable[[Ctx[Any]], str | Coroutine[Any, Any, str]] | None
    """The system prompt, or a function that returns it at the start of each run, from the run's `context`."""
    max_repairs: int | None
    """How often the model may correct an answer (2)."""
    max_iterations: int | None
    """Requests to the model in a run (25)."""
    max_tool_calls: int | None
    """Tool calls in a run."""
    max_tokens: int | None
    """Input and output tokens of a run."""
    max_cost_usd: float | None
    """US dollars of a run."""
    max_time: float | None
    """Seconds of a run."""
    max_parallel_tools: int | None
    """Tools that run at once (8)."""
    temperature: float | None
    """Sampling temperature."""
    effort: Effort | None
    """Effort of the model's thinking."""
    max_output_tokens: int | None
    """Tokens of one answer."""
    hosted_tools: Iterable[str | Json] | None
    """Tools that the provider runs: names such as `web_search`, or dicts such as `{"web_search": {"max_uses": 3}}`."""
    dynamic: bool | Literal["native", "browse"] | Model | None
    """Loads tools on demand instead of offering all. True: the provider searches if it can, else the model browses. A
    model picks tools for an intent."""
    core_tools: Sequence[str] | None
    """Tools that are offered from the start if `dynamic` is set."""
    tool_timeout: float | None
    """Seconds of a tool call, if the tool's own timeout is not shorter."""
    approve: Approve | None
    """Decides calls of tools with `approval="ask"`: a function of the tool's name and arguments that returns a bool,
    plain or async. Without it, these calls are denied."""
    name: str | None
    """The name as a tool of another agent."""
    description: str | None
    """The description as a tool of another agent."""
    on_event: Callable[[Json], object] | None
    """Gets the events of runs without `stream`, those of nested agents included. The run waits for it."""

@final
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
    def partial(self) -> Json | None:
        """The counts of a partial success: a dict with `succeeded` and `errors`; None for a whole one."""
    @property
    def artifacts(self) -> list[Json]:
        """The artifacts: dicts with `name`, `media_type`, `size`, and `data` or `path`."""
    @property
    def record(self) -> Json:
        """The record of the call: its id, times, attempts, usage and nested calls."""

@final
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

@final
class Toolbox:
    """A set of tools, and the one way to call them: checked, limited and recorded.

    >>> from toolpost import Toolbox
    >>> def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> Toolbox(add).call_sync("add", {"a": 1, "b": 2}).value
    3
    """

    def __new__(
        cls,
        *tools: Any,
        name: str = "toolpost",
        store: str | PathLike[str] | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        on_event: Callable[[Json], object] | None = None,
    ) -> Self:
        """Create a toolbox of functions, `@tool` functions, objects with `@tool` methods, modules, or lists of these.

        A toolbox among them adds its tools, resources and prompts.

        name: the name of the server, and of the source in records.
        store: file of the documents; without one, they are lost with the toolbox.
        concurrency: maximum number of calls that run at once; others wait in order of priority.
        timeout: seconds of one attempt of a tool without a timeout of its own; defaults to 60.
        on_event: gets each event of the calls: dicts with a `type`.
        """
    def add(self, *tools: Any) -> None:
        """Add tools, as the constructor does."""
    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(self, /, **options: Any) -> Callable[[Callable[P, R]], Tool[P, R]]:
        """Add a function as a tool: `@toolbox.tool`, with the options of `toolpost.tool`."""
    def resource(self, uri_template: str, /, **options: Any) -> Callable[[Callable[P, R]], Resource[P, R]]:
        """Add a function as a resource: `@toolbox.resource("notes://{user}")`, with the options of `toolpost.resource`."""
    @overload
    def prompt(self, function: Callable[P, R], /) -> Prompt[P, R]: ...
    @overload
    def prompt(self, /, **options: Any) -> Callable[[Callable[P, R]], Prompt[P, R]]:
        """Add a function as a prompt: `@toolbox.prompt`, with the options of `toolpost.prompt`."""
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
    def read(self, uri: str) -> Awaitable[Any]:
        """Read a resource, also one of a connected server, and return its value."""
    def read_sync(self, uri: str) -> Any: ...
    def render(self, name: str, arguments: Mapping[str, Any] | None = None) -> Awaitable[Any]:
        """Render a prompt, also one of a connected server, and return its value."""
    def render_sync(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any: ...
    def connect(
        self,
        target: str,
        *,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        level: Level | None = None,
        calls: Sequence[str] = ...,
    ) -> Awaitable[None]:
        """Add the tools of a target: a URL, `stdio:COMMAND`, a path, `command:NAME`, `builtin` or `builtin:TOOL`.

        token: the bearer token for a URL.
        env: variables of a program, whose environment is otherwise empty.
        level: the sandbox level of a program; defaults to "standard".
        calls: tools of this toolbox that an executable may call with `ctx.call`; defaults to none.
        """
    def connect_sync(
        self,
        target: str,
        *,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        level: Level | None = None,
        calls: Sequence[str] = ...,
    ) -> None: ...
    def serve(
        self,
        *,
        http: str | None = None,
        token: str | None = None,
        hosts: Sequence[str] = (),
        context: Any = None,
        name: str | None = None,
        version: str | None = None,
        instructions: str | None = None,
        on_ready: Callable[[str], object] | None = None,
    ) -> Awaitable[None]:
        """Serve the tools over MCP: on standard input and output, or over HTTP on an address such as 127.0.0.1:8000.

        It ends when the client disconnects or the await is cancelled. Over HTTP, the path is `/mcp`.

        token: the bearer token of clients; required for an address beyond loopback.
        hosts: `Host` names of requests besides the address, such as `tools.example` or `tools.example:8000`; required
            for an address beyond loopback.
        context: an object for tools, as `ctx.context`, such as a database connection.
        name: the server's name; defaults to the toolbox's.
        on_ready: gets the URL.

        A defect of a tool is logged with its traceback to the logger `toolpost`.
        """
    def serve_sync(
        self,
        *,
        http: str | None = None,
        token: str | None = None,
        hosts: Sequence[str] = (),
        context: Any = None,
        name: str | None = None,
        version: str | None = None,
        instructions: str | None = None,
        on_ready: Callable[[str], object] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...

@disjoint_base
class Model:
    """A model by its name, such as `anthropic/claude-sonnet-5-5`, `script:FILE` or `replay:FILE`.

    Without `api_key` and `base_url`, they come from the environment, as `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
    `timeout` is in seconds, of an answer with all its attempts (1,800). `max_retries` is the number of attempts after
    the first (3).
    """

    def __new__(
        cls,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The provider and its name of the model."""

@final
class ScriptModel(Model):
    """A model that plays turns instead of asking a provider, for tests.

    A turn is a string, or a dict as in a script file: `text`, `calls`, `expect`, `stop`, `usage`. Its texts are
    templates: `last` is the latest result of a tool, with `text`, `structured`, `is_error` and `tool`. Instead of a
    list, a function may return the next turn for the messages so far, in the form of `Conversation.messages`.

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
class Agent(Generic[A]):
    """A model with tools. It is immutable, and can run many times at once.

    `tools` are functions, `@tool` functions, objects with `@tool` methods, toolboxes, and agents with a name and a
    description. An agent that is a tool spends from the limits of its caller, and its caller approves its calls.

    `answer` is the type of the answer: a pydantic model, a dataclass, a TypedDict, a union of these or a JSON Schema.
    The model corrects an answer that does not match. Type checkers need `Agent[X | Y](…, answer=X | Y)` for a union.

    `validate` is a function of the run's context and the answer, plain or async. It returns the answer, changed or not;
    None keeps it. The model corrects the answer after a `ToolError` or `ValueError`; other exceptions end the run.

    The limits are those of one run, and unlimited unless `AgentOptions` has a default.

    >>> agent = Agent("anthropic/claude-sonnet-5-5", tools=[forecast], max_cost_usd=0.10)
    >>> print(agent.run_sync("Will it rain in Oslo?").text)
    """

    @overload
    def __new__(
        cls,
        model: str | Model,
        *,
        answer: None = None,
        validate: Callable[[Ctx[Any], str], str | Coroutine[Any, Any, str]] | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent[str]: ...
    @overload
    def __new__(
        cls,
        model: str | Model,
        *,
        answer: type[A],
        validate: Callable[[Ctx[Any], A], A | Coroutine[Any, Any, A]] | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent[A]: ...
    @overload
    def __new__(
        cls,
        model: str | Model,
        *,
        answer: Any,
        validate: Callable[[Ctx[Any], A], A | Coroutine[Any, Any, A]] | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent[A]: ...
    def with_model(self, model: str | Model) -> Agent[A]:
        """Return the same agent with another model, such as a `ScriptModel` in a test."""

    def run(
        self,
        prompt: str,
        *,
        conversation: Conversation | RunResult[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Awaitable[RunResult[A]]:
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
        conversation: Conversation | RunResult[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult[A]:
        """Run the agent on a prompt, and wait for the result. Plain tools run in this thread, one after another.

        Raises:
            RunError: As `run`.
        """

    def stream(
        self,
        prompt: str,
        *,
        conversation: Conversation | RunResult[Any] | None = None,
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
class RunResult(Generic[A]):
    """The result of a run."""

    @property
    def answer(self) -> A:
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
    event has the `answer` as JSON; a run without an answer raises `RunError` after it.

    The run advances only while an event is awaited, so no queue grows. Only tools in threads emit meanwhile: of these
    events, at most 10,000 are queued, and further ones dropped.

    Dropping or closing the iterator, or cancelling an await, ends the run. `async with` also waits for its tasks.
    """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Json]: ...
    @property
    def result(self) -> RunResult[Any] | None:
        """The result of the run, after its last event; before it, None."""

    def aclose(self) -> Awaitable[None]:
        """End the run, and wait for the tasks of its tools."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class CallContext:
    """The engine's half of `toolpost.Ctx`."""

    attempt: int
    remaining: float | None
    is_cancelled: bool
    context: Any
    def facts(self) -> Json: ...
    def progress(self, body: Json) -> None: ...
    def log(self, body: Json) -> None: ...
    def request(self, verb: str, body: Json) -> Awaitable[Any]: ...
    def request_sync(self, verb: str, body: Json) -> Any: ...
    def state(self, id: str) -> StateDoc: ...

def begin_exit() -> list[int]: ...
def reset_after_fork() -> None: ...

# Sandboxes

_Path: TypeAlias = str | PathLike[str]
_Content: TypeAlias = str | bytes | PathLike[str]
_OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], str], object]

@disjoint_base
class Sandbox:
    """A level of confinement, limits, files and environment. It runs code and commands, also several at once.

    >>> Sandbox().run_sync("sum(range(10))").value
    45
    """

    def __new__(
        cls,
        level: Level | None = None,
        *,
        timeout: float | None = None,
        memory: int | None = None,
        cpu: float | None = None,
        pids: int | None = None,
        max_output: int | None = None,
        allow_hosts: Sequence[str] = ...,
        env: Mapping[str, str] = ...,
        requirements: Sequence[str] = ...,
        venv: _Path | None = None,
        workdir: _Path | None = None,
        live: bool = False,
        read_only: Sequence[_Path] = ...,
        read_write: Sequence[_Path] = ...,
        allow_degraded: bool = False,
    ) -> Self:
        """Check the settings; nothing starts.

        level: the confinement; defaults to the best of this host, and is never lowered silently.
        timeout: seconds of wall time; defaults to 30.
        memory: bytes of all processes together; defaults to 512 MiB.
        cpu: the number of busy processors, such as 0.5.
        pids: processes and threads at one time.
        max_output: stored bytes of each output, head and tail; defaults to 1 MiB.
        allow_hosts: the egress allowlist; without it there is no network from level "standard" upward.
        env: variables in the otherwise clean environment.
        requirements: Python packages for code, such as "humanize==4.*", installed at the first use.
        venv: a virtual environment to run code with, read-only, such as `sys.prefix`; editable installs are visible.
        workdir: a host directory to work in; checked changes are applied at the end.
        live: write to `workdir` directly.
        read_only: host paths to read, at their own paths.
        read_write: host directories to write to, at their own paths.
        allow_degraded: fall back to a lower level if the host lacks `level`.

        Raises ValueError for an invalid setting.
        """

    def run(
        self,
        code: str,
        language: str = "python",
        *,
        stdin: _Content | None = None,
        files: Mapping[str, _Content] | None = None,
        args: Sequence[str] = ...,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Awaitable[Outcome]:
        """Run code, and await its outcome. A program that fails is an outcome, no exception.

        stdin: the input; a path names a host file.
        files: files of the workspace by name; a path names a host file to copy.
        args: the arguments of the code.
        timeout: seconds of wall time, instead of those of the sandbox.
        on_output: called with the stream and a text for each piece of output. Its exception ends the run.

        A cancelled await kills the program. Raises ToolError if the program cannot start, ValueError and TypeError
        for invalid arguments.
        """

    def run_sync(
        self,
        code: str,
        language: str = "python",
        *,
        stdin: _Content | None = None,
        files: Mapping[str, _Content] | None = None,
        args: Sequence[str] = ...,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Outcome:
        """Run code as `run` does, and wait for its outcome. Ctrl-C kills the program."""

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: _Content | None = None,
        files: Mapping[str, _Content] | None = None,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Awaitable[Outcome]:
        """Run a program with its arguments, without a shell, and await its outcome."""

    def exec_sync(
        self,
        command: Sequence[str],
        *,
        stdin: _Content | None = None,
        files: Mapping[str, _Content] | None = None,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Outcome:
        """Run a program with its arguments, without a shell, and wait for its outcome."""

    def session(self, language: str = "python") -> Session:
        """Return an interpreter that keeps its state between runs: "python" or "javascript".

        It starts at its first use, or at the begin of a `with` block, which closes it.
        """

    def pool(
        self,
        language: str = "python",
        *,
        preload: Sequence[str] = ...,
        warm_up: str | None = None,
        idle_workers: int | None = None,
        max_concurrency: int | None = None,
        queue: int | None = None,
        queue_timeout: float | None = None,
        idle_shutdown: float | None = None,
    ) -> Pool:
        """Return the same sandbox with prewarmed interpreters of a language, which start immediately.

        preload: modules that Python loads once for all runs, such as "numpy".
        warm_up: Python code that each idle interpreter runs before it gets its code.
        idle_workers: interpreters that wait for code; defaults to 2.
        max_concurrency: concurrent runs; defaults to twice the processors.
        queue: runs that wait for a free one; defaults to 64. One more raises ToolError with OVERLOADED.
        queue_timeout: seconds that a run waits, before OVERLOADED; defaults to 10.
        idle_shutdown: seconds without runs after which the interpreters end; defaults to 600. The next run starts them.

        Raises ValueError for an invalid setting, and for a sandbox with `allow_hosts`, `requirements`, `read_write` or
        another level than "standard" and "strict": none of its runs could start from a pool.
        """

@final
class Pool(Sandbox):
    """A sandbox whose runs start in prewarmed interpreters, in milliseconds.

    Each run has an interpreter of its own, and shares only the preloaded modules. A run that does not match the pool
    starts cold: one in another language, with `args`, or of `exec`. The notes in `Outcome.to_dict()["report"]` give the
    reason.

    >>> with Sandbox().pool(preload=["json"]) as pool:
    ...     pool.run_sync("sum(range(10))").value
    45
    """

    @property
    def metrics(self) -> dict[str, Any]:
        """The counters: `served` and `cold` runs, `ready` interpreters, latencies in seconds, `missing` modules.

        `unavailable` has the reason if this host supports no pools; then all runs are cold.
        """

    def close(self) -> Awaitable[None]:
        """End the idle interpreters; running code ends first."""

    def close_sync(self) -> None:
        """End the idle interpreters; running code ends first."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(self, *exception: object) -> Awaitable[None]: ...

@final
class Session:
    """An interpreter in its own sandbox. Runs share its variables and files, and it can be forked with them.

    >>> with Sandbox().session() as session:
    ...     _ = session.run_sync("x = 20")
    ...     session.run_sync("x + 22").value
    42
    """

    def run(
        self,
        code: str,
        *,
        files: Mapping[str, _Content] | None = None,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Awaitable[Outcome]:
        """Run code with the state of the earlier runs, and await its outcome.

        One run at a time. A cancelled await interrupts the code; the session stays alive if it stops within a second.
        """

    def run_sync(
        self,
        code: str,
        *,
        files: Mapping[str, _Content] | None = None,
        timeout: float | None = None,
        on_output: _OnOutput | None = None,
    ) -> Outcome:
        """Run code as `run` does, and wait for its outcome."""

    def fork(self, count: int = 1) -> Awaitable[list[Session]]:
        """Copy the interpreter with its variables and files into independent sessions."""

    def fork_sync(self, count: int = 1) -> list[Session]:
        """Copy the interpreter with its variables and files into independent sessions."""

    def reset(self, *, keep_files: bool = False) -> Awaitable[None]:
        """Replace the interpreter. Its variables are gone, and its files unless `keep_files`."""

    def reset_sync(self, *, keep_files: bool = False) -> None:
        """Replace the interpreter. Its variables are gone, and its files unless `keep_files`."""

    def interrupt(self) -> bool:
        """Interrupt the running code, as Ctrl-C would. Return whether code was running."""

    def close(self) -> Awaitable[None]:
        """End the interpreter and all that it started. Running code is cancelled."""

    def close_sync(self) -> None:
        """End the interpreter and all that it started. Running code is cancelled."""

    @property
    def language(self) -> str:
        """The language."""

    @property
    def cells(self) -> int:
        """The number of runs, those before a fork included."""

    @property
    def ended(self) -> str | None:
        """Why the session has ended; None if it is alive or has not started."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Awaitable[None]: ...

@final
class Outcome:
    """How a program ended, what it printed, its value and its files.

    A tool may return it. A notebook shows its output, tables and figures, all of it as text and PNG images.
    """

    @property
    def ok(self) -> bool:
        """Whether the program exited with status 0."""

    @property
    def exit_code(self) -> int | None:
        """The exit status; None if the program did not exit by itself."""

    @property
    def stdout(self) -> str:
        """Standard output; a long one has a mark in its middle for the dropped bytes."""

    @property
    def stderr(self) -> str:
        """Standard error; a long one has a mark in its middle for the dropped bytes."""

    @property
    def value(self) -> Any:
        """The value of the last expression, or of the last line `::result JSON`: exact, or its `type` and `text`; None without one."""

    @property
    def artifacts(self) -> list[Artifact]:
        """The files that the program created or changed."""

    @property
    def verdict(self) -> Verdict:
        """How the program ended."""

    @property
    def duration(self) -> float:
        """The seconds from the start of the sandbox to the end of its last process."""

    @property
    def level(self) -> str:
        """The level in force."""

    @property
    def layers(self) -> list[str]:
        """The attested layers: those that the kernel accepted for this run."""

    @property
    def usage(self) -> dict[str, Any]:
        """The used resources: `wall_ms`, `user_ms`, `system_ms`, `largest_process`, `peak_memory`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON data, with changes, applied files and the whole report."""

    def raise_for_status(self) -> Self:
        """Raise ToolError unless the program exited with status 0; else return the outcome."""

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]: ...

@final
class Verdict:
    """How a program ended. `str` gives the message."""

    @property
    def kind(self) -> str:
        """A name such as "ok", "exit", "signal", "timeout", "memory", "denied", "cancelled" or "interrupted"."""

    @property
    def message(self) -> str:
        """The same as a sentence."""

@final
class Artifact:
    """A file that a program created or changed."""

    @property
    def name(self) -> str:
        """The path relative to the workspace."""

    @property
    def media_type(self) -> str:
        """The media type; "application/octet-stream" if unknown."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    @property
    def data(self) -> bytes:
        """The content."""

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]: ...

# Workflows

_Durability: TypeAlias = Literal["full", "normal", "none"]
_OnProgress: TypeAlias = Callable[[dict[str, Any]], object]

@final
class Flow:
    """A workflow: steps that call tools, run code, wait, or hold other steps."""

    def __new__(
        cls,
        name: str,
        steps: Sequence[Step],
        *,
        input: Mapping[str, Any] | None = None,
        output: Any = None,
        description: str | None = None,
        tools: Sequence[str] | None = None,
        timeout: float | str | timedelta | None = None,
        failure: Literal["fail_fast", "continue"] | Mapping[Literal["quorum"], int] | None = None,
        max_parallel: int | None = None,
    ) -> Flow:
        """Build a plan. Raises ValueError with all defects.

        input: the inputs of a run: types, or JSON Schemas. An input without a default is required.
        output: a value with references; defaults to the output of the last step.
        tools: the targets of the tools for the command line, such as ``builtin`` or a path.
        timeout: the seconds of a whole run.
        failure: what a failed step means: "fail_fast" stops the others, "continue" runs them, a quorum stops the rest.
        max_parallel: the number of steps at once.
        """

    @staticmethod
    def from_file(path: _Path) -> Flow:
        """Read a plan in YAML, TOML or JSON, with its sub-flows. Raises ValueError with all defects."""

    @staticmethod
    def from_yaml(text: str) -> Flow:
        """Parse a plan in YAML or JSON. Raises ValueError with all defects."""

    @property
    def name(self) -> str:
        """The name of the plan."""

    @property
    def data(self) -> dict[str, Any]:
        """The members of the plan, as in a file: `json.dumps` of it is a file for `toolpost flow run`."""

    @property
    def hash(self) -> str:
        """The SHA-256 of the plan's data, in hexadecimal digits."""

    def check(self, toolbox: Toolbox) -> list[FlowProblem]:
        """Check the calls of tools against a toolbox: unknown tools, and arguments of a wrong type."""

    def run(
        self,
        toolbox: Toolbox,
        input: Mapping[str, Any] | None = None,
        *,
        store: _Path | None = None,
        durability: _Durability = "full",
        max_parallel: int | None = None,
        working_dir: _Path | None = None,
        on_progress: _OnProgress | None = None,
        check: bool = True,
    ) -> Awaitable[FlowResult]:
        """Run the plan with the tools of a toolbox, and await its result.

        store: the file in which the run is stored, so that it can be resumed; defaults to none.
        durability: what a crash may cost a stored run: "full" repeats no ended step, "normal" the last ones.
        max_parallel: the number of calls at once; defaults to 64.
        working_dir: the working directory of tools; without one, file tools reject their calls.
        on_progress: called with each event: a dict with `kind`, `run`, `step` and more. Its exception ends the run.
        check: raise the ToolError of a failed run.

        A cancelled await stops the run; a stored run can be resumed. Raises ValueError for problems that `check` finds.
        """

    def run_sync(
        self,
        toolbox: Toolbox,
        input: Mapping[str, Any] | None = None,
        *,
        store: _Path | None = None,
        durability: _Durability = "full",
        max_parallel: int | None = None,
        working_dir: _Path | None = None,
        on_progress: _OnProgress | None = None,
        check: bool = True,
    ) -> FlowResult:
        """Run the plan as `run` does, and wait for its result."""

    @staticmethod
    def resume(
        run: str,
        toolbox: Toolbox,
        *,
        store: _Path,
        durability: _Durability = "full",
        max_parallel: int | None = None,
        working_dir: _Path | None = None,
        on_progress: _OnProgress | None = None,
        check: bool = True,
    ) -> Awaitable[FlowResult]:
        """Resume a stored run with the plan that it began with: its id, the start of its id, or "last"."""

    @staticmethod
    def resume_sync(
        run: str,
        toolbox: Toolbox,
        *,
        store: _Path,
        durability: _Durability = "full",
        max_parallel: int | None = None,
        working_dir: _Path | None = None,
        on_progress: _OnProgress | None = None,
        check: bool = True,
    ) -> FlowResult:
        """Resume a stored run as `resume` does, and wait for its result."""

    @staticmethod
    def signal(run: str, name: str, value: Any = None, *, store: _Path) -> Awaitable[None]:
        """Send a value to the step of a stored run that waits for a signal."""

    @staticmethod
    def signal_sync(run: str, name: str, value: Any = None, *, store: _Path) -> None:
        """Send a value to the step of a stored run that waits for a signal."""

    @staticmethod
    def approve(
        run: str, step: str | None = None, *, approved: bool = True, comment: str | None = None, store: _Path
    ) -> Awaitable[None]:
        """Approve a step of a stored run that waits for a person, or deny it. `step` defaults to the only such step.

        The answer is the output of the step; a denial fails it. A step takes one answer, and none after its deadline.
        """

    @staticmethod
    def approve_sync(
        run: str, step: str | None = None, *, approved: bool = True, comment: str | None = None, store: _Path
    ) -> None:
        """Answer the approval of a step as `approve` does, and wait until the answer is stored."""


@final
class FlowProblem:
    """A defect of a plan. `str` gives its place, message and fix."""

    @property
    def line(self) -> int:
        """The line in the file; 0 without one."""

    @property
    def column(self) -> int:
        """The column in characters; 0 without one."""

    @property
    def step(self) -> str:
        """The id of the step; empty for the plan itself."""

    @property
    def message(self) -> str:
        """The defect."""

    @property
    def hint(self) -> str | None:
        """The fix."""

    @property
    def is_warning(self) -> bool:
        """Whether the plan runs all the same."""

@final
class FlowResult:
    """The result of a run."""

    @property
    def id(self) -> str:
        """The id of the run."""

    @property
    def status(self) -> Literal["succeeded", "failed", "cancelled"]:
        """How the run ended."""

    @property
    def output(self) -> Any:
        """The output of the plan; None unless the run succeeded."""

    @property
    def error(self) -> BaseException | None:
        """The ToolError of a failed or cancelled run."""

    @property
    def succeeded(self) -> int:
        """The number of steps that succeeded."""

    @property
    def failed(self) -> int:
        """The number of steps that failed."""

    @property
    def duration(self) -> float:
        """The seconds of this process for the run."""

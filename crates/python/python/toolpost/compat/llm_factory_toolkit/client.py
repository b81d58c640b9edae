"""The client: each request is a run of an agent of the engine."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, cast

from pydantic import BaseModel

import toolpost
from toolpost.compat.llm_factory_toolkit.exceptions import (
    ConfigurationError,
    LLMToolkitError,
    ProviderError,
    UnsupportedFeatureError,
)
from toolpost.compat.llm_factory_toolkit.models import compute_cost
from toolpost.compat.llm_factory_toolkit.tools.catalog import InMemoryToolCatalog
from toolpost.compat.llm_factory_toolkit.tools.meta_tools import META_TOOLS
from toolpost.compat.llm_factory_toolkit.tools.models import (
    GenerationResult,
    ParsedToolCall,
    StreamChunk,
    ToolIntentOutput,
    UsageEvent,
)
from toolpost.compat.llm_factory_toolkit.tools.runtime import ToolRuntime
from toolpost.compat.llm_factory_toolkit.tools.session import ToolSession
from toolpost.compat.llm_factory_toolkit.tools.tool_factory import EngineTool, Scope, ToolFactory

Message = dict[str, Any]

DEFAULT_MAX_TOOL_ITERATIONS = 25
_CONTINUE = "Continue."
"""The prompt after results of tools."""

_ABSENT = {
    "retry_min_wait": (1.0, "the engine has its own waits"),
    "web_search": (False, "pass True, or use `hosted_tools` of `toolpost.Agent`"),
    "file_search": (False, "use `hosted_tools` of `toolpost.Agent`"),
    "repetition_threshold": (3, "the engine detects loops with its own thresholds"),
}


def _reject_absent(options: dict[str, Any]) -> None:
    """Raise the error of an option that the engine does not have, unless it has its default."""
    for name, value in options.items():
        default, fix = _ABSENT.get(name, (None, "remove it"))
        if value != default:
            raise UnsupportedFeatureError(f"Toolpost has no option `{name}`: {fix}.")


class LLMClient:
    """A model with the tools of a factory.

    model: a name such as `openai/gpt-4o-mini`, or a `toolpost.Model` such as `ScriptModel`.
    api_key, base_url, timeout, max_retries: the access to a model with a name; by default that of the environment.
    core_tools: with `dynamic_tool_loading`, the names of the tools that the model always sees.
    dynamic_tool_loading: True lets the model search the other tools, a model's name lets that model search them.
    compact_tools: omit the descriptions and defaults of parameters, except for core tools.
    on_usage: gets a `UsageEvent` per request, with `usage_metadata`.
    pricing: `input_cost_per_1m` and `output_cost_per_1m` in US dollars; defaults to the prices of the engine.
    """

    def __init__(
        self,
        model: str | toolpost.Model = "openai/gpt-4o-mini",
        api_key: str | None = None,
        tool_factory: ToolFactory | None = None,
        *,
        core_tools: list[str] | None = None,
        dynamic_tool_loading: bool | str | toolpost.Model = False,
        compact_tools: bool = False,
        on_usage: Callable[..., Any] | None = None,
        usage_metadata: dict[str, Any] | None = None,
        pricing: dict[str, float] | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        **absent: Any,
    ) -> None:
        _reject_absent(absent)
        self.model, self.compact_tools, self.on_usage, self.pricing = model, compact_tools, on_usage, pricing
        self.usage_metadata = usage_metadata or {}
        self.tool_factory = tool_factory or ToolFactory()
        self.core_tools = core_tools or []
        self.dynamic_tool_loading = bool(dynamic_tool_loading)
        self._search_agent: LLMClient | None = None
        access = {"api_key": api_key, "base_url": base_url, "timeout": timeout, "max_retries": max_retries}
        self.provider = ProviderRouter(model=model, tool_factory=self.tool_factory, access=access)
        if not self.dynamic_tool_loading:
            return
        if tool_factory is None:
            raise ConfigurationError("dynamic_tool_loading requires a tool_factory with registered tools.")
        if tool_factory.get_catalog() is None:
            tool_factory.set_catalog(InMemoryToolCatalog(tool_factory))
        if "browse_toolkit" not in tool_factory.available_tool_names:
            tool_factory.register_meta_tools()
        if unknown := [name for name in self.core_tools if name not in tool_factory.available_tool_names]:
            raise ConfigurationError(f"core_tools contain unregistered tool names: {unknown}")
        self._search_agent_model = None if dynamic_tool_loading is True else dynamic_tool_loading
        if self._search_agent_model is not None:
            self._search_agent = LLMClient(cast(str, self._search_agent_model), api_key)
            if "find_tools" not in tool_factory.available_tool_names:
                tool_factory.register_find_tools()

    def _build_dynamic_session(self) -> ToolSession:
        session = ToolSession()
        names = [tool.__name__ for tool in META_TOOLS]
        if "find_tools" in self.tool_factory.available_tool_names:
            names[0] = "find_tools"
        session.load([*self.core_tools, *names])
        return session

    def register_tool(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Register a function, by default with its name and docstring. Options are those of `ToolFactory`."""
        name = name or function.__name__
        description = description or (function.__doc__ or "").strip() or f"Executes the {name} function."
        self.tool_factory.register_tool(function, name, description, parameters, **options)

    async def generate(
        self,
        input: list[Message],
        model: str | toolpost.Model | None = None,
        *,
        merge_history: bool = False,
        stream: bool = False,
        tool_session: ToolSession | None = None,
        tool_execution_context: dict[str, Any] | None = None,
        compact_tools: bool | None = None,
        usage_metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> GenerationResult | AsyncGenerator[StreamChunk, None]:
        """Run the model with tools until it answers. With `stream`, return the chunks of its text.

        input: messages with `role` and `content`; `merge_history` merges adjacent ones of a role.
        tool_execution_context: values for parameters that are not arguments of the model.
        response_format: a pydantic model, `{"type": "json_object"}` or `{"type": "json_schema", ...}`.
        use_tools: the names of the tools that the model sees; an empty list, the default, shows all, None shows none.
        mock_tools: call the mock of each tool.
        parallel_tools: run calls at once, at most `max_concurrent_tools`; defaults to one after another.
        max_tool_iterations: the maximum number of requests to the model; defaults to 25.
        max_tool_output_chars: truncate longer outputs for the model.
        tool_timeout: seconds of a tool call.
        temperature, reasoning_effort, max_output_tokens: options of the model; web_search: True searches at the provider.
        """
        context = dict(tool_execution_context or {})
        if self.dynamic_tool_loading:
            tool_session = tool_session or self._build_dynamic_session()
            if self.core_tools:
                context["core_tools"] = list(self.core_tools)
        if self._search_agent is not None:
            context["_search_agent"] = self._search_agent
        options |= {
            "input": _merged(input) if merge_history else copy.deepcopy(input),
            "model": model,
            "tool_session": tool_session,
            "tool_execution_context": context or tool_execution_context,
            "compact_tools": self.compact_tools if compact_tools is None else compact_tools,
            "on_usage": self.on_usage,
            "usage_metadata": {**self.usage_metadata, **(usage_metadata or {})},
            "pricing": self.pricing,
        }
        try:
            return self.provider.generate_stream(**options) if stream else await self.provider.generate(**options)
        except LLMToolkitError:
            raise
        except Exception as error:
            raise LLMToolkitError(f"Unexpected generation error: {error}") from error

    async def generate_tool_intent(
        self, input: list[Message], model: str | toolpost.Model | None = None, **options: Any
    ) -> ToolIntentOutput:
        """Return the tool calls that the model plans, for `execute_tool_intents`. Options are those of `generate`."""
        try:
            return await self.provider.generate_tool_intent(input=input, model=model, **options)
        except LLMToolkitError:
            raise
        except Exception as error:
            raise LLMToolkitError(f"Unexpected tool intent generation error: {error}") from error

    async def execute_tool_intents(
        self,
        intent_output: ToolIntentOutput,
        tool_execution_context: dict[str, Any] | None = None,
        mock_tools: bool = False,
    ) -> list[Message]:
        """Run planned calls one after another, and return their messages for the next `generate`."""
        if not self.tool_factory:
            raise ConfigurationError("LLMClient has no ToolFactory, so it cannot execute tool intents.")
        messages = []
        for call in intent_output.tool_calls or ():
            try:
                text = json.dumps(call.arguments if isinstance(call.arguments, dict) else {})
            except TypeError as error:
                content = json.dumps({"error": f"Failed to serialise arguments: {error}"})
            else:
                if call.arguments_parsing_error:
                    reason = f"Tool '{call.name}' skipped due to argument parsing error."
                    content = json.dumps({"error": reason, "details": call.arguments_parsing_error})
                else:
                    dispatched = self.tool_factory.dispatch_tool(call.name, text, tool_execution_context, mock_tools)
                    content = (await dispatched).content
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content})
        return messages

    @staticmethod
    def _merge_conversation_history(messages: list[Message]) -> list[Message]:
        return _merged(messages)


class ProviderRouter:
    """The runs of a client. Its methods take the options of `LLMClient.generate`."""

    def __init__(
        self, *, model: str | toolpost.Model, tool_factory: ToolFactory, access: dict[str, Any] | None = None
    ) -> None:
        self.model, self.tool_factory, self.access = model, tool_factory, access or {}

    async def generate(self, **options: Any) -> GenerationResult:
        async with aclosing(self._run(**options)) as items:
            return [item async for item in items][-1]  # type: ignore[no-any-return]

    async def generate_stream(self, **options: Any) -> AsyncGenerator[StreamChunk, None]:
        async with aclosing(self._run(**options)) as items:
            async for item in items:
                yield StreamChunk(done=True, usage=item.usage) if isinstance(item, GenerationResult) else item

    async def generate_tool_intent(self, **options: Any) -> ToolIntentOutput:
        result = await self.generate(**options, max_tool_iterations=1, plan=True)
        message = (result.messages or [])[len(options["input"]) :][:1]
        calls = [_planned(call) for item in message for call in item.get("tool_calls", ())]
        for call in calls:
            self.tool_factory.increment_tool_usage(call.name)
        return ToolIntentOutput(
            content=message[0]["content"] if message else None, tool_calls=calls or None, raw_assistant_message=message
        )

    async def _run(
        self,
        *,
        input: list[Message],
        model: str | toolpost.Model | None = None,
        temperature: float | None = None,
        max_tool_iterations: int = DEFAULT_MAX_TOOL_ITERATIONS,
        response_format: dict[str, Any] | type[BaseModel] | None = None,
        use_tools: Sequence[str] | None = (),
        tool_execution_context: dict[str, Any] | None = None,
        mock_tools: bool = False,
        parallel_tools: bool = False,
        tool_session: ToolSession | None = None,
        compact_tools: bool = False,
        max_tool_output_chars: int | None = None,
        max_concurrent_tools: int | None = None,
        tool_timeout: float | None = None,
        on_usage: Callable[..., Any] | None = None,
        usage_metadata: dict[str, Any] | None = None,
        pricing: dict[str, float] | None = None,
        reasoning_effort: Any = None,
        max_output_tokens: int | None = None,
        web_search: Any = False,
        plan: bool = False,
        **absent: Any,
    ) -> AsyncGenerator[Any, None]:
        """Yield the chunks of the text, then the result."""
        _reject_absent(absent if web_search is True else {"web_search": web_search, **absent})
        factory, context = self.tool_factory, dict(tool_execution_context or {})
        if tool_session is not None:
            context |= {"tool_session": tool_session, "tool_catalog": factory.get_catalog()}
        toolbox = toolpost.Toolbox()
        core = context.get("core_tools") or ()

        def show() -> None:
            """Show the tools of the session. New ones are appended, so that the provider's cache stays valid."""
            named = use_tools or () if tool_session is None else tool_session.active_tools
            shows_all = tool_session is None and use_tools is not None and not use_tools
            wanted = [name for name in factory.available_tool_names if shows_all or name in named]
            compact = compact_tools
            if tool_session is not None:
                compact = compact or (tool_session.auto_compact and tool_session.get_budget_usage()["warning"])
            for spec in toolbox.specs:
                if spec["name"] not in wanted:
                    toolbox.remove(spec["name"])
            for name in wanted:
                if name not in toolbox:
                    short = compact and name not in core
                    toolbox.add(EngineTool(factory, factory.registrations[name], short))

        def after(name: str) -> None:
            factory.increment_tool_usage(name)
            if tool_session is not None:
                tool_session.record_tool_call(name)
                show()

        show()
        system, history, prompt = _conversation(input)
        runtime = ToolRuntime(factory, base_context=context, use_mock=mock_tools)
        scope = Scope(runtime, mock_tools, plan, max_tool_output_chars, after)
        try:
            chosen = model or self.model
            agent = toolpost.Agent(
                toolpost.Model(chosen, **self.access) if isinstance(chosen, str) else chosen,
                tools=[toolbox],
                system=system,
                answer=_answer_type(response_format),
                max_iterations=max_tool_iterations,
                max_parallel_tools=(max_concurrent_tools if parallel_tools else 1),
                temperature=temperature,
                effort=reasoning_effort,
                max_output_tokens=max_output_tokens,
                hosted_tools=["web_search"] if web_search else None,
                tool_timeout=tool_timeout,
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        usage, metadata = list[Any](), usage_metadata or {}
        name = chosen if isinstance(chosen, str) else chosen.name

        async def report() -> None:
            """Report a request and the tools that it called, which are known at the next one."""
            if usage and on_usage:
                tokens = {key: usage[0]["usage"][key] for key in ("input_tokens", "output_tokens")}
                cost = compute_cost(name, pricing=pricing, **tokens) if pricing else usage[0]["cost_usd"]
                event = UsageEvent(
                    name, usage[0]["iteration"], **tokens, cost_usd=cost, tool_calls=usage[1:], metadata=metadata
                )
                await (on_usage(event) if inspect.iscoroutinefunction(on_usage) else asyncio.to_thread(on_usage, event))
            usage.clear()

        result: Any = None
        try:
            async with agent.stream(prompt, conversation=history, context=scope) as events:
                async for event in events:
                    match event["type"]:
                        case "text.delta":
                            yield StreamChunk(content=event["text"])
                        case "usage":
                            usage.append(event)
                        case "call.started" if usage:
                            usage.append(event["tool"])
                        case "turn.started":
                            await report()
                        case "run.finished":
                            await report()
                            result = events.result
        except toolpost.RunError as error:
            result = error.result
            if result.stop_reason not in ("max_iterations", "repeated_call", "repeated_error", "no_progress"):
                raise ProviderError(str(error)) from error
        yield _generated(result, input, scope, response_format, pricing, max_tool_iterations)


def _generated(
    result: Any, input: list[Message], scope: Scope, response_format: Any, pricing: Any, limit: int
) -> GenerationResult:
    content: Any = result.answer if isinstance(response_format, type) and result.success else result.text
    if not result.success and not scope.plan:
        why = f"Max tool iterations ({limit}) reached" if result.stop_reason == "max_iterations" else "Loop terminated"
        content = f"{content}\n\n[Warning: {why}. Result might be incomplete.]".strip()
    payloads = []
    for name, outcome in scope.results:
        payload = {} if outcome.payload is None else {"payload": outcome.payload}
        payloads.append({"tool_name": name, "metadata": outcome.metadata or {}, **payload})
    # The engine has no system messages, and a prompt of its own after results of tools.
    count = sum(item.get("role") != "system" for item in input) + (_conversation(input)[2] is _CONTINUE)
    new = list(map(_to_chat, result.messages[count:]))
    tokens = {"input_tokens": result.usage["input_tokens"], "output_tokens": result.usage["output_tokens"]}
    return GenerationResult(
        content=content,
        payloads=payloads,
        tool_messages=[item for item in new if item["role"] == "tool"],
        messages=[*input, *new],
        usage={
            "prompt_tokens": tokens["input_tokens"],
            "completion_tokens": tokens["output_tokens"],
            "total_tokens": sum(tokens.values()),
        },
        cost_usd=compute_cost("", pricing=pricing, **tokens) if pricing else result.cost_usd,
    )


def _planned(call: Message) -> ParsedToolCall:
    function, error = call["function"], None
    try:
        arguments = json.loads(function["arguments"])
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are not a JSON object")  # noqa: TRY004
    except ValueError as problem:
        arguments, error = function["arguments"], str(problem)
    return ParsedToolCall(id=call["id"], name=function["name"], arguments=arguments, arguments_parsing_error=error)


def _answer_type(response_format: Any) -> Any:
    if not isinstance(response_format, dict):
        return response_format
    schema = response_format.get("json_schema", response_format).get("schema")
    return schema or ({"type": "object"} if response_format.get("type", "text") != "text" else None)


def _text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        if any(not isinstance(part.get("text"), str) for part in content):
            raise UnsupportedFeatureError("Messages have text only: pass images and files as paths to tools.")
        return "\n".join(part["text"] for part in content)
    return content or ""


def _conversation(messages: list[Message]) -> tuple[str | None, toolpost.Conversation, str]:
    """The system prompt, the history and the prompt of messages."""
    system = [_text_of(message) for message in messages if message.get("role") == "system"]
    rest = [message for message in messages if message.get("role") != "system"]
    prompt = _text_of(rest.pop()) if rest and rest[-1].get("role") == "user" else _CONTINUE
    turns: list[Any] = []
    for message in rest:
        text: dict[str, Any] = {"text": _text_of(message)}
        match message.get("role"):
            case "user":
                turns.append({"user": [text]})
            case "assistant":
                items: list[Any] = [{"view": {"text": text}, "raw": None}] if text["text"] else []
                for call in map(_planned, message.get("tool_calls") or ()):
                    view = {"id": call.id, "name": call.name, "arguments": {"Ok": call.arguments}}
                    items.append({"view": {"tool_call": view}, "raw": None})
                turns.append({"assistant": {"origin": "chat/messages", "items": items}})
            case "tool":
                name, call_id = message.get("name", ""), message.get("tool_call_id", "")
                answer = {"call_id": call_id, "name": name, "content": [text], "is_error": False}
                if turns and "tool_results" in turns[-1]:
                    turns[-1]["tool_results"].append(answer)
                else:
                    turns.append({"tool_results": [answer]})
            case role:
                raise ConfigurationError(f"A message has the role {role!r}: use system, user, assistant or tool.")
    history = toolpost.Conversation.from_json(json.dumps({"turns": turns}))
    return "\n\n".join(system) or None, history, prompt


def _to_chat(message: Message) -> Message:
    """A message of the engine as a message of a chat."""
    if message["role"] == "tool":
        named = {"tool_call_id": message["call_id"], "name": message["tool"]}
        return {"role": "tool", **named, "content": message["text"]}
    chat = {"role": message["role"], "content": message["text"]}
    if message.get("calls"):
        chat["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["tool"], "arguments": _arguments(call["args"])},
            }
            for call in message["calls"]
        ]
    return chat


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _merged(messages: Iterable[Message]) -> list[Message]:
    """Merge adjacent messages of the user, and of the assistant."""
    merged: list[Message] = []
    for message in copy.deepcopy(list(messages)):
        last = merged[-1] if merged else {}
        if message.get("role") not in ("user", "assistant") or last.get("role") != message.get("role"):
            merged.append(message)
            continue
        first, second = last.get("content"), message.get("content")
        if isinstance(first, str) and isinstance(second, str):
            joined: Any = "\n\n".join(filter(None, (first, second)))
        elif isinstance(first, list) and isinstance(second, list):
            joined = first + second
        else:
            joined = second if first is None else first if second is None else [first, second]
        merged[-1] = {**message, **last, "content": joined}
    return merged

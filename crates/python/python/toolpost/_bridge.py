"""The parts of the engine that Python writes best. Private: the engine calls them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future as ThreadFuture
from typing import TYPE_CHECKING, Any

from toolpost import author

if TYPE_CHECKING:
    from toolpost._engine import CallContext, StateDoc

_background: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


def resolve(future: asyncio.Future[None]) -> None:
    """Wake the task that waits for a future."""
    if not future.done():
        future.set_result(None)


def background() -> asyncio.AbstractEventLoop:
    """Return the event loop for coroutines of calls that no event loop awaits."""
    global _background
    with _lock:
        if _background is None or _background.is_closed():
            _background = asyncio.new_event_loop()
            threading.Thread(target=_background.run_forever, name="toolpost-loop", daemon=True).start()
        return _background


def submit(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None) -> ThreadFuture[Any]:
    """Run a coroutine on the loop of another thread, with the context variables of this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop or background())


class Fatal(Exception):
    """Carries an exception out of a task that would otherwise stop the event loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Guarded(Coroutine[Any, Any, Any]):
    """A coroutine whose KeyboardInterrupt or SystemExit ends its call instead of the event loop."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        try:
            return self._coroutine.send(value)
        except (KeyboardInterrupt, SystemExit) as error:
            raise Fatal(error) from None

    def throw(self, *exception: Any) -> Any:
        try:
            return self._coroutine.throw(*exception)
        except (KeyboardInterrupt, SystemExit) as error:
            raise Fatal(error) from None

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        # The name and the frame, for debuggers.
        return getattr(self._coroutine, name)


def cancel(task: Any) -> Any:
    """Cancel a task, also from another thread. Return it if this thread's event loop owns it."""
    if isinstance(task, ThreadFuture):
        task.cancel()
        return None
    loop = task.get_loop()
    if asyncio._get_running_loop() is loop:
        task.cancel()
        return task
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
    return None


def abandon(coroutine: Coroutine[Any, Any, Any], waiting: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Cancel a coroutine that ran without a task of its own; return the task in which it ends."""
    if asyncio._get_running_loop() is not loop:
        coroutine.close()
        return None
    if waiting is not None:
        waiting.cancel()
    ending: Any = _end(coroutine)
    return loop.create_task(ending)


@types.coroutine
def _end(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    try:
        yielded = coroutine.throw(asyncio.CancelledError())
        while True:
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001
                yielded = coroutine.throw(error)
            else:
                yielded = coroutine.send(sent)
    except (StopIteration, asyncio.CancelledError):
        pass
    except Exception:  # noqa: BLE001
        # The call has its error already.
        pass


def interrupt(threads: list[int], inside: Callable[[], list[int]]) -> None:
    """Raise SystemExit in threads, and wait up to half a second until they are outside of tools."""
    import ctypes

    end = time.monotonic() + 0.5
    own = threading.get_ident()
    while (left := [thread for thread in threads if thread != own]) and time.monotonic() < end:
        for thread in filter(None, left):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        time.sleep(0.005)
        threads = inside()


def _reset_after_fork() -> None:
    global _background, _lock
    # The threads of the parent do not exist in the child.
    _background = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def tools_of(objects: Any) -> list[Any]:
    """Return the tools of functions, tools, objects with tool methods, modules and lists of these."""
    from toolpost import author

    found: list[Any] = []
    for item in objects:
        if isinstance(item, author.Tool):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(tools_of(item))
        elif isinstance(item, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
            found.append(author.tool(item))
        else:
            owner = item if isinstance(item, types.ModuleType | type) else type(item)
            names = [name for name, member in vars_of(owner) if isinstance(member, author.Tool)]
            if not names:
                raise TypeError(f"{item!r} has no tools: pass functions, or an object with `@tool` methods")
            found.extend(getattr(item, name) for name in names)
    return found


def vars_of(owner: Any) -> list[tuple[str, Any]]:
    """Return the members of a module or class, base classes first, each name once."""
    members: dict[str, Any] = {}
    for base in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        members.update(vars(base))
    return list(members.items())


class Context(author.Ctx):
    """The context of a call in this process."""

    def __init__(self, call: CallContext) -> None:
        # The facts of the base class are requested at their first use.
        self._call = call

    def __getattr__(self, name: str) -> Any:
        if name != "_facts":
            raise AttributeError(f"'Ctx' object has no attribute '{name}'")
        self._facts = self._call.facts()
        return self._facts

    @property
    def attempt(self) -> int:
        return self._call.attempt

    @property
    def remaining(self) -> float | None:
        return self._call.remaining

    @property
    def is_cancelled(self) -> bool:
        return self._call.is_cancelled

    @property
    def context(self) -> Any:
        """The object that the application gave the call or the run as `context`."""
        return self._call.context

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        getattr(self._call, kind)(body)

    async def _await(self, verb: str, body: dict[str, Any]) -> Any:
        return await self._call.request(verb, body)

    def _wait(self, verb: str, body: dict[str, Any]) -> Any:
        return self._call.request_sync(verb, body)

    def state(self, id: str) -> StateDoc:
        return self._call.state(id)


context = Context


def package_sources() -> dict[str, str | None]:
    """Return where packages for a sandbox come from and go to: the variables of pip, and the cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return {
        "directory": os.path.join(cache, "toolpost", "packages"),
        "index": os.environ.get("PIP_INDEX_URL"),
        "certificate": os.environ.get("PIP_CERT"),
        "find_links": os.environ.get("PIP_FIND_LINKS"),
        "offline": os.environ.get("PIP_NO_INDEX"),
    }

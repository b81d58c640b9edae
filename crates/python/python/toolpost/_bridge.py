"""Event loops of the engine. Private: the engine calls these functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future as ThreadFuture
from typing import Any


def resolve(future: asyncio.Future[None]) -> None:
    """Wake the task that waits for a future."""
    if not future.done():
        future.set_result(None)


def background() -> asyncio.AbstractEventLoop:
    """Start an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="toolpost-loop", daemon=True).start()
    return loop


def watch(loop: asyncio.AbstractEventLoop, file: int, on_readable: Callable[[], None]) -> None:
    """Let the event loop call a function when a file is readable, without context variables of this thread."""
    contextvars.Context().run(loop.add_reader, file, on_readable)


def submit(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> ThreadFuture[Any]:
    """Run a coroutine on the loop of another thread, with the context variables of this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop)


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

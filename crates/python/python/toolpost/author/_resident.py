"""The executable protocol: resident mode."""

from __future__ import annotations

from ._errors import SpecError, ToolError
from ._values import Output
from ._context import Ctx, _now
from ._checks import _did_you_mean, _json, _quote
from ._tools import Tool
from ._program import _failure, _finished, _LongLine, _MAX_LINE, _new_id, _Program, _PROTOCOL, _SUCCESS
from ._run import _in_thread, _Reserved, _timeout_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

_MAX_REQUESTS = 4096
_GRACE_S = 1.0


class _Resident:
    """Many calls over one process, each line an object with the version `v` and the `id` of its call."""

    def __init__(self, program: _Program) -> None:
        import threading
        from queue import SimpleQueue

        self.program, self.wire = program, program.wire
        self.lock = threading.Lock()
        self.running: dict[int, _ResidentCtx] = {}
        self.questions: dict[tuple[int, int], Future[Any]] = {}
        self.last_question = 0
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.idle = 0
        self.loop: Any = None

    def send(self, id: int, kind: str, body: dict[str, Any]) -> None:
        line = (_json({"v": 1, "id": id, "type": kind, **body}) + "\n").encode()
        if len(line) > _MAX_LINE:
            error = ToolError.limit(
                f"the answer has {len(line)} bytes of JSON; a line holds 32 MiB",
                suggestion="Write large results to a file and return its path.",
            )
            line = (_json({"v": 1, "id": id, "type": "result", "error": error.to_dict()}) + "\n").encode()
        self.wire.write(line)

    def problem(self, id: Any, message: str) -> None:
        """Rejects an invalid line: the request that it names, or the line alone."""
        error = ToolError.invalid_input(
            message, suggestion="Write one JSON object per line, with `v`, `id` and `type`."
        ).to_dict()
        if isinstance(id, int) and id > 0 and id not in self.running:
            self.send(id, "result", {"error": error})
        else:
            self.send(0, "problem", {"error": error})

    def serve(self) -> int:
        """Serves until the end of the input."""
        import time

        program = self.program
        self.send(0, "hello", {"name": program.name, "version": program.version, "protocol": _PROTOCOL})
        while True:
            try:
                line = self.wire.next_line()
            except _LongLine as long:
                import re

                found = re.search(rb'"id": *(\d+)', long.args[0])
                self.problem(int(found.group(1)) if found else None, "the line is longer than 32 MiB")
                continue
            if line is None:
                break
            self.take(line)
        for ctx in list(self.running.values()):
            ctx.cancel()
        end = _now() + _GRACE_S
        while self.running and _now() < end:
            time.sleep(0.005)
        return _SUCCESS

    def take(self, line: bytes) -> None:
        import json

        try:
            frame = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self.problem(None, f"the line is not a frame: {error}")
        id = frame.get("id") if isinstance(frame, dict) else None
        if type(id) is not int or id < 0:
            return self.problem(None, "the line is not a frame: it has no `id`")
        if frame.get("v") != 1:
            return self.problem(id, f"unknown frame version {_quote(frame.get('v'))}; expected version 1")
        kind = frame.get("type")
        if kind == "answer":
            with self.lock:
                question = self.questions.pop((id, frame.get("request", 0)), None)
            # An answer without a pending question is late; so is one to a cancelled question.
            if question is None or not question.set_running_or_notify_cancel():
                return
            if "error" in frame:
                question.set_exception(ToolError.from_dict(frame["error"]))
            else:
                question.set_result(frame.get("ok"))
        elif kind == "cancel":
            ctx = self.running.get(id)
            if ctx is not None:
                ctx.cancel()
        elif kind in ("call", "read", "render"):
            self.enter(id, frame)
        elif kind == "list":
            try:
                self.send(id, "listed", {"ok": self.program.discovery()})
            except SpecError as error:
                self.send(id, "listed", {"error": ToolError.precondition(str(error)).to_dict()})
        else:
            self.problem(id, f"unknown frame type {_quote(kind)}")

    def enter(self, id: int, frame: dict[str, Any]) -> None:
        """Starts a request: an async tool on the event loop, any other on a thread."""
        if id == 0 or id in self.running:
            return self.problem(0, f"the id {id} is 0 or belongs to a running request")
        ctx = _ResidentCtx(self, id, frame)
        if len(self.running) >= _MAX_REQUESTS:
            return ctx.finish(ToolError.overloaded(f"{_MAX_REQUESTS} requests are already running"))
        self.running[id] = ctx
        called = self.program.tools.get(frame.get("tool", "")) if frame["type"] == "call" else None
        if called is not None and called.is_async:
            loop = self.event_loop()
            loop.call_soon_threadsafe(ctx.start, loop, called)
            return
        with self.lock:
            is_idle = self.idle > 0
            self.idle -= is_idle
        if not is_idle:
            import threading

            threading.Thread(target=self.work, daemon=True).start()
        self.jobs.put(ctx.run)

    def work(self) -> None:
        while True:
            self.jobs.get()()
            with self.lock:
                self.idle += 1

    def event_loop(self) -> Any:
        if self.loop is None:
            import asyncio
            import threading

            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return self.loop


class _ResidentCtx(Ctx):
    """One request in resident mode, and the context of its call."""

    def __init__(self, resident: _Resident, number: int, frame: dict[str, Any]) -> None:
        if not frame.get("call"):
            frame["call"] = _new_id()
        super().__init__(frame)
        self.resident, self.number, self.frame = resident, number, frame
        self.task: Any = None

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "progress":
            body["attempt"] = self.attempt
        self.resident.send(self.number, kind, body)

    def _request(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        if verb == "nested" and body["tool"] in self.resident.program.tools:
            return _in_thread(self.resident.program.nested, body["tool"], body["arguments"], self)
        if verb not in (self._facts.get("serves") or ()):
            return super()._request(verb, body)
        if self._cancelled:
            raise ToolError.cancelled("the caller cancelled the call")
        from concurrent.futures import Future

        resident = self.resident
        answer: Future[Any] = Future()
        with resident.lock:
            resident.last_question += 1
            request = resident.last_question
            resident.questions[self.number, request] = answer
        resident.send(self.number, verb, {"request": request, **body})
        return answer

    def cancel(self) -> None:
        """Cancels the request: an async tool at its next await, any other when it checks `is_cancelled`."""
        self._cancelled = True
        for question in self.take_questions():
            if question.set_running_or_notify_cancel():
                question.set_exception(ToolError.cancelled("the caller cancelled the call"))
        if self.task is not None:
            self.resident.loop.call_soon_threadsafe(self.task.cancel)

    def take_questions(self) -> list[Future[Any]]:
        """Removes the pending questions of this request."""
        resident = self.resident
        with resident.lock:
            keys = [key for key in resident.questions if key[0] == self.number]
            return [resident.questions.pop(key) for key in keys]

    def finish(self, outcome: Any) -> None:
        """Answers the request. The id is free before the caller sees the answer."""
        kind = "result" if self.frame["type"] == "call" else "value"
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            body = {"ok": Output.of(outcome).to_dict() if kind == "result" else outcome}
        except BaseException as error:
            body = {"error": _failure(error, self.id).to_dict()}
        self.take_questions()
        self.resident.running.pop(self.number, None)
        try:
            self.resident.send(self.number, kind, body)
        except OSError:  # The reader is gone; the end of the input ends the process.
            pass

    def run(self) -> None:
        """Runs the request on this thread."""
        try:
            self.finish(self.execute())
        except BaseException as error:
            self.finish(error)

    def execute(self) -> Any:
        program, frame = self.resident.program, self.frame
        arguments = frame.get("arguments") or {}
        if frame["type"] == "read":
            return program.read(str(frame.get("uri")))
        if frame["type"] == "render":
            return program.render(str(frame.get("prompt")), arguments)
        name = str(frame.get("tool"))
        called = program.tools.get(name)
        if called is None:
            raise ToolError.not_found(f"unknown tool `{name[:80]}`", suggestion=_did_you_mean(name, program.tools))
        result = self.begin(called)
        return result if isinstance(result, Output) else _finished(called.fn(**result))

    def begin(self, called: Tool[..., Any]) -> Any:
        """The values of a call, or its output if the function does not run."""
        spec, arguments = called.spec(), self.frame.get("arguments") or {}
        values = called.decode(arguments)
        reserved = _Reserved(called, arguments)
        if self.frame.get("validate"):
            return Output({"valid": True})
        if reserved.dry_run and not spec.get("dry_run"):
            return Output(reserved.plan)
        if self.frame.get("dry_run") and not spec.get("dry_run"):
            return Output({"dry_run": True, "would_execute": {"tool": called.name, "arguments": arguments}})
        self._facts = {**self.frame, "verbose": self.is_verbose or reserved.verbose}
        if reserved.dry_run or reserved.working_dir is not None:
            self._facts.update(dry_run=reserved.dry_run, working_dir=reserved.working_dir)
        limit = _timeout_of(spec, reserved.timeout, self.remaining)
        self._deadline = None if limit is None else _now() + limit
        if called.ctx_param is not None:
            values[called.ctx_param] = self
        return values

    def start(self, loop: Any, called: Tool[..., Any]) -> None:
        """Runs an async tool as a task of the event loop."""

        async def run() -> Any:
            result = self.begin(called)
            if isinstance(result, Output):
                return result
            remaining = self.remaining
            expired: list[bool] = []

            def expire() -> None:
                expired.append(True)
                self.task.cancel()

            timer = loop.call_later(remaining, expire) if remaining else None
            try:
                awaited = called.fn(**result)
                return await awaited if hasattr(awaited, "__await__") else awaited
            except BaseException:
                if not expired:
                    raise
                raise ToolError.timeout(f"`{called.name}` timed out after {remaining:.1f} s") from None
            finally:
                if timer is not None:
                    timer.cancel()

        def done(task: Any) -> None:
            error = ToolError.cancelled("the caller cancelled the call") if task.cancelled() else task.exception()
            self.finish(task.result() if error is None else error)

        self.task = loop.create_task(run())
        self.task.add_done_callback(done)
        if self._cancelled:
            self.task.cancel()

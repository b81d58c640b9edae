"""The public names of the package, which `toolpost` loads at their first use."""

from __future__ import annotations

import atexit as _atexit
import os as _os

from toolpost._engine import (
    Agent,
    Conversation,
    Flow,
    FlowProblem,
    FlowResult,
    Model,
    Outcome,
    Pool,
    RecordingModel,
    Reply,
    RunEvents,
    RunResult,
    Sandbox,
    ScriptModel,
    Session,
    StateDoc,
    Toolbox,
    Verdict,
)
from toolpost._engine import begin_exit as _begin_exit
from toolpost._engine import reset_after_fork as _reset_after_fork
from toolpost.agent import RunError
from toolpost.author import (
    Artifact,
    Ctx,
    Output,
    Param,
    Partial,
    SpecError,
    ToolError,
    main,
    prompt,
    resource,
    tool,
)
from toolpost.flow import Ref, Step

__all__ = [
    "Agent",
    "Artifact",
    "Conversation",
    "Ctx",
    "Flow",
    "FlowProblem",
    "FlowResult",
    "Model",
    "Outcome",
    "Output",
    "Param",
    "Partial",
    "Pool",
    "RecordingModel",
    "Ref",
    "Reply",
    "RunError",
    "RunEvents",
    "RunResult",
    "Sandbox",
    "ScriptModel",
    "Session",
    "SpecError",
    "StateDoc",
    "Step",
    "Toolbox",
    "ToolError",
    "Verdict",
    "main",
    "prompt",
    "resource",
    "tool",
]

_os.register_at_fork(after_in_child=_reset_after_fork)


@_atexit.register
def _leave() -> None:
    """Interrupt daemon threads inside tools: the interpreter must not end them there."""
    threads = _begin_exit()
    if threads:
        from toolpost import _tools

        _tools.interrupt(threads, _begin_exit)

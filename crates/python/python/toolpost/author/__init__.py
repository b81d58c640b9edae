"""Write tools in Python: a function, its types and its docstring are the whole definition.

>>> @tool(tags=["text"])
... def greet(name: str, times: int = 1) -> str:
...     \"\"\"Greet a person.
...
...     Args:
...         name: Name of the person.
...         times: Number of greetings.
...     \"\"\"
...     return " ".join([f"Hello, {name}."] * times)
>>> greet("Ada")
'Hello, Ada.'
>>> greet.spec()["input_schema"]["properties"]["times"]
{'type': 'integer', 'description': 'Number of greetings.', 'default': 1}

``main()`` at the end of a file turns it into a tool program, which speaks Toolpost's executable protocol.
It has no dependencies and imports modules of the standard library on first use. The package ``toolpost.author`` has a
module per subject; ``toolpost init tool`` writes all of them as one file.
"""

from __future__ import annotations

from ._checks import _decoded as _decoded
from ._context import Ctx
from ._encoding import encode
from ._errors import SpecError, ToolError
from ._program import _entry as _entry
from ._program import _tools_of as _tools_of
from ._program import main
from ._schema import _Compiler as _Compiler
from ._tools import Prompt, Resource, Tool, prompt, resource, tool
from ._tools import _duration as _duration
from ._values import Artifact, Output, Param, Partial, Sample

__all__ = [
    "Artifact",
    "Ctx",
    "Output",
    "Param",
    "Partial",
    "Prompt",
    "Resource",
    "Sample",
    "SpecError",
    "Tool",
    "ToolError",
    "encode",
    "main",
    "prompt",
    "resource",
    "tool",
]

# The public path of each name, for tracebacks, pickle and documentation.
def _publish() -> None:
    for name in __all__:
        globals()[name].__module__ = __name__


_publish()
del _publish

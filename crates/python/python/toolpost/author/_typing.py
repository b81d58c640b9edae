"""Type variables, which cost nothing at run time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generic, ParamSpec, TypeVar
    from typing import overload as overload

    _P = ParamSpec("_P")
    _Q = ParamSpec("_Q")
    _R = TypeVar("_R")
    _T = TypeVar("_T")

    class _Typed(Generic[_P, _R]): ...

    # `typing` has type parameters with defaults since 3.13; every type checker bundles `typing_extensions`.
    from typing_extensions import TypeVar as _TypeVar

    _C = _TypeVar("_C", default=Any)

    class _Generic(Generic[_C]): ...

else:
    # `typing` costs more than this whole package, so it is not imported at run time.
    _P = _Q = _R = _T = _C = None

    def overload(function):
        return None

    class _Typed:
        def __class_getitem__(cls, parameters):
            return cls

    _Generic = _Typed

"""Fixtures of all tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# The author half is a package without dependencies: its tests import it without the compiled half.
sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "toolpost"))


# A shell starts programs in its background without SIGINT, which their children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Finished:
    """The end of a child process."""

    def __init__(self, code: int, out: str, err: str, begin: float) -> None:
        self.code, self.out, self.err = code, out, err
        #: When the program started, or got its signal, by `time.monotonic`.
        self.begin = begin
        self.seconds = time.monotonic() - begin

    def __repr__(self) -> str:
        return f"exit {self.code} after {self.seconds:.3f} s\n{self.out}\n{self.err}"


@pytest.fixture
def script() -> Callable[..., Finished]:
    """Run a program in a new interpreter. With a signal, send it once the program prints `ready`."""

    def run(source: str, *, signal: int | None = None, timeout: float = 60) -> Finished:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begin = time.monotonic()
        if signal is not None:
            assert child.stdout is not None
            for line in child.stdout:
                if line.strip() == "ready":
                    break
            # The line is printed just before the wait that the signal interrupts.
            time.sleep(0.2)
            begin = time.monotonic()
            child.send_signal(signal)
        out, err = child.communicate(timeout=timeout)
        return Finished(child.returncode, out, err, begin)

    return run


@pytest.fixture(autouse=True)
def bugs_stay_errors(request: pytest.FixtureRequest) -> None:
    """Let agents handle the bugs of tools, as outside of pytest. Inner runs of pytest have their own rules."""
    plugins = request.config.pluginmanager
    if plugins.has_plugin("toolpost") or plugins.has_plugin("toolpost.pytest_plugin"):
        request.getfixturevalue("toolpost_bugs")

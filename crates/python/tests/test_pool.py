"""Pools of prewarmed interpreters."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolpost import Pool, Sandbox, ToolError


def wait_until_ready(pool: Pool, count: int = 1) -> None:
    until = time.monotonic() + 10
    while pool.metrics["ready"] < count:
        assert time.monotonic() < until, pool.metrics
        time.sleep(0.005)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Sandbox(env={"NAME": "Ada"}).pool(preload=["json", "no_such_module"], idle_workers=4) as pool:
        pool.run_sync("1")
        if pool.metrics["unavailable"]:
            pytest.skip(pool.metrics["unavailable"])
        yield pool


def notes(outcome: Any) -> str:
    return " ".join(outcome.to_dict()["report"]["notes"])


def test_runs_start_in_idle_interpreters(pool: Pool) -> None:
    assert isinstance(pool, Sandbox) and repr(pool).startswith("Pool(")
    before = pool.metrics
    # The time of the calls alone, without the time in which the pool makes the next interpreter.
    pooled, cold = [], []
    for _ in range(10):
        wait_until_ready(pool)
        begin = time.perf_counter()
        assert pool.run_sync("import json, os; [json.loads('1'), os.environ['NAME']]").value == [1, "Ada"]
        pooled.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        Sandbox().run_sync("import json; 1")
        cold.append(time.perf_counter() - begin)
    assert statistics.median(pooled) < statistics.median(cold) / 2, (pooled, cold)
    after = pool.metrics
    assert (after["served"] - before["served"], after["cold"] - before["cold"]) == (10, 0)
    assert after["preloaded"] == ["json"] and after["missing"][0][0] == "no_such_module"
    assert 0 < after["latency_p50"] <= after["latency_p90"] < 5


def test_no_two_runs_share_an_interpreter(pool: Pool) -> None:
    pool.run_sync("import json; json.mark = 1; open('left.txt', 'w').write('x')")
    assert pool.run_sync("import json, os; [hasattr(json, 'mark'), os.listdir('.')]").value == [False, []]


def test_awaited_runs(pool: Pool) -> None:
    async def main() -> list[Any]:
        outcomes = await asyncio.gather(*(pool.run(f"{number} * 2") for number in range(20)))
        async with Sandbox().pool("javascript") as other:
            outcomes.append(await other.run("40 + 2", "javascript"))
            assert other.metrics["served"] == 1
        with pytest.raises(ToolError):
            await other.run("1", "javascript")
        return [outcome.value for outcome in outcomes]

    assert asyncio.run(main()) == [*range(0, 40, 2), 42]


def test_limits_and_files_of_a_run(pool: Pool) -> None:
    cold = pool.metrics["cold"]
    assert pool.run_sync("while True: pass", timeout=0.3).verdict.kind == "timeout"
    outcome = pool.run_sync("print(input()); open('b', 'w').write(open('a').read())", stdin="in", files={"a": "text"})
    assert outcome.stdout == "in\n" and outcome.artifacts[0].data == b"text"
    assert pool.metrics["cold"] == cold


def test_runs_that_do_not_match_start_cold(pool: Pool) -> None:
    cold = pool.metrics["cold"]
    assert "the code has arguments" in notes(pool.run_sync("1", args=["x"]))
    assert "the pool runs code in python" in notes(pool.exec_sync(["true"]))
    assert pool.metrics["cold"] == cold + 2


@pytest.mark.parametrize("live", [False, True])
def test_a_host_directory_in_a_pool(tmp_path: Path, live: bool) -> None:
    (tmp_path / "in.txt").write_text("in")
    with Sandbox(workdir=tmp_path, live=live).pool() as pool:
        assert pool.run_sync("open('out.txt', 'w').write(open('in.txt').read())").ok
        assert (tmp_path / "out.txt").read_text() == "in"
        assert pool.metrics["unavailable"] or pool.metrics["cold"] == 0


def test_a_child_process_starts_its_own_pool(pool: Pool) -> None:
    child = os.fork()
    if child == 0:
        try:
            assert pool.run_sync("1 + 1").value == 2 and pool.metrics["served"] == 1
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.run_sync("1").value == 1


def test_a_closed_pool_has_no_processes_and_no_runs() -> None:
    with Sandbox().pool(idle_workers=3) as pool:
        pool.run_sync("1")
    with pytest.raises(ToolError, match="the pool was closed"):
        pool.run_sync("1")
    with pytest.raises(ToolError, match="the pool was closed"):
        _ = pool.metrics
    pool.close_sync()


def test_a_full_queue_is_an_error() -> None:
    async def main() -> list[Any]:
        with Sandbox().pool(max_concurrency=1, queue=1, queue_timeout=20) as pool:
            runs = (pool.run("import time; time.sleep(0.5)") for _ in range(4))
            return await asyncio.gather(*runs, return_exceptions=True)

    failed = [outcome for outcome in asyncio.run(main()) if isinstance(outcome, ToolError)]
    assert [error.code for error in failed] == ["OVERLOADED"] * 2
    assert "`max_concurrency`, `queue` or `queue_timeout`" in str(failed[0])


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"requirements": ["humanize"]}, {}, "no run with `requirements` starts from a pool"),
        ({"allow_hosts": ["example.org"]}, {}, "no run with `allow_hosts` starts from a pool"),
        ({"level": "maximum"}, {}, 'no run with `level` "maximum" starts from a pool'),
        ({}, {"idle_workers": 0}, "`idle_workers` is 0"),
        ({}, {"max_concurrency": 0}, "`max_concurrency` is 0"),
        ({}, {"idle_shutdown": 0}, "`idle_shutdown` is 0"),
        ({}, {"queue_timeout": -1}, "`queue_timeout` must be a number of seconds"),
        ({}, {"language": "klingon"}, "unknown language `klingon`"),
        ({}, {"language": "javascript", "preload": ["x"]}, "only a Python pool loads modules"),
        ({}, {"language": "javascript", "warm_up": "1"}, "only a Python pool runs a warm-up"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sandbox(**settings).pool(**options)


def test_a_warm_up_runs_before_the_code() -> None:
    with Sandbox().pool(warm_up="import builtins; builtins.warmed = 7") as pool:
        assert pool.run_sync("warmed").value == 7

"""The wheel on a machine with an interpreter alone: no compiler, no package, no network."""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: `cargo xtask test` and `cargo xtask wheel` set it.
WHEEL = Path(os.environ.get("TOOLPOST_WHEEL", ""))

pytestmark = pytest.mark.skipif(not WHEEL.is_file(), reason="TOOLPOST_WHEEL names no wheel")

COMPILERS = ["cc", "gcc", "g++", "clang", "ld", "make", "cargo", "rustc", "zig"]

#: Prints the answers of the first page.
FIRST_PAGE = """
import re, sys, types
page = sys.modules["page"] = types.ModuleType("page")
for block in re.findall(r"^```python\\n(.*?)^```", open(sys.argv[1]).read(), flags=re.M | re.S):
    exec(compile(block, "README.md", "exec"), vars(page))
"""


def members() -> dict[str, bytes]:
    with zipfile.ZipFile(WHEEL) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a command on the machine, which has this interpreter, its libraries and a home directory."""
    if "-musllinux_" in WHEEL.name or platform.machine() not in WHEEL.name:
        pytest.skip("the wheel is not for this machine")
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; it makes the machine without compilers")
    home = tmp_path_factory.mktemp("home")
    prefix, program = Path(sys.base_prefix), Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    read = ["/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache", str(WHEEL.resolve()), str(TESTS.parent / "README.md")]
    # Sandboxes use the interpreter of the system.
    system = Path("/usr/bin/python3").resolve()
    read += [str(system), str(program if prefix == Path("/usr") else prefix)]
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    if os.getuid() == 0:
        # What root has elsewhere, so that sandboxes start.
        command += ["--cap-add", "ALL"]
    # Other users, such as that of a sandbox, may enter them.
    command += [word for path in ("/usr", "/usr/bin") for word in ("--perms", "0755", "--dir", path)]
    command += ["--tmpfs", "/tmp", "--bind", str(home), str(home), "--chdir", str(home), "--clearenv"]
    command += [word for path in read if Path(path).exists() for word in ("--ro-bind", path, path)]
    command += [word for path in Path("/usr/lib").glob("gcc*") for word in ("--tmpfs", str(path))]
    command += ["--symlink", system.name, "/usr/bin/python3"]
    command += ["--setenv", "HOME", str(home), "--setenv", "PATH", f"{home}/venv/bin:{prefix}/bin"]

    def run(*words: str) -> str:
        ended = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run(str(program), "-m", "venv", "venv")
    run("python3", "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", str(WHEEL.resolve()))
    return run


def test_the_wheel_needs_no_package() -> None:
    (metadata,) = [data for name, data in members().items() if name.endswith(".dist-info/METADATA")]
    requirements = email.message_from_bytes(metadata).get_all("Requires-Dist", [])
    assert all("extra ==" in requirement for requirement in requirements), requirements


def test_the_wheel_has_its_licenses_and_no_path_of_this_machine() -> None:
    files = members()
    licenses = {Path(name).name for name in files if ".dist-info/licenses/" in name}
    assert licenses == {"LICENSE-MIT", "LICENSE-APACHE"}
    texts = {name: data for name, data in files.items() if not data.startswith(b"\x7fELF")}
    assert [name for name, data in texts.items() if str(TESTS.parents[2]).encode() in data] == []


def test_the_tag_of_the_wheel_is_true() -> None:
    claims = re.search(r"-cp311-abi3-(?:manylinux_2_(\d+)|musllinux_1_\d+|linux)_(x86_64|aarch64)\.whl$", WHEEL.name)
    assert claims is not None, WHEEL.name
    programs = {name: data for name, data in members().items() if data.startswith(b"\x7fELF")}
    assert any(name.endswith("_engine.abi3.so") for name in programs)
    for name, data in programs.items():
        machine = {62: "x86_64", 183: "aarch64"}[int.from_bytes(data[18:20], "little")]
        assert machine == claims[2], f"{name} is a program of {machine}"
        needed = {int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", data)}
        if "-musllinux_" in WHEEL.name or name.endswith("/scripts/toolpost"):
            # The command is a static program, and so runs with every C library.
            assert not needed, f"{name} needs glibc"
        else:
            # A wheel for this machine claims nothing.
            assert needed and max(needed) <= int(claims[1] or 1000), f"{name} needs glibc 2.{max(needed)}"


def test_the_machine_has_no_compiler(run: Callable[..., str]) -> None:
    code = f"import shutil; print([name for name in {COMPILERS} if shutil.which(name, path='/usr/bin:/bin')])"
    assert run("python3", "-c", code) == "[]\n"


def test_the_first_page_works_there(run: Callable[..., str]) -> None:
    page = TESTS.parent / "README.md"
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", page.read_text(), flags=re.M)
    assert len(expected) >= 4
    assert run("python3", "-c", FIRST_PAGE, str(page)).splitlines() == expected


def test_the_command_works_there(run: Callable[..., str]) -> None:
    if "-linux_" in WHEEL.name:
        pytest.skip("only a wheel of `cargo xtask wheel` has the command")
    version = run("python3", "-c", "from importlib.metadata import version; print(version('toolpost'))").strip()
    assert version in run("toolpost", "--version")
    assert run("toolpost", "call", "builtin", "calculate", "expression=6*7") == "42\n"

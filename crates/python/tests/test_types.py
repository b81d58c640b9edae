"""The types of the package, as the type checkers of its users see them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toolpost

TESTS = Path(__file__).parent
#: Where `cargo xtask test` installs it.
PYRIGHT = TESTS.parents[2] / ".dev/pyright/node_modules/pyright/index.js"


def test_the_stub_agrees_with_the_compiled_module() -> None:
    command = ["-m", "mypy.stubtest", "toolpost._engine", "--concise", "--allowlist", str(TESTS / "stubtest.txt")]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the programs of the first page as one file, and a program with the rest of the package."""
    project = tmp_path_factory.mktemp("program")
    blocks = re.findall(r"^```python.*?\n(.*?)^```", (TESTS.parent / "README.md").read_text(), flags=re.M | re.S)
    assert len(blocks) >= 4
    (project / "readme.py").write_text("\n".join(blocks))
    shutil.copy(TESTS / "data/user_program.py", project)
    return project


def pyright(project: Path, settings: dict[str, object]) -> list[str]:
    """The errors of a project, as `file:line: message`."""
    node = shutil.which("node")
    if node is None or not PYRIGHT.exists():
        pytest.skip("pyright or node is not installed; `cargo xtask test` installs pyright")
    package = Path(toolpost.__file__).parents[1]
    # Pyright finds an installed package by itself, and ignores PYTHONPATH.
    paths = [] if package.name == "site-packages" else [str(package)]
    (project / "pyrightconfig.json").write_text(json.dumps({"pythonVersion": "3.11", "extraPaths": paths, **settings}))
    command = [node, str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "--project", str(project)]
    ended = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] >= 1, ended.stdout + ended.stderr
    return [
        f"{Path(found['file']).name}:{found['range']['start']['line'] + 1}: {found['message']}"
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    ]


def test_strict_pyright_accepts_the_programs_of_users(program: Path) -> None:
    assert pyright(program, {"typeCheckingMode": "strict"}) == []


def test_strict_pyright_finds_the_mistakes_of_users(program: Path) -> None:
    (program / "wrong.py").write_text(
        "from toolpost import Sandbox, Toolbox, tool\n"
        "@tool\n"
        "def add(a: int) -> int:\n"
        "    return a\n"
        "add('1')\n"
        "Toolbox(add).call_sync('add', {'a': 1}, timeout='soon')\n"
        "Sandbox().run_sync('1').exit_status\n"
        "class Mine(Toolbox): ...\n"
    )
    found = pyright(program, {"typeCheckingMode": "strict", "include": ["wrong.py"]})
    assert {int(line.split(":")[1]) for line in found} == {5, 6, 7, 8}, found


def test_pyright_accepts_the_package(tmp_path: Path) -> None:
    (tmp_path / "toolpost").symlink_to(Path(toolpost.__file__).parent)
    # Their libraries are not installed.
    settings = {"include": ["toolpost"], "exclude": ["toolpost/integrations"]}
    assert pyright(tmp_path, {"typeCheckingMode": "standard", **settings}) == []

"""tools/compile.py makes what the finder loads, and says why where it cannot."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddmq_common import compiled
from ddmq_common.queue_choice import murmur2

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import os
import sys
from pathlib import Path
from ddmq_common import compiled
del os.environ["DDMQ_COMPILED"]
compiled.FOLDER = Path(sys.argv[1])
state = compiled.CompiledState()
state.install()
from ddmq_common import queue_choice
print(state, queue_choice.__file__, queue_choice.murmur2(b"21"))
"""


def test_what_listed_modules_import_is_part_of_what_they_are_made_of() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "compile.py"), run_name="compile")
    assert "backend.records" not in tool["listed"]()
    assert {"backend/records.py", "backend/completion.py"} <= {*tool["sources"]()}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tool's names, with one module on its list."""
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    names = runpy.run_path(str(ROOT / "tools" / "compile.py"), run_name="compile")
    names["build"].__globals__["listed"] = lambda: ["ddmq_common.queue_choice"]
    return names


def test_a_module_is_compiled_and_loaded(tool: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "made"
    tool["build"](folder)
    assert tool["up_to_date"](folder)
    made = json.loads((folder / compiled.MANIFEST).read_bytes())
    assert made["modules"] == ["ddmq_common.queue_choice"]
    assert list(made["sources"]) == ["ddmq_common/queue_choice.py"]
    environment = {"PYTHONPATH": str(ROOT), "DDMQ_COMPILED": "0"}  # not what the tree has
    command = [sys.executable, "-c", LOAD, str(folder)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    library = folder / f"ddmq_common.queue_choice{compiled.SUFFIX}"
    assert said.stdout == f"1 modules compiled {library} {murmur2(b'21')}\n", said.stderr


def test_without_a_c_compiler_one_line_says_that_the_sources_run(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert not tool["fill"](tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert capsys.readouterr().err == (
        "compile: the sources run as they are, interpreted: there is no C compiler (/nowhere/cc)\n"
    )

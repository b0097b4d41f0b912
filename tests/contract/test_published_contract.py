"""The published contract: another engine runs it as a whole, and ddmq's own engines run all of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "backend" / "testing" / "engine_contract"
SUITE = """
import pytest
from backend.memory import MemoryBackend
from backend.testing import Engine
from backend.testing.engine_contract import *

class MyEngine(Engine):
    persists = False
    skipped_tests = {"test_no_tag_has_the_hash_zero": "it is another hash here"}

    def open(self):
        self.backend = MemoryBackend(self.clock)

@pytest.fixture
def backend_engine(tmp_path):
    engine = MyEngine(tmp_path)
    yield engine
    engine.close()
"""


def names_of_tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "test_" in node.name}


def test_no_two_tests_have_one_name() -> None:
    names = [name for file in PUBLISHED.glob("*.py") for name in sorted(names_of_tests(file))]
    assert sorted(set(names)) == sorted(names)


def test_every_module_runs_here_and_is_part_of_the_package() -> None:
    package = (PUBLISHED / "__init__.py").read_text()
    for file in PUBLISHED.glob("[a-z]*.py"):
        line = f"from backend.testing.engine_contract.{file.stem} import *"
        assert line in package
        assert line in (ROOT / "tests" / "contract" / f"test_contract_{file.stem}.py").read_text()


@pytest.mark.slow
def test_another_engine_runs_it(tmp_path: Path) -> None:
    (tmp_path / "test_my_engine.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", str(tmp_path), "-c", os.devnull]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-W", "ignore"],
        capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    summary = result.stdout.splitlines()[-1]
    assert int(summary.split(" passed")[0].split()[-1]) > 120
    assert "it is another hash here" in result.stdout
    assert "the engine keeps nothing over a restart" in result.stdout

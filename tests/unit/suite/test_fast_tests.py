"""What a run of the fast tests (`-m "not slow"`) leaves out, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CONFTEST.parents[1])}  # what it imports is there
STORY = """
import os, subprocess, sys
import gevent, gevent.subprocess, pytest
from hypothesis import settings

EXAMPLES = settings.default.max_examples
COMMAND = [sys.executable, "-c", ""]

def test_starts_a_process():
    subprocess.run(COMMAND)

def test_starts_one_that_cannot_be_noticed():
    try:
        subprocess.run(COMMAND)
    except BaseException:
        pass

def test_starts_one_in_a_greenlet():
    gevent.spawn(gevent.subprocess.call, COMMAND).join()

def test_forks():
    if os.fork() == 0:
        os._exit(0)

@pytest.fixture
def child():
    return subprocess.Popen(COMMAND)

def test_has_one_started(child):
    pass

@pytest.mark.slow
def test_may_start_one():
    subprocess.run(COMMAND, check=True)

@pytest.mark.long
def test_may_start_many():
    subprocess.run(COMMAND, check=True)

def test_starts_none():
    assert EXAMPLES == 20
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_story.py").write_text(STORY)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider\nmarkers =\n  slow: takes long\n  long: takes longer\n"
    )
    for name in ("spark", "crash"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text("def test_is_left_out():\n    pass\n")
    (tmp_path / "spark" / "conftest.py").write_text("raise ValueError('is not even read')")
    return tmp_path


def _run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-rf", *options]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=360
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_fast_test_that_starts_a_process_fails(folder: Path, workers: tuple[str, ...]) -> None:
    output = _run(folder, "-m", "not slow", *workers)
    for name in (
        "starts_a_process",
        "starts_one_in_a_greenlet",
        "starts_one_that_cannot_be_noticed",
        "forks",
    ):
        assert f" test_story.py::test_{name}" in output, output
    assert output.count("a fast test starts a process (mark it slow): ") >= 5, output
    assert "1 passed" in output, output
    assert "is_left_out" not in output


@pytest.mark.slow
def test_tests_of_slow_folders_are_slow(folder: Path) -> None:
    (folder / "spark" / "conftest.py").unlink()
    assert "4 passed, 6 deselected" in _run(folder, "-m", "slow")


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports a test file by its base name alone, and stops when one process meets that name again."""
    homes: dict[str, list[Path]] = {}
    for file in CONFTEST.parent.rglob("test_*.py"):
        homes.setdefault(file.name, []).append(file)
    assert [files for files in homes.values() if len(files) > 1] == []

"""`ddmq bench` runs what lies in the source tree, and says so where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddmq.cli import bench


def test_without_a_source_tree_it_says_where_the_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "TREE", tmp_path)
    ran = CliRunner().invoke(bench.bench, ["t01"])
    assert ran.exit_code == 1
    assert "come with the source tree: run `python -m bench` there" in ran.output


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "code"), [("--list", 0), ("t99", 2)])
def test_in_a_source_tree_it_is_that_trees_command(argument: str, code: int, tmp_path: Path) -> None:
    """From any folder; arguments and the exit code are passed on."""
    ran = subprocess.run(
        [sys.executable, "-m", "ddmq", "bench", argument],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == code
    assert "t01" in ran.stdout + ran.stderr

"""`ddmq bench` runs what lies in the source tree, and says so where there is none."""

from __future__ import annotations

import json
import os
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
    assert f"they come with the source tree, and {tmp_path}/bench is not there" in ran.output


def test_every_benchmark_of_the_tree_is_listed_with_what_it_measures() -> None:
    ran = CliRunner().invoke(bench.bench, ["--list"])
    assert ran.exit_code == 0
    assert {line.split()[0] for line in ran.output.splitlines()} >= {"t01", "t09b", "peers"}
    assert all(len(line.split()) > 3 for line in ran.output.splitlines())
    rows = json.loads(CliRunner().invoke(bench.bench, ["--list", "--json"]).output)
    assert [row["name"] for row in rows] == [line.split()[0] for line in ran.output.splitlines()]


@pytest.mark.slow
def test_a_benchmark_runs_in_the_tree_from_any_folder(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ddmq", "bench", "t13b", "--quick"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
        env=os.environ | {"DDMQ_BENCH_DIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "== T13" in ran.stdout

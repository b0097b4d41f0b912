"""kill -9 and failing writes of a process that writes to a delay store (R1, R2).

What was flushed is there, and every batch is there whole or not at all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from delay_service.store.opening import open_store
from tests.crash.delay_store.store_load import assert_same, model_of, written

SEED = 20261122


def start(folder: Path, epoch: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.delay_store.store_writer"]
    return subprocess.Popen(
        [*command, str(folder), str(SEED), str(epoch), *more],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def check(folder: Path, epoch: int, flushed: int) -> int:
    """Open it; everything flushed is there and nothing by halves. How many batches there are."""
    store = open_store(folder, 0, epoch)
    number = written(store)
    assert number >= flushed, f"{flushed} batches were flushed, {number} are there"
    assert store.damage is None
    assert_same(store, model_of(SEED, number))
    store.close()
    return number


def kills(folder: Path, count: int) -> None:
    random = Random(SEED)
    flushed = 0
    for epoch in range(1, 2 * count, 2):
        writer = start(folder, epoch)
        assert writer.stdout is not None
        for _ in range(random.randrange(1, 25)):
            reported = writer.stdout.readline().split()
            flushed = int(reported[1]) if reported[0] == "f" else flushed
        writer.kill()
        for line in writer.stdout:
            if line.startswith("f ") and line.endswith("\n"):
                flushed = int(line.split()[1])
        writer.wait()
        flushed = check(folder, epoch + 1, flushed)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    kills(tmp_path, 6)


@pytest.mark.long
def test_killed_at_many_random_moments(tmp_path: Path) -> None:
    kills(tmp_path, 30)


@pytest.mark.parametrize("file_kib", [5, 20, 70, 120, 133, 150])
def test_writes_that_fail(tmp_path: Path, file_kib: int) -> None:
    """The log, a table or the list of tables cannot grow: told, then refused, then fine when opened again."""
    flushed = 0
    for epoch in (1, 3):
        writer = start(tmp_path, epoch, str(file_kib * 1024))
        reported, _ = writer.communicate(timeout=60)
        lines = reported.splitlines()
        assert lines[-1] == "failed", lines[-3:]
        flushed = max([flushed, *(int(line.split()[1]) for line in lines if line.startswith("f "))])
        flushed = check(tmp_path, epoch + 1, flushed)

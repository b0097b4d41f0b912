"""kill -9 of a process that writes, again and again on one directory: what was answered is there.

The seed of each kill is in the failure; DDMQ_KILLS sets how many kills the slow test makes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backend.records import Bounds, QueueRef, ReadStatus
from backend.testing.kit import Kit
from ddmq_common.delivery import decode
from tests.contract.contract_engines import FileLogEngine
from tests.contract.killed_writer import FINISHED_EACH, SETTING
from tests.support.waits import done

ROOT = Path(__file__).parents[2]


class Acknowledged:
    """What the killed processes said was answered, over all rounds."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], bytes] = {}
        self.number = 0

    def take(self, lines: list[str]) -> None:
        for line in lines:
            kind, *rest = line.split()
            if kind == "r":
                key = (int(rest[0]), int(rest[1]))
                assert key not in self.records, f"offset {key} was given twice"
                self.records[key] = bytes.fromhex(rest[2])
            else:
                self.number = max(self.number, int(rest[0]))


def write_and_kill(directory: Path, seed: int) -> list[str]:
    """Let a process write, kill it after a random number of lines, and give the whole lines it told."""
    command = [sys.executable, "-m", "tests.contract.killed_writer", str(directory), str(seed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    output = bytearray()
    line_count = random.Random(seed).choice([1, 100, 2000])
    try:
        while output.count(b"\n") < line_count:
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            assert chunk, f"the writer ended by itself, seed {seed}"
            output += chunk
    finally:
        child.send_signal(signal.SIGKILL)
    output += child.stdout.read()
    child.stdout.close()
    child.wait()
    return output.decode().split("\n")[:-1]


def check(engine: FileLogEngine, acknowledged: Acknowledged, seed: int) -> None:
    """Everything told is there, in an unbroken row; each commit is there whole or not at all."""
    kit = Kit(engine)
    number = int(kit.backend.setting(SETTING) or b"0")
    assert number >= acknowledged.number, f"seed {seed}"
    view = kit.progress("billing", kit.queue("orders"))
    assert ((view.committed or 0), view.finished) == (number * FINISHED_EACH, ()), f"seed {seed}"
    of_commits: dict[tuple[int, int], int] = {}
    for queue in kit.queues("orders"):
        bodies = everything(kit, queue)
        assert list(bodies) == list(range(len(bodies))), f"seed {seed}"
        mine = {key[1]: body for key, body in acknowledged.records.items() if key[0] == queue.queue_id}
        lost = [offset for offset, body in mine.items() if bodies.get(offset) != body]
        assert lost == [], f"answered but not there: queue {queue.queue_id}, seed {seed}"
        for body in bodies.values():
            mark = decode(body).value.split(b" ")
            if mark[0] == b"c":
                key = (int(mark[1]), int(mark[2]))
                of_commits[key] = of_commits.get(key, 0) + 1
    partial = [key for key, count in of_commits.items() if count != key[1] or key[0] > number]
    assert partial == [], f"commits (number, records) that are not whole: seed {seed}"
    assert len(of_commits) == number, f"seed {seed}"


def everything(kit: Kit, queue: QueueRef) -> dict[int, bytes]:
    bodies: dict[int, bytes] = {}
    offset = 0
    while (batch := kit.read(queue, offset)).status is ReadStatus.DATA:
        bodies.update(zip(batch.offsets, map(bytes, batch.deliveries), strict=True))
        offset = batch.next_offset
    assert done(kit.backend.bounds([queue])) == [Bounds(0, offset)]
    return bodies


def kill_repeatedly(directory: Path, kills: int, first_seed: int) -> None:
    acknowledged = Acknowledged()
    for seed in range(first_seed, first_seed + kills):
        acknowledged.take(write_and_kill(directory, seed))
        engine = FileLogEngine(directory)
        try:
            check(engine, acknowledged, seed)
        finally:
            engine.close()


@pytest.mark.slow
def test_answered_appends_survive_kill_9(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, 3, first_seed=1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_answered_appends_survive_repeated_kill_9(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, int(os.environ.get("DDMQ_KILLS", "10")), first_seed=100)

"""An owner of delay shards that is stopped and goes on sends nothing more; its shards move in time.

Two real processes share a directory that this test writes: one has the shards and is stopped (SIGSTOP) while
messages are due, the other takes over; then the first goes on. Or the first is killed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import gevent
import pytest

from backend.file_log import open_shared
from backend.file_log.sessions.election import ElectedBackend
from backend.records import AppendStatus, NewRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY, DelayCommand, encode_command, shard_of
from ddmq_common.delivery import decode, encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC
from tests.crash.delaying_process import OPTIONS, SHARDS
from tests.crash.kill_delay import Life, _uuid
from tests.crash.kit.reading import read_records
from tests.support.waits import until

WAIT_S = 30.0
CLOCK = SystemClock()


class StoppedRig:
    """The directory's writer, and what is in its topic."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "log"
        self.backend: ElectedBackend = open_shared(self.directory, OPTIONS, clock=CLOCK, metrics=Registry())
        for name, queues in ((DELAY_TOPIC, SHARDS), ("orders", 1)):
            self.backend.put_topic(TopicInfo(name, 0, queues), CLOCK.monotonic() + WAIT_S).wait(WAIT_S)
        self.lives: list[Life] = []

    def begin(self) -> Life:
        """Another owner; it is there when it says so, which needs this hub."""
        life = Life(self.directory)
        self.lives.append(life)
        gevent.get_hub().threadpool.apply(life.says, (b"ready", WAIT_S))
        return life

    def add(self, number: int, due_ms: int) -> None:
        order = DelayCommand(ADD, _uuid(number), "orders", due_ms=due_ms, timestamp_s=due_ms // 1000)
        record = NewRecord(
            DELAY_TOPIC, shard_of(order.uuid, SHARDS), bytes(16), 1, encode(b"", b"%d" % number, b"", None),
            system={COMMAND_PROPERTY: encode_command(order)},
        )  # fmt: skip
        [result] = self.backend.append([record], CLOCK.monotonic() + WAIT_S).wait(WAIT_S)
        assert result.status is AppendStatus.STORED

    def came(self) -> list[tuple[int, int]]:
        records = read_records(self.backend, "orders")
        return [(int(decode(record.delivery).value), record.stored_ms) for record in records]

    def until_came(self, count: int) -> None:
        until(lambda: len(self.came()) >= count, lambda: f"{len(self.came())} of {count} came")

    def close(self) -> None:
        for life in self.lives:
            if life.process.poll() is None:
                os.kill(life.process.pid, signal.SIGCONT)
                life.kill()
        self.backend.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[StoppedRig]:
    rig = StoppedRig(tmp_path)
    yield rig
    rig.close()


def fill(house: StoppedRig, count: int, spread_ms: int) -> dict[int, int]:
    """Messages due over the next while; number → due time."""
    random = Random(3)
    begin = CLOCK.wall_ms() + 300
    dues = {number: begin + random.randint(0, spread_ms) for number in range(1, count + 1)}
    for number, due in dues.items():
        house.add(number, due)
    return dues


def check(house: StoppedRig, dues: dict[int, int]) -> None:
    counts = Counter(number for number, _ in house.came())
    assert counts == dict.fromkeys(dues, 1), "each came once"
    assert all(stored >= dues[number] for number, stored in house.came()), "none came early"


@pytest.mark.slow
def test_shards_of_a_killed_owner_move_at_once(house: StoppedRig) -> None:
    first = house.begin()
    second = house.begin()
    dues = fill(house, 400, 6_000)
    house.until_came(50)
    first.kill()
    killed_ms = CLOCK.wall_ms()
    house.until_came(400)
    check(house, dues)
    late = max(stored - max(dues[number], killed_ms) for number, stored in house.came())
    print(f"the longest wait after the kill: {late} ms")  # about 0.3 s where nothing else runs
    assert late < 9_000, "the shards moved when the process was gone, not after ten seconds of its silence"
    assert second.process.poll() is None


@pytest.mark.slow
def test_a_stopped_owner_that_resumes_sends_nothing(house: StoppedRig) -> None:
    first = house.begin()
    second = house.begin()
    dues = fill(house, 400, 3_000)
    house.until_came(50)
    os.kill(first.process.pid, signal.SIGSTOP)
    house.until_came(400)  # after the writer has waited for its silence
    before = house.came()
    os.kill(first.process.pid, signal.SIGCONT)
    more = {1_000 + number: CLOCK.wall_ms() + 500 + number for number in range(100)}
    for number, due in more.items():
        house.add(number, due)
    house.until_came(500)
    assert house.came()[: len(before)] == before
    check(house, dues | more)
    assert second.process.poll() is None
    assert first.process.poll() is None, "it is a member again"

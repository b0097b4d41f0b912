"""A delay service killed in the middle of firing: every message comes exactly once, in order.

The process is a real `ddmq delay-service`, the writer of its directory. One message a commit, so that kills
meet every step between two of them; each life is killed as soon as some more messages have been fired.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from backend.file_log import FileLogOptions, open_log
from backend.internal_topics import ready_topic, schedule_record
from backend.records import AppendStatus, NewRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import decode, encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import SCHEDULE_TOPIC, dlq_topic
from tests.crash.kit.reading import read_records
from tests.scenarios.real_server import RealServer, write_config
from tests.support.waits import until

WAITS = ["1ms", "2ms", "1h"]
MESSAGES = 600  # on each of the two short levels
DELETED_EVERY = 50  # of them to a topic that is gone
WAIT_S = 30.0


class Directory:
    """The log, opened here while no server has it."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.log = open_log(folder, FileLogOptions(), clock=self.clock, metrics=Registry())

    def deadline(self) -> float:
        return self.clock.monotonic() + WAIT_S

    def make(self, name: str) -> None:
        self.log.put_topic(TopicInfo(name, 0, 1), self.deadline()).wait(WAIT_S)

    def fill(self) -> None:
        """Messages of both short levels, some to a topic that is deleted then, and one that is not due."""
        levels = Levels(WAITS)
        ready_topic(self.log, SCHEDULE_TOPIC, len(levels), self.deadline()).wait(WAIT_S)
        for name in ("level1", "level2", "gone"):
            self.make(name)
        records = [
            schedule_record(self.message(level, number), level, levels)
            for number in range(MESSAGES)
            for level in (1, 2)
        ]
        records.append(schedule_record(self.message(1, -1), 3, levels))
        for start in range(0, len(records), 100):
            results = self.log.append(records[start : start + 100], self.deadline()).wait(WAIT_S)
            assert {result.status for result in results} == {AppendStatus.STORED}
        self.log.delete_topic("gone", self.deadline()).wait(WAIT_S)

    @staticmethod
    def message(level: int, number: int) -> NewRecord:
        topic = "gone" if number % DELETED_EVERY == 7 else f"level{level}"
        return NewRecord(topic, 0, Random(f"{level}/{number}").randbytes(16), 1, _delivery(level, number))

    def bodies(self, topic: str) -> list[bytes]:
        return [decode(record.delivery).value for record in read_records(self.log, topic)]

    def close(self) -> None:
        self.log.drain(self.deadline()).wait(WAIT_S)
        self.log.close()


def _delivery(level: int, number: int) -> bytes:
    return encode(b"", b"%d/%d" % (level, number), b"", None)


def _fired(server: RealServer) -> int:
    rows = server.admin("GET", "topics")
    return sum(row["messages"] for row in rows if row["topic"] in ("level1", "level2"))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_message_comes_once_and_in_order(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS}, ddmq={"log_level": "warning"})
    server = RealServer(tmp_path, config, command="delay-service")
    server.constants = {"delay_service.config:DelayConfig.fire_count_max": 1}
    directory = Directory(server.data_dir)
    directory.fill()
    directory.close()
    dead = len(range(7, MESSAGES, DELETED_EVERY)) * 2
    alive = MESSAGES * 2 - dead
    fired, kills = 0, 0
    try:
        while fired < alive:
            server.start()
            fired_goal = min(fired + random.randint(20, 350), alive)
            before = fired
            until(
                lambda fired_goal=fired_goal: _fired(server) >= fired_goal, f"{fired_goal} messages are fired"
            )
            fired = _fired(server)
            kills += before < fired < alive
            server.kill()
    finally:
        server.end()
    assert kills >= 2, "some kills met the middle of firing"
    after = Directory(server.data_dir)
    try:
        for level in (1, 2):
            expected_bodies = [
                b"%d/%d" % (level, number) for number in range(MESSAGES) if number % DELETED_EVERY != 7
            ]
            assert after.bodies(f"level{level}") == expected_bodies
        letters = sorted(after.bodies(dlq_topic(SCHEDULE_TOPIC)))
        assert letters == sorted(
            b"%d/%d" % (level, number) for level in (1, 2) for number in range(7, MESSAGES, DELETED_EVERY)
        )
    finally:
        after.close()

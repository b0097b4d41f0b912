"""Delayed messages that have not fired keep their segments, whatever the reason to clean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_retention_on_log import SEGMENT, RetainedLog

from backend.file_log.holds import LevelHolds
from backend.internal_topics import ready_topic
from backend.records import AppendStatus, CommitBatch, NewRecord, ProgressDelta, QueueRef
from ddmq_common.delays.levels import DEFAULT_LEVELS
from ddmq_common.delivery import encode
from ddmq_common.errors import DiskFullError
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RetainedLog]:
    retained_log = RetainedLog(tmp_path, log_bytes_max=2 * SEGMENT)
    ready_topic(retained_log.log, SCHEDULE_TOPIC, len(DEFAULT_LEVELS), retained_log.deadline()).wait(60)
    yield retained_log
    retained_log.log.close()


def level(house: RetainedLog, number: int) -> QueueRef:
    return house.ref(SCHEDULE_TOPIC)._replace(queue_id=number - 1)


def delay(house: RetainedLog, number: int) -> AppendStatus:
    record = NewRecord(SCHEDULE_TOPIC, number - 1, bytes(16), 0, encode(b"", b"x", b"", None), due_ms=-1_000)
    result = house.log.append([record], house.deadline()).wait(60)[0]
    assert result.error is None or isinstance(result.error, DiskFullError)
    return result.status


def fired(house: RetainedLog, number: int, end: int) -> None:
    delta = ProgressDelta(LEVELS_GROUP, level(house, number), 1, 0, ((0, end),))
    house.log.commit(CommitBatch(progress=(delta,)), house.deadline()).wait(60)


def test_delayed_records_hold_their_segments_until_they_are_fired(house: RetainedLog) -> None:
    for number in range(40):
        if number == 15:
            delay(house, 3)
        elif number == 30:
            delay(house, 18)
        else:
            house.send()
    house.settle()
    [oldest] = house.log.read(level(house, 3), 0, 1, 0).wait(60).positions
    house.clean()
    assert house.segments()[0] <= oldest
    assert house.retention.blocked is not None
    assert house.retention.blocked.hold.reason == "messages of delay levels that are not fired"
    assert house.clean() == 0
    fired(house, 3, 1)
    assert house.clean() > 0
    [oldest] = house.log.read(level(house, 18), 0, 1, 0).wait(60).positions
    assert house.segments()[0] <= oldest
    fired(house, 18, 1)
    house.send_many(20)
    house.settle()
    assert house.clean() > 0
    assert house.segments()[0] > oldest


def test_only_levels_that_changed_are_looked_at(house: RetainedLog) -> None:
    holds = LevelHolds(house.log)
    assert holds() == []
    delay(house, 1)
    reads: list[int] = []
    read = house.log.read

    def counted(queue, *rest):  # type: ignore[no-untyped-def]
        reads.append(queue.queue_id + 1)
        return read(queue, *rest)

    house.log.read = counted  # type: ignore[method-assign]
    first = holds()
    delay(house, 1)
    delay(house, 2)
    assert holds() == first
    assert holds() == first
    assert reads == [1, 2]
    fired(house, 1, 1)
    assert holds()[0].position > first[0].position
    fired(house, 1, 2)
    fired(house, 2, 1)
    assert holds() == []


def test_a_full_disk_refuses_delayed_sends_too_and_lets_fires_go_on(house: RetainedLog) -> None:
    house.storage.free = 1 << 30
    house.clean()
    assert delay(house, 1) is AppendStatus.REFUSED
    record = NewRecord("t", 0, bytes(16), 0, encode(b"", b"x", b"", None))
    stored = house.log.commit(CommitBatch(records=[record]), house.deadline()).wait(60)
    assert stored[0].status is AppendStatus.STORED

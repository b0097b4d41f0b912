"""The admin API counts what waits at each delay level; any process can."""

from __future__ import annotations

from backend.memory import MemoryBackend
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef, TopicInfo
from ddmq.server.delays.levels import count_levels
from ddmq_common.clock import ManualClock
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import encode
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC

FAR = 1e12
LEVELS = Levels(["1s", "5s", "1m"])


def test_a_level_counts_what_is_behind_its_progress() -> None:
    backend = MemoryBackend(ManualClock())
    assert count_levels(backend, LEVELS)[0] == {"level": 1, "delay_ms": 1_000, "waiting": 0}, "no topic yet"
    backend.put_topic(TopicInfo(SCHEDULE_TOPIC, 0, 3), FAR).wait(5)
    info = backend.topic(SCHEDULE_TOPIC)
    assert info is not None
    content = encode(b"", b"x", b"", None)
    for queue, number in ((0, 2), (2, 5)):
        for _ in range(number):
            record = NewRecord(SCHEDULE_TOPIC, queue, bytes(16), 0, content, due_ms=-1_000)
            backend.append([record], FAR).wait(5)
    assert [row["waiting"] for row in count_levels(backend, LEVELS)] == [2, 0, 5]
    ref = QueueRef(SCHEDULE_TOPIC, info.incarnation, 2)
    delta = ProgressDelta(LEVELS_GROUP, ref, 1, 0, ((0, 2), (3, 4)))
    backend.commit(CommitBatch(progress=(delta,)), FAR).wait(5)
    assert [row["waiting"] for row in count_levels(backend, LEVELS)] == [2, 0, 2]
    backend.close()

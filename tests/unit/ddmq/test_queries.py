"""Messages for people: never more than so many, whatever is asked for."""

from __future__ import annotations

from backend.memory import MemoryBackend
from backend.records import NewRecord, TopicInfo
from ddmq.server import queries
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode

FAR = 1e12
STORED = queries.FIND_MAX + 10


def test_counts_of_messages_are_bounded() -> None:
    backend = MemoryBackend(ManualClock())
    backend.put_topic(TopicInfo("orders", 0, 1), FAR).wait(5)
    body = encode(b"k", b"x", b"", {})
    records = [NewRecord("orders", 0, bytes(16), 1, body, b"k") for _ in range(STORED)]
    backend.append(records, FAR).wait(5)
    for count, shown in ((0, 0), (1, 1), (10**9, queries.FIND_MAX)):
        assert len(queries.find_by_key(backend, "orders", "k", count)) == shown
        assert len(queries.find_by_offset(backend, "orders", 0, 0, count)) == shown
        assert len(queries.find_by_time(backend, "orders", 0, count)) == shown
        newest = queries.newest(backend, "orders", count)
        assert [record.offset for record in newest] == list(range(STORED - shown, STORED))
    backend.close()

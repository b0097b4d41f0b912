"""Messages for people: never more than so many, whatever is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from backend.memory import MemoryBackend
from backend.records import CommitBatch, NewRecord, ProgressDelta, TopicInfo
from ddmq.server.admin import messages
from ddmq.server.admin.api import AdminApi
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from proxy_consumer.groups.group import group_key, subscription_key
from tests.played_memory import PlayedMemory

FAR = 1e12
STORED = messages.FIND_MAX + 10


def test_counts_of_messages_are_bounded() -> None:
    backend = MemoryBackend(ManualClock())
    backend.put_topic(TopicInfo("orders", 0, 1), FAR).wait(5)
    body = encode(b"k", b"x", b"", {})
    records = [NewRecord("orders", 0, bytes(16), 1, body, b"k") for _ in range(STORED)]
    backend.append(records, FAR).wait(5)
    for count, shown in ((0, 0), (1, 1), (10**9, messages.FIND_MAX)):
        assert len(messages.find_by_key(backend, "orders", "k", count)) == shown
        assert len(messages.find_by_offset(backend, "orders", 0, 0, count)) == shown
        assert len(messages.find_by_time(backend, "orders", 0, count)) == shown
        newest = messages.find_newest(backend, "orders", count)
        assert [record.offset for record in newest] == list(range(STORED - shown, STORED))
    backend.close()


def test_the_newest_of_a_queue_with_gaps_are_as_many_as_are_asked_for() -> None:
    backend = PlayedMemory(ManualClock())
    backend.put_topic(TopicInfo("orders", 0, 1), FAR).wait(5)
    body = encode(b"k", b"x", b"", {})
    backend.append([NewRecord("orders", 0, bytes(16), 1, body, b"k") for _ in range(40)], FAR).wait(5)
    info = backend.topic("orders")
    assert info is not None
    there = [0, 20, 37, 39]
    for offset in set(range(40)) - set(there):
        backend.lose(info.refs()[0], offset)
    for count in range(6):
        newest = messages.find_newest(backend, "orders", count)
        assert [record.offset for record in newest] == there[max(4 - count, 0) :]
    backend.close()


def test_finished_is_not_said_to_be_done_where_nothing_is_found_by_its_id() -> None:
    backend = stocked(1, 10)
    change = CommitBatch(settings={subscription_key("g", "large"): b"{}", group_key("g"): b"{}"})
    backend.commit(change, FAR).wait(5)
    info = backend.topic("large")
    assert info is not None
    backend.commit(CommitBatch(progress=[ProgressDelta("g", info.refs()[0], 1, 0, ((0, 1),))]), FAR).wait(5)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    (row,) = get_json(api, "/topics/large/messages?count=1&group=g")
    assert row["state"] == "done"
    backend.capabilities = replace(backend.capabilities, find_by_key=False)
    (row,) = get_json(api, "/topics/large/messages?count=1&group=g")
    assert row["state"] == "done", "nothing of the group has ever gone on"
    backend.put_topic(TopicInfo("%DLQ%g", 0, 1), FAR).wait(5)
    (row,) = get_json(api, "/topics/large/messages?count=1&group=g")
    assert row["state"] == "done or gone on"
    assert backend.capabilities.engine in row["note"]
    backend.close()


def stocked(count: int, body_bytes: int, queues: int = 1) -> MemoryBackend:
    backend = MemoryBackend(ManualClock())
    backend.put_topic(TopicInfo("large", 0, queues), FAR).wait(5)
    body = encode(b"k", b"\xc3\xa4" * (body_bytes // 2), b"", {b"p": b"x" * 1000})
    for index in range(count):
        backend.append([NewRecord("large", index % queues, bytes(16), 1, body, b"k")], FAR).wait(5)
    return backend


def test_an_answer_has_so_many_bytes_whatever_is_asked_for() -> None:
    backend = stocked(70, 1 << 20, queues=2)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    for query in ("", "&key=k", "&time_ms=0"):
        rows = get_json(api, f"/topics/large/messages?count=20{query}")
        assert len(rows) == 20
        assert all(row["cut"] and row["body_bytes"] == 1 << 20 for row in rows)
        assert sum(len(row["body"].encode()) for row in rows) <= messages.ANSWER_BYTES_MAX
        assert "error" in get_json(api, f"/topics/large/messages?count=1000{query}") or query == "&key=k"
    rows = get_json(api, "/topics/large/messages?count=1000&queue=1&offset=0")
    assert [row["offset"] for row in rows] == [0, 1, 2]  # the next is where to go on
    assert not any("cut" in row for row in rows)
    backend.close()


def test_one_message_comes_whole_and_small_ones_too() -> None:
    backend = stocked(2, 1 << 21)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    for path in ("?count=1", "?count=9&queue=0&offset=0", "?count=9&queue=0&offset=1"):
        (row,) = get_json(api, "/topics/large/messages" + path)
        assert len(row["body"].encode()) == row["body_bytes"] == 1 << 21
    backend.close()
    backend = stocked(1000, 100)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    assert not any("cut" in row for row in get_json(api, "/topics/large/messages?count=1000"))
    backend.close()


def get_json(api: AdminApi, target: str) -> Any:
    path, _, query = target.partition("?")
    environ = {"REQUEST_METHOD": "GET", "RAW_URI": path, "QUERY_STRING": query}
    answered = list(api.router(environ, lambda status, headers: None))
    assert max(map(len, answered)) <= (7 << 20)
    return msgspec.json.decode(b"".join(answered))

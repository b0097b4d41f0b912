"""What is still there after an engine was closed and opened again, without draining."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.records import (
    Bounds,
    CommitBatch,
    Durability,
    ProgressDelta,
    ProgressView,
    ReadStatus,
    SettingsLimit,
)
from backend.testing.kit import Kit, Member
from backend.testing.waits import done, until
from ddmq_common.errors import BoundReachedError, FencedError


def test_records_are_read_back_complete(lasting: Kit) -> None:
    lasting.make("orders", 2)
    records = [
        lasting.new("orders", n % 2, b"%d" % n, key=b"k%d" % (n % 3), tags=b"t", system={"n": str(n)})
        for n in range(20)
    ]
    lasting.append(*records)
    before = [lasting.stored(queue) for queue in lasting.queues("orders")]
    lasting.engine.reopen()
    assert [lasting.stored(queue) for queue in lasting.queues("orders")] == before
    assert len(before[0]) == len(before[1]) == 10


def test_topics_come_back_as_they_were(lasting: Kit) -> None:
    info = lasting.make(
        "orders", 3, durability=Durability.WRITTEN, delay="only", body_bytes_max=5, source="x.yaml"
    )
    grown = done(lasting.backend.put_topic(replace(lasting.make("bills", 1), queues=4), lasting.soon))
    lasting.engine.reopen()
    assert lasting.backend.topic("orders") == info
    assert lasting.backend.topic("bills") == grown


def test_a_deleted_topic_stays_deleted_and_its_incarnation_is_not_reused(lasting: Kit) -> None:
    old = lasting.make("orders")
    lasting.send("orders", b"old")
    queue = lasting.queue("orders")
    lasting.commit(progress=[ProgressDelta("billing", queue, 3, 0, ((0, 1),))])
    done(lasting.backend.delete_topic("orders", lasting.soon))
    lasting.engine.reopen()
    assert lasting.backend.topic("orders") is None
    assert lasting.read(queue).status is ReadStatus.UNKNOWN_QUEUE
    new = lasting.make("orders")
    assert new.incarnation != old.incarnation
    lasting.engine.reopen()
    assert done(lasting.backend.bounds([queue, lasting.queue("orders")])) == [None, Bounds(0, 0)]
    assert lasting.progress("billing", lasting.queue("orders")).committed is None


def test_settings_come_back(lasting: Kit) -> None:
    lasting.commit(settings={"a": b"1", "b": b"2"})
    lasting.commit(settings={"a": None, "c": bytes(range(256))})
    lasting.engine.reopen()
    assert {key: lasting.backend.setting(key) for key in "abc"} == {
        "a": None,
        "b": b"2",
        "c": bytes(range(256)),
    }


def test_settings_that_came_back_count_towards_limits(lasting: Kit) -> None:
    limit = SettingsLimit("group/", 3, "there are 3 groups")
    lasting.commit(settings={"group/a": b"1", "group/b": b"1", "group/gone": b"1"})
    lasting.commit(settings={"group/gone": None})
    lasting.engine.reopen()
    batch = CommitBatch(settings={"group/c": b"1"}, limits=[limit])
    done(lasting.backend.commit(batch, lasting.soon))
    with pytest.raises(BoundReachedError, match="there are 3 groups"):
        done(lasting.backend.commit(CommitBatch(settings={"group/d": b"1"}, limits=[limit]), lasting.soon))


def test_progress_is_read_back_complete(lasting: Kit) -> None:
    lasting.make("orders", 2)
    first, second = lasting.queues("orders")
    lasting.commit(progress=[ProgressDelta("billing", first, 4, 0, ((0, 3), (5, 9)), ((3, 2),))])
    lasting.commit(progress=[ProgressDelta("billing", second, 4, 1, reset_to=17)])
    lasting.commit(progress=[ProgressDelta("audit", first, 1, 0, (), ((0, 1),))])
    lasting.engine.reopen()
    assert lasting.progress("billing", first) == ProgressView(3, ((5, 9),), {3: 2}, 4, 0)
    assert lasting.progress("billing", second) == ProgressView(17, (), {}, 4, 1)
    assert lasting.progress("audit", first) == ProgressView(None, (), {0: 1}, 1, 0)
    for stale in (
        ProgressDelta("billing", first, 3, 0, ((3, 4),)),
        ProgressDelta("billing", second, 4, 0, ((17, 18),)),
    ):
        with pytest.raises(FencedError):
            lasting.commit(progress=[stale])


def test_a_wide_ack_map_comes_back(lasting: Kit) -> None:
    queue = lasting.make_queue("orders")
    alternating = tuple((offset, offset + 1) for offset in range(1, 10_001, 2))
    lasting.commit(progress=[ProgressDelta("billing", queue, 0, 0, alternating)])
    for _ in range(2):
        lasting.engine.reopen()
        assert lasting.progress("billing", queue) == ProgressView(0, alternating, {}, 0, 0)


def test_offsets_positions_and_times_go_on(lasting: Kit) -> None:
    queue = lasting.make_queue("orders")
    for n in range(5):
        assert lasting.send("orders", b"x") == [n]
        lasting.clock.now_ms -= 60_000
        lasting.engine.reopen()
    batches = lasting.batches(queue)
    positions = [position for batch in batches for position in batch.positions]
    records = lasting.stored(queue)
    times = [record.stored_ms for record in records]
    assert [record.offset for record in records] == list(range(5))
    assert positions == [record.position for record in records]
    if lasting.backend.capabilities.topic_order:
        assert positions == sorted(set(positions))
    assert times == sorted(times)
    assert lasting.backend.clock_ms() >= times[-1]


def test_every_record_matches_after_a_restart(lasting: Kit) -> None:
    lasting.make("orders", 2)
    start = lasting.clock.now_ms
    records = []
    for n in range(10):
        records.append(lasting.new("orders", n % 2, key=b"odd" if n % 2 else b"even"))
        lasting.append(records[-1])
        lasting.clock.now_ms += 1000
    lasting.engine.reopen()
    matches = done(lasting.backend.find("orders", key=b"odd"))
    assert [hit.message_id for hit in matches] == [records[n].message_id for n in (9, 7, 5, 3, 1)]
    matches = done(lasting.backend.find("orders", message_id=records[4].message_id))
    assert [(hit.queue_id, hit.offset) for hit in matches] == [(0, 2)]
    assert done(lasting.backend.offset_for_time(lasting.queue("orders"), start + 4000)) == 2
    lasting.append(lasting.new("orders", 1, key=b"odd"))
    assert len(done(lasting.backend.find("orders", key=b"odd"))) == 6


def test_epochs_go_on_rising(lasting: Kit) -> None:
    lasting.make("orders", 2)
    before = 0
    for _ in range(3):
        member = Member(lasting, "billing", "orders")
        until(lambda member=member: len(member.owned) == 2, "granted")
        assert min(member.owned.values()) > before
        before = max(member.owned.values())
        lasting.engine.reopen()


def test_what_was_drained_is_there(lasting: Kit) -> None:
    lasting.make("orders", durability=Durability.WRITTEN)
    calls = [lasting.backend.append([lasting.new("orders")], lasting.soon) for _ in range(100)]
    done(lasting.backend.drain(lasting.soon))
    assert all(call.done for call in calls)
    lasting.engine.reopen()
    assert done(lasting.backend.bounds(lasting.queues("orders"))) == [Bounds(0, 100)]
    assert lasting.send("orders", b"x") == [100]


def test_a_close_with_appends_under_way_keeps_a_prefix(lasting: Kit) -> None:
    lasting.make("orders")
    for _ in range(5):
        count = len(lasting.stored(lasting.queue("orders")))
        calls = [
            lasting.backend.append([lasting.new("orders", body=b"%d" % n)], lasting.soon)
            for n in range(count, count + 50)
        ]
        done(calls[9])
        lasting.engine.reopen()
        records = lasting.stored(lasting.queue("orders"))
        assert len(records) >= count + 10
        assert [record.offset for record in records] == list(range(len(records)))
        bodies = [bytes(record.delivery) for record in records[count:]]
        expected = [lasting.new("orders", body=b"%d" % n).delivery for n in range(count, count + 50)]
        assert bodies == expected[: len(bodies)]


def test_many_records_over_many_files(lasting: Kit) -> None:
    lasting.make("orders", 3)
    for n in range(60):
        lasting.append(*(lasting.new("orders", index, b"%d" % n + b"x" * 20_000) for index in range(3)))
        if n % 20 == 19:
            lasting.engine.reopen()
    for queue in lasting.queues("orders"):
        records = lasting.stored(queue)
        assert [record.offset for record in records] == list(range(60))
        assert bytes(records[37].delivery) == lasting.new("orders", body=b"37" + b"x" * 20_000).delivery

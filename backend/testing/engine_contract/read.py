"""Reading: statuses, limits, and where to go on."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from backend.testing.kit import Kit
from backend.testing.waits import done


def test_an_empty_queue_has_none(kit: Kit) -> None:
    kit.make("orders")
    batch = kit.read(kit.queue("orders"))
    assert (batch.status, list(batch.offsets), batch.next_offset) == (ReadStatus.NONE, [], 0)


def test_at_the_next_offset_there_is_none_yet(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a", b"b")
    batch = kit.read(kit.queue("orders"), 2)
    assert (batch.status, batch.next_offset) == (ReadStatus.NONE, 2)


def test_columns_are_of_one_length_and_ascend(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", *(b"%d" % n for n in range(100)))
    batch = kit.read(kit.queue("orders"), 10, 50)
    assert list(batch.offsets) == list(range(10, 60))
    columns = (batch.positions, batch.flags, batch.tag_hashes, batch.deliveries)
    assert [len(column) for column in columns] == [50] * 4
    if kit.backend.capabilities.topic_order:
        assert list(batch.positions) == sorted(set(batch.positions))
    assert batch.next_offset == 60
    assert batch.bounds is None
    for index in (0, 17, 49):
        record = batch.record(index)
        assert (record.offset, record.position) == (batch.offsets[index], batch.positions[index])
        assert bytes(record.delivery) == bytes(batch.deliveries[index])
        assert batch.stored_ms(index) == record.stored_ms > 0


@pytest.mark.parametrize("count_max", [1, 2, 3, 7, 100])
def test_next_offset_leads_through_everything(kit: Kit, count_max: int) -> None:
    kit.make("orders")
    kit.send("orders", *(b"%d" % n for n in range(20)))
    queue, offset = kit.queue("orders"), 0
    offsets: list[int] = []
    while (batch := kit.read(queue, offset, count_max)).status is ReadStatus.DATA:
        assert 1 <= len(batch.offsets) <= count_max
        assert batch.next_offset > offset
        offsets += batch.offsets
        offset = batch.next_offset
        assert not batch.at_end or offset == 20  # an engine need not know that it is there
    assert offsets == list(range(20))
    assert batch.status is ReadStatus.NONE


def test_bytes_max_cuts_but_gives_at_least_one(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", *([b"x" * 1000] * 10))
    queue = kit.queue("orders")
    size = len(kit.new("orders", body=b"x" * 1000).delivery)
    assert list(kit.read(queue, 0, 100, 0).offsets) == [0]
    assert list(kit.read(queue, 3, 100, 1).offsets) == [3]
    assert list(kit.read(queue, 0, 100, size).offsets) == [0]
    assert list(kit.read(queue, 0, 100, 3 * size).offsets) == [0, 1, 2]
    assert list(kit.read(queue, 0, 100, 3 * size + size - 1).offsets) == [0, 1, 2]
    assert kit.read(queue, 0, 100, 3 * size).next_offset == 3


def test_a_large_first_record_does_not_hide_what_follows(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"x" * 100_000, b"small")
    batch = kit.read(kit.queue("orders"), 0, 10, 1000)
    assert (list(batch.offsets), batch.next_offset) == ([0], 1)
    assert list(kit.read(kit.queue("orders"), 1, 10, 1000).offsets) == [1]


@pytest.mark.parametrize("beyond", [1, 5, 1 << 40])
def test_beyond_the_next_offset_is_out_of_range(kit: Kit, beyond: int) -> None:
    kit.make("orders")
    kit.send("orders", b"a", b"b")
    batch = kit.read(kit.queue("orders"), 2 + beyond)
    assert (batch.status, list(batch.offsets)) == (ReadStatus.OUT_OF_RANGE, [])
    assert batch.bounds == Bounds(0, 2)


def test_a_queue_that_never_existed_is_unknown(kit: Kit) -> None:
    info = kit.make("orders", 2)
    for queue in (
        QueueRef("nowhere", 1, 0),
        QueueRef("orders", info.incarnation, 2),
        QueueRef("orders", info.incarnation + 1, 0),
    ):
        assert kit.read(queue).status is ReadStatus.UNKNOWN_QUEUE


@pytest.mark.parametrize(
    ("offset", "count_max", "bytes_max"), [(-1, 1, 1), (0, 0, 1), (0, -1, 1), (0, 1, -1)]
)
def test_bad_arguments_of_a_read_raise_at_once(kit: Kit, offset: int, count_max: int, bytes_max: int) -> None:
    kit.make("orders")
    with pytest.raises(ValueError, match="read"):
        kit.backend.read(kit.queue("orders"), offset, count_max, bytes_max)


def test_bounds_in_bulk(kit: Kit) -> None:
    info = kit.make("orders", 3)
    kit.send("orders", b"a", b"b", queue_id=1)
    deleted_queue = QueueRef("orders", info.incarnation + 1, 0)
    queues = [*kit.queues("orders"), deleted_queue, QueueRef("nowhere", 1, 0)]
    assert done(kit.backend.bounds(queues)) == [Bounds(0, 0), Bounds(0, 2), Bounds(0, 0), None, None]
    assert done(kit.backend.bounds([])) == []


def test_into_is_what_a_read_settles(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a")
    request: Completion[ReadBatch] = Completion()
    assert kit.backend.read(kit.queue("orders"), 0, 1, 1, request) is request
    assert list(done(request).offsets) == [0]


def test_reads_while_appends_are_under_way_see_a_prefix(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    calls = [kit.backend.append([kit.new("orders", body=b"%d" % n)], kit.soon) for n in range(200)]
    offset_count = 0
    while offset_count < 200:
        offsets = [offset for batch in kit.batches(queue) for offset in batch.offsets]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= offset_count
        offset_count = len(offsets)
    assert all(done(call) for call in calls)


def test_a_batch_stays_as_it_is_while_more_is_appended(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"first")
    batch = kit.read(kit.queue("orders"))
    kit.send("orders", *([b"y" * 5000] * 200))
    assert [bytes(delivery) for delivery in batch.deliveries] == [kit.new("orders", body=b"first").delivery]
    assert list(batch.offsets) == [0]

"""Reading by tag hash: what is passed over, where to go on, and the bound of one call."""

from __future__ import annotations

import pytest

from backend.records import PASSED_MAX, QueueRef, ReadBatch, ReadStatus, tag_hash
from backend.testing.kit import Kit
from backend.testing.waits import done

RED, BLUE, NEVER = tag_hash(b"red"), tag_hash(b"blue"), tag_hash(b"never")


def tag_set(*hashes: int) -> frozenset[int]:
    return frozenset(hashes)


def read_by_tags(
    kit: Kit,
    queue: QueueRef,
    tags: frozenset[int] | None,
    offset: int = 0,
    count_max: int = 1000,
    bytes_max: int = 1 << 24,
) -> ReadBatch:
    return done(kit.backend.read(queue, offset, count_max, bytes_max, tags=tags))


def all_of(kit: Kit, queue: QueueRef, tags: frozenset[int] | None, count_max: int = 1000) -> list[int]:
    """Every offset that is delivered, and that each step leads on, up to the end of the queue."""
    offset, offsets = 0, []
    while (batch := read_by_tags(kit, queue, tags, offset, count_max)).status is ReadStatus.DATA:
        assert batch.next_offset > offset
        assert len(batch.offsets) <= count_max
        assert all(offset <= at < batch.next_offset for at in batch.offsets)
        offsets += batch.offsets
        offset = batch.next_offset
    assert (batch.status, list(batch.offsets)) == (ReadStatus.NONE, [])
    assert batch.next_offset == done(kit.backend.bounds([queue]))[0].next  # type: ignore[union-attr]
    return offsets


def make_tagged(kit: Kit, *tags: bytes, topic: str = "orders") -> QueueRef:
    kit.make(topic)
    kit.append(*(kit.new(topic, body=b"%d" % n, tags=tag) for n, tag in enumerate(tags)))
    return kit.queue(topic)


def test_only_what_matches_is_delivered(kit: Kit) -> None:
    queue = make_tagged(kit, b"red", b"blue", b"", b"red", b"green", b"red")
    batch = read_by_tags(kit, queue, tag_set(RED))
    assert list(batch.offsets) == [0, 3, 5]
    assert list(batch.tag_hashes) == [RED] * 3
    assert [batch.record(n).delivery for n in range(3)] == list(batch.deliveries)
    assert bytes(batch.deliveries[1]) == kit.new("orders", body=b"3", tags=b"red").delivery
    assert list(read_by_tags(kit, queue, tag_set(RED, BLUE)).offsets) == [0, 1, 3, 5]


def test_without_tags_all_is_delivered(kit: Kit) -> None:
    queue = make_tagged(kit, b"red", b"", b"blue")
    assert all_of(kit, queue, None) == [0, 1, 2]


def test_no_tag_has_the_hash_zero(kit: Kit) -> None:
    queue = make_tagged(kit, b"red", b"", b"blue", b"")
    assert all_of(kit, queue, tag_set(0)) == [1, 3]


def test_what_is_passed_over_at_the_end_lies_behind_next_offset(kit: Kit) -> None:
    queue = make_tagged(kit, *[b"blue"] * 20)
    assert all_of(kit, queue, tag_set(RED)) == []
    batch = read_by_tags(kit, queue, tag_set(RED), 20)
    assert (batch.status, batch.next_offset) == (ReadStatus.NONE, 20)


def test_next_offset_leads_through_everything_that_matches(kit: Kit) -> None:
    queue = make_tagged(kit, *[b"red" if n % 7 == 3 else b"blue" for n in range(100)])
    for count_max in (1, 2, 5, 1000):
        assert all_of(kit, queue, tag_set(RED), count_max) == list(range(3, 100, 7))


def test_bytes_max_cuts_and_nothing_is_skipped(kit: Kit) -> None:
    kit.make("orders")
    names = [b"red", b"blue"] * 10
    kit.append(*(kit.new("orders", body=b"x" * 1000, tags=name) for name in names))
    queue = kit.queue("orders")
    size = len(kit.new("orders", body=b"x" * 1000, tags=b"red").delivery)
    assert list(read_by_tags(kit, queue, tag_set(RED), 0, 100, 0).offsets) == [0]
    batch = read_by_tags(kit, queue, tag_set(RED), 1, 100, 2 * size + 5)
    assert list(batch.offsets) == [2, 4]
    assert 5 <= batch.next_offset <= 6
    assert list(read_by_tags(kit, queue, tag_set(RED), batch.next_offset, 1).offsets) == [6]


def test_other_outcomes_are_as_without_tags(kit: Kit) -> None:
    queue = make_tagged(kit, b"red", b"blue")
    assert read_by_tags(kit, queue, tag_set(RED), 3).status is ReadStatus.OUT_OF_RANGE
    assert read_by_tags(kit, queue._replace(incarnation=99), tag_set(RED)).status is ReadStatus.UNKNOWN_QUEUE


@pytest.mark.slow
def test_one_call_checks_no_more_than_the_bound(kit: Kit) -> None:
    """More than PASSED_MAX of another tag, then one that matches: several calls find it."""
    kit.make("orders")
    bulk = [kit.new("orders", body=b"", tags=b"blue") for _ in range(2_500)]
    count = 0
    while count <= PASSED_MAX:
        kit.append(*bulk)
        count += len(bulk)
    kit.append(kit.new("orders", body=b"found", tags=b"red"))
    queue = kit.queue("orders")
    first = read_by_tags(kit, queue, tag_set(RED))
    assert (first.status, list(first.offsets)) == (ReadStatus.DATA, [])
    assert 0 < first.next_offset <= PASSED_MAX
    assert all_of(kit, queue, tag_set(RED)) == [count]
    assert all_of(kit, queue, tag_set(NEVER)) == []


def test_after_a_reopen_too(lasting: Kit) -> None:
    queue = make_tagged(lasting, *[b"red" if n % 5 == 0 else b"blue" for n in range(50)])
    lasting.engine.reopen()
    assert all_of(lasting, queue, tag_set(RED), 4) == list(range(0, 50, 5))

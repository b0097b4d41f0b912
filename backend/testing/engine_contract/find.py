"""Finding by time, key and message id; the store's clock."""

from __future__ import annotations

import gevent
import pytest

from backend.records import QueueRef
from backend.testing.kit import Kit
from backend.testing.waits import done
from ddmq_common.errors import UnknownTopicError


def test_the_first_offset_at_or_after_a_time(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    start = kit.clock.now_ms
    for _ in range(5):
        kit.send("orders", b"a", b"b")
        kit.clock.now_ms += 1000
    for after_ms, offset in [(-1, 0), (0, 0), (1, 2), (999, 2), (1000, 2), (1001, 4), (4000, 8), (4001, 10)]:
        assert done(kit.backend.offset_for_time(queue, start + after_ms)) == offset
    assert done(kit.backend.offset_for_time(queue, 0)) == 0


def test_the_times_of_records_find_them(kit: Kit) -> None:
    """A time finds records by their stored stamps, whichever clock stamped them."""
    queue = kit.make_queue("orders")
    for _ in range(6):
        kit.send("orders", b"a", b"b")
        kit.clock.now_ms += 7
        gevent.sleep(0.002)
    times = [record.stored_ms for record in kit.stored(queue)]
    assert times == sorted(times)
    assert kit.backend.clock_ms() >= times[-1]
    for stored_ms in times:
        for wall_ms in (stored_ms - 1, stored_ms, stored_ms + 1):
            first = sum(each < wall_ms for each in times)
            assert done(kit.backend.offset_for_time(queue, wall_ms)) == first


def test_times_are_per_queue(kit: Kit) -> None:
    kit.make("orders", 2)
    start = kit.clock.now_ms
    for n in range(6):
        kit.send("orders", b"x", queue_id=n % 2)
        kit.clock.now_ms += 1000
    assert done(kit.backend.offset_for_time(kit.queue("orders", 0), start + 2000)) == 1
    assert done(kit.backend.offset_for_time(kit.queue("orders", 1), start + 2000)) == 1
    assert done(kit.backend.offset_for_time(kit.queue("orders", 0), start + 1)) == 1
    assert done(kit.backend.offset_for_time(kit.queue("orders", 1), start + 3001)) == 2


def test_an_empty_queue_answers_its_next_offset(kit: Kit) -> None:
    kit.make("orders")
    assert done(kit.backend.offset_for_time(kit.queue("orders"), kit.clock.now_ms)) == 0


def test_store_time_never_goes_back(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    start = kit.clock.now_ms
    for step_ms in (0, 5000, -60_000, -1000, 2000):
        kit.clock.now_ms += step_ms
        kit.send("orders", b"x")
        assert kit.backend.clock_ms() >= kit.stored(queue)[-1].stored_ms
    times = [record.stored_ms for record in kit.stored(queue)]
    assert times == sorted(times), "it goes on, at the pace of the monotonic clock"
    assert times[:2] == [start, start + 5000]
    assert done(kit.backend.offset_for_time(queue, start + 1)) == 1
    assert done(kit.backend.offset_for_time(queue, times[-1] + 1)) == 5


def test_the_store_s_clock_follows_the_wall(kit: Kit) -> None:
    before = kit.backend.clock_ms()
    kit.clock.now_ms += 10_000
    assert kit.backend.clock_ms() == before + 10_000


def test_time_of_a_queue_that_is_not_there(kit: Kit) -> None:
    info = kit.make("orders")
    for queue in (QueueRef("nowhere", 1, 0), QueueRef("orders", info.incarnation + 1, 0)):
        with pytest.raises(UnknownTopicError):
            done(kit.backend.offset_for_time(queue, 0))


def test_by_key_newest_first(kit: Kit) -> None:
    assert kit.backend.capabilities.find_by_key
    kit.make("orders", 3)
    for n in range(12):
        kit.append(kit.new("orders", n % 3, b"%d" % n, key=b"odd" if n % 2 else b"even"))
    matches = done(kit.backend.find("orders", key=b"odd"))
    bodies = [bytes(record.delivery) for record in matches]
    assert bodies == [kit.new("orders", body=b"%d" % n, key=b"odd").delivery for n in (11, 9, 7, 5, 3, 1)]
    assert [(record.queue_id, record.offset) for record in matches[:2]] == [(2, 3), (0, 3)]
    newest = done(kit.backend.find("orders", key=b"odd", count_max=2))
    assert [record.message_id for record in newest] == [record.message_id for record in matches[:2]]


def test_by_message_id(kit: Kit) -> None:
    kit.make("orders")
    records = [kit.new("orders", body=b"%d" % n) for n in range(5)]
    kit.append(*records)
    for offset, record in enumerate(records):
        matches = done(kit.backend.find("orders", message_id=record.message_id))
        assert [(hit.offset, bytes(hit.delivery)) for hit in matches] == [(offset, record.delivery)]
    assert done(kit.backend.find("orders", message_id=b"\xff" * 16)) == []


def test_an_id_that_is_stored_twice_matches_twice(kit: Kit) -> None:
    kit.make("orders")
    record = kit.new("orders")
    kit.append(record, kit.new("orders"), record)
    matches = done(kit.backend.find("orders", message_id=record.message_id))
    assert [hit.offset for hit in matches] == [2, 0]


def test_other_topics_with_the_same_key_stay_out(kit: Kit) -> None:
    kit.make("orders")
    kit.make("bills")
    kit.append(kit.new("orders", key=b"k"), kit.new("bills", key=b"k"))
    assert [hit.topic for hit in done(kit.backend.find("bills", key=b"k"))] == ["bills"]


def test_a_missing_key_or_id_has_no_match(kit: Kit) -> None:
    kit.make("orders")
    kit.append(kit.new("orders"))
    assert done(kit.backend.find("orders", key=b"k")) == []


def test_a_record_matches_as_soon_as_it_is_answered(kit: Kit) -> None:
    kit.make("orders")
    for n in range(30):
        kit.append(kit.new("orders", key=b"key-%d" % n))
        assert [hit.offset for hit in done(kit.backend.find("orders", key=b"key-%d" % n))] == [n]


@pytest.mark.parametrize(
    "arguments", [{}, {"key": b"k", "message_id": b"x" * 16}, {"key": b"k", "count_max": 0}]
)
def test_bad_arguments_of_a_find_raise_at_once(kit: Kit, arguments: dict[str, object]) -> None:
    kit.make("orders")
    with pytest.raises(ValueError, match="find"):
        kit.backend.find("orders", **arguments)  # type: ignore[arg-type]

"""What is forgotten at the bounds of sends that are known, and of whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend import idempotency
from backend.idempotency import StoredSends
from backend.records import FirstStored
from ddmq_common.errors import BoundReachedError, CallerError
from ddmq_common.send_identity import key_identity, sequence_identity
from tests.support.passed_over import PassedOver

NOW_MS = 1_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(idempotency, "SEQUENCES_MAX", 20)
    monkeypatch.setattr(idempotency, "SEQUENCES_ALL_MAX", 32)


def store(sends: StoredSends, producer: int, *sequences: int, at_ms: int = NOW_MS) -> None:
    for sequence in sequences:
        text = sequence_identity(b"%d" % producer, sequence, 0)
        sends.restore(text, bytes(16), sequence, 0, 1, at_ms)


def is_stored(sends: StoredSends, producer: int, sequence: int) -> bool:
    return sends.find_first(sequence_identity(b"%d" % producer, sequence, 0), 1, NOW_MS) is not None


@pytest.fixture
def sends() -> StoredSends:
    return StoredSends()


def test_of_one_producer_the_oldest_are_forgotten_and_refused(sends: StoredSends) -> None:
    store(sends, 1, *range(25))
    assert sends.forgotten == 5
    assert [is_stored(sends, 1, sequence) for sequence in (5, 24)] == [True, True]
    with pytest.raises(CallerError, match=r"sequence 4 .*below 5"):
        is_stored(sends, 1, 4)


def test_sequences_that_lie_far_apart_cost_no_more() -> None:
    """Each step is over a large range; what is lower is refused all the same."""
    sends, step = StoredSends(), 1 << 40
    for number in range(1_000):
        text = sequence_identity(b"1", number * step, max(0, number - 2) * step)
        sends.restore(text, bytes(16), number, 0, 1, NOW_MS)
    assert len(sends.producers[b"1".hex()].locations) == 3
    assert is_stored(sends, 1, 998 * step)
    with pytest.raises(CallerError, match="below"):
        is_stored(sends, 1, 990 * step)
    assert sends.forgotten == 0


def test_all_that_a_producer_has_answers_of_go_in_one_pass(sends: StoredSends) -> None:
    store(sends, 1, *[number << 40 for number in range(20)])
    locations = sends.producers[b"1".hex()].locations = PassedOver(sends.producers[b"1".hex()].locations)
    sends.restore(sequence_identity(b"1", 20 << 40, 20 << 40), bytes(16), 20, 0, 1, NOW_MS)
    assert list(locations) == [20 << 40]
    assert locations.passes == 2


class UniteratedSends(list[Any]):
    """Nobody may go through them for each send: a frame has thousands."""

    def __iter__(self) -> Iterator[Any]:
        pytest.fail("all notes are looked at")


def test_a_key_costs_no_more_when_many_are_stored_and_pending() -> None:
    sends = StoredSends(keys_max=20)
    for number in range(10):
        sends.restore(key_identity(b"t", b"%d" % number, b""), bytes(16), number, 0, 1 + number % 2, NOW_MS)
    sends.pending = UniteratedSends()
    for number in range(5):
        text = key_identity(b"u", b"%d" % number, b"")
        assert sends.find_first(text, 3, NOW_MS) is None
        sends.add_pending(text, bytes(16), number, 0, 3, NOW_MS)
    with pytest.raises(BoundReachedError, match=r"5 of its idempotency keys .*15 of all topics"):
        sends.find_first(key_identity(b"v", b"0", b""), 3, NOW_MS)


def test_sends_that_are_rolled_back_free_their_space() -> None:
    sends = StoredSends(keys_max=8)
    for number in range(4):
        text = key_identity(b"t", b"%d" % number, b"")
        assert sends.find_first(text, 1, NOW_MS) is None
        sends.add_pending(text, bytes(16), number, 0, 1, NOW_MS)
    sends.back_to(3)
    text = key_identity(b"t", b"4", b"")
    assert sends.find_first(text, 1, NOW_MS) is None
    sends.add_pending(text, bytes(16), 3, 0, 1, NOW_MS)
    with pytest.raises(BoundReachedError, match=r"4 of its idempotency keys .*4 of all topics"):
        sends.find_first(key_identity(b"t", b"5", b""), 1, NOW_MS)
    sends.confirm_pending()
    with pytest.raises(BoundReachedError, match=r"4 of its idempotency keys .*4 of all topics"):
        sends.find_first(key_identity(b"t", b"5", b""), 1, NOW_MS)


def test_who_has_many_pays_for_all(sends: StoredSends) -> None:
    """A producer with one open sequence keeps it, however many another one opens."""
    store(sends, 1, 0)
    store(sends, 2, *range(19))
    store(sends, 3, *range(19))
    assert is_stored(sends, 1, 0)
    assert is_stored(sends, 2, 18)
    assert is_stored(sends, 3, 18)
    assert sends.forgotten == 1 + 19 + 19 - 32


def test_of_too_many_producers_the_longest_silent_one_is_forgotten(sends: StoredSends) -> None:
    for producer in (1, 2, 3, 4):
        store(sends, producer, 0)
    store(sends, 1, 1)
    store(sends, 5, 0)
    assert [is_stored(sends, producer, 0) for producer in (1, 2, 3, 4, 5)] == [True, False, True, True, True]
    assert sends.forgotten == 2


def resend(sends: StoredSends, sequence: int, under_way_ms: int, at_ms: int) -> FirstStored | None:
    return sends.find_first(sequence_identity(b"1", sequence, 0, under_way_ms), 1, at_ms)


def test_a_resend_of_a_forgotten_producer_is_rejected(sends: StoredSends) -> None:
    """Nobody can know whether it is stored; also when the producer is heard of again."""
    store(sends, 1, 0)
    for producer in (2, 3, 4):
        store(sends, producer, 0)
    assert resend(sends, 0, 10, NOW_MS) is not None, "as long as it is known"
    store(sends, 5, 0, at_ms=NOW_MS + 2_000)
    with pytest.raises(CallerError, match=r"sequence 0 .* not known any more"):
        resend(sends, 0, 3_000, NOW_MS + 3_000)
    store(sends, 1, 1, at_ms=NOW_MS + 4_000)
    assert is_stored(sends, 1, 1)
    with pytest.raises(CallerError, match=r"sequence 0 .* not known any more"):
        resend(sends, 0, 5_000, NOW_MS + 5_000)


def test_a_resend_newer_than_everything_forgotten_is_accepted(sends: StoredSends) -> None:
    for producer in (1, 2, 3, 4, 5):
        store(sends, producer, 0)
    late_ms = idempotency.ARRIVES_MS
    assert resend(sends, 7, 3_000, NOW_MS + late_ms + 3_001) is None
    with pytest.raises(CallerError):  # it may have been longer on its way than it knows
        resend(sends, 7, 3_000, NOW_MS + late_ms + 3_000)
    assert not is_stored(sends, 1, 0), "what says that it is new is taken to be"


def test_a_resend_after_the_window_is_rejected() -> None:
    sends = StoredSends(window_ms=1_000)
    store(sends, 1, 0)
    store(sends, 2, 0, at_ms=NOW_MS + 1_001)
    with pytest.raises(CallerError, match="not known any more"):
        resend(sends, 0, 1_001, NOW_MS + 1_001)
    assert resend(sends, 1, 500, NOW_MS + 1_001) is None


def test_who_is_silent_for_the_window_is_forgotten_and_not_missed() -> None:
    sends = StoredSends(window_ms=1_000)
    store(sends, 1, 0)
    store(sends, 2, 0, at_ms=NOW_MS + 1_001)
    assert not is_stored(sends, 1, 0)
    assert sends.forgotten == 0


def test_one_topic_has_half_of_the_keys() -> None:
    sends = StoredSends(keys_max=8)
    for number in range(4):
        sends.restore(key_identity(b"a", b"%d" % number, b""), bytes(16), number, 0, 1, NOW_MS)
    with pytest.raises(BoundReachedError, match=r"4 of its .* allowed: as many as are free, 4 of 8"):
        sends.find_first(key_identity(b"a", b"more", b""), 1, NOW_MS)
    assert sends.find_first(key_identity(b"b", b"more", b""), 2, NOW_MS) is None
    assert sends.find_first(key_identity(b"a", b"more", b""), 1, NOW_MS + sends.window_ms + 1) is None


def fill(sends: StoredSends, topic: int) -> int:
    """Store keys of a topic until there is no room for more; how many that were."""
    for number in range(100_000):
        text = key_identity(b"%d" % topic, b"%d" % number, b"")
        try:
            assert sends.find_first(text, topic, NOW_MS) is None
        except BoundReachedError:
            return number
        sends.restore(text, bytes(16), number, 0, topic, NOW_MS)
    return pytest.fail("there is no bound")


def test_two_topics_that_take_all_they_can_leave_space_for_others() -> None:
    sends = StoredSends(keys_max=1_200)
    assert [fill(sends, topic) for topic in (1, 2)] == [600, 300]
    assert sends.find_first(key_identity(b"3", b"0", b""), 3, NOW_MS) is None


def test_topics_that_need_more_have_equal_shares() -> None:
    sends, wanting, stored = StoredSends(keys_max=1_200), {1, 2}, {1: 0, 2: 0}
    while wanting:
        for topic in list(wanting):
            text = key_identity(b"%d" % topic, b"%d" % stored[topic], b"")
            try:
                sends.find_first(text, topic, NOW_MS)
            except BoundReachedError:
                wanting.remove(topic)
                continue
            sends.restore(text, bytes(16), stored[topic], 0, topic, NOW_MS)
            stored[topic] += 1
    assert stored == {1: 400, 2: 400}


def test_a_topic_has_its_share_whatever_the_others_have() -> None:
    """Many that take what is free, one after the other, leave next to nothing."""
    sends = StoredSends(keys_max=20_000)
    for topic in range(1, 30):
        assert fill(sends, topic) >= 20_000 // idempotency.SHARE
    assert sends.forgotten == 0


def test_all_shares_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "SHARE", 10)
    sends = StoredSends(keys_max=100)
    stored = [fill(sends, topic) for topic in range(1, 50)]
    assert min(stored[:10]) == 10
    assert sum(stored) <= 200
    assert sends.forgotten == 0


def test_copies_without_reserved_space_push_out_the_oldest_keys() -> None:
    """`ddmq move` stores by commits, which do not ask."""
    sends = StoredSends(window_ms=8_000, keys_max=10)
    for number in range(50):
        location = bytes(16), number, 0, 1, NOW_MS + 100 * number
        sends.restore(key_identity(b"t", b"%d" % number, b""), *location)
    retained = sum(len(one.locations) for one in sends.slices)
    assert 0 < retained <= 10
    assert sends.forgotten == 50 - retained
    for number in range(50 - retained, 50):
        assert sends.find_first(key_identity(b"t", b"%d" % number, b""), 1, NOW_MS) is not None


def test_what_is_over_is_not_counted_as_forgotten() -> None:
    """An older start adds what the log's tail says to keys that were over by then."""
    sends = StoredSends(window_ms=8_000, keys_max=4)
    for number, stored_ms in enumerate((0, 0, 0, 7_900, 8_100)):
        location = bytes(16), number, 0, 1, NOW_MS + stored_ms
        sends.restore(key_identity(b"t", b"%d" % number, b""), *location)
    assert sends.forgotten == 0
    assert sum(len(one.locations) for one in sends.slices) == 2

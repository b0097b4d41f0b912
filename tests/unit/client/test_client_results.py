"""The consumer's core: results on their way back (against a model), the intake, pacing."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_client import Message, Outcome
from ddmq_client.core.acks import CONTEXTS_MAX, RESULTS_MAX, AckBook, Parcel, Told, late_results
from ddmq_client.core.intake import Intake, Source
from ddmq_client.core.pacing import Pace
from ddmq_client.received import Delivery, Origin
from tests.examples import examples

FIXED = settings(deadline=None, derandomize=True)

ORIGINS = [Origin("g", "t", f"q{at}") for at in range(CONTEXTS_MAX + 4)]


def content(parcel: Parcel | None) -> Counter[tuple[object, ...]]:
    """Every result of a parcel, with what stands beside it."""
    found: Counter[tuple[object, ...]] = Counter()
    for r in parcel or ():
        assert len(r.successes) == len(r.success_leases)
        assert len(r.fails) == len(r.fail_leases) == len(r.fail_delays)
        found.update(("s", r.origin, *pair) for pair in zip(r.successes, r.success_leases, strict=True))
        fails = zip(r.fails, r.fail_leases, r.fail_delays, strict=True)
        found.update(("f", r.origin, *entry) for entry in fails)
        found.update(("e", r.origin, lease) for lease in r.extends)
    return found


def message(origin: Origin, offset: int, lease: int) -> Message:
    made = Message()
    made.offset, made.lease_id = offset, lease
    made.delivery = Delivery(origin, 0.0, None, lambda *_: True, lambda _: True)
    return made


STEP = st.one_of(
    st.tuples(st.sampled_from("sfe"), st.integers(0, len(ORIGINS) - 1), st.integers(0, 99)),
    st.just(("take",)),
    st.just(("back",)),
    st.just(("confirm",)),
)


@settings(FIXED, max_examples=examples(200))
@given(st.lists(STEP, max_size=80))
def test_nothing_is_lost_or_doubled_until_confirmed(steps: list[tuple[object, ...]]) -> None:
    book, owed, under_way = AckBook(10_000), Counter[tuple[object, ...]](), list[Parcel]()
    for now, step in enumerate(steps):
        match step:
            case ("s", int(at), int(offset)):
                book.success(ORIGINS[at], offset, offset + 1, now)
                owed["s", ORIGINS[at], offset, offset + 1] += 1
            case ("f", int(at), int(offset)):
                book.failure(ORIGINS[at], offset, None, 5 if offset % 2 else None, now)
                owed["f", ORIGINS[at], offset, 0, 5 if offset % 2 else -1] += 1
            case ("e", int(at), int(lease)):
                book.extension(message(ORIGINS[at], 1_000 + lease, lease), now)
                owed["e", ORIGINS[at], lease] += 1
            case ("take",):
                parcel = book.take()
                if parcel is not None:
                    assert 1 <= len(parcel) <= CONTEXTS_MAX
                    under_way.append(parcel)
            case ("back",) if under_way:
                book.give_back(under_way.pop(0), now)
            case ("confirm",) if under_way:
                owed -= content(under_way.pop(0))
        assert len(book) + sum(sum(content(parcel).values()) for parcel in under_way) == owed.total()
        assert (book.since is None) == (len(book) == 0)
    found = Counter[tuple[object, ...]]()
    for parcel in under_way:
        book.give_back(parcel, 1e9)
    while (parcel := book.take()) is not None:
        found += content(parcel)
    assert found == owed
    assert book.dropped == 0


def test_what_is_settled_is_not_extended_as_well() -> None:
    """The proxy would tell that the extension came too late, and it would be taken for the result."""
    book = AckBook(1_000)
    origin = ORIGINS[0]
    for offset in (1, 2, 3, 4):
        book.extension(message(origin, offset, offset * 10), 0.0)
    book.success(origin, 1, 10, 0.0)
    book.failure(origin, 2, 20, None, 0.0)
    book.hand_back(origin, 3, 30, 0.0)
    (results,) = book.take() or ()
    assert (results.extends, results.extend_offsets) == ([40], [4])
    assert (results.successes, results.fails, results.returns) == ([1], [2], [3])
    assert (len(book), book.take()) == (0, None)


@pytest.mark.parametrize("end", ["ack", "skip", "fail"])
def test_an_extension_that_comes_behind_its_result_is_not_late(end: str) -> None:
    """They go by two calls, the extension first; whichever the proxy sees first."""
    table = Table()
    table.arrive(2)
    mine, other = table.intake.take(2)
    assert mine.extend()
    assert other.extend()
    extensions = table.intake.take_results(table.station)
    assert getattr(mine, end)()
    result = table.intake.take_results(table.station)
    assert extensions is not None
    assert result is not None
    told = [Told(ORIGINS[0], at.offset, at.lease_id or 0, finished=False) for at in (mine, other)]
    assert late_results(extensions, told) == ([], [told[1]]), "of the other one the lease is over"
    assert (mine.lost, other.lost) == (False, True)
    assert late_results(extensions, told) == ([], []), "told of once"
    assert late_results(result, told[:1]) == ([told[0]], []), "a late result tells itself"


def test_a_call_carries_a_bounded_number_of_results() -> None:
    book = AckBook(100_000)
    for offset in range(RESULTS_MAX + 10):
        book.success(ORIGINS[0], offset, None, 0.0)
    book.failure(ORIGINS[0], 7, 8, 9, 0.0)
    first, second = book.take(), book.take()
    assert first is not None
    assert second is not None
    assert [len(results) for results in first] == [RESULTS_MAX]
    assert first[0].successes == list(range(RESULTS_MAX))
    assert (len(second[0].successes), second[0].fails, second[0].fail_delays) == (10, [7], [9])
    assert book.take() is None


def test_past_its_bound_the_book_drops_the_oldest_and_counts() -> None:
    book = AckBook(10)
    for at in range(3):
        for offset in range(5):
            book.success(ORIGINS[at], offset, None, 0.0)
    assert len(book) == 10
    assert book.dropped == 5
    assert [results.origin for results in book.take() or ()] == ORIGINS[1:3]
    for offset in range(25):
        book.success(ORIGINS[0], offset, None, 0.0)
    assert len(book) == 10
    assert book.dropped == 20
    (left,) = book.take() or ()
    assert left.successes == list(range(15, 25))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Table:
    """An intake with one station and what a test does to it."""

    def __init__(self, prefetch: int = 10, demand: int | None = None) -> None:
        self.clock = Clock()
        self.intake = Intake(prefetch, 5.0, 0.05, 1000, self.clock)
        self.intake.demand = demand
        self.station = self.intake.station("a:1")
        self.source = Source(self.station, "t")

    def arrive(self, count: int, source: Source | None = None) -> None:
        messages = [Message() for _ in range(count)]
        for at, message in enumerate(messages):
            message.offset, message.lease_id = at, at + 1
        intake = self.intake
        intake.arrived(source or self.source, ORIGINS[0], messages, intake.settle, intake.extend)


def test_handlers_are_fed_whole_batches_while_they_fit() -> None:
    table = Table(prefetch=10)
    assert table.intake.wanted(table.source, 4) == 4
    table.arrive(7)
    assert table.intake.wanted(table.source, 4) == 0
    table.intake.take(1)
    assert table.intake.wanted(table.source, 4) == 4
    assert table.intake.wanted(Source(table.station, "u"), 10) == 10, "each source has its own share"


def test_without_handlers_only_what_was_asked_for_is_pulled() -> None:
    table = Table(demand=0)
    assert table.intake.wanted(table.source, 32) == 0
    table.intake.asking(5)
    assert table.intake.wanted(table.source, 32) == 5
    table.intake.asking(40)
    assert table.intake.wanted(table.source, 32) == 32
    table.arrive(1)
    assert table.intake.wanted(table.source, 32) == 32
    table.arrive(1)
    assert table.intake.wanted(table.source, 32) == 0, "there is one for each who asks"
    table.intake.asked(5)
    table.intake.asked(40)
    table.intake.take(2)
    assert table.intake.wanted(table.source, 32) == 0


def test_what_waited_longer_than_its_lease_is_not_handed_out() -> None:
    table = Table()
    table.arrive(2)
    table.clock.now += 3
    table.arrive(2)
    table.clock.now += 2.5
    assert len(table.intake.take(10)) == 2
    assert (table.intake.counts.expired, table.source.open, table.source.waiting) == (2, 2, 0)


def test_settled_once() -> None:
    table = Table()
    table.arrive(4)
    one, two, three, four = table.intake.take(4)
    assert one.ack()
    assert not one.ack()
    assert not one.fail()
    assert not one.extend()
    assert two.fail(delay_ms=70)
    assert three.extend()
    assert three.skip()
    four.lease_id = None
    assert not four.extend()
    with pytest.raises(ValueError, match="delay_ms=-1"):
        four.fail(-1)
    assert [m.outcome for m in (one, two, three, four)] == [
        Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, None,
    ]  # fmt: skip
    found = content(table.intake.take_results(table.station))
    where = ORIGINS[0]
    assert found == Counter([("s", where, 0, 1), ("s", where, 2, 3), ("f", where, 1, 2, 70)])
    counts = table.intake.counts
    assert (counts.acked, counts.failed, counts.skipped, counts.extended) == (1, 1, 1, 1)


def test_results_wait_for_a_pull_but_not_for_long() -> None:
    table = Table()
    table.arrive(2)
    one, two = table.intake.take(2)
    assert table.intake.submit_due(table.station) is None
    one.ack()
    assert table.intake.submit_due(table.station) == pytest.approx(0.05)
    table.clock.now += 0.06
    assert table.intake.submit_due(table.station) == 0.0
    assert table.intake.pulling(table.source) is not None
    assert table.intake.submit_due(table.station) is None
    two.ack()
    assert table.intake.submit_due(table.station) == 0.0, "the pull is away and nothing else is open"


def test_while_others_of_the_source_are_open_results_are_gathered() -> None:
    table = Table()
    table.arrive(2)
    one, two = table.intake.take(2)
    table.intake.pulling(table.source)
    one.ack()
    assert table.intake.submit_due(table.station) == pytest.approx(0.05)
    two.extend()
    assert table.intake.submit_due(table.station) == 0.0, "an extension cannot wait"


def test_a_failed_pull_owes_its_results_again() -> None:
    table = Table()
    table.arrive(1)
    table.intake.take(1)[0].ack()
    parcel = table.intake.pulling(table.source)
    table.intake.pull_failed(table.source, parcel)
    assert content(table.intake.take_results(table.station)) == Counter([("s", ORIGINS[0], 0, 1)])
    assert table.intake.counts.pull_errors == 1


def test_a_vanished_proxy_leaves_its_results_to_another() -> None:
    table = Table()
    heir = table.intake.station("b:1")
    table.arrive(3)
    one, two, three = table.intake.take(3)
    one.ack()
    under_way = table.intake.take_results(table.station)
    two.ack()
    table.intake.retire(table.station, heir)
    three.ack()
    assert under_way is not None
    table.intake.give_back(table.station, under_way)
    found = content(table.intake.take_results(heir))
    assert sorted(entry[2] for entry in found) == [0, 1, 2]
    assert table.intake.take_results(table.station) is None
    assert list(table.intake.stations) == ["b:1"]


def test_pauses() -> None:
    pace = Pace(0.5, lambda: 0.5)
    assert pace.answered(3, 0.0) == 0.0
    assert pace.answered(0, 0.5) == 0.0
    assert [pace.answered(0, 0.001) for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert [pace.failed() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pace.failing
    assert pace.answered(1, 0.0) == 0.0
    assert not pace.failing
    assert pace.failed() == 0.1


def test_what_a_full_book_drops_is_counted() -> None:
    intake = Intake(2_000, 30.0, 0.05, 1_000, lambda: 0.0)
    source = Source(intake.station("a:1"), None)
    messages = [Message() for _ in range(1_500)]
    intake.arrived(source, ORIGINS[0], messages, lambda *_: True, lambda _: True)
    for message in messages:
        assert intake.settle(message, Outcome.ACKED, None)
    assert len(source.station.book) == 1_000
    assert intake.counts.results_dropped == 500


def test_an_empty_answer_is_measured_by_what_was_asked() -> None:
    pace = Pace(0.5, lambda: 0.5)
    assert pace.answered(0, 0.1, 0.1) == 0.0
    assert pace.answered(0, 0.02, 0.001) == 0.0, "proxies wait 20 ms at least"
    assert pace.answered(0, 0.001, 0.001) == 0.05

"""The consumer's core: results on their way back (against a model), the prefetch buffer, pacing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_client import Message, Outcome
from ddmq_client.core.acks import (
    CONTEXTS_MAX,
    RESULTS_MAX,
    AckBatch,
    PendingAcks,
    UnappliedResult,
    late_results,
)
from ddmq_client.core.nodes import Pace
from ddmq_client.core.prefetch_buffer import PrefetchBuffer, Source
from ddmq_client.received import DeliveryContext, NothingToSettle, Origin
from tests.examples import examples

FIXED = settings(deadline=None, derandomize=True)

ORIGINS = [Origin("g", "t", f"q{at}") for at in range(CONTEXTS_MAX + 4)]


def content(acks: AckBatch | None) -> Counter[tuple[object, ...]]:
    """Every result of an ack batch, with what stands beside it."""
    results: Counter[tuple[object, ...]] = Counter()
    for r in acks or ():
        assert len(r.successes) == len(r.success_leases)
        assert len(r.fails) == len(r.fail_leases) == len(r.fail_delays)
        results.update(("s", r.origin, *pair) for pair in zip(r.successes, r.success_leases, strict=True))
        fails = zip(r.fails, r.fail_leases, r.fail_delays, strict=True)
        results.update(("f", r.origin, *entry) for entry in fails)
        results.update(("e", r.origin, lease) for lease in r.extends)
    return results


def message(origin: Origin, offset: int, lease: int) -> Message:
    message = Message()
    message.offset, message.lease_id = offset, lease
    message.delivery = DeliveryContext(origin, 0.0, None, NothingToSettle())
    return message


STEP = st.one_of(
    st.tuples(st.sampled_from("sfe"), st.integers(0, len(ORIGINS) - 1), st.integers(0, 99)),
    st.just(("take",)),
    st.just(("back",)),
    st.just(("confirm",)),
)


@settings(FIXED, max_examples=examples(200))
@given(st.lists(STEP, max_size=80))
def test_nothing_is_lost_or_doubled_until_confirmed(steps: list[tuple[object, ...]]) -> None:
    pending, owed, under_way = PendingAcks(10_000), Counter[tuple[object, ...]](), list[AckBatch]()
    for now, step in enumerate(steps):
        match step:
            case ("s", int(at), int(offset)):
                pending.add_success(ORIGINS[at], offset, offset + 1, now)
                owed["s", ORIGINS[at], offset, offset + 1] += 1
            case ("f", int(at), int(offset)):
                pending.add_failure(ORIGINS[at], offset, None, 5 if offset % 2 else None, now)
                owed["f", ORIGINS[at], offset, 0, 5 if offset % 2 else -1] += 1
            case ("e", int(at), int(lease)):
                pending.add_extension(message(ORIGINS[at], 1_000 + lease, lease), now)
                owed["e", ORIGINS[at], lease] += 1
            case ("take",):
                acks = pending.take_batch()
                if acks is not None:
                    assert 1 <= len(acks) <= CONTEXTS_MAX
                    under_way.append(acks)
            case ("back",) if under_way:
                pending.give_back(under_way.pop(0), now)
            case ("confirm",) if under_way:
                owed -= content(under_way.pop(0))
        assert len(pending) + sum(sum(content(acks).values()) for acks in under_way) == owed.total()
        assert (pending.since is None) == (len(pending) == 0)
    remaining = Counter[tuple[object, ...]]()
    for acks in under_way:
        pending.give_back(acks, 1e9)
    while (acks := pending.take_batch()) is not None:
        remaining += content(acks)
    assert remaining == owed
    assert pending.dropped == 0


def test_what_is_settled_is_not_extended_as_well() -> None:
    """The proxy would tell that the extension came too late, and it would be taken for the result."""
    pending = PendingAcks(1_000)
    origin = ORIGINS[0]
    for offset in (1, 2, 3, 4):
        pending.add_extension(message(origin, offset, offset * 10), 0.0)
    pending.add_success(origin, 1, 10, 0.0)
    pending.add_failure(origin, 2, 20, None, 0.0)
    pending.hand_back(origin, 3, 30, 0.0)
    (results,) = pending.take_batch() or ()
    assert (results.extends, results.extend_offsets) == ([40], [4])
    assert (results.successes, results.fails, results.returns) == ([1], [2], [3])
    assert (len(pending), pending.take_batch()) == (0, None)


@pytest.mark.parametrize("end", ["ack", "skip", "fail"])
def test_an_extension_that_comes_behind_its_result_is_not_late(table: Table, end: str) -> None:
    """They go by two calls, the extension first; whichever the proxy sees first."""
    table.arrive(2)
    mine, other = table.buffer.take_messages(2)
    assert mine.extend()
    assert other.extend()
    extensions = table.buffer.take_results(table.proxy)
    assert getattr(mine, end)()
    result = table.buffer.take_results(table.proxy)
    assert extensions is not None
    assert result is not None
    unapplied = [
        UnappliedResult(ORIGINS[0], at.offset, at.lease_id or 0, finished=False) for at in (mine, other)
    ]
    assert late_results(extensions, unapplied) == ([], [unapplied[1]]), "of the other one the lease is over"
    assert (mine.lost, other.lost) == (False, True)
    assert late_results(extensions, unapplied) == ([], []), "reported once"
    assert late_results(result, unapplied[:1]) == ([unapplied[0]], []), "a late result is reported as late"


def test_a_call_carries_a_bounded_number_of_results() -> None:
    pending = PendingAcks(100_000)
    for offset in range(RESULTS_MAX + 10):
        pending.add_success(ORIGINS[0], offset, None, 0.0)
    pending.add_failure(ORIGINS[0], 7, 8, 9, 0.0)
    first, second = pending.take_batch(), pending.take_batch()
    assert first is not None
    assert second is not None
    assert [len(results) for results in first] == [RESULTS_MAX]
    assert first[0].successes == list(range(RESULTS_MAX))
    assert (len(second[0].successes), second[0].fails, second[0].fail_delays) == (10, [7], [9])
    assert pending.take_batch() is None


def test_past_its_bound_the_book_drops_the_oldest_and_counts() -> None:
    pending = PendingAcks(10)
    for at in range(3):
        for offset in range(5):
            pending.add_success(ORIGINS[at], offset, None, 0.0)
    assert len(pending) == 10
    assert pending.dropped == 5
    assert [results.origin for results in pending.take_batch() or ()] == ORIGINS[1:3]
    for offset in range(25):
        pending.add_success(ORIGINS[0], offset, None, 0.0)
    assert len(pending) == 10
    assert pending.dropped == 20
    (left,) = pending.take_batch() or ()
    assert left.successes == list(range(15, 25))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Table:
    """A prefetch buffer with one proxy and what a test does to it."""

    def __init__(self, prefetch: int = 10, demand: int | None = None) -> None:
        self.clock = Clock()
        self.buffer = PrefetchBuffer(prefetch, 5.0, 0.05, 1000, self.clock)
        self.buffer.demand = demand
        self.proxy = self.buffer.get_proxy("a:1")
        self.source = Source(self.proxy, "t")

    def arrive(self, count: int, source: Source | None = None, lease_ms: int | None = None) -> None:
        messages = [Message() for _ in range(count)]
        for at, message in enumerate(messages):
            message.offset, message.lease_id = at, at + 1
        self.buffer.add_pulled(source or self.source, ORIGINS[0], messages, self.buffer, lease_ms)


@pytest.fixture
def table() -> Table:
    return Table()


def test_complete_batches_are_pulled_while_they_fit() -> None:
    table = Table(prefetch=10)
    assert table.buffer.count_pullable(table.source, 4) == 4
    table.arrive(7)
    assert table.buffer.count_pullable(table.source, 4) == 0
    table.buffer.take_messages(1)
    assert table.buffer.count_pullable(table.source, 4) == 4
    assert table.buffer.count_pullable(Source(table.proxy, "u"), 10) == 10, "each source has its own share"


def test_without_handlers_only_requested_messages_are_pulled() -> None:
    table = Table(demand=0)
    assert table.buffer.count_pullable(table.source, 32) == 0
    table.buffer.add_demand(5)
    assert table.buffer.count_pullable(table.source, 32) == 5
    table.buffer.add_demand(40)
    assert table.buffer.count_pullable(table.source, 32) == 32
    table.arrive(1)
    assert table.buffer.count_pullable(table.source, 32) == 32
    table.arrive(1)
    assert table.buffer.count_pullable(table.source, 32) == 0, "there is one for each who asks"
    table.buffer.remove_demand(5)
    table.buffer.remove_demand(40)
    table.buffer.take_messages(2)
    assert table.buffer.count_pullable(table.source, 32) == 0


def test_what_waited_longer_than_its_lease_is_not_handed_out(table: Table) -> None:
    table.arrive(2)
    table.clock.now += 3
    table.arrive(2)
    table.clock.now += 2.5
    assert len(table.buffer.take_messages(10)) == 2
    assert (table.buffer.counts.expired, table.source.open, table.source.waiting) == (2, 2, 0)


def test_settled_once(table: Table) -> None:
    table.arrive(4)
    one, two, three, four = table.buffer.take_messages(4)
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
    results = content(table.buffer.take_results(table.proxy))
    origin = ORIGINS[0]
    assert results == Counter([("s", origin, 0, 1), ("s", origin, 2, 3), ("f", origin, 1, 2, 70)])
    counts = table.buffer.counts
    assert (counts.acked, counts.failed, counts.skipped, counts.extended) == (1, 1, 1, 1)


def test_handed_back_once(table: Table) -> None:
    table.arrive(3, lease_ms=5_000)
    one, two, three = table.buffer.take_messages(3)
    assert one.hand_back()
    assert [one.hand_back(), one.ack(), one.fail(), one.extend()] == [False] * 4
    assert two.ack()
    assert not two.hand_back()
    assert [m.outcome for m in (one, two, three)] == [Outcome.HANDED_BACK, Outcome.ACKED, None]
    assert table.buffer.submit_due(table.proxy) == 0.0, "others wait for it"
    (results,) = table.buffer.take_results(table.proxy) or ()
    assert (results.successes, results.fails, results.returns) == ([1], [], [0])
    assert (table.buffer.counts.returned, table.source.open, table.source.waiting) == (1, 1, 0)


def test_what_an_older_proxy_leased_cannot_go_back(table: Table) -> None:
    table.arrive(1)
    (one,) = table.buffer.take_messages(1)
    assert not one.hand_back()
    assert one.outcome is None
    assert one.ack(), "it is as before"


def test_results_wait_for_a_pull_but_not_for_long(table: Table) -> None:
    table.arrive(2)
    one, two = table.buffer.take_messages(2)
    assert table.buffer.submit_due(table.proxy) is None
    one.ack()
    assert table.buffer.submit_due(table.proxy) == pytest.approx(0.05)
    table.clock.now += 0.06
    assert table.buffer.submit_due(table.proxy) == 0.0
    assert table.buffer.begin_pull(table.source) is not None
    assert table.buffer.submit_due(table.proxy) is None
    two.ack()
    assert table.buffer.submit_due(table.proxy) == 0.0, "the pull is away and nothing else is open"


def test_while_others_of_the_source_are_open_results_are_gathered(table: Table) -> None:
    table.arrive(2)
    one, two = table.buffer.take_messages(2)
    table.buffer.begin_pull(table.source)
    one.ack()
    assert table.buffer.submit_due(table.proxy) == pytest.approx(0.05)
    two.extend()
    assert table.buffer.submit_due(table.proxy) == 0.0, "an extension cannot wait"


def test_results_of_a_failed_pull_are_pending_afterwards(table: Table) -> None:
    table.arrive(1)
    table.buffer.take_messages(1)[0].ack()
    acks = table.buffer.begin_pull(table.source)
    table.buffer.pull_failed(table.source, acks)
    assert content(table.buffer.take_results(table.proxy)) == Counter([("s", ORIGINS[0], 0, 1)])
    assert table.buffer.counts.pull_errors == 1


def test_a_vanished_proxy_leaves_its_results_to_another(table: Table) -> None:
    failover = table.buffer.get_proxy("b:1")
    table.arrive(3)
    one, two, three = table.buffer.take_messages(3)
    one.ack()
    under_way = table.buffer.take_results(table.proxy)
    two.ack()
    table.buffer.fail_over(table.proxy, failover)
    three.ack()
    assert under_way is not None
    table.buffer.give_back(table.proxy, under_way)
    results = content(table.buffer.take_results(failover))
    assert sorted(entry[2] for entry in results) == [0, 1, 2]
    assert table.buffer.take_results(table.proxy) is None
    assert list(table.buffer.proxies) == ["b:1"]


def test_pauses() -> None:
    pace = Pace(0.5, lambda: 0.5)
    assert pace.pause_after_answer(3, 0.0) == 0.0
    assert pace.pause_after_answer(0, 0.5) == 0.0
    assert [pace.pause_after_answer(0, 0.001) for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert [pace.pause_after_failure() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pace.is_failing
    assert pace.pause_after_answer(1, 0.0) == 0.0
    assert not pace.is_failing
    assert pace.pause_after_failure() == 0.1


def test_what_a_full_book_drops_is_counted() -> None:
    buffer = PrefetchBuffer(2_000, 30.0, 0.05, 1_000, lambda: 0.0)
    source = Source(buffer.get_proxy("a:1"), None)
    messages = [Message() for _ in range(1_500)]
    buffer.add_pulled(source, ORIGINS[0], messages, NothingToSettle())
    for message in messages:
        assert buffer.settle(message, Outcome.ACKED, None)
    assert len(source.proxy.pending) == 1_000
    assert buffer.counts.results_dropped == 500


def test_an_empty_answer_is_compared_with_the_linger_of_its_call() -> None:
    pace = Pace(0.5, lambda: 0.5)
    assert pace.pause_after_answer(0, 0.1, 0.1) == 0.0
    assert pace.pause_after_answer(0, 0.02, 0.001) == 0.0, "proxies wait 20 ms at least"
    assert pace.pause_after_answer(0, 0.001, 0.001) == 0.05

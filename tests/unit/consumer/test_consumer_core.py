"""The consumer core's small parts: ranges, leases, retry policy, held pulls, timer queue, feeds, attempts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from backend.records import FLAG_ONE_GROUP, FLAG_PRESSURE, ONE_GROUP, ReadBatch, ReadStatus, StoredRecord
from proxy_consumer.core.arrivals import pick_messages
from proxy_consumer.core.held_pulls import HeldPull, HeldPulls, LingerWheel
from proxy_consumer.core.jobs import pack_attempts, unpack_attempts
from proxy_consumer.core.leases import Lease, LeaseTable, by_lease
from proxy_consumer.core.progress import ascending_ranges, gaps_between, ranges_of
from proxy_consumer.core.queue_feed import Slice
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.tally import Budget
from proxy_consumer.core.timer_queue import NEVER, TimerQueue

# --- ranges


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([], []),
        ([7], [(7, 8)]),
        ([1, 2, 3], [(1, 4)]),
        ([3, 1, 2, 3], [(1, 4)]),
        ([1, 3, 3, 4], [(1, 2), (3, 5)]),
        ([5, 5, 5], [(5, 6)]),
        ([1, 9, 3], [(1, 2), (3, 4), (9, 10)]),
        ([-3, -2], [(-3, -1)]),
    ],
)
def test_ranges_of_any_list(offsets: list[int], expected: list[tuple[int, int]]) -> None:
    assert ranges_of(offsets) == expected
    assert ascending_ranges(sorted(set(offsets))) == expected


def test_between_is_what_is_left() -> None:
    assert gaps_between(0, 10, []) == [(0, 10)]
    assert gaps_between(0, 10, [(0, 10)]) == []
    assert gaps_between(0, 10, [(2, 4), (6, 10)]) == [(0, 2), (4, 6)]


# --- leases


def table(*runs: tuple[int, int, int, float], budget: Budget | None = None) -> LeaseTable:
    """Runs as (start, end, lease id, deadline), 10 bytes a message."""
    leases = LeaseTable(budget or Budget())
    for start, end, lease_id, deadline in runs:
        leases.add(start, end, 10 * (end - start), Lease(lease_id, deadline))
    return leases


def test_a_complete_run_is_taken_as_one_range() -> None:
    budget = Budget()
    leases = table((0, 100, 1, 5.0), (100, 200, 2, 5.0), budget=budget)
    assert leases.take_leased(100, 200, None) == [(100, 200, 1000)]
    assert (leases.jobs, budget.leased, budget.leased_bytes) == (100, 100, 1000)


def test_ranges_are_taken_out_of_runs_and_the_bytes_add_up() -> None:
    budget = Budget()
    leases = table((0, 10, 1, 5.0), (20, 30, 2, 5.0), budget=budget)
    leased = leases.take_leased(3, 25, None)
    assert [(start, end) for start, end, _ in leased] == [(3, 10), (20, 25)]
    rest = leases.take_leased(0, 100, None)
    assert [(start, end) for start, end, _ in rest] == [(0, 3), (25, 30)]
    assert sum(size for _, _, size in leased + rest) == 200
    assert (leases.jobs, budget.leased, budget.leased_bytes) == (0, 0, 0)


def test_only_messages_of_the_named_lease_are_taken() -> None:
    leases = table((0, 10, 1, 5.0), (10, 20, 2, 5.0))
    assert leases.take_leased(0, 10, 2) == []
    assert [leased_range[:2] for leased_range in leases.take_leased(0, 20, 2)] == [(10, 20)]
    assert leases.lease_of(5) is not None
    assert leases.lease_of(15) is None


def test_leases_expire_completely_and_only_when_due() -> None:
    leases = table((0, 10, 1, 5.0), (10, 20, 2, 7.0))
    assert leases.take_expired(4.9) == []
    assert leases.take_expired(5.0) == [(0, 10, 100)]
    assert leases.next_deadline == 7.0
    assert leases.extend(2, 2.0)
    assert leases.take_expired(7.0) == []
    assert leases.next_deadline == 9.0
    assert not leases.extend(1, 9.0)


def test_leases_against_one_entry_per_message() -> None:
    random = Random(3)
    budget = Budget()
    leases, model = LeaseTable(budget), {}
    for round_ in range(2000):
        start = random.randrange(200)
        end = start + random.randrange(1, 30)
        if random.random() < 0.5 and not any(offset in model for offset in range(start, end)):
            leases.add(start, end, end - start, Lease(round_, float(round_)))
            model.update(dict.fromkeys(range(start, end), round_))
        else:
            lease_id = model.get(start) if random.random() < 0.5 else None
            hit = [o for o in range(start, end) if o in model and lease_id in (None, model[o])]
            leased = leases.take_leased(start, end, lease_id)
            assert [o for first, after, _ in leased for o in range(first, after)] == hit
            for offset in hit:
                del model[offset]
        assert leases.jobs == budget.leased == len(model)


def test_offsets_are_grouped_by_lease() -> None:
    assert list(by_lease([1, 2], None)) == [(None, [1, 2])]
    assert list(by_lease([1, 2], [7, 7])) == [(7, [1, 2])]
    assert list(by_lease([1, 2, 3, 4], [7, 0, 7])) == [(7, [1, 3]), (None, [2, 4])]
    assert list(by_lease([], [7])) == []


# --- retries


@pytest.mark.parametrize(
    ("intervals", "waits"),
    [
        ((100, 150, 300), [100, 150, 300, None]),
        ((), [None]),
        ((-1,), [None]),
        ((-1, 100), [None]),
        ((100, -1), [100, 100, 100]),
        ((0,), [0, None]),
    ],
)
def test_retry_intervals(intervals: Sequence[int], waits: list[int | None]) -> None:
    policy = RetryPolicy(intervals, 16)
    assert [policy.after_fail(fails, 0) for fails in range(1, len(waits) + 1)] == waits


def test_timeouts_have_a_limit_of_their_own() -> None:
    assert [RetryPolicy((), 2).after_timeout(0, count) for count in (1, 2, 3)] == [0, 0, None]
    assert RetryPolicy((), 0).after_timeout(0, 1) is None
    assert RetryPolicy((), -1).after_timeout(0, 10**6) == 0


def test_an_ordered_job_stays_until_its_deliveries_are_used_up() -> None:
    policy = RetryPolicy((100, 150), 1, interval_ms=1000, deliveries_max=5)
    assert [policy.after_fail(fails, 0) for fails in range(1, 6)] == [100, 150, 1000, 1000, None]
    assert [policy.after_timeout(0, timeouts) for timeouts in range(1, 6)] == [0, 1000, 1000, 1000, None]
    assert policy.after_fail(3, 2) is None
    assert policy.after_fail(3, 1) == 1000
    for_ever = RetryPolicy((100,), 1, interval_ms=1000, deliveries_max=-1)
    assert for_ever.after_fail(10**6, 10**6) == for_ever.after_timeout(10**6, 10**6) == 1000
    assert RetryPolicy((100, -1), 1, interval_ms=1000, deliveries_max=3).after_fail(9, 0) == 100


def test_both_counters_fit_in_one_number_that_rises() -> None:
    assert unpack_attempts(pack_attempts(3, 5)) == (3, 5, 0, False)
    assert unpack_attempts(pack_attempts(3, 5, 2)) == (3, 5, 2, False)
    assert unpack_attempts(pack_attempts(3, 5, 2, final=True)) == (3, 5, 2, True)
    assert unpack_attempts(5 << 16 | 3) == (3, 5, 0, False), "as it was written before replays were counted"
    assert pack_attempts(0, 0, 1) > pack_attempts(9, 9, final=True) > pack_attempts(99, 99)
    assert pack_attempts(1 << 60, 1 << 60, 1 << 60, final=True) < 1 << 63
    assert pack_attempts(4, 5) > pack_attempts(3, 5)
    assert pack_attempts(3, 6) > pack_attempts(3, 5)
    assert unpack_attempts(pack_attempts(1 << 20, 1)) == (65535, 1, 0, False)


# --- waiting


class Waiter(HeldPull):
    def give_up(self) -> None:
        raise AssertionError("the wheel only says whose time is over")

    def deliver(self, delivery: Delivery) -> None:
        raise AssertionError("nothing comes")


def test_the_oldest_of_a_topic_and_of_anyone() -> None:
    pulls = HeldPulls()
    waiters = [Waiter(topic) for topic in ("T", None, "U", "T")]
    for waiter in waiters:
        pulls.hold_pull(waiter)
    assert pulls.oldest_pull("T") is waiters[0]
    pulls.leave(waiters[0])
    pulls.leave(waiters[0])
    assert pulls.oldest_pull("T") is waiters[1]
    assert pulls.oldest_pull("U") is waiters[1]
    pulls.leave(waiters[1])
    assert pulls.oldest_pull("U") is waiters[2]
    assert pulls.oldest_pull("V") is None
    assert (pulls.count, pulls.waiting_for("T"), pulls.waiting_for("V")) == (2, 1, 0)


def test_lingers_end_in_their_tick_and_never_early() -> None:
    random = Random(5)
    wheel, now = LingerWheel(0.005, 100.0, lambda: None), 100.0
    deadlines = {}
    for _ in range(500):
        waiter = Waiter(None)
        deadlines[waiter] = now + random.random() * 2
        wheel.add(waiter, deadlines[waiter])
    removed = list(deadlines)[:100]
    for waiter in removed:
        wheel.remove(waiter)
        wheel.remove(waiter)
        del deadlines[waiter]
    while deadlines:
        now += random.choice([0.001, 0.005, 0.3])
        for waiter in wheel.take_expired(now):
            assert deadlines.pop(waiter) <= now
        assert all(deadline > now - 0.0051 for deadline in deadlines.values())
    assert wheel.count == 0


def test_an_empty_wheel_jumps_over_a_long_pause() -> None:
    wheel = LingerWheel(0.005, 0.0, lambda: None)
    waiter = Waiter(None)
    wheel.add(waiter, 10**6)
    assert wheel.take_expired(10**6 - 1) == []
    assert wheel.take_expired(10**6 + 1) == [waiter]


class _Task:
    def __init__(self) -> None:
        self.wake_at = NEVER
        self.ran: list[float] = []

    def due(self, now: float) -> None:
        self.ran.append(now)


def test_the_agenda_runs_each_task_at_its_earliest_time_only() -> None:
    timers, task = TimerQueue(), _Task()
    timers.set(task, 5.0)
    timers.set(task, 3.0)
    timers.set(task, 9.0)
    timers.set(task, NEVER)
    for now in (2.9, 3.0, 100.0):
        timers.run_due(now)
    assert task.ran == [3.0]


# --- feeds


class LetsAllThrough:
    """A filter."""

    tags = None

    def find_rejection(self, delivery: bytes) -> None:
        return None


class _Batch(ReadBatch):
    def __init__(
        self, offsets: list[int], flags: list[int], next_offset: int, groups: dict[int, str] | None = None
    ) -> None:
        """`groups`: by index, the one group that a record is for."""
        self.status = ReadStatus.DATA
        self.groups = groups or {}
        self.offsets = offsets
        self.flags = flags
        self.deliveries = [b"m%d" % offset for offset in offsets]
        self.next_offset = next_offset

    def record(self, index: int) -> StoredRecord:
        assert self.flags[index] & FLAG_ONE_GROUP, "no record is taken apart but to look for its group"
        system = {ONE_GROUP: self.groups[index]} if index in self.groups else {}
        return StoredRecord("T", 0, self.offsets[index], 0, bytes(16), 0, 0, 0, 0, b"", system)


@pytest.mark.parametrize("reject_pressure", [True, False])
@pytest.mark.parametrize("is_handled", [None, lambda offset: False])
@pytest.mark.parametrize("message_filter", [None, LetsAllThrough()])
def test_what_was_resent_to_one_group_is_passed_over_by_others(
    reject_pressure: bool, is_handled: Any, message_filter: Any
) -> None:
    flags = [0, FLAG_ONE_GROUP, FLAG_ONE_GROUP | FLAG_PRESSURE, FLAG_ONE_GROUP, 0]
    batch = _Batch([3, 4, 5, 6, 8], flags, 9, {1: "G", 2: "H"})  # 6 names none: it is for all
    of_g = pick_messages(batch, 3, reject_pressure, is_handled, message_filter, "G")
    assert (list(of_g.messages.offsets), of_g.others, of_g.pressure) == ([3, 4, 6, 8], 1, 0)
    assert of_g.skipped == [(5, 6), (7, 8)]
    of_h = pick_messages(batch, 3, reject_pressure, is_handled, message_filter, "H")
    offsets = [3, 6, 8] if reject_pressure else [3, 5, 6, 8]
    assert (list(of_h.messages.offsets), of_h.others, of_h.pressure) == (offsets, 1, int(reject_pressure))
    assert (of_g.filtered, of_h.filtered) == (0, 0)


def test_what_is_picked_and_what_is_skipped() -> None:
    plain, skipped, pressure, *_ = pick_messages(_Batch([3, 4, 5], [0, 0, 0], 6), 3, True, None)
    assert (list(plain.offsets), skipped, pressure) == ([3, 4, 5], [], 0)
    gappy, skipped, pressure, *_ = pick_messages(_Batch([4, 6], [0, 0], 9), 3, True, None)
    assert (list(gappy.offsets), skipped, pressure) == ([4, 6], [(3, 4), (5, 6), (7, 9)], 0)
    mixed = _Batch([3, 4, 5, 6], [0, FLAG_PRESSURE, 0, FLAG_PRESSURE], 7)
    some, skipped, pressure, *_ = pick_messages(mixed, 3, True, lambda offset: offset in (5, 6))
    assert (list(some.offsets), list(some.indexes)) == ([3], [0])
    assert (skipped, pressure) == ([(4, 5)], 1)
    every, skipped, pressure, *_ = pick_messages(mixed, 3, False, None)
    assert (list(every.offsets), skipped, pressure) == ([3, 4, 5, 6], [], 0)


def test_a_slice_that_fits_holds_at_least_one() -> None:
    batch = _Batch([1, 2, 3], [0, 0, 0], 4)
    messages = Slice(batch, batch.offsets, batch.deliveries, range(3))
    assert messages.size == 6
    assert [len(messages.fit_bytes(limit).offsets) for limit in (0, 2, 3, 4, 5, 6, 99)] == [
        1,
        1,
        1,
        2,
        2,
        3,
        3,
    ]

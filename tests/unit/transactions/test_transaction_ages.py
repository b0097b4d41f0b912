"""When a transaction is asked about, and when its age alone ends it: by time in which it could be asked."""

from __future__ import annotations

import pytest

from backend.progress.ack_map import AckMap
from proxy_producer.transactions.core.clock import PAUSE_MS_MAX, SteadyClock
from proxy_producer.transactions.core.decisions import DecisionHistory
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.shard import TOO_OLD, UNANSWERED, TransactionShard
from proxy_producer.transactions.core.transaction import HalfFacts

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
RULES = TransactionRules(10, 10, 2, MINUTE_MS, MINUTE_MS, DAY_MS, 10, 1_000)
A = b"a" * 16
NOW_MS = 10 * DAY_MS


def shard_with(age_ms: int = 0, checks: int = 0, check_after_ms: int = -1) -> TransactionShard:
    """One that an owner has just taken over, with a transaction that is so old by the store's clock."""
    acks = AckMap()
    if checks:
        acks.record_attempts(0, checks)
    shard = TransactionShard(RULES, acks, 0, DecisionHistory(1), NOW_MS)
    stored_ms = RULES.began_ms(NOW_MS - age_ms, NOW_MS, NOW_MS)
    shard.raise_observed_end(1)
    shard.add_read([HalfFacts(0, A, "g", stored_ms, 10, check_after_ms=check_after_ms)], 1)
    return shard


def overdue(shard: TransactionShard, now_ms: int) -> list[str]:
    shard.offer_due(now_ms)
    return [reason for _, reason in shard.take_overdue()]


def test_the_clock_goes_on_with_the_monotonic_one() -> None:
    clock = SteadyClock(5_000, 100.0)
    assert [clock.read(at_s) for at_s in (100.0, 101.5, 101.5, 103.0)] == [5_000, 6_500, 6_500, 8_000]
    assert clock.read(102.0) == 8_000  # which never goes back


def test_of_a_pause_a_few_seconds_count() -> None:
    clock = SteadyClock(0, 0.0)
    assert clock.read(2 * 86_400.0) == PAUSE_MS_MAX
    assert clock.read(2 * 86_400.0 + 1) == PAUSE_MS_MAX + 1_000


@pytest.mark.parametrize("age_ms", [DAY_MS - HOUR_MS, DAY_MS, 30 * DAY_MS])
def test_after_a_long_downtime_there_is_an_hour_left_to_be_asked(age_ms: int) -> None:
    shard = shard_with(age_ms)
    assert overdue(shard, NOW_MS) == []
    assert shard.has_offer("g")
    assert overdue(shard, NOW_MS + HOUR_MS - 1) == []
    assert [one.id for one in shard.begin_checks("g", 1, 100)] == [A]


def test_a_group_that_does_not_come_in_that_hour_has_a_dead_letter() -> None:
    shard = shard_with(3 * DAY_MS)
    assert overdue(shard, NOW_MS) == []
    assert overdue(shard, NOW_MS + HOUR_MS) == [TOO_OLD]


@pytest.mark.parametrize("age_ms", [-4 * HOUR_MS, -2 * DAY_MS, 0])
def test_a_clock_that_was_set_back_meanwhile_makes_it_new(age_ms: int) -> None:
    shard = shard_with(age_ms)
    assert overdue(shard, NOW_MS + MINUTE_MS - 1) == []
    assert not shard.has_offer("g")
    assert overdue(shard, NOW_MS + MINUTE_MS) == []
    assert shard.has_offer("g")
    assert overdue(shard, NOW_MS + DAY_MS - 1) == []
    assert overdue(shard, NOW_MS + DAY_MS) == [TOO_OLD]


def test_who_is_first_asked_at_the_end_of_the_day_is_offered_for_an_hour() -> None:
    shard = shard_with(check_after_ms=DAY_MS)
    assert overdue(shard, NOW_MS + DAY_MS) == []
    assert shard.has_offer("g")
    assert overdue(shard, NOW_MS + DAY_MS + HOUR_MS - 1) == []
    assert overdue(shard, NOW_MS + DAY_MS + HOUR_MS) == [TOO_OLD]


def test_a_check_that_is_out_keeps_it_open_whatever_its_age() -> None:
    shard = shard_with(3 * DAY_MS)
    shard.offer_due(NOW_MS)
    (check,) = shard.begin_checks("g", 1, 100)
    assert overdue(shard, NOW_MS + 2 * HOUR_MS) == []  # its attempt is not durable yet
    assert shard.finish_check(check, NOW_MS + 2 * HOUR_MS)
    assert overdue(shard, NOW_MS + 2 * HOUR_MS + MINUTE_MS - 1) == []
    assert overdue(shard, NOW_MS + 2 * HOUR_MS + MINUTE_MS) == []
    assert shard.has_offer("g")  # and it is asked about again
    assert overdue(shard, NOW_MS + 3 * HOUR_MS + MINUTE_MS) == [TOO_OLD]


def test_a_check_that_came_to_nothing_is_offered_as_if_new() -> None:
    shard = shard_with(3 * DAY_MS)
    shard.offer_due(NOW_MS)
    (check,) = shard.begin_checks("g", 1, 100)
    shard.cancel_check(check, NOW_MS + 2 * HOUR_MS)
    assert overdue(shard, NOW_MS + 2 * HOUR_MS) == []
    assert shard.has_offer("g")
    assert overdue(shard, NOW_MS + 3 * HOUR_MS) == [TOO_OLD]


@pytest.mark.parametrize("age_ms", [0, 3 * DAY_MS])
def test_the_answer_to_the_last_check_is_waited_for_after_a_downtime(age_ms: int) -> None:
    shard = shard_with(age_ms, checks=RULES.checks_max)
    assert overdue(shard, NOW_MS + MINUTE_MS - 1) == []
    assert overdue(shard, NOW_MS + MINUTE_MS) == [UNANSWERED]

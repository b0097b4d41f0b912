"""What a shard of transactions decides, one rule at a time; the whole stands beside a naive model in
tests/property/test_transaction_shard.py."""

from __future__ import annotations

import pytest

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.decisions import CLOCKS_APART_MS, DecisionHistory, TransactionDecision
from proxy_producer.transactions.core.ranges import ranges_of
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.shard import (
    CHECK_BYTES,
    TIMERS_MIN,
    UNANSWERED,
    Overdue,
    TransactionShard,
)
from proxy_producer.transactions.core.transaction import HalfFacts, HalfVerdict

RULES = TransactionRules(open_max=4, decisions_max=3, checks_max=2, check_after_ms=60, check_interval_ms=30,
                         age_ms_max=1_000, messages_max=3, bytes_max=500)  # fmt: skip
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
COMMITTED = TransactionOutcome.COMMITTED


def half(offset: int, transaction: bytes = A, identity: str = "", group: str = "g") -> HalfFacts:
    return HalfFacts(offset, transaction, group, 100, 10, identity)


@pytest.fixture
def shard() -> TransactionShard:
    return TransactionShard(RULES, AckMap(), 0, DecisionHistory(RULES.decisions_max), 100)


def end(shard: TransactionShard, transaction: bytes, at_ms: int = 200) -> None:
    opened = shard.open[transaction]
    shard.begin(opened, COMMITTED)
    shard.remove_decided(opened, TransactionDecision(COMMITTED, opened.group, at_ms))


def test_own_messages_are_taken_in_at_once_and_others_are_read_first(shard: TransactionShard) -> None:
    assert shard.add_stored(half(0)) is HalfVerdict.MEMBER
    assert shard.add_stored(half(2)) is HalfVerdict.AHEAD
    assert shard.must_read()
    assert shard.next_read()[0] == 1
    assert [verdict for _, verdict in shard.add_read([half(1, B), half(2)], 3)] == [HalfVerdict.MEMBER] * 2
    assert shard.add_stored(half(2)) is HalfVerdict.MEMBER
    assert (shard.open[A].offsets, shard.open[B].offsets) == ([0, 2], [1])
    assert not shard.must_read()
    assert shard.must_read(through=3)


def test_what_arrives_while_it_is_decided(shard: TransactionShard) -> None:
    shard.add_stored(half(0))
    shard.begin(shard.open[A], COMMITTED)
    with pytest.raises(RuntimeError, match="is being decided already"):
        shard.begin(shard.open[A], COMMITTED)
    assert shard.add_stored(half(1)) is HalfVerdict.LATE
    shard.not_decided(shard.open[A], 100)
    assert shard.open[A].offsets == [0, 1]
    shard.begin(shard.open[A], COMMITTED)
    shard.add_stored(half(2))
    assert [
        one.offset for one in shard.remove_decided(shard.open[A], TransactionDecision(COMMITTED, "g", 200))
    ] == [2]
    assert shard.take_orphans() == [(2, 3)]
    assert shard.add_stored(half(3)) is HalfVerdict.DECIDED


def test_strays_copies_and_gaps_are_finished(shard: TransactionShard) -> None:
    shard.add_stored(half(0, identity="x"))
    assert shard.add_stored(half(1, identity="x")) is HalfVerdict.COPY
    assert shard.add_stored(half(2, group="other")) is HalfVerdict.FOREIGN
    shard.add_read([half(5)], 7)
    orphans = shard.take_orphans()
    assert orphans == [(1, 5), (6, 7)]
    shard.restore_orphans(orphans)
    assert shard.take_orphans() == orphans
    shard.finish_orphans(orphans)
    end(shard, A)
    assert shard.position == 7


def test_what_was_finished_before_a_take_over_is_passed_over() -> None:
    acks = AckMap(1)
    acks.finish([(2, 100), (101, 103)])
    acks.record_attempts(100, 2)
    shard = TransactionShard(RULES, acks, 1, DecisionHistory(3), 500)
    shard.raise_observed_end(104)
    assert shard.next_read() == (1, 2)
    shard.add_read([half(1, B)], 2)
    assert shard.next_read() == (100, 101)
    shard.add_read([half(100)], 101)
    assert shard.next_read()[0] == 103
    assert shard.open[A].checks == 2
    shard.offer_due(529)
    assert not shard.has_offer("g") or A not in {one.id for one in shard.begin_checks("g", 9, 99)}
    shard.offer_due(530)
    assert list(shard.take_overdue()) == [Overdue(shard.open[A], UNANSWERED)]


def test_checks_come_after_a_time_and_are_counted(shard: TransactionShard) -> None:
    shard.add_stored(half(0))
    shard.offer_due(159)
    assert not shard.has_offer("g")
    shard.offer_due(160)
    (transaction,) = shard.begin_checks("g", 1, 100)
    assert not shard.has_offer("g")
    shard.cancel_check(transaction, 160)
    assert shard.begin_checks("g", 1, 100) == [transaction]
    assert shard.finish_check(transaction, 170)
    shard.offer_due(199)
    assert not shard.has_offer("g")
    shard.offer_due(200)
    assert shard.begin_checks("g", 1, 100) == [transaction]
    end(shard, A)
    assert not shard.finish_check(transaction, 200)


def test_an_end_that_failed_brings_no_check_forward(shard: TransactionShard) -> None:
    shard.add_stored(half(0))
    shard.begin(shard.open[A], COMMITTED)
    shard.not_decided(shard.open[A], 110)
    shard.offer_due(1_099)
    assert [one.id for one in shard.begin_checks("g", 1, 100)] == []
    assert list(shard.take_overdue()) == []


def test_as_many_are_asked_about_as_fit(shard: TransactionShard) -> None:
    for offset, transaction in enumerate((A, B, C)):
        shard.add_stored(half(offset, transaction, group=f"g{transaction == C}"))
    shard.offer_due(160)
    assert [one.id for one in shard.begin_checks("gFalse", 5, 15)] == [A]
    assert [one.id for one in shard.begin_checks("gFalse", 5, 15)] == [B]
    assert [one.id for one in shard.begin_checks("gTrue", 5, 0)] == [C]


def test_many_small_messages_are_not_asked_about_together(shard: TransactionShard) -> None:
    """Each costs time in the answer, however few bytes it has."""
    for offset, transaction in enumerate((A, A, B, B, C)):
        shard.add_stored(half(offset, transaction))
    shard.offer_due(160)
    assert [one.id for one in shard.begin_checks("g", 5, 4 * CHECK_BYTES + 40)] == [A, B]
    assert [one.id for one in shard.begin_checks("g", 5, 0)] == [C]


def test_a_group_may_have_half_of_the_open_ones(shard: TransactionShard) -> None:
    shard.add_stored(half(0, A))
    assert not shard.is_full_for("g")
    shard.add_stored(half(1, B))
    assert shard.is_full_for("g")
    assert not shard.is_full_for("h")
    shard.add_stored(half(2, C, group="h"))
    shard.add_stored(half(3, b"d" * 16, group="h"))
    assert shard.is_full_for("i")
    end(shard, A)
    assert not shard.is_full_for("i")
    assert shard.is_full_for("h")


def test_what_a_group_has_beyond_its_half_takes_no_room_from_others(shard: TransactionShard) -> None:
    """An owner with other bounds let it in."""
    many = [bytes([number]) * 16 for number in range(1, 11)]
    for offset, transaction in enumerate(many):
        shard.add_stored(half(offset, transaction))
    assert shard.is_full_for("g")
    assert not shard.is_full_for("h")
    for one in many[:8]:
        end(shard, one)
    assert shard.is_full_for("g")
    end(shard, many[8])
    assert not shard.is_full_for("g")
    shard.add_stored(half(10, A))
    shard.add_stored(half(11, B, group="h"))
    shard.add_stored(half(12, C, group="h"))
    assert shard.is_full_for("i")


def test_timers_of_ended_ones_do_not_pile_up(shard: TransactionShard) -> None:
    for offset in range(5 * TIMERS_MIN):
        shard.add_stored(half(offset, offset.to_bytes(16, "big")))
        end(shard, offset.to_bytes(16, "big"))
    assert shard.timers <= TIMERS_MIN + 5
    assert shard.position == 5 * TIMERS_MIN


def test_one_that_is_too_large_takes_no_more(shard: TransactionShard) -> None:
    for offset in range(6):
        assert shard.add_stored(half(offset)) is HalfVerdict.MEMBER
    assert shard.add_stored(half(6)) is HalfVerdict.LARGE
    assert shard.add_stored(half(6)) is HalfVerdict.LARGE
    assert shard.open[A].beyond == [6]
    assert shard.take_orphans() == []
    shard.begin(shard.open[A], TransactionOutcome.ROLLED_BACK)
    shard.remove_decided(shard.open[A], TransactionDecision(TransactionOutcome.ROLLED_BACK, "g", 200))
    assert shard.take_orphans() == [(6, 7)]
    shard.add_stored(half(7, B))
    assert shard.add_stored(half(8, B)._replace(size=991)) is HalfVerdict.LARGE


def test_ended_ones_are_remembered_within_their_bound() -> None:
    history = DecisionHistory(2)
    for number, transaction in enumerate((A, B, C)):
        history.record_decision(transaction, TransactionDecision(COMMITTED, "g", 10 * number))
    history.record_decision(C, TransactionDecision(TransactionOutcome.ROLLED_BACK, "g", 99))
    assert history.get(A) is None
    assert history.get(C) == TransactionDecision(COMMITTED, "g", 20)
    assert len(history) == 2
    assert not history.covers_transaction(CLOCKS_APART_MS, CLOCKS_APART_MS)
    assert history.covers_transaction(CLOCKS_APART_MS + 1, CLOCKS_APART_MS)


def test_an_id_of_a_wrong_clock_is_not_taken_at_its_word() -> None:
    history = DecisionHistory(2)
    assert history.covers_transaction(0, 0)  # nothing was ever forgotten
    for number, transaction in enumerate((A, B, C)):
        history.record_decision(transaction, TransactionDecision(COMMITTED, "g", 1_000 + number))
    ahead_ms = 300_000  # its maker's clock, when A was committed
    assert not history.covers_transaction(1_000 + ahead_ms, 1_000 + ahead_ms)
    assert not history.covers_transaction(1 << 47, 1_000)


def test_ranges() -> None:
    assert ranges_of([]) == []
    assert ranges_of([5, 1, 2, 2, 9]) == [(1, 3), (5, 6), (9, 10)]

"""What a shard admits, with what is on its way to it."""

from __future__ import annotations

import pytest

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.decisions import DecisionHistory, TransactionDecision
from proxy_producer.transactions.core.reservations import PrepareVerdict
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.shard import TransactionShard
from proxy_producer.transactions.core.transaction import HalfFacts

RULES = TransactionRules(open_max=4, decisions_max=3, checks_max=2, check_after_ms=60, check_interval_ms=30,
                         age_ms_max=1_000, messages_max=3, bytes_max=100)  # fmt: skip
A, B, C, D = b"a" * 16, b"b" * 16, b"c" * 16, b"d" * 16
ADMITTED, FULL = PrepareVerdict.ADMITTED, PrepareVerdict.FULL
LARGE, CROWDED = PrepareVerdict.LARGE, PrepareVerdict.CROWDED


@pytest.fixture
def shard() -> TransactionShard:
    return TransactionShard(RULES, AckMap(), 0, DecisionHistory(RULES.decisions_max), 100)


def arrive(shard: TransactionShard, transaction: bytes, group: str = "g", size: int = 10) -> None:
    """One message that was admitted is stored."""
    shard.add_stored(HalfFacts(shard.read_to, transaction, group, 100, size))
    shard.release_prepare(transaction, 1, size)


def test_what_is_on_its_way_has_its_room(shard: TransactionShard) -> None:
    assert shard.admit_prepare(A, "g", 2, 20) is ADMITTED
    assert shard.admit_prepare(A, "g", 2, 20) is CROWDED
    assert shard.admit_prepare(A, "g", 1, 81) is CROWDED
    assert shard.admit_prepare(A, "g", 4, 40) is LARGE
    assert shard.admit_prepare(A, "g", 1, 101) is LARGE
    assert shard.admit_prepare(A, "g", 1, 80) is ADMITTED
    shard.release_prepare(A, 2, 20)
    assert shard.admit_prepare(A, "g", 2, 20) is ADMITTED


def test_what_has_arrived_has_it_from_then_on(shard: TransactionShard) -> None:
    for _ in range(3):
        assert shard.admit_prepare(A, "g", 1, 10) is ADMITTED
        arrive(shard, A)
    assert shard.admit_prepare(A, "g", 1, 10) is LARGE
    assert not shard.reserved


def test_transactions_on_their_way_count_as_open(shard: TransactionShard) -> None:
    assert [shard.admit_prepare(one, "g", 1, 10) for one in (A, B, C)] == [ADMITTED, ADMITTED, FULL]
    assert shard.admit_prepare(A, "g", 1, 10) is ADMITTED  # it is one of the two
    assert [shard.admit_prepare(one, "h", 1, 10) for one in (C, D)] == [ADMITTED, ADMITTED]
    assert shard.admit_prepare(b"e" * 16, "i", 1, 10) is FULL
    arrive(shard, A)  # it is open now, and on its way with another message: once
    shard.release_prepare(B, 1, 10)  # it came to nothing
    assert shard.admit_prepare(b"e" * 16, "g", 1, 10) is ADMITTED
    assert shard.admit_prepare(b"f" * 16, "g", 1, 10) is FULL


def test_a_stranger_is_rejected_before_the_first_message_has_arrived(shard: TransactionShard) -> None:
    assert shard.admit_prepare(A, "g", 1, 10) is ADMITTED
    assert shard.admit_prepare(A, "thieves", 1, 10) is PrepareVerdict.FOREIGN
    arrive(shard, A)
    assert shard.admit_prepare(A, "thieves", 1, 10) is PrepareVerdict.FOREIGN


def test_what_ends_or_has_ended_takes_no_more(shard: TransactionShard) -> None:
    assert shard.admit_prepare(A, "g", 1, 10) is ADMITTED
    arrive(shard, A)
    opened = shard.open[A]
    shard.begin(opened, TransactionOutcome.COMMITTED)
    assert shard.admit_prepare(A, "g", 1, 10) is PrepareVerdict.DECIDING
    assert shard.admit_prepare(A, "thieves", 1, 10) is PrepareVerdict.FOREIGN
    shard.remove_decided(opened, TransactionDecision(TransactionOutcome.COMMITTED, "g", 200))
    assert shard.admit_prepare(A, "g", 1, 10) is PrepareVerdict.DECIDED
    assert shard.admit_prepare(A, "thieves", 1, 10) is PrepareVerdict.FOREIGN


def test_a_dead_letters_messages_without_room_are_left_over_until_they_are_finished(
    shard: TransactionShard,
) -> None:
    for _ in range(8):
        shard.add_stored(HalfFacts(shard.read_to, A, "g", 100, 10))
    opened, dead = shard.open[A], TransactionOutcome.DEAD_LETTER
    shard.begin(opened, dead)
    shard.remove_decided(opened, TransactionDecision(dead, "g", 200, end=8))
    assert (shard.left_over, shard.take_orphans(), shard.position) == ([6, 7], [], 6)
    following = TransactionShard(RULES, AckMap(6), 6, shard.decisions, 300)
    following.raise_observed_end(9)
    following.add_read([HalfFacts(offset, A, "g", 100, 10) for offset in (6, 7, 8)], 9)
    assert (following.left_over, following.take_orphans()) == ([6, 7], [(8, 9)])  # 8 came behind the end
    following.finish_left_over([6])
    assert (following.left_over, following.position) == ([7], 7)


def test_open_transactions_are_counted_by_sender(shard: TransactionShard) -> None:
    for offset, (transaction, sender) in enumerate([(A, "app"), (B, "app"), (C, "other"), (A, "other")]):
        shard.add_stored(HalfFacts(offset, transaction, "g", 100, 10, sender=sender))
    assert shard.by_sender == {"app": 2, "other": 1}
    opened = shard.open[A]
    shard.begin(opened, TransactionOutcome.COMMITTED)
    shard.remove_decided(opened, TransactionDecision(TransactionOutcome.COMMITTED, "g", 2))
    assert shard.by_sender == {"app": 1, "other": 1}

"""A transaction's messages are visible when it is committed, all at once, once; never when it is rolled
back."""

from __future__ import annotations

from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    NEVER_THERE,
    NOT_KNOWN_YET,
    OPEN,
    ROLLBACK,
    ROLLED_BACK,
    TransactionRig,
    body,
)


def test_a_commit_makes_all_of_it_visible(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"one"), body(b"two", topic=b"bills"))
    prepared = rig.proxy.prepare(transaction, body(b"three", partitionId=2))
    assert (prepared.code, len(prepared.results)) == (0, 1)
    assert (rig.bodies(), rig.bodies("bills")) == ([], [])
    answer = rig.proxy.end(transaction, COMMIT, throughOffset=prepared.throughOffset)
    assert (answer.code, answer.outcome) == (0, COMMITTED)
    assert [(one.queueId, one.offset) for one in answer.results] == [(0, 0), (0, 0), (2, 0)]
    assert (rig.bodies(), rig.bodies("bills")) == ([b"one", b"three"], [b"two"])
    assert answer.results[2].messageId == prepared.results[0].messageId
    assert rig.unfinished() == 0


def test_a_rollback_drops_all_of_it(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"one"), body(b"two"))
    answer = rig.proxy.end(transaction, ROLLBACK)
    assert (answer.code, answer.outcome, answer.results) == (0, ROLLED_BACK, None)
    assert rig.bodies() == []
    assert rig.unfinished() == 0


def test_the_outcome_of_a_decided_transaction_is_reported(rig: TransactionRig) -> None:
    committed, rolled_back = rig.begin(), rig.begin()
    rig.proxy.end(committed, COMMIT)
    rig.proxy.end(rolled_back, ROLLBACK)
    repeated = rig.proxy.end(committed, COMMIT)
    assert (repeated.code, repeated.outcome, repeated.results) == (0, COMMITTED, None)
    other = rig.proxy.end(committed, ROLLBACK)
    assert (other.code, other.outcome) == (11, COMMITTED)
    assert "was committed" in other.msg
    other = rig.proxy.end(rolled_back, COMMIT)
    assert (other.code, other.outcome) == (11, ROLLED_BACK)
    assert "was rolled back" in other.msg
    never = rig.proxy.end(rig.new_id(), COMMIT)
    assert (never.code, never.outcome) == (11, NEVER_THERE)
    assert len(rig.bodies()) == 1


def test_an_undecided_check_keeps_it_open(rig: TransactionRig) -> None:
    transaction = rig.begin()
    answer = rig.proxy.end(transaction, NOT_KNOWN_YET)
    assert (answer.code, answer.outcome) == (0, OPEN)
    assert rig.proxy.end(transaction, COMMIT).code == 0

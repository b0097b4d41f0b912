"""A short run of sends that are stored once, and proof that its ledger notices each kind of broken promise.

The long runs: `python -m tests.crash.once_run --seed 1 --rounds 100`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import once_run
from tests.crash.once_ledger import OnceLedger, StoredAt

A, B, C = b"a/1/x", b"b/2/x", b"c/3/x"


@pytest.mark.slow
def test_resent_messages_are_stored_once(tmp_path: Path) -> None:
    printed: list[str] = []
    assert once_run.run(tmp_path, 5, 3, printed.append) == 0, "\n".join(printed)


def at(offset: int, message_id: str = "id", topic: str = "t") -> StoredAt:
    return StoredAt(topic, 0, offset, message_id)


@pytest.fixture
def ledger() -> OnceLedger:
    return OnceLedger()


def test_an_honest_run(ledger: OnceLedger) -> None:
    ledger.refused(A)
    ledger.unknown(A)
    ledger.confirmed(A, at(1), duplicate=True)
    ledger.key(B)
    for duplicate in (False, True, None):
        ledger.confirmed(B, at(2), duplicate)
    ledger.unknown(C)
    ledger.unknown(b"d")
    ledger.finish([(at(1), A), (at(2), B), (at(3), C)])
    assert ledger.violations == []
    counts = ledger.counts
    assert (counts.unknown_stored, counts.unknown_absent, counts.keys, counts.duplicates) == (1, 1, 1, 2)


def test_a_lost_one(ledger: OnceLedger) -> None:
    ledger.confirmed(A, None, None)
    ledger.finish([])
    assert "lost" in ledger.violations[0]


@pytest.mark.parametrize("confirmed", [True, False])
def test_one_that_is_there_twice(ledger: OnceLedger, confirmed: bool) -> None:
    ledger.unknown(A)
    if confirmed:
        ledger.confirmed(A, at(1), duplicate=True)
    ledger.finish([(at(1), A), (at(2), A)])
    assert "is stored 2 times" in ledger.violations[0]


@pytest.mark.parametrize("where", [at(2), at(1, "other id"), at(1, topic="u")])
def test_a_message_stored_elsewhere_than_answered_is_noticed(ledger: OnceLedger, where: StoredAt) -> None:
    ledger.confirmed(A, at(1), duplicate=False)
    ledger.finish([(where, A)])
    assert "was answered for" in ledger.violations[0]


def test_two_answers_that_differ(ledger: OnceLedger) -> None:
    ledger.confirmed(A, at(1), duplicate=False)
    ledger.confirmed(A, at(2), duplicate=True)
    assert "was answered for" in ledger.violations[0]


def test_two_first_times(ledger: OnceLedger) -> None:
    ledger.confirmed(A, at(1), duplicate=False)
    ledger.confirmed(A, at(1), duplicate=False)
    assert "for the first time 2 times" in ledger.violations[0]


def test_a_rejected_message_that_is_stored_is_a_violation(ledger: OnceLedger) -> None:
    ledger.refused(A)
    ledger.finish([(at(1), A)])
    assert "was refused as not stored" in ledger.violations[0]


def test_a_stored_message_that_was_never_sent_is_noticed(ledger: OnceLedger) -> None:
    ledger.finish([(at(1), A)])
    assert "nobody sent" in ledger.violations[0]

"""A short run of transactions under kills, and proof that its ledger notices each kind of broken promise.

The long runs: `python -m tests.crash.tx_run --seed 1 --rounds 100`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import tx_run
from tests.crash.tx_ledger import COMMITTED, DEAD, ROLLED_BACK, Meant, TxLedger

NEVER = 3
A, B = b"one/1/", b"one/2/"


@pytest.mark.slow
def test_each_transaction_is_complete_once_or_absent(tmp_path: Path) -> None:
    printed: list[str] = []
    assert tx_run.run(tmp_path, 5, 3, printed.append) == 0, "\n".join(printed)


def ledger_of(intent: Meant, *outcomes: int, uncertain: bool = False) -> TxLedger:
    """A ledger of one transaction of two messages; the second was perhaps not stored."""
    ledger = TxLedger()
    ledger.begin("one", intent)
    ledger.prepared("one", [A, B], sure=False)
    ledger.prepared("one", [A] if uncertain else [A, B], sure=True)
    for outcome in outcomes:
        ledger.decided("one", outcome)
    return ledger


def broken(ledger: TxLedger, visible: list[bytes], dead: list[bytes] | None = None) -> str:
    ledger.finish(visible, dead or [])
    return "\n".join(ledger.violations)


@pytest.mark.parametrize(
    ("intent", "outcome", "visible", "dead"),
    [
        (Meant.COMMIT, COMMITTED, [A, B], []),
        (Meant.ROLLBACK, ROLLED_BACK, [], []),
        (Meant.SILENT, DEAD, [], [A, B]),
        (Meant.COMMIT, DEAD, [], [A, B]),
    ],
)
def test_an_honest_run(intent: Meant, outcome: int, visible: list[bytes], dead: list[bytes]) -> None:
    ledger = ledger_of(intent, outcome, outcome)
    assert [ledger.checked("one", number) for number in (1, 2, 15)] == [intent] * 3
    assert broken(ledger, visible, dead) == ""


def test_a_transaction_with_an_uncertain_message_may_be_rolled_back() -> None:
    assert broken(ledger_of(Meant.ROLLBACK, ROLLED_BACK, uncertain=True), []) == ""
    ledger = TxLedger()
    ledger.begin("one", Meant.ROLLBACK)
    ledger.prepared("one", [A], sure=False)
    ledger.decided("one", NEVER)
    assert broken(ledger, []) == ""


@pytest.mark.parametrize(
    ("intent", "outcomes", "visible", "dead", "words"),
    [
        (Meant.COMMIT, [COMMITTED], [A], [], "visible 1 of 2"),
        (Meant.COMMIT, [COMMITTED], [A, B, B], [], "is visible 2 times"),
        (Meant.COMMIT, [COMMITTED], [A, B], [B], "dead 1"),
        (Meant.COMMIT, [ROLLED_BACK], [], [], "meant commit"),
        (Meant.ROLLBACK, [COMMITTED], [A, B], [], "meant rollback"),
        (Meant.ROLLBACK, [ROLLED_BACK], [A], [], "visible 1"),
        (Meant.COMMIT, [COMMITTED, ROLLED_BACK], [A, B], [], "was answered to be"),
        (Meant.SILENT, [DEAD], [], [A], "dead 1 of 2"),
        (Meant.SILENT, [DEAD], [B], [A], "visible 1"),
        (Meant.COMMIT, [], [], [], "is not known"),
        (Meant.COMMIT, [NEVER], [], [], "2 messages were prepared"),
        (Meant.ROLLBACK, [ROLLED_BACK], [b"else"], [], "nobody prepared"),
    ],
)
def test_a_broken_promise(
    intent: Meant, outcomes: list[int], visible: list[bytes], dead: list[bytes], words: str
) -> None:
    assert words in broken(ledger_of(intent, *outcomes), visible, dead)


def test_unexpected_checks_are_noticed() -> None:
    ledger = ledger_of(Meant.SILENT)
    ledger.checked("one", 3)
    ledger.checked("one", 3)
    ledger.checked("one", 16)
    ledger.checked("else", 1)
    assert len(ledger.violations) == 3

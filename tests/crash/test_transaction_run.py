"""A short run of transactions under kill -9, and proof that its rules notice each kind of broken promise.

The long run: `python -m tests.crash.transaction_run --seed 1 --transactions 10000`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import transaction_run
from tests.crash.transaction_load import TxMessage
from tests.crash.transaction_run import broken_rules

A, B = TxMessage("a", 0, 2), TxMessage("a", 1, 2)


@pytest.mark.slow
def test_ledger_and_topics_agree_whatever_is_killed(tmp_path: Path) -> None:
    printed: list[str] = []
    assert transaction_run.run(tmp_path, 5, 150, printed.append) == 0, "\n".join(printed)


def test_an_honest_run() -> None:
    decisions = {"a": "committed", "b": "rolled back"}
    assert broken_rules(decisions, [B, A], {"a": 15, "b": 1}) == []


@pytest.mark.parametrize(
    ("decisions", "stored", "checks", "text"),
    [
        ({"a": "committed"}, [], {}, "a is committed, and lost"),
        ({"a": "committed"}, [B], {}, "of a only [1] of 2 are seen"),
        ({"a": "committed"}, [A, B, A], {}, "of a some are seen twice"),
        ({"a": "rolled back"}, [A], {}, "a is rolled back, and 1 are seen"),
        ({}, [A, B], {}, "a is not in the ledger, and 2 are seen"),
        ({}, [], {"a": 16}, "a was asked about 16 times"),
    ],
)
def test_every_broken_promise_is_reported(
    decisions: dict[str, str], stored: list[TxMessage], checks: dict[str, int], text: str
) -> None:
    (broken,) = broken_rules(decisions, stored, checks)
    assert broken.startswith(text)

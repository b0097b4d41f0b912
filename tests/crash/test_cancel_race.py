"""A short race of cancels against their due times; the long one is a command (cancel_race.py)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ddmq_client import CancelOutcome, DelayStatus
from tests.crash.cancel_race import CancelAnswer, Race
from tests.scenarios.real_server import running


@pytest.mark.slow
def test_no_cancel_lies(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        result = Race(server, 7, 2_000, 15.0).run()
    assert result.violations == []
    assert result.statuses.total() == 2_000
    assert min(result.statuses[DelayStatus.CANCELLED], result.statuses[DelayStatus.FIRED]) > 20, (
        "they really met"
    )


@pytest.mark.parametrize(
    ("status", "count", "violation"),
    [
        (DelayStatus.CANCELLED, 1, "told 'cancelled' and delivered 1 times"),
        (DelayStatus.FIRED, 0, "told 'already fired' and delivered 0 times"),
        (DelayStatus.FIRED, 2, "told 'already fired' and delivered 2 times"),
        (DelayStatus.UNKNOWN, 1, "told 'unknown'"),
        (DelayStatus.PENDING, 0, "told 'pending'"),
        (DelayStatus.CANCELLED, 0, None),
    ],
)
def test_each_lie_is_noticed(status: DelayStatus, count: int, violation: str | None) -> None:
    race = Race.__new__(Race)
    race._answers, race._stored_ms = {"1": CancelAnswer(5, CancelOutcome(status))}, {"1": 5}
    assert race._find_violations(Counter({"1": count})) == ([] if violation is None else [f"1: {violation}"])

"""The lines that a follower of a delay shard's rows logs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from delay_service.waiting.follow import REPORT_INTERVAL_S, Follower


class ReportClock:
    """Moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Rows(Follower):
    """Rows that come when the test says so; each look at them takes a report's time."""

    def __init__(self, clock: ReportClock, looks: list[bool]) -> None:
        self.looks = looks
        self.clock = clock
        backend: Any = SimpleNamespace(
            topic=lambda name: SimpleNamespace(queues=1, incarnation=1),
            wait=lambda *_: SimpleNamespace(wait=lambda seconds: None),
        )
        store: Any = SimpleNamespace(meta=lambda name: None, has_capacity=lambda growing: True)
        super().__init__(backend, clock, 0, store, lambda: not looks)  # type: ignore[arg-type]

    def _follow_batch(self) -> bool:
        self.clock.now += REPORT_INTERVAL_S
        is_moved = self.looks.pop(0)
        self.position += is_moved
        self.at_end = not is_moved
        return is_moved


def test_a_standby_that_has_caught_up_reports_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ddmq.delay")
    rows = Rows(ReportClock(), [True, True, False, True, False, False, True])
    rows.follow_to(1_000)
    assert len([line for line in caplog.messages if "is restored" in line]) == 2
    assert rows.position == 4

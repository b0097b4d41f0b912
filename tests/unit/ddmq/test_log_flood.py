"""Nobody fills the disk with lines of the log."""

from __future__ import annotations

import logging

import pytest

from ddmq.server.process import logs
from ddmq.server.process.logs import ALIKE_MAX, ALIKE_S, Bounded, extra_fields


def record(line: int, at: float) -> logging.LogRecord:
    log_record = logging.LogRecord("ddmq.x", logging.WARNING, "x.py", line, f"told at {at}", None, None)
    log_record.created = at
    return log_record


def test_lines_of_one_kind_are_bounded_and_counted() -> None:
    bounded, start = Bounded(), 1_700_000_000.0
    flood = [record(7, start + number / 1_000) for number in range(ALIKE_MAX + 50)]
    written = [each for each in flood if bounded.filter(each)]
    assert written == flood[:ALIKE_MAX]
    assert [extra_fields(each) for each in written[:-1]] == [{}] * (ALIKE_MAX - 1)
    assert extra_fields(written[-1]) == {"further_ones": f"left out for up to {ALIKE_S:g} s"}
    assert bounded.filter(record(8, start + 1)), "others are written"

    other = record(8, start + ALIKE_S)
    assert bounded.filter(other)
    assert extra_fields(other) == {}
    later = record(7, start + ALIKE_S + 1)
    assert bounded.filter(later)
    assert extra_fields(later) == {"left_out_before": 50}
    assert bounded.filter(record(7, start - 60)), "a clock that is put back stops nothing"


def test_the_log_of_a_server_has_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logs.logging, "basicConfig", lambda **kw: handlers.extend(kw["handlers"]))
    logs.set_up("info", "text")
    assert [type(each) for each in handlers[0].filters] == [Bounded]

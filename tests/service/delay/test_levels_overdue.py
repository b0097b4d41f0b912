"""A level that has stopped is seen, and no mistake in a step stops one."""

from __future__ import annotations

import pytest

from backend.completion import failed
from ddmq_common.errors import TryLaterError
from delay_service.core.level import Level
from tests.service.delay.levels_rig import LevelsRig
from tests.support.waits import until


def advance_and_check(rig: LevelsRig, seconds: float) -> None:
    rig.advance(seconds)
    rig.check_alarm.ring()


def test_what_is_due_and_does_not_fire_is_overdue(rig: LevelsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.make("orders")
    rig.send(1, [b"1"])
    advance_and_check(rig, 0.5)
    assert rig.value("ddmq_levels_overdue_ms", level="1") == 0
    monkeypatch.setattr(rig.memory, "commit", lambda *_: failed(TryLaterError("no")))
    for _ in range(10):
        advance_and_check(rig, 6)
    assert rig.value("ddmq_levels_overdue_ms", level="1") >= 54_000
    assert rig.value("ddmq_levels_overdue_ms", level="2") == 0, "nothing waits there"
    monkeypatch.undo()
    until(lambda: advance_and_check(rig, 6) or rig.stored(), "it fires")
    advance_and_check(rig, 1)
    assert rig.value("ddmq_levels_overdue_ms") == 0


def test_a_level_that_cannot_be_read_is_overdue(rig: LevelsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.make("orders")
    monkeypatch.setattr(rig.memory, "read", lambda *_: failed(TryLaterError("no")))
    rig.send(1, [b"1"])
    for _ in range(10):
        advance_and_check(rig, 6)
    assert rig.value("ddmq_levels_overdue_ms", level="1") >= 50_000


def test_an_unreadable_level_that_was_empty_is_overdue_too(
    rig: LevelsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adds are stored and cannot be read: something may be due in it."""
    rig.make("orders")
    advance_and_check(rig, 1)
    assert rig.value("ddmq_levels_overdue_ms") == 0
    monkeypatch.setattr(rig.memory, "read", lambda *_: failed(TryLaterError("no")))
    rig.send(1, [b"1"])
    for _ in range(10):
        advance_and_check(rig, 6)
    assert rig.value("ddmq_levels_overdue_ms", level="1") >= 50_000
    monkeypatch.undo()
    until(lambda: advance_and_check(rig, 6) or rig.stored(), "it fires")
    advance_and_check(rig, 1)
    assert rig.value("ddmq_levels_overdue_ms") == 0


def test_a_mistake_in_a_step_stops_no_level(rig: LevelsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.make("orders")
    rig.send(1, [b"1"])
    rig.send(2, [b"2"])

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Level, "_fire", broken)
    for _ in range(3):
        rig.advance(6)
    assert rig.value("ddmq_levels_failed_total", what="step") >= 2
    monkeypatch.undo()
    until(lambda: rig.advance(6) or len(rig.stored()) == 2, "both fire")


def test_a_fire_that_could_not_begin_delays_no_drain(rig: LevelsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ever answers it, so nothing may wait for it."""
    rig.make("orders")
    rig.send(1, [b"1"])

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.memory, "commit", broken)
    until(lambda: rig.advance(6) or rig.value("ddmq_levels_failed_total", what="step"), "a step has failed")
    monkeypatch.undo()
    until(lambda: rig.advance(6) or rig.stored(), "the level was acquired again, and fires")
    drained = rig.service.drain(rig.clock.monotonic() + 10)
    rig.settle()
    assert drained.done

"""Delayed messages that are late, or do not fire, are findings."""

from __future__ import annotations

import pytest

from tests.service.delay.delay_rig import DelayRig
from tests.support.findings import FindingsView


@pytest.fixture
def view(delay: DelayRig) -> FindingsView:
    return FindingsView(delay.backend, delay.metrics, delay.clock)


def test_what_is_due_and_does_not_fire_is_critical_until_it_fires(
    delay: DelayRig, view: FindingsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay.add(1, delay.clock.wall_ms() + 1_000)
    delay.settle()

    def fail(*_: object) -> list[object]:
        raise OSError("too many open files")

    monkeypatch.setattr(delay.disks.stores[0], "due", fail)
    view.pass_time(60, delay.advance)
    assert view.ids() == [], "not for a minute"
    view.pass_time(120, delay.advance)
    (item,) = view.items()
    assert (item["id"], item["severity"]) == ("DdmqDelayOverdue", "critical")
    assert item["labels"] == {"shard": "0"}
    assert item["text"].startswith("A message in delay shard 0 has been due for 2 min")
    monkeypatch.undo()
    delay.until(lambda: delay.advance(6) or delay.bodies() == [b"1"], "it fires")
    view.pass_time(30, delay.advance)
    assert view.ids() == []


def test_messages_that_fire_late_are_a_warning(delay: DelayRig, view: FindingsView) -> None:
    for number in range(40):
        now = delay.clock.wall_ms()
        delay.add(number, now + 1_000)
        delay.settle()
        delay.clock.advance(6)  # nothing runs meanwhile
        delay.until(lambda number=number: delay.ring() or len(delay.bodies()) > number, "it fires")
        view.pass_time(15, delay.advance)
    item = next(item for item in view.items() if item["id"] == "DdmqDelayLate")
    assert item["text"] == "One delayed message in a hundred for orders is more than 1 s late"
    assert item["command"] == "ddmq delay list orders"

"""What the delay service counts, by topic: pending, fired, cancelled, and how late."""

from __future__ import annotations

import pytest

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import Histogram
from tests.service.delay.delay_rig import DelayRig


@pytest.fixture
def delay(delay: DelayRig) -> DelayRig:
    delay.make("mails")
    return delay


def lateness(delay: DelayRig, topic: str) -> Histogram:
    return delay.metrics.histogram(catalogue.DELAY_LATENESS, topic)


def test_lateness_is_observed_for_each_message_under_its_topic(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    for number in range(1, 6):
        delay.add(number, now + number * 100)
    delay.add(6, now + 400, topic="mails")
    delay.settle()
    delay.advance(1)
    late = lateness(delay, "orders")
    assert (sum(late.counts), late.total) == (5, 900e3 + 800e3 + 700e3 + 600e3 + 500e3)
    late = lateness(delay, "mails")
    assert (sum(late.counts), late.total) == (1, 600e3)
    assert delay.value("ddmq_delay_fired_total", topic="orders") == 5
    assert delay.value("ddmq_delay_fired_total", topic="mails") == 1


def test_what_is_due_and_does_not_fire_is_overdue(delay: DelayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    delay.add(1, delay.clock.wall_ms() + 1_000)
    delay.settle()
    delay.advance(0.5)
    assert delay.value("ddmq_delay_overdue_ms", shard="0") == 0

    def broken(*_: object) -> list[object]:
        raise OSError("too many open files")

    monkeypatch.setattr(delay.disks.stores[0], "due", broken)
    delay.advance(0.5)
    for _ in range(10):
        delay.advance(6)
    assert delay.value("ddmq_delay_overdue_ms", shard="0") >= 54_000, "also between two owners"
    assert delay.value("ddmq_delay_failed_total", what="pump") >= 2
    monkeypatch.undo()
    delay.until(lambda: delay.advance(6) or delay.bodies() == [b"1"], "it fires")
    delay.until(
        lambda: delay.advance(1) or not delay.value("ddmq_delay_overdue_ms", shard="0"), "and is not due"
    )


def test_pending_and_cancelled_are_counted(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + 1_000)
    delay.add(2, now + 1_000)
    delay.settle()
    delay.cancel(1, now + 1_000)
    delay.settle()
    assert delay.value("ddmq_delay_orders_total", outcome="cancelled") == 1
    delay.ring()
    assert delay.value("ddmq_delay_pending", topic="orders") == 1
    delay.advance(1)
    assert delay.value("ddmq_delay_fired_total", topic="orders") == 1
    delay.ring()
    assert delay.value("ddmq_delay_pending", topic="orders") == 0


def test_what_was_due_before_it_came_is_late_from_then_on(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now - 10**9, born_ms=now - 3)
    delay.settle()
    late = lateness(delay, "orders")
    assert (sum(late.counts), late.total) == (1, 3e3)

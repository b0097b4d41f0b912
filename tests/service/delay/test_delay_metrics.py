"""What the delay service counts, by topic: pending, fired, cancelled, and how late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delay_rig import Rig

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import Histogram
from ddmq_common.names import OUTCOME_TOPIC


@pytest.fixture
def delay() -> Iterator[Rig]:
    made = Rig()
    for topic in ("orders", "mails", OUTCOME_TOPIC):
        made.make(topic)
    yield made
    made.close()


def lateness(delay: Rig, topic: str) -> Histogram:
    return delay.metrics.histogram(catalogue.DELAY_LATENESS, topic)


def test_lateness_is_observed_for_each_message_under_its_topic(delay: Rig) -> None:
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


def test_pending_and_cancelled_are_counted(delay: Rig) -> None:
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

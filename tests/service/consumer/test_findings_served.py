"""What goes wrong at a consumer proxy is found, named and told with its first action, and goes away again."""

from __future__ import annotations

import pytest

from ddmq_common.names import SCHEDULE_TOPIC
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.service.consumer.consumer_rig import result as build_result
from tests.support.findings import FindingsView

MINUTE_S = 60


@pytest.fixture
def view(rig: ConsumerRig) -> FindingsView:
    return FindingsView(rig.backend, rig.metrics, rig.clock, rig.service)


def pass_time(rig: ConsumerRig, view: FindingsView, minutes: float) -> None:
    view.pass_time(minutes * MINUTE_S, rig.advance)


def test_a_key_that_keeps_failing_is_found_after_its_threshold(rig: ConsumerRig, view: FindingsView) -> None:
    order = SubscriptionDefaults(
        start="first", order_key="KEY", retry_intervals_ms=(10_000,), ordered_deliveries_max=-1,
        ordered_interval_ms=10_000, ack_timeout_ms=60_000,
    )  # fmt: skip
    rig.ready(config=order)
    rig.keyed("a1", "a2")
    rig.pull(count=1)
    rig.submit(build_result(fail=[0]))
    pass_time(rig, view, 0.5)
    assert view.ids() == [], "a key that failed a moment ago is no finding"
    for _ in range(24):
        rig.pull(count=1)
        rig.submit(build_result(fail=[0]))
        pass_time(rig, view, 0.5)
    item = next(item for item in view.items() if item["id"] == "DdmqKeyBlocked")
    assert item["labels"] == {"group": "G", "topic": "T"}
    assert (item["severity"], item["command"]) == ("warning", "ddmq group keys G")
    assert item["text"].startswith("A key of G (T) has been blocked for 1")
    rig.pull(count=1)
    rig.submit(build_result([0]))
    pass_time(rig, view, 0.5)
    assert "DdmqKeyBlocked" not in view.ids()


def test_messages_that_nobody_consumes_are_found_and_are_none_with_a_consumer(
    rig: ConsumerRig, view: FindingsView
) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)  # a proxy that owns one of its queues reports what no proxy owns
    rig.ready(1)
    rig.pull(count=1)
    rig.submit(build_result([0]))
    rig.send(3)
    pass_time(rig, view, 9)
    assert view.ids() == []
    pass_time(rig, view, 14)
    items = {item["id"]: item for item in view.items()}
    assert set(items) == {"DdmqNobodyConsumes", "DdmqLagOld"}
    assert items["DdmqNobodyConsumes"]["text"] == ("G is 3 messages behind in T, and none is delivered")
    assert items["DdmqLagOld"]["command"] == "ddmq lag G"
    rig.pull(count=5)
    rig.submit(build_result([1, 2, 3]))
    pass_time(rig, view, 0.5)
    assert view.ids() == []


def test_dead_letters_are_found_at_once_and_for_a_quarter_of_an_hour(
    rig: ConsumerRig, view: FindingsView
) -> None:
    rig.ready(2, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0))
    rig.pull(count=2)
    rig.submit(build_result(fail=[0, 1]))
    pass_time(rig, view, 0.5)
    item = next(item for item in view.items() if item["id"] == "DdmqDeadLetters")
    assert item["text"] == "2 messages of T went to the dead letters of G"
    assert item["page"] == "/console/dead-letters/G"
    pass_time(rig, view, 20)
    assert "DdmqDeadLetters" not in view.ids()

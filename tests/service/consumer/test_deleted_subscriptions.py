"""A deleted subscription is gone for good: one made anew gets all queues, others of the group go on."""

from __future__ import annotations

import pytest

from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig, result

IDLE_S = 61


def settings(order_key: str) -> SubscriptionDefaults:
    return SubscriptionDefaults(start="first", order_key=order_key)


def delete(rig: ConsumerRig, topic: str) -> None:
    rig.wait(rig.service.delete_group("G", topic))
    rig.settle()


def pass_idle_time(rig: ConsumerRig, topic: bytes) -> None:
    """Clients pull the topic all the time, for longer than an unused subscription keeps its queues."""
    for _ in range(IDLE_S):
        rig.start_pull(topic=topic, linger=900)
        rig.advance(1.0)


def handled(rig: ConsumerRig, topic: str, count: int) -> set[tuple[int, int]]:
    """The (queue, offset) of what comes, each acknowledged."""
    messages: set[tuple[int, int]] = set()
    for _ in range(2 * count):
        call = rig.pull(topic=topic.encode(), linger=20)
        if not call.result.messages:
            break
        messages |= {(call.queue, offset) for offset in call.offsets}
        rig.submit(result(call.offsets, queue=call.queue, topic=topic))
    return messages


@pytest.mark.parametrize("order_key", ["", "QID"])
def test_a_recreated_subscription_gets_all_queues(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(config=settings(order_key), queues=4)
    rig.start_pull(linger=30_000)
    rig.settle()
    delete(rig, "T")
    rig.subscribe(config=settings(order_key))
    pass_idle_time(rig, b"T")
    for queue in range(4):
        rig.send(2, queue=queue)
    assert handled(rig, "T", 8) == {(queue, offset) for queue in range(4) for offset in range(2)}


def test_the_other_topics_of_a_group_scope_are_delivered(rig: ConsumerRig) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=settings("KEY"))
    rig.start_pull(linger=30_000)
    rig.settle()
    delete(rig, "U")
    pass_idle_time(rig, b"T")
    rig.send(1, topic="U")
    rig.send(1)
    assert handled(rig, "T", 1) == {(0, 0)}


def test_a_deleted_group_can_be_recreated(rig: ConsumerRig) -> None:
    rig.ready(config=settings(""), queues=2)
    rig.start_pull(linger=30_000)
    rig.settle()
    rig.wait(rig.service.delete_group("G"))
    rig.settle()
    rig.subscribe(config=settings(""))
    pass_idle_time(rig, b"T")
    for queue in range(2):
        rig.send(1, queue=queue)
    assert handled(rig, "T", 2) == {(0, 0), (1, 0)}

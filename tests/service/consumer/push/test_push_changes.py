"""Live changes that start a pushed subscription anew: they wait a while for what is with the receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddmq.server.admin import offsets
from proxy_consumer.push.actions.config import HttpConfig, PushConfig
from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.support.waits import until

QUEUES = 2


def under_way(rig: PushRig, receiver: Receiver, topic: str = "Q", **settings: Any) -> None:
    """One message of each queue is with the receiver, which does not answer yet."""
    receiver.hold.clear()
    earlier = len(receiver.requests)
    rig.topic(topic, QUEUES)
    for queue in range(QUEUES):
        rig.send(1, queue=queue, topic=topic)
    push = PushConfig(http=HttpConfig(urls=(receiver.url(),)))
    rig.pushed("FormParams", "AsyncHttp", push=push, topic=topic, **settings)
    one_chain = settings.get("order_key") == "KEY" and settings.get("order_scope") != "queue"
    more = 1 if one_chain else QUEUES
    until(lambda: len(receiver.requests) == earlier + more)


def change(rig: PushRig, topic: str = "Q", **settings: Any) -> None:
    rig.wait(rig.service.change_subscription("G", topic, settings))
    rig.settle()


def finished(rig: PushRig, topic: str = "Q") -> int:
    return sum(rig.progress(queue=queue, topic=topic).committed or 0 for queue in range(QUEUES))


def ticking(rig: PushRig, condition: Callable[[], bool]) -> None:
    """Wait for `condition` while the clock stands."""

    def ticked() -> bool:
        rig.service.tick()
        return condition()

    until(ticked)


def halted(rig: PushRig, topic: str = "Q") -> bool:
    return bool(rig.subscription(topic).halted)


def ends_in_time(rig: PushRig, receiver: Receiver, topic: str = "Q") -> None:
    """The receiver answers a second later; whatever was sent, and what is sent now, was pushed once."""
    for _ in range(10):
        rig.advance(0.1)
    assert halted(rig, topic)
    receiver.hold.set()
    ticking(rig, lambda: finished(rig, topic) == QUEUES and not halted(rig, topic))
    for queue in range(QUEUES):
        rig.send(1, queue=queue, topic=topic)
    ticking(rig, lambda: finished(rig, topic) == 2 * QUEUES)
    assert rig.outcomes() == {"done": len(receiver.requests)}, "each of them once, and none of them late"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"order_key": "KEY"}),
        ({"order_key": "KEY"}, {"order_key": ""}),
        ({"order_key": "KEY"}, {"order_key": "$.k"}),
        ({"order_key": "QID"}, {"order_key": "KEY", "order_scope": "topic"}),
        ({"order_key": "KEY", "order_scope": "queue"}, {"order_scope": "topic"}),
        ({"order_key": "KEY", "order_scope": "topic"}, {"order_scope": "group"}),
        ({}, {"assignment": "by-circle"}),
        ({}, {"assignment": "consistent-hash"}),
        ({"order_key": "QID"}, {"assignment": "by-circle"}),
    ],
    ids=str,
)
def test_what_the_receiver_accepts_is_not_pushed_twice(
    rig: PushRig, receiver: Receiver, before: dict[str, str], after: dict[str, str]
) -> None:
    under_way(rig, receiver, **before)
    change(rig, **after)
    ends_in_time(rig, receiver)
    assert len(receiver.requests) == 2 * QUEUES


def test_pushes_of_another_topic_of_the_group_are_not_repeated(rig: PushRig, receiver: Receiver) -> None:
    under_way(rig, receiver, order_key="KEY")
    rig.topic("other")
    rig.subscribe(topic="other")
    change(rig, "other", order_key="KEY")  # the chains of both become those of the group
    ends_in_time(rig, receiver)
    assert len(receiver.requests) == 2 * QUEUES


def test_pushes_of_other_queues_are_not_repeated_by_a_reset(rig: PushRig, receiver: Receiver) -> None:
    under_way(rig, receiver, order_key="KEY", order_scope="topic")
    busy = next(q for q in range(QUEUES) if state(rig, q).leases.jobs)
    offsets.reset(rig.backend, rig.clock, "G", "Q", "first", 1 - busy, dry_run=False)
    rig.settle()
    ends_in_time(rig, receiver)
    assert len(receiver.requests) == 2 * QUEUES


def state(rig: PushRig, queue: int) -> Any:
    subscription = rig.subscription("Q")
    return subscription.buffer.queues[rig.ref(queue, "Q")]


@pytest.mark.parametrize("first", ["address", "order", "both"])
def test_pushes_are_not_repeated_when_address_and_order_change(
    rig: PushRig, receiver: Receiver, first: str
) -> None:
    under_way(rig, receiver)
    address = {"push": {"http": {"urls": [receiver.url("/new")]}}}
    order = {"order_key": "KEY"}
    changes: dict[str, list[dict[str, Any]]] = {
        "address": [address, order],
        "order": [order, address],
        "both": [address | order],
    }
    for settings in changes[first]:
        change(rig, **settings)
    ends_in_time(rig, receiver)
    assert [request.path for request in receiver.requests] == ["/in", "/in", "/new", "/new"]


def test_a_second_change_waits_for_the_same_pushes(rig: PushRig, receiver: Receiver) -> None:
    under_way(rig, receiver)
    change(rig, order_key="KEY")
    rig.advance(0.4)
    change(rig, order_key="QID")
    ends_in_time(rig, receiver)
    assert len(receiver.requests) == 2 * QUEUES


def test_what_waits_for_a_try_is_tried_after_the_change(rig: PushRig, receiver: Receiver) -> None:
    receiver.answers.extend([(500, b"")] * QUEUES)
    rig.topic("Q", QUEUES)
    for queue in range(QUEUES):
        rig.send(1, queue=queue, topic="Q")
    rig.pushed("FormParams", "AsyncHttp", push=PushConfig(http=HttpConfig(urls=(receiver.url(),))), topic="Q")
    until(lambda: rig.outcomes().get("again") == QUEUES)
    begun = rig.clock.monotonic()
    change(rig, order_key="QID")
    until(lambda: finished(rig) == QUEUES)
    assert rig.clock.monotonic() == begun, "nothing was under way: nobody waited"
    assert receiver.counts == ["0", "0", "1", "1"]


def test_nobody_waits_for_ever(rig: PushRig, receiver: Receiver) -> None:
    under_way(rig, receiver)
    change(rig, order_key="QID")
    for _ in range(14):
        rig.advance(0.1)
    assert halted(rig)
    assert len(receiver.requests) == QUEUES
    rig.advance(0.2)
    assert not halted(rig)
    until(lambda: len(receiver.requests) == 2 * QUEUES)
    receiver.hold.set()
    ticking(rig, lambda: finished(rig) == QUEUES)
    ticking(rig, lambda: rig.outcomes() == {"done": QUEUES, "late": QUEUES})


def test_a_subscription_deleted_meanwhile_stays_deleted(rig: PushRig, receiver: Receiver) -> None:
    under_way(rig, receiver)
    change(rig, order_key="QID")
    rig.wait(rig.service.delete_group("G"))
    receiver.hold.set()
    for _ in range(20):
        rig.advance(0.1)
    assert rig.directory.groups == {}
    assert rig.service._pushers._runners == {}
    assert len(receiver.requests) == QUEUES

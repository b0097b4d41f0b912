"""Bounds of a subscription and fairness between topics, queues and keys, through a whole proxy."""

from __future__ import annotations

from typing import Any

import pytest

from backend.records import NewRecord
from ddmq_common.delivery import encode
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig


def configured(**settings: Any) -> SubscriptionDefaults:
    return SubscriptionDefaults(start="first", **settings)


def ack(call: Any) -> Any:
    return IDL.ConsumeResult(context=call.result.context, successOffsets=call.offsets)


def keyed(rig: ConsumerRig, keys: str, topic: str = "T") -> None:
    records = [
        NewRecord(topic, 0, bytes(16), 0, encode(key.encode(), b"%d" % at, b"", None), key.encode())
        for at, key in enumerate(keys)
    ]
    rig.wait(rig.backend.append(records, rig.deadline()))


def test_a_busy_topic_does_not_starve_another(rig: ConsumerRig) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        rig.subscribe(topic=topic)
    rig.send(1000, topic="T")
    rig.send(1, topic="U")
    topics = [rig.pull(topic=None, count=5).result.context.topic for _ in range(2)]
    assert sorted(topics) == [b"T", b"U"]


@pytest.mark.parametrize("order_key", ["", "KEY"])
def test_the_ack_range_stops_reading_until_the_oldest_is_done(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(config=configured(ack_span_max=6, order_key=order_key))
    keyed(rig, "".join(map(chr, range(256, 800))))
    oldest = rig.pull(count=1)
    pulled = 0
    while (call := rig.pull(count=1)).offsets:
        rig.submit(ack(call))
        pulled += 1
    assert rig.progress().committed == 0
    assert 5 <= pulled < 256 + 6, "at most one read beyond the bound"
    rig.submit(ack(oldest))
    assert rig.progress().committed == pulled + 1
    assert rig.pull(count=1).offsets == [pulled + 1]


def test_a_rate_limit_holds_in_every_second(rig: ConsumerRig) -> None:
    rig.ready(100, configured(rate_max=10))
    assert len(rig.pull(count=50).offsets) == 10
    assert rig.pull(count=50).offsets == []
    rig.advance(0.5)
    assert 4 <= len(rig.pull(count=50).offsets) <= 6
    waiting = rig.start_pull(count=50, linger=10_000)
    rig.settle()
    assert not waiting.answered
    for _ in range(100):
        if waiting.answered:
            break
        rig.advance(0.01)
    assert len(waiting.offsets) == 1, "woken as soon as there is room for one"

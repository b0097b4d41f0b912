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


def test_a_busy_queue_does_not_starve_another(rig: ConsumerRig) -> None:
    rig.ready(queues=3)
    rig.send(1000, queue=0)
    rig.send(1, queue=2)
    assert {rig.pull(count=5).queue for _ in range(3)} == {0, 2}


def test_retries_do_not_starve_new_messages_and_new_ones_not_retries(rig: ConsumerRig) -> None:
    rig.ready(config=configured(retry_intervals_ms=(100, 100, 100)), queues=2)
    rig.send(10, queue=0)
    rig.send(10, queue=1)
    first = rig.pull(count=5)
    rig.submit(IDL.ConsumeResult(context=first.result.context, failOffsets=first.offsets))
    rig.advance(0.2)
    seen = [(call.queue, call.offsets) for call in (rig.pull(count=5) for _ in range(3))]
    assert {queue for queue, _ in seen} == {0, 1}
    assert (first.queue, first.offsets) in seen


def test_a_hot_key_does_not_hold_up_the_keys_behind_it(rig: ConsumerRig) -> None:
    rig.ready(config=configured(order_key="KEY"))
    keyed(rig, "h" * 500 + "abc")
    got = [message.key for _ in range(2) for message in rig.pull(count=10).result.messages]
    assert got == [b"h", b"a", b"b", b"c"]


def test_not_more_than_the_concurrency_is_out(rig: ConsumerRig) -> None:
    rig.ready(20, configured(concurrency=7))
    first = rig.pull(count=5)
    assert (first.offsets, rig.pull(count=5).offsets) == ([0, 1, 2, 3, 4], [5, 6])
    assert rig.pull(count=5).offsets == []
    rig.submit(ack(first))
    assert rig.pull(count=5).offsets == [7, 8, 9, 10, 11]


def test_bytes_in_flight_stop_new_messages(rig: ConsumerRig) -> None:
    rig.ready(config=configured(in_flight_bytes_max=1000))
    rig.send(5, size=600)
    assert rig.pull(count=1).offsets == [0]
    second = rig.pull(count=1)
    assert second.offsets == [1], "below the bound one more may go"
    assert rig.pull(count=1).offsets == []
    rig.submit(ack(second))
    assert rig.pull(count=1).offsets == [2]


@pytest.mark.parametrize("order_key", ["", "KEY"])
def test_the_ack_span_stops_reading_until_the_oldest_is_done(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(config=configured(ack_span_max=6, order_key=order_key))
    keyed(rig, "".join(map(chr, range(256, 800))))
    held = rig.pull(count=1)
    taken = 0
    while (call := rig.pull(count=1)).offsets:
        rig.submit(ack(call))
        taken += 1
    assert rig.progress().committed == 0
    assert 5 <= taken < 256 + 6, "at most one read beyond the bound"
    rig.submit(ack(held))
    assert rig.progress().committed == taken + 1
    assert rig.pull(count=1).offsets == [taken + 1]


def test_a_rate_is_kept_second_by_second(rig: ConsumerRig) -> None:
    rig.ready(100, configured(rate_max=10))
    assert len(rig.pull(count=50).offsets) == 10
    assert rig.pull(count=50).offsets == []
    rig.advance(0.5)
    assert 4 <= len(rig.pull(count=50).offsets) <= 6
    waiting = rig.ask(count=50, linger=10_000)
    rig.settle()
    assert not waiting.answered
    for _ in range(100):
        if waiting.answered:
            break
        rig.advance(0.01)
    assert len(waiting.offsets) == 1, "woken as soon as there is room for one"


def test_a_changed_limit_does_not_disturb_what_is_out(rig: ConsumerRig) -> None:
    rig.ready(20, configured(concurrency=5))
    held = rig.pull(count=10)
    assert len(held.offsets) == 5
    subscription = rig.subscription()
    subscription.apply_config(configured(concurrency=8))
    assert rig.pull(count=10).offsets == [5, 6, 7]
    subscription.apply_config(configured(concurrency=2))
    rig.submit(ack(held))
    assert rig.progress().committed == 5
    assert rig.pull(count=10).offsets == []


def test_a_changed_filter_judges_anew_what_was_read_and_loses_nothing(rig: ConsumerRig) -> None:
    rig.ready(5, configured(tags="other"))
    assert rig.pull(count=1).offsets == []
    subscription = rig.subscription()
    subscription.apply_config(configured(tags="tag"))
    rig.send(5)
    assert rig.pull(count=1).offsets == [5]
    subscription.apply_config(configured(tags="*"))
    assert rig.pull(count=10).offsets == [6, 7, 8, 9]

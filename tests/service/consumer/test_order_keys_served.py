"""Order keys through a whole proxy: over topics and queues, restarts, and what operators do to a key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backend.records import NewRecord
from ddmq_common.delivery import encode
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.order.chains import READY_MAX
from proxy_consumer.core.order.scope import READ_MIN
from proxy_consumer.push.actions.config import HttpConfig, PushConfig
from proxy_consumer.subscription.subscription import LOST_S
from tests.service.consumer.consumer_rig import IDL, ConsumerRig

BY_KEY = SubscriptionDefaults(
    start="first", order_key="KEY", retry_intervals_ms=(100,), ordered_deliveries_max=3
)


def result(call: Any, ack: bool = True, reason: str = "") -> Any:
    """What a client says to everything that `call` delivered."""
    offsets = call.offsets
    arguments = (
        {"successOffsets": offsets}
        if ack
        else {"failOffsets": offsets, "failReasons": [reason] * len(offsets)}
    )
    return IDL.ConsumeResult(context=call.result.context, **arguments)


def bodies(call: Any) -> list[bytes]:
    return list(call.values)


def in_order(rig: ConsumerRig, topics: str) -> list[int]:
    """What comes, one after the other, to a client that pulls these topics in turn."""
    numbers = []
    for topic in 8 * topics:
        call = rig.pull(topic=topic.encode())
        numbers += [int(each) for each in bodies(call)]
        rig.submit(result(call))
    return numbers


def lose(rig: ConsumerRig, topic: str) -> None:
    """The queues of a topic are taken from us without a word."""
    subscription = rig.subscription(topic)
    subscription.membership.claims.lost(list(subscription.buffer.queues))


def lies_ready(rig: ConsumerRig) -> bool:
    return rig.subscription("U").buffer.has_ready


@pytest.mark.parametrize(
    "settings",
    [
        {"rate_max": 1},
        {"retrying_max": 1},
        {"actions": ("AsyncHttp",), "push": PushConfig(http=HttpConfig(urls=("http://10.1.2.3/",)))},
    ],
)
def test_ready_messages_that_may_not_be_delivered_do_not_stall_the_proxy(
    rig: ConsumerRig, settings: dict[str, Any]
) -> None:
    for topic, more in (("T", {}), ("U", settings)):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=replace(BY_KEY, **more))
    rig.put_keyed("u1", "u1", topic="U")
    rig.put_keyed("u2", "u2", topic="U")
    rig.put_keyed("t1", "t1", topic="T")
    if "actions" not in settings:
        first = rig.pull(topic=b"U", count=1)
        assert bodies(first) == [b"u1"]
        rig.submit(result(first, ack=False))
    assert bodies(rig.pull(topic=b"T")) == [b"t1"]
    assert lies_ready(rig)
    waiting = [rig.start_pull(topic=None, linger=20) for _ in range(3)]
    rig.settle()
    rig.advance(0.03)
    assert all(call.answered for call in waiting)


def test_a_topic_that_may_not_be_read_any_more_does_not_stall_the_proxy(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for topic in ("T", "U"):
        rig.put_keyed(topic, topic, topic=topic)
    rig.keyed("t", topic="T")
    assert bodies(rig.pull(topic=b"T")) == [b"T", b"t"]
    assert lies_ready(rig)
    info = rig.backend.topic("U")
    assert info is not None
    rig.wait(rig.backend.put_topic(replace(info, readable=False), rig.deadline()))
    rig.settle()
    waiting = [rig.start_pull(topic=None, linger=20) for _ in range(3)]
    rig.settle()
    rig.advance(0.03)
    assert all(call.answered and call.result.messages == [] for call in waiting)


def test_ten_thousand_behind_a_blocked_key_are_not_buffered(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(start="first", order_key="KEY", ordered_deliveries_max=-1))
    delivery = encode(b"hot", b"body", b"", None)
    records = [NewRecord("T", 0, bytes(16), 0, delivery, b"hot") for _ in range(10_000)]
    rig.wait(rig.backend.append(records, rig.deadline()))
    rig.put_keyed("cold", "last")
    hot = rig.pull(count=1)
    cold = rig.start_pull(linger=20_000)
    for _ in range(100):
        if cold.answered:
            break
        rig.advance(0.01)
    assert bodies(cold) == [b"last"]
    ((state, stream),) = rig.subscription("T").ordered_streams()
    assert len(stream.ledger.table) == 2
    assert stream.ledger.table.indexed <= 16
    assert len(state.table.jobs) == 0
    done = 0
    while done < 200:
        rig.submit(result(hot))
        hot = rig.pull(count=1)
        done += 1
        assert hot.offsets == [done]


def test_another_order_key_of_one_topic_does_not_let_the_others_of_the_group_overtake(
    rig: ConsumerRig,
) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    body = '{"k": "a", "n": %d}'
    for number, topic in enumerate("TUTU"):
        rig.put_keyed("a", body % number, topic=topic)
    assert rig.pull(topic=b"U").result.messages == []
    first = rig.pull(topic=b"T")
    ahead = rig.start_pull(topic=b"U", linger=20_000)
    rig.wait(rig.service.change_subscription("G", "T", {"order_key": "$.k"}))
    for number, topic in enumerate((b"T", b"U", b"T", b"U")):
        rig.settle()
        if topic == b"T":
            assert not ahead.answered
            call = rig.pull(topic=topic) if number else first  # its client still has it
        else:
            call, ahead = ahead, rig.start_pull(topic=b"U", linger=20_000) if number < 3 else None
            rig.settle(lambda answered=call: answered.answered)
        assert [json.loads(each)["n"] for each in bodies(call)] == [number]
        rig.submit(result(call))


def test_a_queue_that_does_not_return_delays_the_others_for_a_bounded_time(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for topic in ("T", "U"):
        rig.put_keyed("a", "0", topic=topic)
    first = rig.pull(topic=b"T")
    lose(rig, "T")  # its membership stays, and is given nothing
    rig.subscription("T").membership.load()
    waiting = rig.start_pull(topic=b"U", linger=20_000)
    rig.advance(LOST_S - 0.1)
    assert not waiting.answered
    rig.advance(0.2)
    rig.advance(0.1)
    assert rig.pull(topic=b"T").result.messages == []
    assert not waiting.answered
    rig.submit(result(first))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"0"]


def pulls(rig: ConsumerRig, topic: bytes, count: int) -> Any:
    """A pull that is waited for; clock and hub go on meanwhile."""
    call = rig.start_pull(topic=topic, count=count, linger=20_000)
    for _ in range(200):
        if call.answered:
            break
        rig.advance(0.01)
    return call


def test_a_topic_that_nobody_pulls_does_not_stop_the_others_of_the_group(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.send(6_000, topic="U")
    for number in (0, 1, 2):
        rig.put_keyed(f"t{number}", str(number), topic="T")
    rig.put_keyed("k5000", "behind", topic="T")
    rig.put_keyed("t3", "3", topic="T")
    call = pulls(rig, b"T", 10)
    assert bodies(call) == [b"0", b"1", b"2", b"3"]
    rig.submit(result(call))
    (scope,) = rig.subscription("T").buffer.ordered_scopes()
    assert scope.ledger.ready <= READY_MAX
    delivered: list[int] = []
    while len(delivered) < 6_000:
        call = pulls(rig, b"U", 100)
        delivered += call.offsets
        rig.submit(result(call))
    assert sorted(delivered) == list(range(6_000))
    assert bodies(rig.pull(topic=b"T")) == [b"behind"]
    assert len(scope.table) == 1


def test_deferred_messages_are_bounded_and_reading_resumes_when_some_are_pulled(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy_consumer.core.order.chains.READY_MAX", 10)
    monkeypatch.setattr("proxy_consumer.core.order.scope.ASIDE_MAX", 20)
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.send(3 * READ_MIN, topic="U")
    rig.keyed("t", topic="T")
    waiting = rig.start_pull(topic=b"T", linger=20_000)
    for _ in range(20):
        rig.advance(0.01)
    assert not waiting.answered
    ((state, stream),) = rig.subscription("U").ordered_streams()
    assert stream.ledger.ready + state.table.released <= 2 * READ_MIN
    pulled = 0
    while not waiting.answered:
        pulled += len(pulls(rig, b"U", 50).offsets)  # and never acknowledged
        rig.advance(0.02)
    assert pulled <= 2 * READ_MIN
    assert bodies(waiting) == [b"t"]

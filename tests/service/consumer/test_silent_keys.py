"""A key whose head is never answered: people are told so, since nobody gave a reason."""

from __future__ import annotations

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.blocked_keys import BlockedKey
from tests.service.consumer.consumer_rig import IDL, ConsumerRig


def blocked(rig: ConsumerRig) -> BlockedKey:
    (blocked_key,) = [key for key in rig.service.order_keys("G").blocked_keys(10) if key.key == '"k0"']
    return blocked_key


def test_a_head_that_nobody_answers_says_so_and_a_reason_goes_before(rig: ConsumerRig) -> None:
    rig.topic()
    settings = {"start": "first", "order_key": "KEY", "ack_timeout_ms": 1_000}
    rig.subscribe(config=SubscriptionDefaults(**settings))  # type: ignore[arg-type]
    rig.send(1)
    assert rig.pull().offsets == [0]
    rig.advance(1.1)
    assert blocked(rig).error == "no answer within ack_timeout_ms, 1 time"
    call = rig.pull()
    assert blocked(rig).state == "in flight"
    rig.submit(IDL.ConsumeResult(context=call.result.context, failOffsets=[0], failReasons=["no stock"]))
    assert blocked(rig).error == "no stock"

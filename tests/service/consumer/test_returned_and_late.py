"""What our clients hand back, extend one by one, give up, and hear about results that came too late."""

from __future__ import annotations

from typing import Any

from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall
from tests.support.waits import until

QUICK = SubscriptionDefaults(start="first", ack_timeout_ms=3_000, max_timeout_redeliveries=0, retry_steps=0)
CONTEXT = IDL.Context(groupId=b"G", topic=b"T", qid=b"R_default_a_0")


def ready(count: int = 4, **changed: Any) -> ConsumerRig:
    rig = ConsumerRig()
    rig.topic()
    settings = {name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | changed
    rig.subscribe(config=SubscriptionDefaults(**settings))
    rig.send(count)
    return rig


def pull_extended(rig: ConsumerRig, count: int = 32, **named: Any) -> FakeCall:
    return rig.pull(count=count, clientId=b"c", **named)


def lease_of(call: FakeCall) -> int:
    lease_ids = {message.leaseId for message in call.result.messages}
    assert len(lease_ids) == 1
    return lease_ids.pop()


def settle(rig: ConsumerRig, **lists: Any) -> Any:
    element = IDL.ConsumeResult(context=CONTEXT, successOffsets=(), failOffsets=())
    for name, value in lists.items():
        setattr(element, name, value)
    call = rig.call("settle", METHODS["settle"].args[0](request=IDL.SettleRequest(result=element)))
    until(lambda: call.answered)
    return call.result


def test_late_results_are_reported() -> None:
    rig = ready(3, max_timeout_redeliveries=5)
    lease = lease_of(pull_extended(rig))
    rig.advance(3.1)
    other = pull_extended(rig)
    settle(rig, successOffsets=[0], successLeases=[lease_of(other)])
    late = settle(
        rig, successOffsets=[0, 1], successLeases=[lease] * 2, extendOffsets=[2], extendLeases=[lease]
    ).late
    (late_result,) = late
    assert (late_result.context.topic, late_result.context.qid) == (b"T", b"R_default_a_0")
    assert (late_result.offsets, late_result.leases, late_result.finished) == ([0, 1, 2], [lease] * 3, [0])
    assert rig.counted("ddmq_results_ignored_total", reason="late") == 3


def test_a_stated_delay_holds_beyond_the_quick_retries() -> None:
    rig = ready(1, retry_intervals_ms=(100,), retry_steps=16)
    for attempt in range(1, 8):
        call = pull_extended(rig)
        assert [message.attempt for message in call.result.messages] == [attempt]
        settle(rig, failOffsets=[0], failLeases=[lease_of(call)], failDelaysMs=[30_000])
        rig.advance(29.9)
        assert not pull_extended(rig).result.messages
        rig.advance(0.1)


def test_our_clients_hear_of_a_group_and_a_topic_that_do_not_exist() -> None:
    rig = ready(0)
    refused = rig.pull(b"mistyped", None, clientId=b"c")
    assert b"mistyped does not exist" in refused.outcome.error.message
    assert not rig.pull(b"mistyped", None).result.messages, "others get nothing, as ever"
    assert b"topic nothing" in rig.pull(b"G", b"nothing", clientId=b"c").result.notice
    assert rig.pull(b"G", b"nothing").result.notice is None

"""What our clients hand back, extend one by one, give up, and hear about results that came too late."""

from __future__ import annotations

from typing import Any

from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall, result
from tests.support.waits import until

QUICK = SubscriptionDefaults(start="first", ack_timeout_ms=3_000, max_timeout_redeliveries=0, retry_steps=0)
PLACE = IDL.Context(groupId=b"G", topic=b"T", qid=b"R_default_a_0")


def ready(count: int = 4, **changed: Any) -> ConsumerRig:
    rig = ConsumerRig()
    rig.topic()
    settings = {name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | changed
    rig.subscribe(config=SubscriptionDefaults(**settings))
    rig.send(count)
    return rig


def ours(rig: ConsumerRig, count: int = 32, **named: Any) -> FakeCall:
    return rig.pull(count=count, clientId=b"c", **named)


def lease_of(call: FakeCall) -> int:
    found = {message.leaseId for message in call.result.messages}
    assert len(found) == 1
    return found.pop()


def settle(rig: ConsumerRig, **lists: Any) -> Any:
    element = IDL.ConsumeResult(context=PLACE, successOffsets=(), failOffsets=())
    for name, value in lists.items():
        setattr(element, name, value)
    call = rig.call("settle", METHODS["settle"].args[0](request=IDL.SettleRequest(result=element)))
    until(lambda: call.answered)
    return call.result


def hand_back(rig: ConsumerRig, offsets: list[int], lease: int) -> None:
    assert not settle(rig, returnOffsets=offsets, returnLeases=[lease] * len(offsets)).late


def test_the_answer_tells_how_long_its_leases_last_to_our_clients_only() -> None:
    rig = ready()
    assert ours(rig, 1).result.leaseMs == 3_000
    assert rig.pull(count=1).result.leaseMs is None


def test_what_is_handed_back_is_at_others_at_once_and_not_counted() -> None:
    rig = ready()
    first = ours(rig)
    waiting = rig.ask(count=32, linger=20_000, clientId=b"other")
    for _ in range(5):
        hand_back(rig, [1, 2, 3], lease_of(first))
        rig.settle()
        assert waiting.offsets == [1, 2, 3]
        assert [message.attempt for message in waiting.result.messages] == [1, 1, 1]
        first, waiting = waiting, rig.ask(count=32, linger=20_000, clientId=b"other")
    assert rig.counted("ddmq_returned_total") == 15
    assert rig.counted("ddmq_redelivered_total") == 0


def test_only_the_lease_that_holds_a_message_can_hand_it_back() -> None:
    rig = ready()
    lease = lease_of(ours(rig))
    hand_back(rig, [0, 1], lease + 1)
    assert not rig.pull(count=32).result.messages
    assert rig.counted("ddmq_results_ignored_total", reason="late") == 2


def test_a_chain_keeps_its_order_when_its_messages_are_handed_back() -> None:
    rig = ready(6, order_key="QID", chain_batch=3)
    first = ours(rig)
    assert first.offsets == [0, 1, 2]
    lease = lease_of(first)
    hand_back(rig, [1, 2], lease)
    assert not rig.pull(count=32).result.messages, "they wait behind the first"
    hand_back(rig, [0], lease)
    seen: list[int] = []
    while len(seen) < 6:
        answer = ours(rig)
        seen += answer.offsets
        settle(rig, successOffsets=answer.offsets, successLeases=[lease_of(answer)] * len(answer.offsets))
    assert seen == [0, 1, 2, 3, 4, 5]


def test_the_head_that_times_out_takes_those_behind_it_along() -> None:
    rig = ready(3, order_key="QID", chain_batch=3, max_timeout_redeliveries=5)
    lease = lease_of(ours(rig))
    rig.advance(2.0)
    assert not settle(rig, extendOffsets=[1, 2], extendLeases=[lease] * 2).late
    rig.advance(1.5)
    again = ours(rig)
    assert again.offsets[0] == 0
    late = settle(rig, successOffsets=[1], successLeases=[lease]).late
    assert [each.offsets for each in late] == [[1]]


def test_a_message_is_extended_without_its_neighbours() -> None:
    rig = ready(4, max_timeout_redeliveries=5)
    lease = lease_of(ours(rig))
    rig.advance(2.0)
    assert not settle(rig, extendOffsets=[2], extendLeases=[lease]).late
    rig.advance(1.5)
    assert ours(rig).offsets == [0, 1, 3]
    assert not settle(rig, successOffsets=[2], successLeases=[lease]).late


def test_an_extension_lasts_as_long_as_the_lease_was_told_to() -> None:
    rig = ready(1)
    first = ours(rig)
    shorter = rig.service.change_subscription("G", "T", {"ack_timeout_ms": 1_000})
    rig.wait(shorter)
    rig.advance(2.0)
    assert not settle(rig, extendOffsets=[0], extendLeases=[lease_of(first)]).late
    rig.advance(2.9)
    assert not settle(rig, successOffsets=[0], successLeases=[lease_of(first)]).late
    rig.send(1)
    assert ours(rig).result.leaseMs == 1_000


def test_results_that_come_too_late_are_told() -> None:
    rig = ready(3, max_timeout_redeliveries=5)
    lease = lease_of(ours(rig))
    rig.advance(3.1)
    other = ours(rig)
    settle(rig, successOffsets=[0], successLeases=[lease_of(other)])
    late = settle(
        rig, successOffsets=[0, 1], successLeases=[lease] * 2, extendOffsets=[2], extendLeases=[lease]
    ).late
    (told,) = late
    assert (told.context.topic, told.context.qid) == (b"T", b"R_default_a_0")
    assert (told.offsets, told.leases, told.finished) == ([0, 1, 2], [lease] * 3, [0])
    assert rig.counted("ddmq_results_ignored_total", reason="late") == 3


def test_a_pull_hears_of_the_late_results_that_it_carried() -> None:
    rig = ready(3, max_timeout_redeliveries=5)
    lease = lease_of(ours(rig))
    rig.advance(3.1)
    late = result([1], successLeases=[lease])
    with_messages = ours(rig, result=late)
    assert [each.offsets for each in with_messages.result.late] == [[1]]
    assert with_messages.result.leaseMs == 3_000
    empty = ours(rig, result=late)
    assert not empty.result.messages
    assert [each.offsets for each in empty.result.late] == [[1]]
    assert rig.pull(count=1, result=late).result.late is None, "not a client of ours"


def test_a_message_is_given_up_at_once() -> None:
    rig = ready(2)
    lease = lease_of(ours(rig))
    assert not settle(
        rig, failOffsets=[0], failLeases=[lease], failDelaysMs=[-2], failReasons=["poison"]
    ).late
    rig.settle()
    assert rig.counted("ddmq_dead_letters_total", reason="given-up") == 1


def test_a_delay_of_ones_own_is_kept_beyond_the_quick_retries() -> None:
    rig = ready(1, retry_intervals_ms=(100,), retry_steps=16)
    for attempt in range(1, 8):
        call = ours(rig)
        assert [message.attempt for message in call.result.messages] == [attempt]
        settle(rig, failOffsets=[0], failLeases=[lease_of(call)], failDelaysMs=[30_000])
        rig.advance(29.9)
        assert not ours(rig).result.messages
        rig.advance(0.1)


def test_a_client_that_stops_gets_its_waiting_pulls_answered() -> None:
    rig = ready(0)
    mine = [rig.ask(linger=30_000, clientId=b"me") for _ in range(2)]
    other = rig.ask(linger=30_000, clientId=b"other")
    request = IDL.SettleRequest(groupId=b"G", clientId=b"me", leave=True)
    left = rig.call("settle", METHODS["settle"].args[0](request=request))
    assert left.result.late == []
    assert [call.answered for call in (*mine, other)] == [True, True, False]


def test_our_clients_hear_of_a_group_and_a_topic_that_do_not_exist() -> None:
    rig = ready(0)
    refused = rig.pull(b"mistyped", None, clientId=b"c")
    assert b"mistyped does not exist" in refused.outcome.error.message
    assert not rig.pull(b"mistyped", None).result.messages, "others get nothing, as ever"
    assert b"topic nothing" in rig.pull(b"G", b"nothing", clientId=b"c").result.notice
    assert rig.pull(b"G", b"nothing").result.notice is None

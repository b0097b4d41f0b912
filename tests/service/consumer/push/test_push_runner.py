"""The runner as a client: leases, concurrency, order, settings that change, targets that are not allowed."""

from __future__ import annotations

import pytest

from ddmq_client.idl.codes import Code
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.push.actions.config import HttpConfig, PushConfig, ScriptConfig
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.support.waits import until


def test_what_is_pushed_is_not_pulled(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url())
    rig.topic("P")
    rig.subscribe(topic="P")
    refused = rig.start_pull()
    assert refused.outcome.error.code == Code.TOPIC_REFUSED
    assert b"pushes it" in refused.outcome.error.message
    rig.put(b"pushed")
    rig.put(b"pulled", topic="P")
    anything = rig.pull(topic=None)
    assert anything.values == [b"pulled"]
    waiting = rig.start_pull(topic=None, linger=1_000)
    rig.put(b"pushed too")
    until(lambda: len(receiver.requests) == 2)
    assert not waiting.answered


def test_no_more_than_concurrency_are_under_way(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url(), concurrency=3)
    rig.put(*[b"%d" % number for number in range(20)])
    until(lambda: len(receiver.requests) == 3)
    rig.settle()
    assert len(receiver.requests) == 3
    assert rig.counted("ddmq_pushing") == 3
    receiver.hold.set()
    rig.until_committed(20)
    assert rig.counted("ddmq_pushing") == 0


def test_leases_are_extended_while_a_receiver_takes_its_time(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url(), ack_timeout_ms=1_000)
    rig.put(b"slow")
    until(lambda: len(receiver.requests) == 1)
    for _ in range(50):
        rig.advance(0.1)
    assert rig.counted("ddmq_lease_timeouts_total") == 0
    receiver.hold.set()
    rig.until_committed(1)
    assert receiver.counts == ["0"]


@pytest.mark.parametrize(("before_ms", "after_ms"), [(600_000, 1_000), (1_000, 600_000)])
def test_each_lease_is_extended_in_its_own_time(
    rig: PushRig, receiver: Receiver, before_ms: int, after_ms: int
) -> None:
    """The ack time-out changes while some are under way: those that are keep the length that they had."""
    receiver.hold.clear()
    rig.http(receiver.url(), ack_timeout_ms=before_ms)
    rig.put(b"one")
    until(lambda: len(receiver.requests) == 1)
    rig.wait(rig.service.change_subscription("G", "T", {"ack_timeout_ms": after_ms}))
    rig.put(b"two")
    until(lambda: len(receiver.requests) == 2)
    for _ in range(50):
        rig.advance(0.1)
    assert rig.counted("ddmq_lease_timeouts_total") == 0
    receiver.hold.set()
    rig.until_committed(2)
    assert len(receiver.requests) == 2


def test_messages_of_one_key_go_one_after_the_other(rig: PushRig, receiver: Receiver) -> None:
    receiver.answers.extend([(200, b'{"errno":1}'), (500, b"")])
    rig.http(receiver.url(), order_key="KEY")
    for number in range(6):
        rig.put(b"a%d" % number, key=b"a")
    rig.until_moved(lambda: rig.progress().committed == 6)
    bodies = [request.fields["params"] for request in receiver.requests]
    assert bodies == ["a0", "a0", "a0", "a1", "a2", "a3", "a4", "a5"]


def test_a_script_filters_and_fails(rig: PushRig, receiver: Receiver) -> None:
    push = PushConfig(
        script=ScriptConfig(filter="body.amount > 10", transform="{'amount': body.amount}"),
        http=HttpConfig(urls=(receiver.url(),)),
    )
    rig.pushed("Json", "Script", "FormParams", "AsyncHttp", push=push, retry_intervals_ms=(), retry_steps=0)
    rig.put(b'{"amount":11,"more":1}', b'{"amount":9}', b'{"other":1}', b"null", b"{")
    rig.until_moved(lambda: rig.progress().committed == 5)
    assert [request.fields["params"] for request in receiver.requests] == ['{"amount":11}']
    assert rig.outcomes() == {"done": 1, "filtered": 2, "failed": 2}
    assert rig.counted("ddmq_script_errors_total") == 1
    reasons = sorted(" ".join(properties.values()) for _, properties in rig.dead())
    assert "Json: the body is not JSON" in reasons[0] + reasons[1]
    assert "Script: " in reasons[0] + reasons[1]


def test_settings_change_while_messages_flow(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url("/old"))
    rig.put(b"1")
    rig.until_committed(1)
    fresh = SubscriptionDefaults(
        start="first",
        actions=("FormParams", "AsyncHttp"),
        push=PushConfig(http=HttpConfig(urls=(receiver.url("/new"),))),
    )
    change(rig, fresh)
    rig.put(b"2")
    rig.until_committed(2)
    assert [request.path for request in receiver.requests] == ["/old", "/new"]
    change(rig, SubscriptionDefaults(start="first"))
    rig.put(b"3")
    assert rig.pull().values == [b"3"]
    assert len(receiver.requests) == 2


def change(rig: PushRig, config: SubscriptionDefaults) -> None:
    """As `ddmq group set` does: the setting is written, every proxy follows."""
    from backend.records import CommitBatch
    from proxy_consumer.groups.group import changed_settings, encode_subscription, subscription_key

    value = encode_subscription(changed_settings(config, SubscriptionDefaults()), 1, "log")
    batch = CommitBatch(settings={subscription_key("G", "T"): value})
    rig.wait(rig.backend.commit(batch, rig.deadline()))
    rig.settle()


@pytest.mark.parametrize("order_key", ["", "KEY", "QID"])
def test_what_waits_for_a_try_goes_at_once_when_the_settings_are_mended(
    rig: PushRig, receiver: Receiver, order_key: str
) -> None:
    rig.http("http://127.0.0.1:1/", order_key=order_key, ack_timeout_ms=3_600_000)  # nobody listens there
    rig.put(*[b"%d" % number for number in range(5)], key=b"k")
    until(lambda: rig.outcomes().get("again", 0) >= (1 if order_key else 5))
    begun = rig.clock.monotonic()
    mended = {"http": {"urls": [receiver.url()]}}
    rig.wait(rig.service.change_subscription("G", "T", {"push": mended}))
    rig.until_committed(5)
    assert rig.clock.monotonic() == begun, "nobody waited for a lease to run out"
    assert rig.counted("ddmq_lease_timeouts_total") == 0
    assert sorted(request.fields["params"] for request in receiver.requests) == ["0", "1", "2", "3", "4"]
    if order_key:
        assert [request.fields["params"] for request in receiver.requests] == ["0", "1", "2", "3", "4"]


def test_a_target_that_is_not_allowed_holds_the_subscription_back(receiver: Receiver) -> None:
    rig = PushRig(push_targets=())
    rig.http(receiver.url())
    rig.put(b"x")
    rig.settle()
    assert receiver.requests == []
    assert rig.counted("ddmq_push_held") == 1
    assert "push_targets" in rig.service.find_push_error("G", "T")
    assert rig.dead() == []
    rig.service.reconfigure(PushRig().config)  # push_targets is taken in without a restart
    rig.until_committed(1)
    assert rig.counted("ddmq_push_held") == 0
    assert rig.service.find_push_error("G", "T") == rig.service.find_push_error("nobody", "T") == ""


def test_a_target_that_is_allowed_no_more_holds_the_subscription_back(
    rig: PushRig, receiver: Receiver
) -> None:
    rig.http(receiver.url(), ack_timeout_ms=1_000)
    rig.put(b"1")
    rig.until_committed(1)
    receiver.answers.append((500, b""))
    rig.put(b"2")
    until(lambda: len(receiver.requests) == 2)
    rig.settle()  # 2 waits for its next try
    rig.service.reconfigure(PushRig(push_targets=("127.0.0.1:1",)).config)
    assert rig.counted("ddmq_push_held") == 1
    assert "push_targets" in rig.service.find_push_error("G", "T")
    rig.put(b"3")
    for _ in range(30):
        rig.advance(0.1)
    assert (len(receiver.requests), rig.dead(), rig.progress().committed) == (2, [], 1)
    rig.service.reconfigure(PushRig().config)
    rig.until_moved(lambda: rig.progress().committed == 3)
    assert rig.counted("ddmq_push_held") == 0
    assert sorted(request.fields["params"] for request in receiver.requests) == ["1", "2", "2", "3"]


def test_another_proxy_resumes_where_one_died(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url())
    rig.put(b"1")
    rig.until_committed(1)
    receiver.hold.clear()
    rig.put(b"2")
    until(lambda: len(receiver.requests) == 2)
    rig.service._pushers.stop()
    rig.restart()
    receiver.hold.set()
    rig.until_committed(2)
    assert [request.fields["params"] for request in receiver.requests] == ["1", "2", "2"]


def second_proxy(rig: PushRig, receiver: Receiver) -> ConsumerService:
    """Two messages of two queues are with the receiver when another proxy joins, to get one of the queues."""
    receiver.hold.clear()
    rig.topic("Q", 2)
    rig.send(1, queue=0, topic="Q")
    rig.send(1, queue=1, topic="Q")
    push = PushConfig(http=HttpConfig(urls=(receiver.url(),)))
    rig.pushed("FormParams", "AsyncHttp", push=push, topic="Q")
    until(lambda: len(receiver.requests) == 2)
    first = rig.service
    rig.start()
    return first


def finished(rig: PushRig) -> int:
    return sum(rig.progress(queue=queue, topic="Q").committed or 0 for queue in range(2))


def test_a_queue_that_moves_waits_for_what_is_with_the_receiver(rig: PushRig, receiver: Receiver) -> None:
    first = second_proxy(rig, receiver)
    for _ in range(5):
        rig.advance(0.1)
        first.tick()
    receiver.hold.set()

    def moved() -> bool:
        first.tick()
        return finished(rig) == 2 and len(rig.group().queues) == 1

    rig.until_moved(moved, step_s=0.0001)
    rig.send(1, queue=0, topic="Q")
    rig.send(1, queue=1, topic="Q")
    rig.until_moved(lambda: finished(rig) == 4)
    assert len(receiver.requests) == 4, "each of them once"


def test_a_queue_that_moves_waits_a_bounded_time_for_the_receiver(rig: PushRig, receiver: Receiver) -> None:
    first = second_proxy(rig, receiver)
    for _ in range(20):
        rig.advance(0.1)
        first.tick()
    until(lambda: len(receiver.requests) == 3)
    receiver.hold.set()


def test_drain_takes_nothing_new_and_ends_what_is_under_way(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url(), concurrency=1)
    rig.put(b"1", b"2")
    until(lambda: len(receiver.requests) == 1)
    drained = rig.service.drain(rig.deadline())
    receiver.hold.set()
    until(lambda: rig.progress().committed == 1)
    rig.until_moved(lambda: drained.done)
    assert [request.fields["params"] for request in receiver.requests] == ["1"]


def test_a_deleted_subscription_is_pushed_no_more(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url())
    rig.put(b"1")
    rig.until_committed(1)
    rig.wait(rig.service.delete_group("G"))
    rig.put(b"2")
    rig.settle()
    assert len(receiver.requests) == 1
    assert rig.service._pushers._runners == {}


@pytest.mark.parametrize("actions", [("Json", "Script", "PullServer"), ("Async", "PullServer")])
def test_chains_that_end_with_a_pull_have_no_runner(rig: PushRig, actions: tuple[str, ...]) -> None:
    push = PushConfig(script=ScriptConfig(filter="true"))
    rig.pushed(*actions, push=push)
    rig.put(b'{"a":1}')
    assert rig.pull().values == [b'{"a":1}']
    assert isinstance(rig, ConsumerRig)

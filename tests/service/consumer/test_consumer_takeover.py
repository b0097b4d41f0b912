"""The writer dies and the proxy takes its queues anew: clients know nothing of it, and lose nothing by it."""

from __future__ import annotations

import pytest

from backend.records import ProgressDelta
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.subscription.subscription import Subscription
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, result


@pytest.fixture
def leased_rig(rig: ConsumerRig) -> ConsumerRig:
    """Offsets 0 to 9, of which a client holds 0 to 4."""
    rig.ready(10)
    assert rig.pull(count=5).offsets == [0, 1, 2, 3, 4]
    return rig


def subscription(rig: ConsumerRig) -> Subscription:
    return rig.subscription()


def lose(rig: ConsumerRig) -> None:
    """The session is over: its queues are lost, and joined anew with the next pull."""
    subscription(rig).membership.claims.lost(list(subscription(rig).buffer.queues))
    subscription(rig).leave()


def come_back(rig: ConsumerRig) -> None:
    subscription(rig).on_use(rig.clock.monotonic())
    rig.settle(lambda: bool(subscription(rig).buffer.queues))


def test_what_clients_hold_can_still_be_acknowledged(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    come_back(leased_rig)
    assert leased_rig.submit(result([1, 3])).result is True
    assert leased_rig.progress().finished == ((1, 2), (3, 4))
    assert leased_rig.pull(count=10).offsets == [5, 6, 7, 8, 9]
    leased_rig.advance(31)  # the client has given nothing back: its lease is over
    assert leased_rig.pull(count=3).offsets == [0, 2, 4]


def test_acknowledgements_count_for_messages_that_were_reread(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    come_back(leased_rig)
    assert leased_rig.pull(count=1).offsets == [5]
    leased_rig.submit(result([0, 1, 2, 4]))
    assert leased_rig.progress().committed == 3
    assert leased_rig.pull(count=10).offsets == [6, 7, 8, 9]


def test_what_was_never_delivered_stays_unfinished(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    come_back(leased_rig)
    leased_rig.submit(result([5, 6, 9]))
    assert leased_rig.progress().committed in (0, None)
    assert leased_rig.counted("ddmq_results_ignored_total", reason="unknown offset") == 3
    assert leased_rig.pull(count=10).offsets == [5, 6, 7, 8, 9]


def test_a_failure_counts_too(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    come_back(leased_rig)
    leased_rig.submit(result(fail=[0]))
    assert leased_rig.pull(count=10).offsets == [5, 6, 7, 8, 9]
    leased_rig.advance(0.2)
    redelivered = leased_rig.pull(count=10, clientId=b"ours")
    assert [(message.offset, message.attempt) for message in redelivered.result.messages] == [(0, 2)]


def test_results_between_two_owners_are_rejected_and_resent(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    refused = leased_rig.submit(result([0, 1]))
    assert refused.outcome.error.code == 10
    assert b"send the results again" in refused.outcome.error.message
    assert leased_rig.start_pull(result=result([0, 1])).outcome.error.code == 10
    come_back(leased_rig)
    assert leased_rig.submit(result([0, 1])).result is True
    assert leased_rig.progress().committed == 2


def test_a_queue_that_does_not_come_back_is_unknown_after_a_while(leased_rig: ConsumerRig) -> None:
    lose(leased_rig)
    leased_rig.clock.advance(6)
    assert leased_rig.submit(result([0, 1])).result is True
    assert leased_rig.counted("ddmq_results_ignored_total", reason="unknown queue") == 2


def test_lost_twice(leased_rig: ConsumerRig) -> None:
    for _ in range(2):
        lose(leased_rig)
        come_back(leased_rig)
    assert leased_rig.pull(count=2).offsets == [5, 6]
    lose(leased_rig)
    come_back(leased_rig)
    leased_rig.submit(result([0, 4, 6]))
    assert leased_rig.progress().finished == ((4, 5), (6, 7))
    assert leased_rig.progress().committed == 1
    assert leased_rig.pull(count=10).offsets == [7, 8, 9]


def test_other_groups_are_not_concerned(leased_rig: ConsumerRig) -> None:
    leased_rig.subscribe("H")
    leased_rig.pull(b"H", count=3)
    lose(leased_rig)
    assert leased_rig.submit(result([0, 1, 2], group="H")).result is True
    assert leased_rig.progress("H").committed == 3


def test_dead_letters_on_their_way_are_not_acknowledged() -> None:
    quick = SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0)
    rig = ConsumerRig(ConsumerConfig(defaults=FIRST)).ready(2, quick)
    rig.pull(count=2)
    rig.submit(result(fail=[0]))
    lose(rig)
    come_back(rig)
    rig.submit(result([0, 1]))
    for _ in range(30):
        rig.advance(0.1)
    assert rig.progress().committed == 2
    assert rig.counted("ddmq_dead_letters_total") == 1


def test_a_ready_message_that_is_acknowledged_is_not_redelivered(rig: ConsumerRig) -> None:
    ordered = SubscriptionDefaults(start="first", order_key="KEY")
    for topic in ("U", "T"):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=ordered)
    rig.send(1, topic="U")
    rig.send(1, topic="U")
    rig.send(2, topic="T")
    assert rig.pull(topic=b"U", count=5).offsets == [0]
    both = rig.group().subscriptions.values()
    for each in both:
        each.membership.claims.lost(list(each.buffer.queues))
        each.leave()
    for each in both:
        each.on_use(rig.clock.monotonic())
    rig.settle(lambda: all(each.buffer.queues for each in both))
    assert rig.pull(topic=b"T", count=5).offsets == [1]  # on the way to it the head in U is placed
    rig.submit(result([0], topic="U"))
    assert rig.pull(topic=b"U", count=5).offsets == [1]
    assert rig.pull(topic=b"U", count=5).offsets == []


def test_an_acknowledgement_for_a_moved_queue_is_rejected_and_resent(
    leased_rig: ConsumerRig,
) -> None:
    delta = ProgressDelta("G", leased_rig.ref(), 99, leased_rig.progress().generation)
    leased_rig.backend._store.progress.apply(delta)  # another proxy has it; we have not heard
    answer = leased_rig.submit(result([0]))
    assert getattr(answer.outcome, "success", None) is not True
    assert leased_rig.progress().committed == 0
    leased_rig.close()

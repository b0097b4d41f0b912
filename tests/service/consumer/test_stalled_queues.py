"""Whoever waits for messages that do not come is told of: by a gauge, and by name, whatever the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend.port import Join, Sharing
from ddmq_common.metrics.catalogue import STALLED_QUEUES
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.subscription.reading import Reading
from proxy_consumer.subscription.subscription import Subscription
from tests.service.consumer.consumer_rig import ConsumerRig, result
from tests.support.waits import until

LOOKS = 50
REVOKED_S = 15.0  # by then a queue is taken from who does not release it


def settings(order_key: str = "") -> SubscriptionDefaults:
    return SubscriptionDefaults(start="first", order_key=order_key, ack_timeout_ms=300_000)


def wait_and_count_stalled(rig: ConsumerRig, topic: str = "T") -> float:
    """A client waits for the topic for longer than a queue may stand still; the gauge at the end.

    Nobody asks for the metrics meanwhile.
    """
    for _ in range(LOOKS):
        rig.start_pull(topic=topic.encode(), linger=900)
        rig.settle()
        rig.advance(1.0)
    return rig.metrics.cell(STALLED_QUEUES, "G", topic).value


def of(rig: ConsumerRig, topic: str = "T") -> Subscription:
    return rig.group().subscriptions[topic.encode()]


def never_delivers(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "take_batch", lambda *_: None)


def data_goes_unnoticed(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "on_wait_done", lambda *_: None)


def never_joins(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    of(rig).leave()
    monkeypatch.setattr(Subscription, "join_alone", lambda *_: None)


CAUSES = [never_delivers, data_goes_unnoticed, never_joins]


@pytest.mark.interpreted
@pytest.mark.parametrize("order_key", ["", "KEY", "QID"])
@pytest.mark.parametrize("cause", CAUSES)
def test_stalled_queues_are_counted(
    rig: ConsumerRig,
    monkeypatch: pytest.MonkeyPatch,
    cause: Callable[[ConsumerRig, pytest.MonkeyPatch], None],
    order_key: str,
) -> None:
    rig.ready(config=settings(order_key), queues=2)
    rig.pull(linger=20)
    cause(rig, monkeypatch)
    for queue in range(2):
        rig.send(2, queue=queue)
    assert wait_and_count_stalled(rig) == 2
    (stall,) = rig.service.stalled("G")
    assert (stall.topic, stall.queue_ids, stall.held_up_by) == ("T", (0, 1), ())
    assert stall.seconds >= 30


class Unknown:
    """A member at this very proxy that the group does not know: it takes queues and delivers nothing."""

    def assigned(self, *_: object) -> None: ...
    def revoked(self, *_: object) -> None: ...
    def lost(self, *_: object) -> None: ...


@pytest.mark.parametrize("order_key", ["", "QID"])
def test_a_queue_of_another_member_is_counted_beside_a_leased_one(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(config=settings(order_key), queues=2)
    rig.backend.join(Join("G", "T", sharing=Sharing.AVERAGELY), Unknown())
    rig.pull(linger=20)
    rig.advance(REVOKED_S)
    until(lambda: len(of(rig).buffer.queues) == 1)  # deadlines are looked at every few real milliseconds
    for queue in range(2):
        rig.send(2, queue=queue)
    assert wait_and_count_stalled(rig) == 1
    assert of(rig).buffer.budget.leased > 0


@pytest.mark.interpreted
def test_a_queue_that_recovers_is_counted_no_more(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ready(config=settings())
    with monkeypatch.context() as patched:
        never_delivers(rig, patched)
        rig.send(2)
        caplog.clear()
        caplog.set_level("INFO", "ddmq.consumer")
        assert wait_and_count_stalled(rig) == 1
    rig.submit(result(rig.pull().offsets))
    assert wait_and_count_stalled(rig) == 0
    assert rig.service.stalled("G") == []
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "stand still" in text] == [
        "queues stand still though clients wait for their messages",
        "queues no longer stand still",
    ]


def test_a_topic_without_pulls_is_named_as_the_cause_of_a_stall(rig: ConsumerRig) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=settings("KEY"))
    rig.send(3, topic="U")
    rig.send(3)
    assert wait_and_count_stalled(rig) == 1
    (stall,) = rig.service.stalled("G")
    assert (stall.topic, stall.queue_ids, stall.held_up_by) == ("T", (0,), ("U",))


def in_flight(rig: ConsumerRig) -> None:
    rig.pull()


def parked(rig: ConsumerRig) -> None:
    for key in range(3):
        rig.wait(rig.service.order_keys("G").park(f'"k{key}"'))


@pytest.mark.parametrize("meant", [in_flight, parked])
def test_intended_pauses_are_not_counted(rig: ConsumerRig, meant: Callable[[ConsumerRig], None]) -> None:
    rig.ready(3, settings("KEY"))
    meant(rig)
    assert wait_and_count_stalled(rig) == 0


def test_without_waiting_pulls_nothing_is_stalled(rig: ConsumerRig) -> None:
    rig.ready(3, settings())
    for _ in range(LOOKS):
        rig.metrics.run_collectors()
        rig.settle()
        rig.advance(1.0)
    assert rig.metrics.cell(STALLED_QUEUES, "G", "T").value == 0

"""An operator's commands on keys of a group that no client pulls: the proxy acquires its queues, and releases
them again."""

from __future__ import annotations

from typing import Any

import pytest

from backend.completion import failed
from ddmq.server.admin import keys
from ddmq.server.admin.groups import AdminGroups
from ddmq_common.errors import CallerError, RemoteError, TryLaterError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.key_loading import HOLD_S, LOAD_S
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, FakeCall, directory

ORDERED = SubscriptionDefaults(
    start="first", order_key="KEY", on_dead_letter="park", ordered_deliveries_max=1, handover_wait_ms=0
)
IDLE_S = 61.0


def list_keys(rig: ConsumerRig, service: ConsumerService | None = None) -> list[dict[str, Any]]:
    return keys.list_blocked_keys(service or rig.service, "G", 20)


def act(rig: ConsumerRig, action: str, key: str = "a") -> dict[str, Any]:
    return keys.act_on_key(rig.service, "G", action, key)


def fail_all(rig: ConsumerRig, call: FakeCall) -> None:
    """The consumer is broken: it fails what it got."""
    leases = [message.leaseId for message in call.result.messages]
    rig.submit(
        IDL.ConsumeResult(
            context=call.result.context,
            failOffsets=call.offsets,
            failLeases=leases,
            failReasons=["no stock"] * len(leases),
        )
    )


def joined(rig: ConsumerRig, topic: str = "T") -> bool:
    return rig.subscription(topic).joined


@pytest.fixture
def idle(rig: ConsumerRig) -> ConsumerRig:
    """Key a is parked by its failure with two messages behind it; the consumer was stopped long ago."""
    rig.ready(config=ORDERED, queues=2)
    rig.keyed("a1", "a2")
    fail_all(rig, rig.pull(count=1, clientId=b"worker"))
    rig.keyed("a3", queue=1)
    rig.advance(IDLE_S)
    assert not joined(rig)
    return rig


def test_a_parked_key_of_an_idle_group_is_listed(idle: ConsumerRig) -> None:
    (row,) = list_keys(idle)
    assert (row["key"], row["state"], row["reason"]) == ('"a"', "parked", "failed")
    assert (row["topic"], row["offset"], row["attempts"]) == ("T", 0, 1)
    assert (row["waiting"], row["more"], row["error"]) == (2, False, "no stock")
    assert idle.clock.wall_ms() - row["since_ms"] == pytest.approx(IDLE_S * 1000, abs=100)


def test_listing_delivers_nothing_and_counts_as_no_use(idle: ConsumerRig) -> None:
    idle.keyed("b1")
    delivered = idle.counted("ddmq_delivered_total")
    list_keys(idle)
    assert idle.counted("ddmq_delivered_total") == delivered
    assert not idle.service.is_used("G", "T")
    assert idle.pull().values == [b"b1"]


@pytest.mark.parametrize(
    ("action", "outcome", "delivered"),
    [("replay", "replayed", b"a1"), ("skip", "dead letter", b"a2"), ("park", "parked", None)],
)
def test_a_key_of_an_idle_group_can_be_acted_on(
    idle: ConsumerRig, action: str, outcome: str, delivered: bytes | None
) -> None:
    (head,) = act(idle, action)["heads"]
    assert (head["offset"], head["outcome"]) == (0, outcome)
    idle.advance(IDLE_S)  # nothing of it is only in memory
    assert not joined(idle)
    assert idle.pull(count=1).values == ([] if delivered is None else [delivered])


def test_queues_acquired_for_an_operator_are_released_again(idle: ConsumerRig) -> None:
    list_keys(idle)
    idle.advance(HOLD_S - 0.5)
    assert joined(idle)
    list_keys(idle)  # does not keep the queues longer: a client may wait for them at another proxy
    idle.advance(1.1)
    assert not joined(idle)
    assert [row["key"] for row in list_keys(idle)] == ['"a"']


def test_a_change_keeps_the_queues_until_it_is_stored(idle: ConsumerRig) -> None:
    list_keys(idle)
    idle.advance(HOLD_S - 0.5)
    act(idle, "replay")
    idle.advance(1)
    assert joined(idle)
    idle.advance(HOLD_S)
    assert not joined(idle)


def test_a_pull_keeps_queues_that_an_operator_acquired(idle: ConsumerRig) -> None:
    list_keys(idle)
    idle.pull()
    idle.advance(HOLD_S + 1)
    assert joined(idle)
    idle.advance(IDLE_S)
    assert not joined(idle)


def test_a_key_parked_before_any_pull_is_listed_with_its_messages(rig: ConsumerRig) -> None:
    rig.ready(config=ORDERED)
    act(rig, "park")
    rig.keyed("a1", "a2", "a3")
    for _ in range(2):
        (row,) = list_keys(rig)
        assert (row["topic"], row["offset"], row["waiting"]) == ("T", 0, 2)
        assert (row["state"], row["reason"], row["since_ms"]) == ("parked", "operator", 0)
        rig.advance(1)
    (head,) = act(rig, "skip")["heads"]
    assert head["outcome"] == "dead letter"
    (row,) = list_keys(rig)
    assert (row["offset"], row["waiting"]) == (1, 1)
    act(rig, "replay")
    assert rig.pull(count=1).values == [b"a2"]


def test_messages_that_came_after_the_last_pull_are_counted(rig: ConsumerRig) -> None:
    rig.ready(config=ORDERED)
    assert rig.pull().values == []
    act(rig, "park")
    rig.keyed("a1", "a2")
    (row,) = list_keys(rig)
    assert (row["offset"], row["waiting"]) == (0, 1)


def test_a_message_whose_news_has_not_arrived_is_listed(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready(config=ORDERED)
    assert rig.pull().values == []
    act(rig, "park")
    monkeypatch.setattr(rig.backend, "_wake_waits", lambda records: None)  # nobody is notified
    rig.keyed("a1", "a2")
    (row,) = list_keys(rig)
    assert (row["offset"], row["waiting"]) == (0, 1)


def test_a_backlog_is_not_read_without_a_bound(rig: ConsumerRig) -> None:
    rig.ready(config=ORDERED)
    for number in range(2_500):
        rig.put_keyed(f"k{number}", "x")
    act(rig, "park", "k1")
    assert [row["key"] for row in list_keys(rig)] == ['"k1"']
    (scope,) = rig.subscription().buffer.ordered_scopes()
    assert 1_000 <= scope.ledger.ready < 1_300


def test_queues_of_another_proxy_are_left_alone(idle: ConsumerRig) -> None:
    first = idle.service
    assert idle.pull().values == []
    second = idle.start()
    for _ in range(3):
        assert list_keys(idle, second) == []
        with pytest.raises(CallerError, match="is not blocked or parked at this proxy"):
            act(idle, "skip")
        idle.advance(1)
        assert not directory(second).groups[b"G"].subscriptions[b"T"].joined
    assert [row["state"] for row in list_keys(idle, first)] == ["parked"]


def test_a_member_without_queues_parks_keys_at_once(rig: ConsumerRig) -> None:
    rig.ready(config=ORDERED, queues=2)
    rig.keyed("a1", "a2")
    first = rig.service
    assert rig.pull(count=1, clientId=b"worker").offsets == [0]
    second = rig.start()
    rig.service = second
    assert rig.pull(count=1).values == []
    rig.service = first
    rig.advance(5)
    for service in (second, first):
        before = rig.clock.monotonic()
        assert keys.act_on_key(service, "G", "park", "b")["parked"] is (service is first)
        assert rig.clock.monotonic() - before < LOAD_S


def test_queues_of_a_group_that_was_never_pulled_are_released_after_the_request(rig: ConsumerRig) -> None:
    rig.ready(config=ORDERED, queues=2)
    rig.keyed("a1", "a2")
    list_keys(rig)
    assert joined(rig)
    rig.advance(HOLD_S + 1.0)
    assert not joined(rig), "the time since its creation does not count as use"


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionDefaults(start="first"),
        SubscriptionDefaults(model="broadcasting"),
    ],
    ids=["without an order key", "broadcasting"],
)
def test_a_group_without_keys_is_not_acquired(rig: ConsumerRig, config: SubscriptionDefaults) -> None:
    rig.ready(config=config)
    assert list_keys(rig) == []
    assert not joined(rig)


def test_a_topic_that_does_not_exist_is_not_waited_for(rig: ConsumerRig) -> None:
    rig.subscribe(config=ORDERED)
    act(rig, "park")
    assert [row["key"] for row in list_keys(rig)] == ['"a"']
    assert not joined(rig)


def test_a_deleted_group_is_not_acquired(idle: ConsumerRig) -> None:
    subscription = idle.subscription()
    idle.wait(idle.service.delete_group("G"))
    idle.settle()
    with pytest.raises(CallerError, match="group 'G' does not exist"):
        list_keys(idle)
    assert not subscription.joined


def test_a_draining_proxy_acquires_nothing(idle: ConsumerRig) -> None:
    idle.wait(idle.service.drain(idle.deadline()))
    assert list_keys(idle) == []
    assert not joined(idle)


def test_loading_that_does_not_finish_is_reported(idle: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.backend, "progress", lambda *_: failed(RemoteError("no answer")))
    loading = idle.service.load_order_keys("G")
    idle.settle()
    idle.advance(LOAD_S - 0.5)
    assert not loading.done
    idle.advance(1)
    text = "keys of group G are not known: its queues were not loaded at this proxy within 3 s; try again"
    with pytest.raises(TryLaterError, match=text):
        loading.result()
    assert idle.group().waiting.observers == []
    monkeypatch.undo()
    idle.advance(1)
    assert [row["state"] for row in list_keys(idle)] == ["parked"]


def test_owners_that_are_unknown_are_reported(idle: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.backend, "holders", lambda *_: failed(RemoteError("no answer")))
    with pytest.raises(TryLaterError, match=r"it is not known which proxy owns its queues \(no answer\)"):
        list_keys(idle)
    assert not joined(idle)
    groups = AdminGroups(idle.backend, idle.service, idle.metrics, idle.clock)
    shown = groups.show_group("G", 20)
    assert shown["blocked_keys"] == []
    assert "it is not known which proxy owns its queues" in shown["blocked_keys_error"]
    monkeypatch.undo()
    shown = groups.show_group("G", 20)
    assert ([row["state"] for row in shown["blocked_keys"]], shown["blocked_keys_error"]) == (["parked"], "")

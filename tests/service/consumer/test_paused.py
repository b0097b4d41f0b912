"""A paused subscription delivers nothing, and everything else about it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from backend.records import CommitBatch
from ddmq_common.config import Overlay
from ddmq_common.errors import CallerError
from proxy_consumer.config import GroupEntry, GroupsFile
from proxy_consumer.fetches.fetch import Fetch
from proxy_consumer.groups.group import encode_subscription, stored_subscription, subscription_key
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, result
from tests.service.consumer.fetch_calls import ack, fetch, finish, shown, start_fetch, values
from tests.support.waits import until

QUICK = replace(FIRST, ack_timeout_ms=1_000, retry_intervals_ms=(500,))
BROADCAST = replace(FIRST, model="broadcasting")


def change(rig: ConsumerRig, settings: Mapping[str, Any], topic: str = "T") -> Any:
    changed = rig.wait(rig.service.change_subscription("G", topic, settings))
    rig.settle()
    return changed


def pause(rig: ConsumerRig, topic: str = "T") -> None:
    change(rig, {"paused": True}, topic)


def resume(rig: ConsumerRig, topic: str = "T") -> None:
    change(rig, {"paused": False}, topic)


def test_a_waiting_pull_stays_and_ends_empty(rig: ConsumerRig) -> None:
    rig.ready()
    waiting = rig.start_pull(linger=1_000)
    pause(rig)
    rig.send(3)
    rig.advance(0.5)
    assert not waiting.answered
    rig.advance(0.6)
    assert waiting.offsets == []
    assert rig.pull(topic=None).offsets == []
    assert rig.progress().committed in (None, 0)


def test_a_waiting_pull_gets_its_messages_when_the_group_is_resumed(rig: ConsumerRig) -> None:
    rig.ready(3)
    pause(rig)
    waiting = rig.start_pull(linger=10_000)
    rig.advance(1.0)
    assert not waiting.answered
    resume(rig)
    rig.settle(lambda: waiting.answered)
    assert waiting.offsets == [0, 1, 2]


def test_what_clients_hold_can_be_finished_while_paused(rig: ConsumerRig) -> None:
    rig.ready(6, QUICK)
    assert rig.pull(count=5).offsets == [0, 1, 2, 3, 4]
    pause(rig)
    assert rig.submit(result([0, 1])).result is True
    assert rig.progress().committed == 2
    rig.submit(result(fail=[2]))
    assert rig.start_pull(result=result([3])).open, "results in a pull count, and the pull waits"
    rig.settle()
    assert rig.progress().finished == ((3, 4),)
    rig.advance(2.0)  # the retry of 2 is due, and the lease of 4 is over
    assert rig.pull().offsets == []
    assert rig.counted("ddmq_lease_timeouts_total") == 1
    resume(rig)
    redelivered = [rig.pull(clientId=b"me").result.messages for _ in range(2)]
    attempts = [(message.offset, message.attempt) for messages in redelivered for message in messages]
    assert attempts == [(2, 2), (4, 2), (5, 1)], "each expired once, and nothing is passed over"


def test_a_message_that_uses_up_its_deliveries_becomes_a_dead_letter_while_paused(rig: ConsumerRig) -> None:
    rig.ready(1, replace(FIRST, retry_intervals_ms=(), retry_steps=0))
    rig.pull()
    pause(rig)
    rig.submit(result(fail=[0]))
    until(lambda: rig.backend.topic("%DLQ%G") is not None)
    until(lambda: rig.progress().committed == 1)


@pytest.mark.parametrize("order_key", ["", "KEY", "QID"])
def test_order_and_progress_are_what_they_were(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(config=replace(FIRST, order_key=order_key, batch_max=1))
    rig.keyed("a0", "a1", "b0", "a2")
    first = rig.pull()
    assert first.values == [b"a0"]
    pause(rig)
    rig.keyed("b1")
    rig.submit(result([0]))
    assert rig.pull().offsets == []
    resume(rig)
    order = []
    for _ in range(4):
        (message,) = rig.pull().result.messages
        order.append(message.value)
        rig.submit(result([message.offset]))
    assert [value for value in order if value.startswith(b"a")] == [b"a1", b"a2"]
    assert [value for value in order if value.startswith(b"b")] == [b"b0", b"b1"]
    assert rig.progress().committed == 5


def test_a_paused_topic_does_not_stop_the_other_topics_of_its_group(rig: ConsumerRig) -> None:
    rig.ready(2, topics=("T", "U"))
    pause(rig)
    assert rig.pull(topic=None).result.context.topic == b"U"
    assert rig.pull(topic=None).offsets == []
    resume(rig)
    assert rig.pull(topic=None).result.context.topic == b"T"


def test_with_an_order_over_the_group_a_paused_topic_holds_its_keys_in_the_others(rig: ConsumerRig) -> None:
    rig.ready(config=replace(FIRST, order_key="KEY"), topics=("T", "U"))
    rig.keyed("a0")
    rig.keyed("a1", "b0", topic="U")
    pause(rig)
    assert rig.pull(topic=b"U").values == [b"b0"]
    assert rig.pull(topic=b"U").values == []
    resume(rig)
    assert rig.pull(topic=b"T").values == [b"a0"]


def test_it_stays_paused_over_a_restart_and_at_every_proxy(rig: ConsumerRig) -> None:
    rig.ready(3)
    other = ConsumerRig(backend=rig.backend)
    pause(rig)
    assert other.pull().offsets == []
    rig.restart()
    assert rig.pull().offsets == []
    waiting = other.start_pull(linger=20_000)
    resume(rig)
    until(lambda: waiting.answered or rig.start_pull().answered)


def test_it_is_shown_with_the_time_since_when(rig: ConsumerRig) -> None:
    rig.ready()
    since_ms = rig.clock.wall_ms()
    pause(rig)
    rig.clock.advance(60)
    pause(rig)
    (stats,) = rig.wait(rig.service.group_stats("G"))
    assert stats.paused_ms == since_ms, "since it was paused first"
    assert rig.counted("ddmq_subscription_paused", group="G", topic="T") == 1
    resume(rig)
    (stats,) = rig.wait(rig.service.group_stats("G"))
    assert stats.paused_ms == 0
    assert rig.counted("ddmq_subscription_paused") == 0


def test_the_gauge_of_a_deleted_subscription_is_zero(rig: ConsumerRig) -> None:
    rig.ready()
    pause(rig)
    rig.wait(rig.service.delete_group("G"))
    rig.settle()
    assert rig.counted("ddmq_subscription_paused") == 0
    rig.subscribe()
    rig.send(1)
    assert rig.pull().offsets == [0], "a new subscription under the name is not paused"


def test_a_client_is_told_that_the_group_is_paused(rig: ConsumerRig) -> None:
    rig.ready(1)
    pause(rig)
    notice = rig.pull(clientId=b"me").result.notice
    assert notice == (
        b"group G is paused on topic T since 2023-11-14T22:13:20+00:00: nothing is delivered until "
        b"`ddmq group resume G --topic T`"
    )
    assert rig.pull(clientId=b"me", topic=None).result.notice == notice
    resume(rig)
    assert rig.pull(clientId=b"me").result.notice is None


def test_nothing_is_busy_while_paused(rig: ConsumerRig) -> None:
    """Neither a rate limit nor what is ready again is due again and again."""
    rig.ready(5, replace(QUICK, rate_max=1, retry_intervals_ms=(100,)))
    rig.pull()
    waiting = rig.start_pull(linger=20_000)
    rig.submit(result(fail=[0]))
    pause(rig)
    rig.advance(5.0)
    assert not waiting.answered
    assert rig.service.next_due() > rig.clock.monotonic()


# --- fetch


def test_a_fetch_gets_nothing_and_may_acknowledge(rig: ConsumerRig) -> None:
    rig.ready(4)
    fetched = fetch(rig, count=2)["T", 0]
    assert values(fetched) == [b"m0", b"m1"]
    pause(rig)
    assert ack(rig, {"T": {0: 2}})
    assert rig.progress().committed == 2
    empty = fetch(rig)["T", 0]
    assert (values(empty), empty.nextRequestOffset) == ([], 2)
    waiting = start_fetch(rig, linger=20_000)
    rig.advance(1.0)
    assert not waiting.answered
    resume(rig)
    assert values(shown(finish(rig, waiting))["T", 0]) == [b"m2", b"m3"]


def test_a_fetch_of_two_topics_gets_those_of_the_one_that_is_not_paused(rig: ConsumerRig) -> None:
    rig.ready(2, topics=("T", "U"))
    pause(rig)
    results = fetch(rig)
    assert [len(one.messages) for one in results.values()] == [0, 2]


def test_a_broadcast_fetch_learns_its_place_while_paused(rig: ConsumerRig) -> None:
    rig.ready(2, BROADCAST)
    pause(rig)
    place = fetch(rig)["T", 0].nextRequestOffset
    assert place == 2, "without an offset: the end"
    rig.send(1)
    assert values(fetch(rig, offsets={"T": {0: place}})["T", 0]) == []
    resume(rig)
    assert values(fetch(rig, offsets={"T": {0: place}})["T", 0]) == [b"m0"]


def test_an_instance_that_begins_while_paused_misses_nothing_after_its_first_pull(rig: ConsumerRig) -> None:
    rig.ready(2, BROADCAST)
    pause(rig)
    assert rig.pull(group=b"G%one").result.messages == []
    rig.send(2)
    waiting = rig.start_pull(group=b"G%one", linger=20_000)
    rig.advance(0.1)
    assert not waiting.answered
    resume(rig)
    assert finish(rig, waiting).offsets == [2, 3]


def test_an_exact_fetch_gets_the_bounds_and_no_message(rig: ConsumerRig) -> None:
    rig.ready(2, BROADCAST)
    exact = {"clientId": b"me", "topics": [b"T"], "model": b"broadcasting", "exact": True}
    pause(rig)
    one = fetch(rig, offsets={"T": {0: 0}}, **exact)["T", 0]
    assert (values(one), one.nextRequestOffset, one.endOffset) == ([], 0, 2)
    waiting = start_fetch(rig, offsets={"T": {0: 0}}, linger=20_000, **exact)
    rig.settle()
    resume(rig)
    assert values(shown(finish(rig, waiting))["T", 0]) == [b"m0", b"m1"]


def test_a_change_of_another_group_wakes_no_fetch(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ready(0, BROADCAST)
    waiting = [rig.start_pull(group=b"G%one", linger=20_000)]
    exact = {"clientId": b"me", "topics": [b"T"], "model": b"broadcasting", "exact": True}
    waiting.append(start_fetch(rig, offsets={"T": {0: 0}}, linger=20_000, **exact))
    rig.settle()
    woken: list[Fetch] = []
    monkeypatch.setattr(Fetch, "on_woken", lambda fetch: woken.append(fetch))
    rig.subscribe("H", "T")
    assert woken == []
    change(rig, {"batch_max": 5})
    assert len(woken) == 2


# --- stalls


@pytest.mark.parametrize("order_key", ["", "KEY"])
def test_a_paused_subscription_does_not_stand_still(rig: ConsumerRig, order_key: str) -> None:
    rig.ready(3, replace(FIRST, order_key=order_key), topics=("T", "U"))
    pause(rig)
    for _ in range(60):
        rig.start_pull(topic=b"T", linger=1_000)
        rig.start_pull(topic=b"U", linger=1_000)
        rig.advance(1.0)
    assert rig.counted("ddmq_stalled_queues") == 0
    assert rig.service.stalled("G") == []


# --- the setting


def owned_by_file(rig: ConsumerRig, **settings: Any) -> None:
    file = GroupsFile({"G": GroupEntry({"T": Overlay(settings)})})
    rig.wait(rig.service.declare(file, "groups.yaml"))


def test_what_a_file_owns_can_be_paused_and_a_reload_does_not_resume_it(rig: ConsumerRig) -> None:
    rig.topic()
    owned_by_file(rig, start="first", batch_max=2)
    rig.send(3)
    pause(rig)
    owned_by_file(rig, start="first", batch_max=3)
    assert rig.pull().offsets == []
    assert rig.subscription().config.batch_max == 3
    with pytest.raises(CallerError, match=r"is defined in groups\.yaml"):
        rig.service.change_subscription("G", "T", {"paused": False, "batch_max": 1})
    assert rig.subscription().paused_ms, "nothing of a rejected change is applied"
    resume(rig)
    assert rig.pull().offsets == [0, 1, 2]


def test_a_subscription_can_be_created_paused(rig: ConsumerRig) -> None:
    rig.topic()
    rig.send(2)
    created = change(rig, {"paused": True, "start": "first"})
    assert (created.before, bool(created.paused_ms)) == (None, True)
    assert rig.pull().offsets == []
    rig.restart()
    assert rig.pull().offsets == []
    resumed = rig.wait(rig.service.change_subscription("G", "T", {}, ["paused"]))
    assert (bool(resumed.paused_before_ms), resumed.paused_ms) == (True, 0)
    assert rig.pull().offsets == [0, 1]


def test_other_settings_change_while_it_is_paused_and_leave_it_so(rig: ConsumerRig) -> None:
    rig.ready(2)
    pause(rig)
    changed = change(rig, {"batch_max": 1})
    assert changed.paused_ms == changed.paused_before_ms > 0
    change(rig, {"order_key": "KEY"})  # reloads the queues
    assert rig.pull().offsets == []
    resume(rig)
    assert rig.pull().offsets == [0]


@pytest.mark.parametrize("paused", [1, 0, "true", None, [], {}, 1.0])
def test_only_true_and_false_are_allowed(rig: ConsumerRig, paused: object) -> None:
    rig.ready()
    with pytest.raises(CallerError, match=r"group G, topic T: paused is .*; allowed: true, false"):
        rig.service.change_subscription("G", "T", {"paused": paused})
    with pytest.raises(CallerError, match="set in the same request"):
        rig.service.change_subscription("G", "T", {"paused": True}, ["paused"])
    assert not rig.subscription().paused_ms


def test_what_is_not_paused_is_stored_as_before(rig: ConsumerRig) -> None:
    assert encode_subscription({}, 5, "log") == b'{"created_ms":5,"source":"log","settings":{}}'
    assert stored_subscription("k", encode_subscription({}, 5, "log")).paused_ms == 0
    assert stored_subscription("k", encode_subscription({}, 5, "log", 7)).paused_ms == 7


@pytest.mark.parametrize("paused_ms", ["soon", -1, 1 << 62, True, None])
def test_a_damaged_value_is_reported_and_changes_nothing(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture, paused_ms: Any
) -> None:
    rig.ready(1)
    value = encode_subscription({"start": "first"}, 1, "log", 1).replace(b'"paused_ms":1', b'"paused_ms":%b')
    text = {None: b"null", True: b"true", "soon": b'"soon"'}.get(paused_ms, str(paused_ms).encode())
    batch = CommitBatch(settings={subscription_key("G", "T"): value % text})
    rig.wait(rig.backend.commit(batch, rig.deadline()))
    rig.settle()
    assert "subscription not loaded" in caplog.text
    assert rig.pull().offsets == [0]

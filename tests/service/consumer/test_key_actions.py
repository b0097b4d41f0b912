"""What parking, skipping and replaying a key comes to: true of its head in every state that it can be in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddmq.server.admin import keys
from ddmq_common.errors import CallerError, RemoteError
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, FakeCall

BY_KEY = SubscriptionDefaults(
    start="first", order_key="KEY", ack_timeout_ms=10_000, retry_intervals_ms=(100,), ordered_deliveries_max=3
)


def act(rig: ConsumerRig, action: str, **more: Any) -> dict[str, Any]:
    """The key's one head, with the outcome."""
    done = keys.act_on_key(rig.service, "G", action, "a", **more)
    (head,) = done["heads"]
    return dict(head)


def pull(rig: ConsumerRig, client: bytes = b"billing-7f9") -> FakeCall:
    return rig.pull(clientId=client)


def lease_of(call: FakeCall) -> int:
    return int(call.result.messages[0].leaseId)


def answer(rig: ConsumerRig, call: FakeCall, *, failed: bool = False) -> FakeCall:
    """The client of this delivery acknowledges its first message, or fails it."""
    kind = "fail" if failed else "success"
    result = {f"{kind}Offsets": [0], f"{kind}Leases": [lease_of(call)]}
    return rig.submit(IDL.ConsumeResult(context=call.result.context, **result))


def extend(rig: ConsumerRig, call: FakeCall) -> FakeCall:
    result = {"extendLeases": [lease_of(call)], "extendOffsets": [0]}
    return rig.submit(IDL.ConsumeResult(context=call.result.context, **result))


@pytest.fixture
def held(rig: ConsumerRig) -> FakeCall:
    """The delivery of the first of two messages of a key, to a client that says nothing more."""
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2")
    call = pull(rig)
    assert call.values == [b"a1"]
    return call


def test_a_replay_leaves_a_message_in_flight_and_says_with_whom_and_until_when(
    rig: ConsumerRig, held: FakeCall
) -> None:
    began_ms = rig.clock.wall_ms()
    head = act(rig, "replay")
    assert (head["outcome"], head["state"], head["offset"]) == ("in flight", "in flight", 0)
    assert (head["client"], head["address"], head["extended"]) == ("billing-7f9", "test:1", False)
    assert head["leased_ms"] == pytest.approx(began_ms, abs=100)
    assert head["until_ms"] == pytest.approx(began_ms + 10_000, abs=100)
    assert pull(rig, b"other").result.messages == [], "nobody else gets it"
    answer(rig, held)
    assert pull(rig).values == [b"a2"], "its acknowledgement counts"


def test_an_extended_lease_is_shown_as_such(rig: ConsumerRig, held: FakeCall) -> None:
    rig.advance(8)
    extend(rig, held)
    (row,) = keys.list_blocked_keys(rig.service, "G", 20)
    assert (row["client"], row["extended"]) == ("billing-7f9", True)
    assert row["until_ms"] - rig.clock.wall_ms() == pytest.approx(10_000, abs=100)
    assert rig.clock.wall_ms() - row["leased_ms"] == pytest.approx(8_000, abs=100)


def test_taking_a_message_away_delivers_it_to_others_and_fences_the_client(
    rig: ConsumerRig, held: FakeCall
) -> None:
    head = act(rig, "replay", take_away=True)
    assert (head["outcome"], head["client"]) == ("taken away", "billing-7f9")
    again = pull(rig, b"other")
    assert (again.values, again.result.messages[0].attempt) == ([b"a1"], 2)
    answer(rig, held)
    answer(rig, held, failed=True)
    extend(rig, held)
    (row,) = keys.list_blocked_keys(rig.service, "G", 20)
    assert (row["state"], row["client"], row["attempts"]) == ("in flight", "other", 2)
    assert row["error"] == "taken away by an operator"
    assert pull(rig).result.messages == [], "what stands behind it waits"
    answer(rig, again)
    assert rig.progress().committed == 1
    assert pull(rig).values == [b"a2"]


def test_a_delivery_that_was_taken_away_is_remembered_over_a_restart(
    rig: ConsumerRig, held: FakeCall
) -> None:
    act(rig, "replay", take_away=True)
    rig.settle()
    rig.restart()
    again = pull(rig)
    assert (again.values, again.result.messages[0].attempt) == ([b"a1"], 2)


def test_where_a_message_has_one_delivery_taking_it_away_says_that_it_dies(rig: ConsumerRig) -> None:
    rig.ready(config=replace(BY_KEY, ordered_deliveries_max=1))
    rig.keyed("a1", "a2")
    pull(rig)
    assert act(rig, "replay", take_away=True)["outcome"] == "to the dead letters"
    rig.settle(lambda: rig.counted("ddmq_dead_letters_total") == 1)
    assert pull(rig).values == [b"a2"]


def test_where_used_up_keys_are_parked_a_message_that_is_taken_away_is_delivered_again(
    rig: ConsumerRig,
) -> None:
    """Its one delivery is used up, but the operator has asked for another: nothing stays parked."""
    rig.ready(config=replace(BY_KEY, ordered_deliveries_max=1, on_dead_letter="park"))
    rig.keyed("a1", "a2")
    call = pull(rig)
    assert act(rig, "replay", take_away=True)["outcome"] == "taken away"
    rig.settle()
    assert "parked" not in [row["state"] for row in keys.list_blocked_keys(rig.service, "G", 20)]
    again = pull(rig, b"other")
    assert again.values == [b"a1"]
    answer(rig, call)
    answer(rig, again)
    assert pull(rig).values == [b"a2"]
    assert rig.counted("ddmq_dead_letters_total") == 0


@pytest.mark.parametrize("take_away", [False, True])
def test_a_parked_key_whose_head_is_in_flight(rig: ConsumerRig, held: FakeCall, take_away: bool) -> None:
    assert act(rig, "park")["outcome"] == "in flight"
    done = keys.act_on_key(rig.service, "G", "replay", "a", take_away)
    assert done["parked"]
    assert [head["outcome"] for head in done["heads"]] == ["taken away" if take_away else "in flight"]
    assert pull(rig).values == ([b"a1"] if take_away else [])
    assert rig.service.order_keys("G").parked_keys == frozenset()


def test_a_parked_key_that_nothing_waits_for(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.pull()
    assert keys.act_on_key(rig.service, "G", "park", "a")["heads"] == []
    done = keys.act_on_key(rig.service, "G", "replay", "a")
    assert (done["parked"], done["heads"]) == (True, [])
    with pytest.raises(CallerError, match='key "a" of group G is not blocked or parked at this proxy'):
        keys.act_on_key(rig.service, "G", "replay", "a")


def test_a_replay_of_a_head_that_nobody_has_pulled_says_so(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.put_keyed("a", "a", topic="U")
    rig.pull(topic=b"T")
    assert act(rig, "replay")["outcome"] == "ready"


@pytest.mark.parametrize("parked", [False, True])
def test_a_replay_of_a_head_that_waits_delivers_it(rig: ConsumerRig, held: FakeCall, parked: bool) -> None:
    answer(rig, held, failed=True)
    if parked:
        assert act(rig, "park")["outcome"] == "parked"
    assert pull(rig).result.messages == []
    assert act(rig, "replay")["outcome"] == "replayed"
    assert pull(rig).values == [b"a1"]


def test_a_replay_of_a_head_on_its_way_to_the_dead_letters_says_so(rig: ConsumerRig, held: FakeCall) -> None:
    rig.backend.hold()
    state = next(iter(rig.subscription("T").buffer.queues.values()))
    state.dead_letter(0, "failed")
    assert act(rig, "replay")["outcome"] == "to the dead letters"


def test_a_skip_of_a_message_in_flight_names_who_had_it(rig: ConsumerRig, held: FakeCall) -> None:
    head = act(rig, "skip")
    assert (head["outcome"], head["state"], head["client"]) == ("dead letter", "in flight", "billing-7f9")
    answer(rig, held)
    assert pull(rig).values == [b"a2"]


def test_a_skip_whose_queue_is_lost_meanwhile_is_no_dead_letter(rig: ConsumerRig, held: FakeCall) -> None:
    rig.backend.fail_next(RemoteError("no answer"))
    skipped = rig.service.order_keys("G").skip('"a"')
    rig.settle()
    subscription = rig.subscription("T")
    subscription.membership.claims.lost(list(subscription.buffer.queues))
    rig.advance(2)
    ((_, outcome),) = rig.wait(skipped)
    assert outcome == "moved to another proxy"
    assert rig.counted("ddmq_dead_letters_total") == 0


def test_a_skip_of_a_message_that_retention_has_deleted_says_so(rig: ConsumerRig, held: FakeCall) -> None:
    rig.backend.lose(next(iter(rig.subscription("T").buffer.queues)), 0)
    assert act(rig, "skip")["outcome"] == "expired"

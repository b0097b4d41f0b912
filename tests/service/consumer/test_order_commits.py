"""The next message of a key is delivered when the commit of the acknowledgement before it is answered."""

from __future__ import annotations

import pytest

from ddmq.server.admin import keys
from ddmq_client.idl.codes import Code
from ddmq_common.errors import RemoteError
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig, FakeCall, result

BY_KEY = SubscriptionDefaults(start="first", order_key="KEY", retry_intervals_ms=(100,))


@pytest.fixture
def first(rig: ConsumerRig) -> FakeCall:
    """The delivery of the heads of two keys."""
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "b1", "a2", "a3", "b2")
    call = rig.pull()
    assert call.values == [b"a1", b"b1"]
    return call


def waiting(rig: ConsumerRig, count: int | None = None) -> FakeCall:
    """A pull that may wait for a minute."""
    call = rig.start_pull(linger=60_000, count=count)
    rig.settle()
    return call


def test_a_waiting_pull_gets_the_next_with_the_commit(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    waiter = waiting(rig)
    acking = rig.start_pull(result=result([0]), linger=60_000)
    rig.settle()
    rig.advance(0.1)
    assert not waiter.answered
    assert not acking.answered
    rig.backend.resume_writes()
    rig.settle()
    assert waiter.values == [b"a2"]
    assert not acking.answered


def test_the_pull_that_acknowledges_gets_the_next_of_its_keys(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    acking = rig.start_pull(result=result([0, 1]), linger=60_000)
    rig.advance(0.1)
    assert not acking.answered
    rig.backend.resume_writes()
    rig.settle()
    assert acking.values == [b"a2", b"b2"]


def test_all_acknowledgements_of_one_call_share_the_commit(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    later = waiting(rig, count=1), waiting(rig, count=1)
    rig.start_pull(result=result([0], then=result([1])), linger=0)
    rig.backend.resume_writes()
    rig.settle()
    assert [call.values for call in later] == [[b"a2"], [b"b2"]]


def test_a_failed_commit_releases_nothing_until_it_is_repeated(rig: ConsumerRig, first: FakeCall) -> None:
    waiter = waiting(rig)
    rig.backend.fail_next(RemoteError("no answer"))
    refused = rig.start_pull(result=result([0]))
    rig.settle()
    assert refused.outcome.error.code == Code.BACKEND_FAILED
    assert not waiter.answered
    rig.backend.pause_writes()
    rig.advance(2.0)  # it is committed again
    assert not waiter.answered
    rig.backend.resume_writes()
    rig.settle()
    assert waiter.values == [b"a2"]
    assert rig.progress().committed == 1


def test_a_resent_acknowledgement_releases_it(rig: ConsumerRig, first: FakeCall) -> None:
    waiter = waiting(rig)
    rig.backend.fail_next(RemoteError("no answer"))
    rig.start_pull(result=result([0]))
    rig.settle()
    assert not waiter.answered
    assert rig.submit(result([0])).result is True
    rig.settle()
    assert waiter.values == [b"a2"]


def test_a_queue_that_is_lost_releases_nothing(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    waiter = waiting(rig)
    acking = rig.start_pull(result=result([0]))
    rig.settle()
    subscription = rig.subscription()
    subscription.membership.claims.lost(list(subscription.buffer.queues))
    rig.backend.resume_writes()
    rig.settle()
    assert not waiter.answered
    assert not acking.answered or acking.values == []


def test_a_crash_before_the_commit_repeats_the_first_and_nothing_behind_it(
    rig: ConsumerRig, first: FakeCall
) -> None:
    rig.backend.fail_next(RemoteError("no answer"), times=9)
    rig.start_pull(result=result([0, 1]))
    rig.settle()
    assert rig.pull(linger=0).values == []
    rig.backend.fail_next(RemoteError("no answer"), times=0)
    rig.restart()
    assert rig.pull().values == [b"a1", b"b1"]


def test_a_planned_stop_stores_what_was_acknowledged(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    rig.start_pull(result=result([0, 1]), linger=60_000)
    drained = rig.service.drain(rig.clock.monotonic() + 10)
    rig.settle()
    assert not drained.done
    rig.backend.resume_writes()
    rig.settle()
    rig.advance(0.01)
    assert drained.done
    assert rig.progress().committed == 2


def test_an_operator_sees_what_the_key_waits_for(rig: ConsumerRig, first: FakeCall) -> None:
    rig.backend.pause_writes()
    rig.start_pull(result=result([0]))
    rig.settle()
    rows = {row["key"]: row for row in keys.list_blocked_keys(rig.service, "G", 20)}
    assert (rows['"a"']["state"], rows['"a"']["offset"], rows['"a"']["waiting"]) == (
        "being acknowledged",
        0,
        2,
    )
    assert rows['"b"']["state"] == "in flight"


@pytest.mark.parametrize(
    ("action", "outcome"), [("replay", "being acknowledged"), ("skip", "acknowledged"), ("park", "parked")]
)
def test_an_operator_changes_nothing_of_what_is_being_stored(
    rig: ConsumerRig, first: FakeCall, action: str, outcome: str
) -> None:
    acking = rig.start_pull(result=result([0]), linger=60_000)
    rig.backend.pause_writes()
    rig.settle()
    done = keys.act_on_key(rig.service, "G", "replay" if action == "park" else action, "a")
    assert [head["outcome"] for head in done["heads"]] == [outcome.replace("parked", "being acknowledged")]
    rig.backend.resume_writes()
    rig.settle()
    assert acking.values == [b"a2"]


def test_an_unordered_group_does_not_wait(rig: ConsumerRig) -> None:
    rig.ready(4)
    assert rig.pull(count=2).offsets == [0, 1]
    rig.backend.pause_writes()
    rig.start_pull(result=result([0, 1]))
    assert rig.pull(linger=0).offsets == [2, 3]

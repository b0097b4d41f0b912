"""What parking, skipping and replaying a key comes to: true of its head in every state that it can be in."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq.server.admin import keys
from ddmq_common.errors import RemoteError
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


def extend(rig: ConsumerRig, call: FakeCall) -> FakeCall:
    result = {"extendLeases": [lease_of(call)], "extendOffsets": [0]}
    return rig.submit(IDL.ConsumeResult(context=call.result.context, **result))


@pytest.fixture
def leased_head(rig: ConsumerRig) -> FakeCall:
    """The delivery of the first of two messages of a key, to a client that says nothing more."""
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2")
    call = pull(rig)
    assert call.values == [b"a1"]
    return call


def test_an_extended_lease_is_shown_as_such(rig: ConsumerRig, leased_head: FakeCall) -> None:
    rig.advance(8)
    extend(rig, leased_head)
    (row,) = keys.list_blocked_keys(rig.service, "G", 20)
    assert (row["client"], row["extended"]) == ("billing-7f9", True)
    assert row["until_ms"] - rig.clock.wall_ms() == pytest.approx(10_000, abs=100)
    assert rig.clock.wall_ms() - row["leased_ms"] == pytest.approx(8_000, abs=100)


def test_a_replay_of_a_head_on_its_way_to_the_dead_letters_says_so(
    rig: ConsumerRig, leased_head: FakeCall
) -> None:
    rig.backend.pause_writes()
    state = next(iter(rig.subscription("T").buffer.queues.values()))
    state.dead_letter(0, "failed")
    assert act(rig, "replay")["outcome"] == "to the dead letters"


def test_a_skip_whose_queue_is_lost_meanwhile_is_no_dead_letter(
    rig: ConsumerRig, leased_head: FakeCall
) -> None:
    rig.backend.fail_next(RemoteError("no answer"))
    skipped = rig.service.order_keys("G").skip('"a"')
    rig.settle()
    subscription = rig.subscription("T")
    subscription.membership.claims.lost(list(subscription.buffer.queues))
    rig.advance(2)
    ((_, outcome),) = rig.wait(skipped)
    assert outcome == "moved to another proxy"
    assert rig.counted("ddmq_dead_letters_total") == 0

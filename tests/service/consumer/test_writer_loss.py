"""The writer is lost: queues that come back to another of the proxies that live go with what clients have."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq_common.errors import RemoteError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.subscription.membership import SETTINGS_WAIT_S, leases_key
from proxy_consumer.subscription.subscription import Subscription
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, result

ORDERS = {
    "plain": {},
    "qid": {"order_key": "QID"},
    "queue": {"order_key": "KEY", "order_scope": "queue"},
    "group": {"order_key": "KEY"},
}


class Two(ConsumerRig):
    """Two proxies; the first holds everything, clients have offsets 0 to 2 of one queue."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.topic()
        self.subscribe(config=SubscriptionDefaults(start="first", concurrency=3, **ORDERS[order]))
        self.send(6)
        self.calls = [self.pull(count=3, clientId=b"c") for _ in range(3)]
        self.leased_offsets = sorted(offset for call in self.calls for offset in call.offsets)
        self.first = (self.service, self.handlers)
        self.start()
        self.second = (self.service, self.handlers)

    def at(self, proxy: Any) -> Subscription:
        self.service, self.handlers = proxy
        subscription: Subscription = self.subscription()
        return subscription

    def lose_the_writer(self, *, notify_first_late: bool = False) -> None:
        """Both hear of it; the second joins the next one before the first does."""
        for proxy in (self.first, self.second):
            subscription = self.at(proxy)
            if notify_first_late and proxy is self.first:
                subscription.membership.claims._membership.leave()  # type: ignore[union-attr]
                continue
            subscription.membership.claims.lost(list(subscription.buffer.queues))
            subscription.membership.leave()
        self.at(self.second).on_use(self.clock.monotonic())

    def offsets(self, proxy: Any) -> list[int]:
        self.at(proxy)
        call = self.start_pull(count=3, clientId=b"d")
        for _ in range(6):
            self.advance(0.01)
        return call.offsets if call.answered else []


@pytest.fixture(params=list(ORDERS))
def two(request: pytest.FixtureRequest) -> Two:
    return Two(request.param)


def test_leased_messages_are_not_redelivered_and_acknowledgements_count(two: Two) -> None:
    assert two.leased_offsets
    two.lose_the_writer()
    assert not set(two.offsets(two.second)) & set(two.leased_offsets)
    for call in two.calls:
        if call.offsets:
            leases = [message.leaseId for message in call.result.messages]
            two.at(two.second)
            assert two.submit(result(call.offsets, successLeases=leases)).result is True
    two.settle()
    assert two.progress().committed == len(two.leased_offsets)
    assert two.backend.setting(leases_key("G", two.ref())) is None


def test_word_that_comes_a_little_later_is_waited_for(two: Two) -> None:
    two.lose_the_writer(notify_first_late=True)
    assert two.offsets(two.second) == []
    late = two.at(two.first)
    late.membership.claims.lost(list(late.buffer.queues))
    assert not set(two.offsets(two.second)) & set(two.leased_offsets)


def test_a_proxy_that_died_says_nothing_and_is_not_waited_for_long(two: Two) -> None:
    two.lose_the_writer(notify_first_late=True)
    two.advance(SETTINGS_WAIT_S)
    assert 0 in two.offsets(two.second)


def test_a_late_handover_is_dropped(two: Two) -> None:
    two.lose_the_writer(notify_first_late=True)
    two.advance(SETTINGS_WAIT_S)
    two.offsets(two.second)
    late = two.at(two.first)
    late.membership.claims.lost(list(late.buffer.queues))
    two.settle()
    assert two.backend.setting(leases_key("G", two.ref())) is None


def test_acknowledgements_that_could_not_be_stored_at_that_moment_are_carried(two: Two) -> None:
    two.at(two.first)
    two.backend.fail_next(RemoteError("the writer is gone"))
    call = next(call for call in two.calls if call.offsets)
    leases = [message.leaseId for message in call.result.messages]
    refused = two.submit(result(call.offsets, successLeases=leases))
    assert refused.outcome.error is not None
    two.lose_the_writer()
    assert not set(two.offsets(two.second)) & set(call.offsets)
    two.advance(31)  # no client has anything any more
    assert not set(two.offsets(two.second)) & set(call.offsets)
    assert two.progress().committed >= len(call.offsets)


def test_leases_that_ran_out_while_the_queue_had_no_owner_are_no_time_outs(rig: ConsumerRig) -> None:
    rig.ready(1, FIRST)
    assert rig.pull().offsets == [0]
    rig.directory.stop()
    rig.settle()
    rig.advance(60)
    rig.start()
    assert rig.pull(clientId=b"c").result.messages[0].attempt == 1


@pytest.mark.parametrize("killed", [True, False])
def test_handover_wait_ms_waits_for_a_proxy_that_was_killed_and_for_no_other(
    rig: ConsumerRig, killed: bool
) -> None:
    rig.topic()
    config = SubscriptionDefaults(start="first", order_key="KEY", handover_wait_ms=8_000)
    rig.subscribe(config=config)
    rig.send(2)
    assert rig.pull(count=1).offsets == [0], "nobody had it before: no wait"
    if killed:
        subscription: Subscription = rig.subscription()
        subscription.membership.claims._membership.leave()  # type: ignore[union-attr]
    else:
        rig.directory.stop()
    rig.settle()
    rig.start()
    rig.advance(1)
    leased_offsets = [rig.pull(count=1).offsets for _ in range(2)]
    assert leased_offsets == [[], []] if killed else 0 not in leased_offsets[0]
    rig.advance(8)
    assert (rig.pull(count=1).offsets == [0]) is killed

"""A paused push subscription: nothing is pushed, and what was taken for a push comes again afterwards."""

from __future__ import annotations

import pytest

from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.support.waits import until


def set_paused(rig: PushRig, paused: bool) -> None:
    rig.wait(rig.service.change_subscription("G", "T", {"paused": paused}))
    rig.settle()


def bodies(receiver: Receiver) -> list[str]:
    return [request.fields["params"] for request in receiver.requests]


def test_nothing_is_pushed_until_it_is_resumed(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url())
    rig.put(b"before")
    rig.until_committed(1)
    set_paused(rig, True)
    rig.put(b"meanwhile")
    for _ in range(20):
        rig.advance(0.1)
    assert bodies(receiver) == ["before"]
    set_paused(rig, False)
    rig.until_committed(2)
    assert bodies(receiver) == ["before", "meanwhile"]


def test_a_push_under_way_ends_and_counts(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url())
    rig.put(b"under way")
    until(lambda: len(receiver.requests) == 1)
    set_paused(rig, True)
    receiver.hold.set()
    rig.until_committed(1)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("order_key", ["", "KEY", "QID"])
def test_what_waits_for_an_attempt_waits_in_its_queue(
    rig: PushRig, receiver: Receiver, order_key: str
) -> None:
    receiver.answers.extend([(500, b"")] * 3)
    rig.http(receiver.url(), order_key=order_key, ack_timeout_ms=3_600_000)
    rig.put(b"0", b"1", b"2", key=b"k")
    until(lambda: rig.outcomes().get("again", 0) >= (1 if order_key else 3))
    pushed = len(receiver.requests)
    set_paused(rig, True)
    assert rig.subscription().buffer.budget.leased == 0, "nothing stays in flight"
    for _ in range(40):
        rig.advance(0.1)
    assert len(receiver.requests) == pushed
    set_paused(rig, False)
    rig.until_moved(lambda: rig.progress().committed == 3)
    if order_key:
        assert list(dict.fromkeys(bodies(receiver))) == ["0", "1", "2"]
    assert rig.counted("ddmq_lease_timeouts_total") == 0


def test_an_error_during_a_pause_is_not_attempted_again(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    receiver.answers.append((500, b""))
    rig.http(receiver.url())
    rig.put(b"fails")
    until(lambda: len(receiver.requests) == 1)
    set_paused(rig, True)
    receiver.hold.set()
    until(lambda: rig.outcomes().get("again", 0) == 1)
    for _ in range(40):
        rig.advance(0.1)
    assert len(receiver.requests) == 1
    set_paused(rig, False)
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert len(receiver.requests) == 2

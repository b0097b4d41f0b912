"""Fetches with `exact`: ranges by offset, bounds, nothing assigned and nothing remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddmq_common.metrics.catalogue import LAG
from ddmq_common.names import SCHEDULE_TOPIC
from ddmq_rpc.api import Wire
from proxy_consumer.groups.unowned import REFRESH_S
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig
from tests.service.consumer.fetch_calls import fetch, shown, start_fetch, values
from tests.support.waits import until

EXACT = {"clientId": b"me", "topics": [b"T"], "model": b"broadcasting", "exact": True}


@pytest.fixture
def shelf(rig: ConsumerRig) -> ConsumerRig:
    """Group G broadcasts topic T of 2 queues with 3 messages each."""
    rig.ready(config=replace(FIRST, model="broadcasting"), queues=2)
    for queue in range(2):
        rig.send(3, queue)
    return rig


@pytest.mark.parametrize("wire", list(Wire))
def test_only_named_queues_are_read_and_their_bounds_returned(shelf: ConsumerRig, wire: Wire) -> None:
    results = fetch(shelf, offsets={"T": {1: 1}}, count=1, wire=wire, **EXACT)
    assert list(results) == [("T", 1)], "the other queue is not asked for"
    one = results["T", 1]
    assert (values(one), one.nextRequestOffset) == ([b"m1"], 2)
    assert (one.firstOffset, one.endOffset) == (0, 3)


@pytest.mark.parametrize("wire", list(Wire))
def test_without_offsets_only_the_bounds_of_every_queue_are_returned(shelf: ConsumerRig, wire: Wire) -> None:
    results = fetch(shelf, wire=wire, **EXACT)
    assert {at: (one.firstOffset, one.endOffset, one.messages) for at, one in results.items()} == {
        ("T", 0): (0, 3, []),
        ("T", 1): (0, 3, []),
    }


def test_the_same_range_gives_the_same_messages_to_anyone_at_any_time(shelf: ConsumerRig) -> None:
    for consumer in ("a", "b", "a"):
        results = fetch(shelf, consumer, offsets={"T": {0: 0}}, **EXACT)
        assert values(results["T", 0]) == [b"m0", b"m1", b"m2"]
    assert shelf.progress().committed == 0, "no place of the group has moved"


def test_an_offset_out_of_range_is_answered_with_the_next_valid_one(shelf: ConsumerRig) -> None:
    one = fetch(shelf, offsets={"T": {0: 99}}, **EXACT)["T", 0]
    assert (one.messages, one.nextRequestOffset, one.endOffset) == ([], 3, 3)


def test_a_fetch_at_the_end_waits_and_is_woken(shelf: ConsumerRig) -> None:
    call = start_fetch(shelf, offsets={"T": {0: 3}}, linger=10_000, **EXACT)
    shelf.settle()
    assert not call.answered
    shelf.send(1, queue=0)
    until(lambda: call.answered)
    assert values(shown(call)["T", 0]) == [b"m0"]


@pytest.mark.parametrize("missing", ["model", "topics"])
def test_exact_is_rejected_without_broadcast_topics(shelf: ConsumerRig, missing: str) -> None:
    named = {name: value for name, value in EXACT.items() if name != missing}
    call = start_fetch(shelf, offsets={"T": {0: 0}}, **named)
    assert b"exact is set, but not model=broadcasting" in call.outcome.success.error


def test_a_group_that_is_shared_out_is_not_read_exactly(shelf: ConsumerRig) -> None:
    shelf.subscribe("H", "T")
    call = start_fetch(shelf, group="H", offsets={"T": {0: 0}}, **EXACT)
    assert b"reads T as clustering, not as broadcasting" in call.outcome.success.error


def test_a_group_without_stored_offsets_has_no_lag(shelf: ConsumerRig) -> None:
    """Else an alert on lag would never end where a pipeline only reads ranges."""
    shelf.topic(SCHEDULE_TOPIC, 18)
    shelf.subscribe("H", "T", config=FIRST)
    for _ in range(3):  # who holds what is asked for at one look and shown at the next
        shelf.clock.advance(REFRESH_S + 1)
        shelf.metrics.run_collectors()
        shelf.settle()
    lag = {group: shelf.metrics.cell(LAG, group, "T").value for group in "GH"}
    assert lag == {"G": 0, "H": 6}, "H is shared out, and nobody pulls"

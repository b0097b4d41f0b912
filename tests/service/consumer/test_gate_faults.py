"""Messages that fail at an action before a pull: failed jobs with a reason; never delivered or left over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.records import NewRecord
from ddmq_common.delivery import decode, encode
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig, result

PLAIN = SubscriptionDefaults(
    start="first", actions=("Json", "PullServer"), retry_intervals_ms=(100,), retry_steps=0
)
ORDERED = replace(PLAIN, order_key="KEY", ordered_interval_ms=100, ordered_deliveries_max=2)


@pytest.fixture
def rig() -> ConsumerRig:
    rig = ConsumerRig()
    rig.topic()
    return rig


def put(rig: ConsumerRig, *bodies: bytes) -> None:
    """Messages of one key."""
    records = [
        NewRecord("T", 0, bytes(16), rig.clock.wall_ms(), encode(b"k", body, b"", None), b"k")
        for body in bodies
    ]
    rig.wait(rig.backend.append(records, rig.deadline()))


def all_of_it(rig: ConsumerRig, count: int, committed: int) -> list[bytes]:
    """What is delivered, each answer acknowledged with the next pull, until everything is finished."""
    delivered: list[bytes] = []
    acks = None
    for _ in range(200):
        call = rig.pull(count=count, result=acks)
        delivered += call.values
        acks = result(call.offsets) if call.offsets else None
        if rig.progress().committed == committed:
            return delivered
        rig.advance(0.05)
    raise AssertionError((delivered, rig.progress()))


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("config", [PLAIN, ORDERED, replace(ORDERED, chain_batch=3)])
def test_what_fails_is_never_delivered_and_a_dead_letter(
    rig: ConsumerRig, config: SubscriptionDefaults, count: int
) -> None:
    rig.subscribe(config=config)
    put(rig, b"1", b"{", b"2", b"3", b"[", b"4", b"5", b"(", b")", b"6")
    delivered = all_of_it(rig, count, 10)
    assert sorted(delivered) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    if config.order_key:
        assert delivered == sorted(delivered)
    batch = rig.wait(rig.backend.read(rig.ref(topic="%DLQ%G"), 0, 100, 1 << 20))
    letters = [decode(raw) for raw in batch.deliveries]
    assert sorted(letter.value for letter in letters) == [b"(", b")", b"[", b"{"]
    assert all(b"not JSON" in letter.properties[b"dead-letter-error"] for letter in letters)
    state = next(iter(rig.subscription().buffer.queues.values()))
    assert state.stream is None or not state.stream.faulty
    assert not state.table.jobs


def test_attempts_are_counted_over_a_restart(rig: ConsumerRig) -> None:
    config = replace(PLAIN, retry_intervals_ms=(100, 200))
    rig.subscribe(config=config)
    put(rig, b"{", b"1")
    assert rig.pull().values == [b"1"]
    rig.submit(result([1]))
    rig.advance(0.11)
    rig.pull()
    rig.advance(1.0)
    assert set(rig.progress().attempts.values()) == {2}
    rig.restart()
    assert rig.pull().values == []
    rig.advance(0.21)
    assert rig.pull().values == []
    rig.advance(1.0)
    assert rig.progress().committed == 2
    assert rig.counted("ddmq_dead_letters_total") == 1


@pytest.mark.parametrize("config", [PLAIN, ORDERED])
def test_with_the_actions_removed_it_is_delivered_once(
    rig: ConsumerRig, config: SubscriptionDefaults
) -> None:
    config = replace(config, retry_intervals_ms=(60_000,))
    rig.subscribe(config=config)
    put(rig, b"{", b"1", b"[", b"2")
    before = rig.pull(count=1).values
    rig.wait(rig.service.change_subscription("G", "T", {"actions": ()}))
    rig.settle()
    acks, delivered = (result([1]) if before else None), list(before)
    for _ in range(20):
        call = rig.pull(count=1, result=acks)
        delivered += call.values
        acks = result(call.offsets) if call.offsets else None
        rig.advance(10.0)
    assert sorted(delivered) == [b"1", b"2", b"[", b"{"]
    if config.order_key:
        assert delivered == [b"{", b"1", b"[", b"2"]
    assert rig.progress().committed == 4

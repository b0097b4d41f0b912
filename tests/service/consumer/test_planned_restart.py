"""A consumer proxy that is stopped as planned, and its successor.

No acknowledgement is answered and lost, however long handlers work and whoever asks first afterwards, and
nothing is handled twice.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from ddmq_client import Message
from ddmq_client.aio import AsyncConsumer
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.subscription.subscription import Subscription
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, result
from tests.service.consumer.test_client_queue import PROXY, Handlers, ready
from tests.service.consumer.test_retry_path import FIRST, RetryPathRig
from tests.service.consumer.virtual_time import run

ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "qid": {"order_key": "QID"},
    "queue": {"order_key": "KEY", "order_scope": "queue"},
    "group": {"order_key": "KEY"},
}
ADDRESS = "127.0.0.1:1"  # as a server has one


def stop(rig: ConsumerRig) -> None:
    """Planned; clients have more to do than it waits for."""
    drained = rig.service.drain(rig.clock.monotonic() + 10)
    for _ in range(40):
        rig.advance(0.05)
    assert drained.done


def with_one_at_a_client(count: int) -> tuple[ConsumerRig, Any]:
    """A proxy with `count` messages, and the acknowledgement of the first, which a client of ours has."""
    rig = ConsumerRig()
    rig.service.advertise(ADDRESS)
    rig.ready()
    rig.send(count)
    return rig, acknowledgement(rig.pull(count=1, clientId=b"c"), with_leases=True)


def acknowledgement(call: Any, *, with_leases: bool) -> Any:
    leases = [message.leaseId for message in call.result.messages] if with_leases else None
    context = call.result.context
    return IDL.ConsumeResult(context=context, successOffsets=call.offsets, successLeases=leases)


def submit(rig: ConsumerRig, consume_result: Any) -> Any:
    call = rig.call("submit", METHODS["submit"].args[0](result=consume_result))
    return answered(rig, call)


def answered(rig: ConsumerRig, call: Any) -> Any:
    for _ in range(10):
        rig.advance(0.01)
    assert call.answered
    return call


@pytest.mark.parametrize("with_leases", [True, False])
@pytest.mark.parametrize("order", list(ORDERS))
def test_results_at_the_stopping_or_the_next_proxy_count(order: str, with_leases: bool) -> None:
    rig = ConsumerRig()
    rig.service.advertise(ADDRESS)
    rig.ready(2, SubscriptionDefaults(start="first", chain_batch=1, **ORDERS[order]))
    calls = [rig.pull(count=1, clientId=b"c" if with_leases else None) for _ in range(2)]
    consume_results = [acknowledgement(call, with_leases=with_leases) for call in calls if call.offsets]
    stop(rig)
    for each in consume_results:
        assert b"send the results again" in submit(rig, each).outcome.error.message
    rig.start().advertise(ADDRESS)
    assert all(submit(rig, each).result is True for each in consume_results), "nobody has pulled yet"
    assert rig.progress().committed == len(consume_results)
    rig.advance(31)
    assert rig.pull(clientId=b"d").offsets == list(range(len(consume_results), 2))


def test_a_pull_that_brings_them_gets_what_comes_next() -> None:
    rig, consume_result = with_one_at_a_client(2)
    stop(rig)
    rig.start().advertise(ADDRESS)
    assert rig.pull(result=consume_result, clientId=b"c").offsets == [1]
    assert rig.progress().committed == 1


def test_what_came_over_the_retry_path_counts_as_well() -> None:
    house = RetryPathRig()
    house.service.advertise(ADDRESS)
    house.topic()
    house.subscribe(config=FIRST)
    house.send(1)
    house.fail()
    house.advance(0.2)
    house.fail()
    house.advance(11)
    call = house.pull(clientId=b"c")
    assert b"%RETRY%" in call.result.context.qid
    stop(house)
    house.start().advertise(ADDRESS)
    assert submit(house, acknowledgement(call, with_leases=True)).result is True
    assert house.retry_progress() == 1


def test_late_acknowledgements_are_reported_for_a_queue_without_an_owner() -> None:
    """After kill -9 there is no word of what clients have; they hear that it did not count."""
    rig, consume_result = with_one_at_a_client(1)
    rig.restart()
    rig.service.advertise(ADDRESS)
    call = rig.call("settle", METHODS["settle"].args[0](request=IDL.SettleRequest(result=consume_result)))
    answered(rig, call)
    assert [late.offsets for late in call.result.late] == [[0]]


@pytest.mark.interpreted
def test_results_wait_for_a_queue_that_does_not_come_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ConsumerRig()
    rig.service.advertise(ADDRESS)
    rig.ready()
    monkeypatch.setattr(Subscription, "join_alone", lambda *_: None)
    call = rig.call("submit", METHODS["submit"].args[0](result=result([0])))
    rig.settle()
    rig.advance(1.9)
    assert not call.answered
    rig.advance(0.1)
    assert b"between two owners" in call.outcome.error.message


def test_results_of_a_broadcasting_group_are_ignored() -> None:
    rig = ConsumerRig()
    rig.service.advertise(ADDRESS)
    rig.ready(config=SubscriptionDefaults(model="broadcasting"))
    assert rig.submit(result([0])).result is True
    assert rig.counted("ddmq_results_ignored_total", group="G", reason="unknown queue") == 1


@pytest.mark.parametrize("seed", range(4))
def test_planned_restarts_under_load_repeat_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers work for longer than the proxy waits for them; each message is handled once."""
    random, ordered, count = Random(seed), seed % 2 == 1, 40
    rig = ready(count, ordered)
    rig.service.advertise(ADDRESS)
    handlers = Handlers(ordered)

    async def handle(message: Message) -> None:
        await handlers.handle(message, random.choice([0.01, 0.3, 1.5, 4.0]))

    async def work() -> None:
        consumer = AsyncConsumer(
            PROXY, "G", "T", handler=handle, concurrency=6, max_batch=random.choice([1, 8, 32]), linger_ms=200
        )
        await consumer.start()
        for _ in range(4):
            await asyncio.sleep(random.random() * 3)
            drained = rig.service.drain(rig.clock.monotonic() + 10)
            while not drained.done:
                await asyncio.sleep(0.01)
            await asyncio.sleep(random.choice([0.0, 0.5]))  # other parts of the server stop, too
            rig.start().advertise(ADDRESS)
        for _ in range(1_000):
            await asyncio.sleep(0.1)
            if len(handlers.done) == count:
                break
        assert await consumer.stop()
        assert consumer.counts().late == 0, f"seed {seed}"

    run(rig, work(), monkeypatch)
    rig.advance(31)
    assert set(handlers.calls.values()) == {1}, f"seed {seed}"
    assert len(handlers.calls) == count, f"seed {seed}"
    assert rig.progress().committed == count, f"seed {seed}"
    assert rig.counted("ddmq_lease_timeouts_total") == 0, f"seed {seed}"

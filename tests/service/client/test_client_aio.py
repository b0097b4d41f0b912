"""The asyncio twins against the same faults; cancellation; settling from other threads."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest

from ddmq_client import (
    BusyError,
    ClientError,
    ClosedError,
    InvalidMessageError,
    Message,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    PullError,
    UnknownOutcomeError,
)
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from ddmq_client.core.nodes import ProxyAddress
from tests.service.client.standin import (
    AFTER,
    BEFORE,
    FAULT,
    GARBAGE,
    HALF,
    HOLD,
    OTHER_SEQUENCE,
    PULL_ERROR,
    Standin,
    refuse,
)
from tests.support.waits import loop_until

UNKNOWN = [AFTER, BEFORE, HALF, GARBAGE, OTHER_SEQUENCE, FAULT, refuse(12)]


def run(test: Callable[[], Awaitable[None]]) -> None:
    """In debug mode, and with nothing left behind."""

    async def run_all() -> None:
        await test()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left

    asyncio.run(run_all(), debug=True)


def bodies(count: int) -> list[bytes]:
    return [b"m%d" % at for at in range(count)]


def test_sending(proxy: Standin) -> None:
    async def test() -> None:
        async with AsyncProducer(proxy.address, connections_max=8) as producer:
            result = await producer.send("t", "grün", key="k", shard_key=-7)
            assert (result.stored, result.offset, result.proxy) == (True, 0, proxy.address)
            many = await asyncio.gather(*[producer.send("t", body) for body in bodies(50)])
            assert sorted(result.offset or 0 for result in many) == list(range(1, 51))
            batch = await producer.send_batch([OutgoingMessage("t", body) for body in [*bodies(3), b""]])
            assert [result.stored for result in batch] == [True, True, True, False]
            await producer.send_oneway(OutgoingMessage("t", b"one"))
            await loop_until(lambda: len(proxy.stored) == 55)
        with pytest.raises(ClosedError):
            await producer.send("t", b"late")

    run(test)
    assert (proxy.stored[0].body, proxy.stored[0].hashId) == ("grün".encode(), -7)
    assert proxy.connections <= 8


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("allowed", [False, True])
def test_unknown_outcomes(proxy: Standin, fault: object, allowed: bool) -> None:
    async def test() -> None:
        proxy.faults["sendSync"].append(fault)
        async with AsyncProducer(proxy.address, retry_unknown=allowed) as producer:
            if allowed:
                assert (await producer.send("t", b"x")).stored
                return
            with pytest.raises(UnknownOutcomeError):
                await producer.send("t", b"x")
            assert len(proxy.calls) == 1
            assert (await producer.send("t", b"y")).stored

    run(test)
    assert len(proxy.calls) == 2


@pytest.mark.slow
def test_certain_outcomes(proxy: Standin, other: Standin) -> None:
    async def test() -> None:
        proxy.faults["sendSync"].extend([refuse(15), refuse(20), refuse(11)])
        async with AsyncProducer(proxy.address) as producer:
            assert (await producer.send("t", b"x", timeout_ms=20_000)) is not None

    with pytest.raises(InvalidMessageError):
        run(test)
    assert len(proxy.calls) == 3

    async def dead() -> None:
        other.stop()
        async with AsyncProducer([other.address, proxy.address]) as producer:
            results = [await producer.send("t", b"x") for _ in range(6)]
            assert {result.proxy for result in results} == {proxy.address}
            await producer.send_oneway(OutgoingMessage("t", b"x"))
            other.restart()
            await loop_until(lambda: (other.address, True) in producer.proxies())
        other.stop()
        async with AsyncProducer(other.address) as producer:
            with pytest.raises(NotStoredError, match="cannot connect"):
                await producer.send("t", b"x", timeout_ms=1_000)
            with pytest.raises(NotStoredError, match="cannot connect"):
                await producer.send_oneway(OutgoingMessage("t", b"x"), timeout_ms=1_000)
        async with AsyncProducer("no-such-host.invalid") as producer:
            with pytest.raises(NotStoredError, match="no name"):
                await producer.send("t", b"x")

    run(dead)


def test_time_outs_cancellation_and_the_connection_bound(proxy: Standin) -> None:
    async def test() -> None:
        async with AsyncProducer(proxy.address, connections_max=1) as producer:
            assert (await producer.send("t", b"connected")).stored
            proxy.faults["sendSync"].extend([HOLD, HOLD])
            with pytest.raises(UnknownOutcomeError, match="within"):
                await producer.send("t", b"slow", timeout_ms=500)
            task = asyncio.create_task(producer.send("t", b"cancelled"))
            await loop_until(lambda: len(proxy.calls) == 3)
            with pytest.raises(BusyError, match="all 1 connections"):
                await producer.send("t", b"busy", timeout_ms=50)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.release()
            proxy.release()
            assert (await producer.send("t", b"after")).stored, "late answers are taken for nobody's"

    run(test)


def test_handlers(proxy: Standin) -> None:
    proxy.put("t", *bodies(200))
    most = running = 0

    async def handle(message: Message) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        if message.body == b"m7" and message.attempt == 1:
            raise ValueError("told to fail")

    async def test() -> None:
        consumer = AsyncConsumer(proxy.address, "g", "t", handler=handle, concurrency=8, linger_ms=50)
        async with consumer:
            await loop_until(lambda: len(proxy.done) == 200)
        counts = consumer.counts()
        assert (counts.acked, counts.failed, counts.handler_errors) == (200, 1, 1)

    run(test)
    assert 1 < most <= 8


def test_batch_handlers_settle_in_threads(proxy: Standin) -> None:
    proxy.put("t", *bodies(12))

    async def handle(messages: list[Message]) -> None:
        for message in messages:
            await asyncio.to_thread(message.extend)
            assert await asyncio.to_thread(message.ack)

    async def test() -> None:
        async with AsyncConsumer(
            proxy.address, "g", "t", batch_handler=handle, auto_ack=False, max_batch=8, linger_ms=50
        ):
            await loop_until(lambda: len(proxy.done) == 12)

    run(test)


@pytest.mark.parametrize("fault", [BEFORE, GARBAGE, FAULT, PULL_ERROR])
def test_results_are_sent_until_they_arrive(proxy: Standin, fault: object) -> None:
    proxy.put("t", *bodies(2))

    async def test() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", ack_flush_ms=60_000) as consumer:
            for message in await consumer.pull(2, 20_000):
                message.ack()
            proxy.faults["pull"].append(fault)
            proxy.put("t", b"next")
            (message,) = await consumer.pull(1, 20_000)
            assert proxy.done == {("t", 0), ("t", 1)}
            assert consumer.counts().pull_errors == 1
            assert consumer.last_error
            proxy.faults["submit"].append(BEFORE if fault is PULL_ERROR else fault)
            message.fail(delay_ms=60_000)
        assert consumer.counts().submit_errors == 1, "the rest is submitted at the end, and once more"

    run(test)
    assert any(result.failOffsets == [2] for result in proxy.results)


def test_pulling_and_iterating(proxy: Standin) -> None:
    proxy.put("t", *bodies(10))

    async def test() -> None:
        consumer = AsyncConsumer(proxy.address, "g", ["t"], linger_ms=50)
        assert [message.body for message in await consumer.pull(3, 20_000)] == bodies(3)
        assert len(proxy.leases) == 3
        received = []
        async for message in consumer:
            received.append(message.body)
            message.ack()
            if len(received) == 2:
                break
        async for message in consumer:
            received.append(message.body)
            message.ack()
            if len(received) == 7:
                await consumer.stop()
        assert received == bodies(10)[3:]
        with pytest.raises(ClosedError):
            await consumer.pull()
        with pytest.raises(ClientError, match="started once"):
            await consumer.start()

    run(test)
    assert len(proxy.done) == 7


async def refused(consumer: AsyncConsumer) -> bool:
    try:
        assert await consumer.pull(1, 500) == []
    except PullError:
        return True
    return False


@pytest.mark.slow
def test_a_rejected_pull_and_invalid_arguments_raise(proxy: Standin) -> None:
    async def test() -> None:
        proxy.faults["pull"].extend([PULL_ERROR] * 50)
        async with AsyncConsumer(proxy.address, "g", "t", linger_ms=20) as consumer:
            with pytest.raises(PullError, match="filter is wrong"):
                await consumer.pull(1, 1_000)
            proxy.faults["pull"].clear()
            async with asyncio.timeout(60):
                while await refused(consumer):  # what was under way, and the pause after it
                    pass
        with pytest.raises(ClientError, match="has a handler"):
            await AsyncConsumer("h:1", "g", handler=print).pull()

    run(test)
    with pytest.raises(OptionError):
        AsyncConsumer("h:1", "g", concurrency=0)
    with pytest.raises(OptionError, match="both set"):
        AsyncConsumer("h:1", "g", handler=print, batch_handler=print)


def test_cancelling_ends_at_once_and_leaves_nothing_running(proxy: Standin) -> None:
    proxy.put("t", *bodies(5))
    entered = 0

    async def handle(message: Message) -> None:
        nonlocal entered
        entered += 1
        await asyncio.Event().wait()

    async def body(consumer: AsyncConsumer) -> None:
        async with consumer:
            await asyncio.Event().wait()

    async def test() -> None:
        consumer = AsyncConsumer(proxy.address, "g", "t", handler=handle)
        task = asyncio.create_task(body(consumer))
        await loop_until(lambda: entered == 5)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # the first lets `stop` begin, this one ends it
        with pytest.raises(asyncio.CancelledError):
            await task
        with contextlib.suppress(asyncio.TimeoutError):
            await loop_until(lambda: len(asyncio.all_tasks()) == 1)

    run(test)
    assert not proxy.done


def test_stop_gives_up_at_its_deadline(proxy: Standin) -> None:
    proxy.put("t", b"x")
    entered = False

    async def handle(message: Message) -> None:
        nonlocal entered
        entered = True
        await asyncio.Event().wait()

    async def test() -> None:
        consumer = AsyncConsumer(proxy.address, "g", "t", handler=handle, linger_ms=20)
        await consumer.start()
        await loop_until(lambda: entered)
        assert not await consumer.stop(200)
        assert await consumer.stop()

    run(test)


def test_names_are_resolved_repeatedly(
    proxy: Standin, other: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = [proxy]

    async def resolve(addresses: object, cached: object) -> list[ProxyAddress]:
        return [ProxyAddress("127.0.0.1", standin.port) for standin in resolved]

    for module in ("router", "worker_pool"):
        monkeypatch.setattr(f"ddmq_client.aio.{module}.resolve_addresses", resolve)
        monkeypatch.setattr(f"ddmq_client.aio.{module}.RESOLVE_EVERY_S", 0.05)
    proxy.put("t", *bodies(2))
    unsettled: list[Message] = []

    async def test() -> None:
        async with (
            AsyncProducer("proxies.example") as producer,
            AsyncConsumer(
                "proxies.example", "g", "t", handler=unsettled.append, auto_ack=False, linger_ms=50
            ) as consumer,
        ):
            assert (await producer.send("u", b"x")).proxy == proxy.address
            await loop_until(lambda: len(unsettled) == 2)
            resolved[:] = [other]
            await loop_until(lambda: any(method == "pull" for method, _ in other.calls))
            await loop_until(lambda: producer.proxies() == [(other.address, True)])
            proxy.stop()
            for message in unsettled:
                message.ack()
            await loop_until(lambda: other.done == {("t", 0), ("t", 1)})
            assert consumer.client_id

    run(test)


def test_reasons_and_leases_while_a_handler_runs(proxy: Standin) -> None:
    proxy.put("t", b"a")

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            await loop_until(lambda: any(result.extendLeases for result in proxy.results))
            raise KeyError("no such order")

    async def test() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", handler=handle, lease_ms=600):
            await loop_until(lambda: ("t", 0) in proxy.done)

    run(test)
    reasons = [reason for result in proxy.results for reason in result.failReasons or ()]
    assert reasons == ["KeyError: 'no such order'"]


def test_a_handler_whose_work_was_cancelled_fails_its_message_alone(proxy: Standin) -> None:
    proxy.put("t", *bodies(6))

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            work = asyncio.get_running_loop().create_future()
            work.cancel()
            await work

    async def test() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", handler=handle, concurrency=2) as consumer:
            await loop_until(lambda: len(proxy.done) == 6)
        assert consumer.counts().handler_errors == 6

    run(test)


def test_a_handler_may_stop_its_consumer(proxy: Standin) -> None:
    proxy.put("t", *bodies(3))
    outcomes: list[bool] = []

    async def test() -> None:
        async def handle(message: Message) -> None:
            message.ack()
            outcomes.append(await consumer.stop(20_000))

        started = time.monotonic()
        consumer = AsyncConsumer(proxy.address, "g", "t", handler=handle, concurrency=1, linger_ms=20)
        async with consumer:
            await loop_until(lambda: len(outcomes) == 1)
        assert time.monotonic() - started < 10

    run(test)
    assert proxy.done


def test_what_a_loop_leaves_behind_goes_to_a_pull_that_waits(proxy: Standin) -> None:
    proxy.put("t", *bodies(3))

    async def test() -> None:
        async with AsyncConsumer(proxy.address, "g", "t") as consumer:
            async with contextlib.aclosing(aiter(consumer)) as loop:  # type: ignore[type-var]
                (await anext(loop)).ack()
                pulling = asyncio.create_task(consumer.pull(9, 20_000))
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                assert [message.body for message in await pulling] == [b"m1", b"m2"]

    run(test)

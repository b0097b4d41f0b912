"""The client's own queue under slow handlers, small leases, stops and live changes, in moved time.

Whatever happens: attempts are handler calls, no message is handled twice at a time, none is a dead letter
that no handler has seen often enough, and what one client hands back is at the others at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from ddmq.server.admin import offsets
from ddmq_client import LateResult, Message
from ddmq_client.aio import AsyncConsumer
from ddmq_client.received import get_lease_end
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.service.consumer.virtual_time import run

PROXY = "127.0.0.1:9713"
KEYS = 5  # k0 … k4, one after another


class Handlers:
    """What all handlers of a test saw, and what must hold whenever one starts."""

    def __init__(self, ordered: bool) -> None:
        self.calls: dict[int, int] = defaultdict(int)
        self.running: set[int] = set()
        self.done: set[int] = set()
        self.keys: dict[str, list[int]] = defaultdict(list)
        self._ordered = ordered

    async def handle(self, message: Message, seconds: float) -> None:
        offset = message.offset
        assert offset not in self.running, f"{offset} is handled twice at a time"
        self.calls[offset] += 1
        assert message.attempt == self.calls[offset], f"{offset}: an attempt that no handler saw"
        if self._ordered:
            key = str(message.key)
            assert not any(f"k{other % KEYS}" == key for other in self.running), f"key {key} runs twice"
            assert not self.keys[key] or self.keys[key][-1] < offset, f"key {key} out of order"
            self.keys[key].append(offset)
        self.running.add(offset)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running.discard(offset)
        self.done.add(offset)


def ready(count: int, ordered: bool, **changed: object) -> ConsumerRig:
    rig = ConsumerRig()
    rig.topic()
    order = {"order_key": "KEY", "chain_batch": 1} if ordered else {}
    settings: dict[str, object] = {"start": "first", "retry_steps": 0, "max_timeout_redeliveries": 0}
    rig.subscribe(config=SubscriptionDefaults(**settings | order | changed))  # type: ignore[arg-type]
    for start in range(0, count, KEYS):
        rig.send(min(KEYS, count - start))
    return rig


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_counted_that_no_handler_saw(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random, ordered, count = Random(seed), seed % 2 == 1, 40
    lease_ms = random.choice([200, 500, 2_000, 30_000])
    rig = ready(count, ordered, ack_timeout_ms=lease_ms)
    handlers = Handlers(ordered)
    broken: list[BaseException] = []

    def consumer() -> AsyncConsumer:
        slow = random.choice([0.0, 0.1, 1.0])

        async def handle(message: Message) -> None:
            seconds = (
                lease_ms / 1000 * random.choice([0.01, 0.1, 0.5, 4.0]) if random.random() < slow else 0.01
            )
            try:
                await handlers.handle(message, min(seconds, 8.0))
            except AssertionError as error:
                broken.append(error)

        return AsyncConsumer(
            PROXY, "G", "T", handler=handle, concurrency=random.choice([1, 2, 4]),
            max_batch=random.choice([1, 4, 32]), prefetch=32, linger_ms=200, client_id=f"c{random.random()}",
        )  # fmt: skip

    async def work() -> None:
        living = [consumer() for _ in range(2)]
        for each in living:
            await each.start()
        for _ in range(4_000):
            await asyncio.sleep(0.1)
            if len(handlers.done) == count or broken:
                break
            event = random.random()
            if event < 0.03:
                leaver = living.pop(0)
                living.append(consumer())
                await living[-1].start()
                assert await leaver.stop(60_000)
            elif event < 0.06:
                changed = {"ack_timeout_ms": random.choice([200, 700, 5_000])}
                rig.service.change_subscription("G", "T", changed)
        for each in living:
            assert await each.stop(60_000)

    run(rig, work(), monkeypatch)
    assert not broken, f"seed {seed}: {broken[0]}"
    assert handlers.done == set(range(count)), f"seed {seed}"
    assert set(handlers.calls.values()) == {1}, f"seed {seed}"
    assert rig.counted("ddmq_lease_timeouts_total") == 0, f"seed {seed}"
    assert rig.counted("ddmq_dead_letters_total") == 0, f"seed {seed}"


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("way", ["stop", "loop", "hand back"])
def test_what_is_handed_back_is_at_others_at_once(
    ordered: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ready(5, ordered)
    handlers = Handlers(ordered)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        first = AsyncConsumer(PROXY, "G", "T", client_id="first")
        messages = aiter(first)
        mine: list[Message] = []
        if way == "hand back":
            while len(mine) < 5:
                mine += await first.pull(5 - len(mine))
            assert mine[0].ack()
        else:
            (await anext(messages)).ack()
        second = AsyncConsumer(
            PROXY, "G", "T", handler=lambda message: handlers.handle(message, 0.0), linger_ms=30_000
        )
        await second.start()
        await asyncio.sleep(0.2)
        assert not handlers.done
        left_at = loop.time()
        if way == "hand back":
            assert [message.hand_back() for message in mine] == [False, True, True, True, True]
        else:
            await (first.stop() if way == "stop" else messages.aclose())  # type: ignore[attr-defined]
        while len(handlers.done) < 4:
            await asyncio.sleep(0.01)
            assert loop.time() - left_at < 0.3
        if way == "hand back":
            assert first.counts().returned == 4
        left_at = loop.time()
        assert await second.stop()
        assert loop.time() - left_at < 1.0, "its pull waits for 30 s"
        assert await first.stop()

    run(rig, work(), monkeypatch)


def test_a_slow_message_does_not_hold_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(20, False, ack_timeout_ms=3_000)
    handlers = Handlers(False)

    async def work() -> None:
        slow = AsyncConsumer(
            PROXY, "G", "T", handler=lambda message: handlers.handle(message, 25.0), concurrency=1
        )
        await slow.start()
        await asyncio.sleep(0.1)
        quick = AsyncConsumer(PROXY, "G", "T", handler=lambda message: handlers.handle(message, 0.0))
        await quick.start()
        await asyncio.sleep(3.0)
        assert len(handlers.done) == 19
        await asyncio.sleep(25.0)
        assert len(handlers.done) == 20
        assert slow.counts().acked == 1
        assert slow.counts().pulled - slow.counts().returned == 1
        for each in (slow, quick):
            assert await each.stop()

    run(rig, work(), monkeypatch)


def test_a_late_acknowledgement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(2, False, ack_timeout_ms=1_000, max_timeout_redeliveries=5)
    late: list[LateResult] = []
    acked: list[bool] = []

    async def work() -> None:
        async def handle(message: Message) -> None:
            await asyncio.sleep(3.0 if message.attempt == 1 else 0.0)
            acked.append(message.ack())

        consumer = AsyncConsumer(
            PROXY, "G", "T", handler=handle, extend_for_ms=0, on_late=late.append, concurrency=8
        )
        await consumer.start()
        await asyncio.sleep(6.0)
        assert await consumer.stop()
        assert consumer.counts().late == 2

    run(rig, work(), monkeypatch)
    assert sorted(acked) == [False, False, True, True]
    assert [(each.group, each.topic, each.offset, each.finished) for each in sorted(late)] == [
        ("G", "T", 0, True), ("G", "T", 1, True),
    ]  # fmt: skip


def test_a_dead_letter_needs_one_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(1, False)

    async def work() -> None:
        consumer = AsyncConsumer(PROXY, "G", "T")
        (message,) = await consumer.pull(1)
        assert message.dead_letter("no such customer")
        assert await consumer.stop()

    run(rig, work(), monkeypatch)
    rig.settle()
    assert rig.counted("ddmq_dead_letters_total", reason="given-up") == 1


def test_a_cancelled_block_hands_back_at_once_what_no_handler_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(5, False)
    handlers = Handlers(False)

    async def block() -> None:
        async with AsyncConsumer(
            PROXY, "G", "T", handler=lambda message: handlers.handle(message, 3.0), concurrency=1
        ):
            await asyncio.Event().wait()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        blocked = asyncio.create_task(block())
        await asyncio.sleep(0.2)
        assert handlers.running == {0}
        other = AsyncConsumer(
            PROXY, "G", "T", handler=lambda message: handlers.handle(message, 0.0), linger_ms=30_000
        )
        await other.start()
        cancelled_at = loop.time()
        blocked.cancel()
        while len(handlers.done) < 4:
            await asyncio.sleep(0.01)
            assert loop.time() - cancelled_at < 0.3
        assert handlers.done == {1, 2, 3, 4}
        with pytest.raises(asyncio.CancelledError):
            await blocked
        assert handlers.done == {0, 1, 2, 3, 4}, "the handler that ran has ended"
        assert await other.stop()

    run(rig, work(), monkeypatch)
    assert rig.counted("ddmq_lease_timeouts_total") == 0


def test_a_message_says_when_its_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(1, False, ack_timeout_ms=2_000, max_timeout_redeliveries=5)

    async def work() -> None:
        consumer = AsyncConsumer(PROXY, "G", "T")
        (message,) = await consumer.pull(1)
        expires_at = message.expires_at
        assert expires_at is not None
        assert abs(expires_at - datetime.now(UTC) - timedelta(seconds=2)) < timedelta(seconds=0.5)
        await asyncio.sleep(1.5)
        assert message.extend()
        assert message.expires_at is not None
        extended_s = (message.expires_at - expires_at).total_seconds()
        assert extended_s == pytest.approx(1.5, abs=0.01)
        await asyncio.sleep(1.0)
        assert not await consumer.pull(1, 100), "nobody else gets it"
        assert not message.lost
        await asyncio.sleep(1.1)
        (redelivered,) = await consumer.pull(1)
        assert redelivered.attempt == 2
        assert redelivered.expires_at is not None
        assert get_lease_end(redelivered) == pytest.approx(asyncio.get_running_loop().time() + 2.0)
        assert message.extend(), "whether it counts the proxy says"
        await asyncio.sleep(0.5)
        assert message.lost
        assert not redelivered.lost
        assert not message.ack()
        assert redelivered.ack()
        assert await consumer.stop()

    run(rig, work(), monkeypatch)


def test_a_handler_sees_that_its_message_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(1, False, ack_timeout_ms=3_000)
    attempts: list[list[bool]] = []

    async def work() -> None:
        async def handle(message: Message) -> None:
            attempts.append([])
            mine = attempts[-1]
            for _ in range(6):
                await asyncio.sleep(0.5)
                mine.append(message.lost)

        consumer = AsyncConsumer(PROXY, "G", "T", handler=handle)
        await consumer.start()
        await asyncio.sleep(0.2)
        offsets.reset(rig.backend, rig.clock, "G", "T", "first", None, dry_run=False)
        await asyncio.sleep(4.0)
        assert await consumer.stop()

    run(rig, work(), monkeypatch)
    first, redelivered = attempts
    assert (first[0], first[-1]) == (False, True), "the extension in between was too late"
    assert not any(redelivered)


def test_a_consumer_that_pauses_leaves_messages_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ready(5, False)
    mine, others = Handlers(False), Handlers(False)

    async def work() -> None:
        consumer = AsyncConsumer(
            PROXY, "G", "T", handler=lambda message: mine.handle(message, 3.0), concurrency=1
        )
        consumer.pause()
        await consumer.start()
        await asyncio.sleep(2.0)
        assert consumer.counts().pulled == 0
        consumer.resume()
        await asyncio.sleep(0.5)
        assert mine.running == {0}
        other = AsyncConsumer(PROXY, "G", "T", handler=lambda message: others.handle(message, 0.0))
        await other.start()
        consumer.pause()
        await asyncio.sleep(0.3)
        assert others.done == {1, 2, 3, 4}
        other.pause()
        rig.send(1)
        await asyncio.sleep(5.0)
        assert mine.done == {0}, "what it had it has ended"
        assert 5 not in mine.running | mine.done | others.done
        consumer.resume()
        await asyncio.sleep(4.0)
        assert mine.done == {0, 5}
        consumer.pause()
        for each in (consumer, other):
            assert await each.stop()

    run(rig, work(), monkeypatch)
    assert rig.counted("ddmq_lease_timeouts_total") == 0

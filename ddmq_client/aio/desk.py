"""Where an asyncio consumer's tasks meet: the prefetch buffer, and what each task waits for.

The twin of `net.desk`. Everything runs on one event loop, so nothing needs a lock; messages may be settled
from other threads all the same: their results are then handed over to the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence

from ddmq_client.core.acks import AckBatch, UnappliedResult, late_results
from ddmq_client.core.held import HeldMessages, keep_at
from ddmq_client.core.places import Places
from ddmq_client.core.prefetch_buffer import (
    ConsumerCounts,
    PrefetchBuffer,
    ProxyConnection,
    Source,
    wait_until,
)
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.net.desk import IDLE_WAKE_S, LEAVE_AGAIN_S, RIDE_S
from ddmq_client.net.teller import FirstAnswer, Teller
from ddmq_client.received import FetchedQueue, Message, Outcome
from ddmq_client.wire.consuming import Pulled


class Signal:
    """Wakes whoever waits; they look again at what they wait for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake all."""
        self._event.set()

    async def wait_until(self, holds: Callable[[], bool], until: float | None) -> bool:
        """Wait until `holds()`, at most until the loop's time `until`; what holds then."""
        while not holds():
            self._event.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._event.wait()
            except TimeoutError:
                return holds()
        return True


class AsyncDesk:
    """The shared state of one consumer, made and used on one event loop."""

    def __init__(self, settings: ConsumerSettings, handlers: bool, teller: Teller) -> None:
        self.settings = settings
        self.teller = teller
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._buffer = PrefetchBuffer(
            settings.prefetch,
            math.inf if settings.broadcasting else settings.lease_ms / 1000,
            settings.ack_flush_ms / 1000,
            settings.results_max,
            self._loop.time,
        )
        self._buffer.demand = None if handlers else 0
        self._buffer.places = self.places = Places() if settings.broadcasting else None
        self._held = HeldMessages(settings.extend_for_ms / 1000 if settings.keeps_leases else 0.0)
        self._demand_until = 0.0
        self._room = Signal()
        self._arrived = Signal()
        self._keeping = Signal()
        self._keep_at = 0.0  # when leases are looked at next
        self._due: dict[ProxyConnection, Signal] = {}
        self._busy = 0
        self.pulling_stopped = False
        self._handing_stopped = False
        self._flushing_stopped = False
        self._parked = 0  # pulls that are under way
        self.first = FirstAnswer()
        self.refusal: PullError | None = None
        self.last_error: str | None = None

    def proxy(self, name: str) -> ProxyConnection:
        """The state of this proxy."""
        proxy = self._buffer.proxy(name)
        self._due.setdefault(proxy, Signal())
        return proxy

    def counts(self) -> ConsumerCounts:
        """A copy of the counters."""
        return self._buffer.counts.copy()

    def hold(self, paused: bool) -> None:
        """As `Desk.hold`."""
        self._buffer.paused = paused
        if paused:
            self.hand_back()
        self._room.wake()

    # Pullers.

    async def wait_room(self, source: Source) -> tuple[int, int, AckBatch | None] | None:
        """(batch, linger in ms, results to carry) of the next pull; None when the source shall end."""

        def wanted() -> int:
            return self._buffer.wanted(source, self.settings.max_batch)

        def ending() -> bool:
            return self.pulling_stopped or source.ended

        while True:
            await self._room.wait_until(lambda: ending() or wanted() > 0, None)
            if source.open and not source.waiting:
                until = self._loop.time() + RIDE_S
                await self._room.wait_until(lambda: ending() or not source.open, until)
            if ending():
                return None
            if batch := wanted():
                self._parked += 1
                return batch, self._linger_ms(), self._buffer.pulling(source)

    def pulled(self, source: Source, answer: Pulled) -> None:
        """A pull was answered."""
        self._answered()
        self._buffer.arrived(
            source, answer.origin, answer.messages, self.settle, self.extend, answer.lease_ms
        )
        if self.pulling_stopped or self._buffer.paused:
            self.hand_back()
        if answer.messages:
            self._arrived.wake()
            if wait_until(answer.messages[0]) < self._keep_at:
                self._keeping.wake()

    def fetched(self, source: Source, group: str, queues: Sequence[FetchedQueue]) -> int:
        """A broadcast fetch was answered; how many messages came."""
        self._answered()
        count = self._buffer.fetched(source, group, queues, self.settle, self.extend)
        if count:
            self._arrived.wake()
        return count

    def pull_failed(self, source: Source, acks: AckBatch | None, error: BaseException) -> None:
        """A pull brought no answer."""
        self._parked -= 1
        self._buffer.pull_failed(source, acks)
        self.last_error = str(error) or repr(error)
        self.refusal = error if isinstance(error, PullError) else None
        self.first.failed(error)
        self._wake_flusher(source.proxy.present())

    async def pause(self, source: Source, seconds: float) -> None:
        """Wait before the next pull; ends early when the source shall end."""
        until = self._loop.time() + seconds
        await self._room.wait_until(lambda: self.pulling_stopped or source.ended, until)

    # Workers and callers of pull.

    async def next(self, count: int) -> list[Message]:
        """Messages for a worker; empty when it shall end. Report `handled` afterwards."""
        while True:
            if not (self._handing_stopped or len(self._buffer)):
                await self._wait_idle(count)
            if self._handing_stopped:
                return []
            if taken := self._take(count):
                self._busy += len(taken)
                now, me = self._loop.time(), asyncio.current_task()
                self._held.add(taken, now, me)
                if keep_at(taken[0]) < self._keep_at:
                    self._keeping.wake()
                return taken

    async def _wait_idle(self, count: int) -> None:
        self._buffer.idle += count
        if self._buffer.starved():
            self._room.wake()
        try:
            await self._arrived.wait_until(lambda: self._handing_stopped or len(self._buffer) > 0, None)
        finally:
            self._buffer.idle -= count

    def handled(self, messages: Sequence[Message], errors: int = 0) -> None:
        """A worker has finished with messages."""
        self._busy -= len(messages)
        self._held.remove(messages)
        self._buffer.counts.handler_errors += errors
        self._arrived.wake()

    async def keep(self) -> None:
        """Look after leases, for ever: as `Desk.keep`."""
        while True:
            await self._keeping.wait_until(_Once(), self._keep_at)
            now = self._loop.time()
            self.hand_back(now)
            for message in self._held.due(now):
                self.extend(message)
            self._keep_at = min(self._buffer.next_overdue(), self._held.next_due(now), now + IDLE_WAKE_S)

    def told(self, acks: AckBatch | None, told: Sequence[UnappliedResult]) -> None:
        """A proxy tells which results of a call changed nothing."""
        if not told or acks is None:
            return
        late, lost = late_results(acks, told)
        self._buffer.counts.late += len(late)
        self.teller.late(late, lost)

    def hand_back(self, now: float | None = None) -> None:
        """What waits here is for others: all of it, or what has waited too long by `now`."""
        proxies = self._buffer.hand_back(now)
        for proxy in proxies:
            self._wake_flusher(proxy)
        if proxies:
            self._arrived.wake()
            self._room.wake()

    async def ask(self, count: int, until: float, one: bool = False) -> list[Message]:
        """Messages for a caller that waits until the loop's time `until`; `one`: it takes one at a time."""
        if one:
            count = self._buffer.loop_batch(count)
        self._buffer.asking(count)
        self._demand_until = max(self._demand_until, until)
        self._room.wake()
        try:
            while await self._arrived.wait_until(
                lambda: self._handing_stopped or len(self._buffer) > 0, until
            ):
                if self._handing_stopped:
                    raise ClosedError("the consumer has been stopped")
                if taken := self._take(1 if one else count):
                    return taken
        finally:
            self._buffer.asked(count)
        if self.refusal is not None:
            raise self.refusal
        self.first.check(trying=self._parked > 0)
        return []

    def leave_loop(self) -> None:
        """A caller that took messages one by one takes no more: what waits is for others."""
        if not self._buffer.askers:
            self.hand_back()

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """What became of a message; from another thread it takes effect a moment later."""
        if threading.get_ident() != self._thread_id:
            open_yet = message.outcome is None and not self._buffer.is_over(message)
            self._loop.call_soon_threadsafe(self.settle, message, outcome, delay_ms, reason)
            return open_yet
        if not self._buffer.settle(message, outcome, delay_ms, reason):
            return False
        source = message.delivery.source
        assert isinstance(source, Source)
        if not source.open:
            self._room.wake()
        self._wake_flusher(source.proxy.present())
        return not self._buffer.is_over(message)

    def extend(self, message: Message) -> bool:
        """A message needs more time; from another thread it takes effect a moment later."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.extend, message)
            return message.outcome is None and message.lease_id is not None
        if not self._buffer.extend(message):
            return False
        assert isinstance(message.delivery.source, Source)
        self._wake_flusher(message.delivery.source.proxy.present())
        return True

    # Flushers.

    async def wait_due(self, proxy: ProxyConnection) -> AckBatch | None:
        """Results that must go by themselves now; None when flushing has stopped, or the proxy is gone."""
        due = self._due[proxy]
        while not (self._flushing_stopped or proxy.failover):
            if self._leaves(proxy):
                return self._buffer.take_results(proxy) or []
            wait = self._buffer.submit_due(proxy)
            if wait == 0.0:
                acks = self._buffer.take_results(proxy)
                if acks is not None:
                    return acks
            proxy.idle = wait is None
            again = LEAVE_AGAIN_S if self._parked and self.pulling_stopped else wait or IDLE_WAKE_S
            await due.wait_until(_Once(), self._loop.time() + again)
        return None

    def _leaves(self, proxy: ProxyConnection) -> bool:
        """As of `net.desk`: time to ask for the answers of pulls that wait at a proxy (again)."""
        now = self._loop.time()
        if not (self.pulling_stopped and self._parked and proxy.settles and proxy.leave_at <= now):
            return False
        proxy.leave_at = now + LEAVE_AGAIN_S
        return True

    def _answered(self) -> None:
        self.refusal = None
        self.first.came = True
        self._parked -= 1

    def take_rest(self, proxy: ProxyConnection) -> AckBatch | None:
        """Whatever is still owed to the proxy, one call's worth."""
        return self._buffer.take_results(proxy)

    def submitted(self, proxy: ProxyConnection, acks: AckBatch, error: BaseException | None) -> None:
        """A submit was answered, or failed: then its results are owed again."""
        self._buffer.counts.submits += 1
        if error is not None:
            self._buffer.counts.submit_errors += 1
            self.last_error = str(error) or repr(error)
            self._buffer.give_back(proxy, acks)
            self._wake_flusher(proxy.present())

    async def pause_flusher(self, proxy: ProxyConnection, seconds: float) -> None:
        """Wait before the next submit after a failed one; ends early when flushing stops."""
        until = self._loop.time() + seconds
        await self._due[proxy].wait_until(lambda: self._flushing_stopped or proxy.failover is not None, until)

    def retire(self, gone: ProxyConnection, failover: ProxyConnection) -> None:
        """A proxy is gone for good: another one takes and forwards its results. Its flusher ends."""
        self._buffer.retire(gone, failover)
        self._due.pop(gone).wake()
        self._wake_flusher(failover)

    # Stopping, in this order.

    def stop_pulling(self) -> None:
        """Pullers end after the pull that is under way."""
        self.pulling_stopped = True
        self._room.wake()
        self.hand_back()
        for due in self._due.values():
            due.wake()

    def end(self, source: Source) -> None:
        """This source's puller ends after the pull that is under way."""
        source.ended = True
        self._room.wake()

    async def wait_handled(self, until: float, alone: bool = False) -> bool:
        """Until workers have handled everything that waits; False when the time was up first.

        As of `net.desk`: a worker does not wait for what it holds itself.
        """
        if self._buffer.demand is not None:
            return True
        me = asyncio.current_task()
        mine = self._held.of(me)

        def handled() -> bool:
            return not (len(self._buffer) and not alone) and self._busy <= len(mine)

        in_time = await self._arrived.wait_until(handled, until)
        return in_time and not len(self._buffer) and all(message.outcome for message in mine)

    def stop_handing(self) -> None:
        """Workers end after what they hold; callers of `pull` get ClosedError."""
        self._handing_stopped = True
        self._arrived.wake()

    def stop_flushing(self) -> None:
        """Flushers submit the rest and end."""
        self._flushing_stopped = True
        for due in self._due.values():
            due.wake()

    def abandon(self) -> int:
        """Count the results that no proxy has taken."""
        return self._buffer.abandon()

    def _take(self, count: int) -> list[Message]:
        taken = self._buffer.take(count)
        self._room.wake()
        return taken

    def _linger_ms(self) -> int:
        linger_ms = self.settings.linger_ms
        if self._buffer.demand is None:
            return linger_ms
        return max(1, min(linger_ms, int((self._demand_until - self._loop.time()) * 1000)))

    def _wake_flusher(self, proxy: ProxyConnection) -> None:
        if proxy.idle or proxy.prompt or proxy.pending.urgent:
            proxy.idle = False
            self._due[proxy].wake()


class _Once:
    """False, then True: a wait that ends at the first wake."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        asked, self._asked = self._asked, True
        return asked

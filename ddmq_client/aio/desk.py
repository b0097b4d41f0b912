"""Where an asyncio consumer's tasks meet: the intake, and what each task waits for.

The twin of `net.desk`. Everything runs on one event loop, so nothing needs a lock; messages may be settled
from other threads all the same: their results are then handed over to the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence

from ddmq_client.core.acks import Parcel
from ddmq_client.core.intake import Counts, Intake, Source, Station
from ddmq_client.core.places import Places
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.net.desk import IDLE_WAKE_S, LEASE_PART, RIDE_S
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

    def __init__(self, settings: ConsumerSettings, handlers: bool) -> None:
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._intake = Intake(
            settings.prefetch,
            math.inf if settings.broadcasting else settings.lease_ms / 1000,
            settings.ack_flush_ms / 1000,
            settings.results_max,
            self._loop.time,
        )
        self._intake.demand = None if handlers else 0
        self._intake.places = self.places = Places() if settings.broadcasting else None
        self._held: dict[
            int, tuple[Message, float, object]
        ] = {}  # by id(): what workers hold, since when, who
        self._demand_until = 0.0
        self._room = Signal()
        self._arrived = Signal()
        self._due: dict[Station, Signal] = {}
        self._busy = 0
        self.pulling_stopped = False
        self._handing_stopped = False
        self._flushing_stopped = False
        self.refusal: PullError | None = None
        self.last_error: str | None = None

    def station(self, name: str) -> Station:
        """The station of this proxy."""
        station = self._intake.station(name)
        self._due.setdefault(station, Signal())
        return station

    def counts(self) -> Counts:
        """A copy of the counters."""
        return self._intake.counts.copy()

    # Pullers.

    async def wait_room(self, source: Source) -> tuple[int, int, Parcel | None] | None:
        """(batch, linger in ms, results to carry) of the next pull; None when the source shall end."""

        def wanted() -> int:
            return self._intake.wanted(source, self.settings.max_batch)

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
                return batch, self._linger_ms(), self._intake.pulling(source)

    def pulled(self, source: Source, answer: Pulled) -> None:
        """A pull was answered."""
        self.refusal = None
        self._intake.arrived(source, answer.origin, answer.messages, self.settle, self.extend)
        if answer.messages:
            self._arrived.wake()

    def fetched(self, source: Source, group: str, queues: Sequence[FetchedQueue]) -> int:
        """A broadcast fetch was answered; how many messages came."""
        self.refusal = None
        count = self._intake.fetched(source, group, queues, self.settle, self.extend)
        if count:
            self._arrived.wake()
        return count

    def pull_failed(self, source: Source, parcel: Parcel | None, error: BaseException) -> None:
        """A pull brought no answer."""
        self._intake.pull_failed(source, parcel)
        self.last_error = str(error) or repr(error)
        self.refusal = error if isinstance(error, PullError) else None
        self._wake_flusher(source.station.present())

    async def pause(self, source: Source, seconds: float) -> None:
        """Wait before the next pull; ends early when the source shall end."""
        until = self._loop.time() + seconds
        await self._room.wait_until(lambda: self.pulling_stopped or source.ended, until)

    # Workers and callers of pull.

    async def next(self, count: int) -> list[Message]:
        """Messages for a worker; empty when it shall end. Report `handled` afterwards."""
        while True:
            await self._arrived.wait_until(lambda: self._handing_stopped or len(self._intake) > 0, None)
            if self._handing_stopped:
                return []
            if taken := self._take(count):
                self._busy += len(taken)
                now, me = self._loop.time(), asyncio.current_task()
                self._held.update((id(message), (message, now, me)) for message in taken)
                if self.settings.keeps_leases:
                    aged = now - self.settings.lease_ms / 1000 * LEASE_PART
                    for message in taken:
                        if message.delivery.arrived_at <= aged:  # the next round may come too late for it
                            self.extend(message)
                return taken

    def handled(self, messages: Sequence[Message], errors: int = 0) -> None:
        """A worker has finished with messages."""
        self._busy -= len(messages)
        for message in messages:
            self._held.pop(id(message), None)
        self._intake.counts.handler_errors += errors
        self._arrived.wake()

    def extend_held(self) -> None:
        """Messages that workers still hold need more time, up to `extend_for_ms` in all."""
        since = self._loop.time() - self.settings.extend_for_ms / 1000
        for message, taken_at, _ in self._held.values():
            if taken_at > since:
                self.extend(message)

    async def ask(self, count: int, until: float) -> list[Message]:
        """Messages for a caller that waits until the loop's time `until`."""
        self._intake.asking(count)
        self._demand_until = max(self._demand_until, until)
        self._room.wake()
        try:
            while await self._arrived.wait_until(
                lambda: self._handing_stopped or len(self._intake) > 0, until
            ):
                if self._handing_stopped:
                    raise ClosedError("the consumer has been stopped")
                if taken := self._take(count):
                    return taken
        finally:
            self._intake.asked(count)
        if self.refusal is not None:
            raise self.refusal
        return []

    def put_back(self, messages: Sequence[Message]) -> None:
        """Messages of `ask` that nobody looked at."""
        self._intake.put_back([message for message in messages if message.outcome is None])
        self._arrived.wake()

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """What became of a message; from another thread it takes effect a moment later."""
        if threading.get_ident() != self._thread_id:
            open_yet = message.outcome is None
            self._loop.call_soon_threadsafe(self.settle, message, outcome, delay_ms, reason)
            return open_yet
        if not self._intake.settle(message, outcome, delay_ms, reason):
            return False
        source = message.delivery.source
        assert isinstance(source, Source)
        if not source.open:
            self._room.wake()
        self._wake_flusher(source.station.present())
        return True

    def extend(self, message: Message) -> bool:
        """A message needs more time; from another thread it takes effect a moment later."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.extend, message)
            return message.outcome is None and message.lease_id is not None
        if not self._intake.extend(message):
            return False
        assert isinstance(message.delivery.source, Source)
        self._wake_flusher(message.delivery.source.station.present())
        return True

    # Flushers.

    async def wait_due(self, station: Station) -> Parcel | None:
        """Results that must go by themselves now; None when flushing has stopped, or the proxy is gone."""
        due = self._due[station]
        while not (self._flushing_stopped or station.heir):
            wait = self._intake.submit_due(station)
            if wait == 0.0:
                parcel = self._intake.take_results(station)
                if parcel is not None:
                    return parcel
            station.idle = wait is None
            woken = _Once()
            await due.wait_until(woken, self._loop.time() + (wait or IDLE_WAKE_S))
        return None

    def take_rest(self, station: Station) -> Parcel | None:
        """Whatever is still owed to the station, one call's worth."""
        return self._intake.take_results(station)

    def submitted(self, station: Station, parcel: Parcel, error: BaseException | None) -> None:
        """A submit was answered, or failed: then its results are owed again."""
        self._intake.counts.submits += 1
        if error is not None:
            self._intake.counts.submit_errors += 1
            self.last_error = str(error) or repr(error)
            self._intake.give_back(station, parcel)
            self._wake_flusher(station.present())

    async def pause_flusher(self, station: Station, seconds: float) -> None:
        """Wait before the next submit after a failed one; ends early when flushing stops."""
        until = self._loop.time() + seconds
        await self._due[station].wait_until(lambda: self._flushing_stopped or station.heir is not None, until)

    def retire(self, gone: Station, heir: Station) -> None:
        """A proxy is gone for good: another one takes and forwards its results. Its flusher ends."""
        self._intake.retire(gone, heir)
        self._due.pop(gone).wake()
        self._wake_flusher(heir)

    # Stopping, in this order.

    def stop_pulling(self) -> None:
        """Pullers end after the pull that is under way."""
        self.pulling_stopped = True
        self._room.wake()

    def end(self, source: Source) -> None:
        """This source's puller ends after the pull that is under way."""
        source.ended = True
        self._room.wake()

    async def wait_handled(self, until: float, alone: bool = False) -> bool:
        """Until workers have handled everything that waits; False when the time was up first.

        As of `net.desk`: a worker does not wait for what it holds itself.
        """
        if self._intake.demand is not None:
            return True
        me = asyncio.current_task()
        mine = [held for held, _, who in self._held.values() if who is me]

        def handled() -> bool:
            return not (len(self._intake) and not alone) and self._busy <= len(mine)

        in_time = await self._arrived.wait_until(handled, until)
        return in_time and not len(self._intake) and all(message.outcome for message in mine)

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
        return self._intake.abandon()

    def _take(self, count: int) -> list[Message]:
        taken = self._intake.take(count)
        self._room.wake()
        return taken

    def _linger_ms(self) -> int:
        linger_ms = self.settings.linger_ms
        if self._intake.demand is None:
            return linger_ms
        return max(1, min(linger_ms, int((self._demand_until - self._loop.time()) * 1000)))

    def _wake_flusher(self, station: Station) -> None:
        if station.idle or station.prompt or station.book.urgent:
            station.idle = False
            self._due[station].wake()


class _Once:
    """False, then True: a wait that ends at the first wake."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        asked, self._asked = self._asked, True
        return asked

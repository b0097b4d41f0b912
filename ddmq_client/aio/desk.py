"""Where an asyncio consumer's tasks meet: the intake, and what each task waits for.

The twin of `net.desk`. Everything runs on one event loop, so nothing needs a lock; messages may be settled
from other threads all the same: their results are then handed over to the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence

from ddmq_client.core.acks import Parcel, Told, late_results
from ddmq_client.core.held import Held, keep_at
from ddmq_client.core.intake import Counts, Intake, Source, Station, wait_until
from ddmq_client.core.places import Places
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
        self._intake = Intake(
            settings.prefetch,
            math.inf if settings.broadcasting else settings.lease_ms / 1000,
            settings.ack_flush_ms / 1000,
            settings.results_max,
            self._loop.time,
        )
        self._intake.demand = None if handlers else 0
        self._intake.places = self.places = Places() if settings.broadcasting else None
        self._held = Held(settings.extend_for_ms / 1000 if settings.keeps_leases else 0.0)
        self._demand_until = 0.0
        self._room = Signal()
        self._arrived = Signal()
        self._keeping = Signal()
        self._keep_at = 0.0  # when leases are looked at next
        self._due: dict[Station, Signal] = {}
        self._busy = 0
        self.pulling_stopped = False
        self._handing_stopped = False
        self._flushing_stopped = False
        self._parked = 0  # pulls that are under way
        self.first = FirstAnswer()
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

    def hold(self, paused: bool) -> None:
        """As `Desk.hold`."""
        self._intake.paused = paused
        if paused:
            self.hand_back()
        self._room.wake()

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
                self._parked += 1
                return batch, self._linger_ms(), self._intake.pulling(source)

    def pulled(self, source: Source, answer: Pulled) -> None:
        """A pull was answered."""
        self._answered()
        self._intake.arrived(
            source, answer.origin, answer.messages, self.settle, self.extend, answer.lease_ms
        )
        if self.pulling_stopped or self._intake.paused:
            self.hand_back()
        if answer.messages:
            self._arrived.wake()
            if wait_until(answer.messages[0]) < self._keep_at:
                self._keeping.wake()

    def fetched(self, source: Source, group: str, queues: Sequence[FetchedQueue]) -> int:
        """A broadcast fetch was answered; how many messages came."""
        self._answered()
        count = self._intake.fetched(source, group, queues, self.settle, self.extend)
        if count:
            self._arrived.wake()
        return count

    def pull_failed(self, source: Source, parcel: Parcel | None, error: BaseException) -> None:
        """A pull brought no answer."""
        self._parked -= 1
        self._intake.pull_failed(source, parcel)
        self.last_error = str(error) or repr(error)
        self.refusal = error if isinstance(error, PullError) else None
        self.first.failed(error)
        self._wake_flusher(source.station.present())

    async def pause(self, source: Source, seconds: float) -> None:
        """Wait before the next pull; ends early when the source shall end."""
        until = self._loop.time() + seconds
        await self._room.wait_until(lambda: self.pulling_stopped or source.ended, until)

    # Workers and callers of pull.

    async def next(self, count: int) -> list[Message]:
        """Messages for a worker; empty when it shall end. Report `handled` afterwards."""
        while True:
            if not (self._handing_stopped or len(self._intake)):
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
        self._intake.idle += count
        if self._intake.starved():
            self._room.wake()
        try:
            await self._arrived.wait_until(lambda: self._handing_stopped or len(self._intake) > 0, None)
        finally:
            self._intake.idle -= count

    def handled(self, messages: Sequence[Message], errors: int = 0) -> None:
        """A worker has finished with messages."""
        self._busy -= len(messages)
        self._held.remove(messages)
        self._intake.counts.handler_errors += errors
        self._arrived.wake()

    async def keep(self) -> None:
        """Look after leases, for ever: as `Desk.keep`."""
        while True:
            await self._keeping.wait_until(_Once(), self._keep_at)
            now = self._loop.time()
            self.hand_back(now)
            for message in self._held.due(now):
                self.extend(message)
            self._keep_at = min(self._intake.next_overdue(), self._held.next_due(now), now + IDLE_WAKE_S)

    def told(self, parcel: Parcel | None, told: Sequence[Told]) -> None:
        """A proxy tells which results of a call changed nothing."""
        if not told or parcel is None:
            return
        late, lost = late_results(parcel, told)
        self._intake.counts.late += len(late)
        self.teller.late(late, lost)

    def hand_back(self, now: float | None = None) -> None:
        """What waits here is for others: all of it, or what has waited too long by `now`."""
        stations = self._intake.hand_back(now)
        for station in stations:
            self._wake_flusher(station)
        if stations:
            self._arrived.wake()
            self._room.wake()

    async def ask(self, count: int, until: float, one: bool = False) -> list[Message]:
        """Messages for a caller that waits until the loop's time `until`; `one`: it takes one at a time."""
        if one:
            count = self._intake.loop_batch(count)
        self._intake.asking(count)
        self._demand_until = max(self._demand_until, until)
        self._room.wake()
        try:
            while await self._arrived.wait_until(
                lambda: self._handing_stopped or len(self._intake) > 0, until
            ):
                if self._handing_stopped:
                    raise ClosedError("the consumer has been stopped")
                if taken := self._take(1 if one else count):
                    return taken
        finally:
            self._intake.asked(count)
        if self.refusal is not None:
            raise self.refusal
        self.first.check(trying=self._parked > 0)
        return []

    def leave_loop(self) -> None:
        """A caller that took messages one by one takes no more: what waits is for others."""
        if not self._intake.askers:
            self.hand_back()

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """What became of a message; from another thread it takes effect a moment later."""
        if threading.get_ident() != self._thread_id:
            open_yet = message.outcome is None and not self._intake.is_over(message)
            self._loop.call_soon_threadsafe(self.settle, message, outcome, delay_ms, reason)
            return open_yet
        if not self._intake.settle(message, outcome, delay_ms, reason):
            return False
        source = message.delivery.source
        assert isinstance(source, Source)
        if not source.open:
            self._room.wake()
        self._wake_flusher(source.station.present())
        return not self._intake.is_over(message)

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
            if self._leaves(station):
                return self._intake.take_results(station) or []
            wait = self._intake.submit_due(station)
            if wait == 0.0:
                parcel = self._intake.take_results(station)
                if parcel is not None:
                    return parcel
            station.idle = wait is None
            again = LEAVE_AGAIN_S if self._parked and self.pulling_stopped else wait or IDLE_WAKE_S
            await due.wait_until(_Once(), self._loop.time() + again)
        return None

    def _leaves(self, station: Station) -> bool:
        """As of `net.desk`: time to ask for the answers of pulls that wait at a proxy (again)."""
        now = self._loop.time()
        if not (self.pulling_stopped and self._parked and station.settles and station.leave_at <= now):
            return False
        station.leave_at = now + LEAVE_AGAIN_S
        return True

    def _answered(self) -> None:
        self.refusal = None
        self.first.came = True
        self._parked -= 1

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
        if self._intake.demand is not None:
            return True
        me = asyncio.current_task()
        mine = self._held.of(me)

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

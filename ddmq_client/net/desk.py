"""Where a consumer's threads meet: the intake behind one lock, and what each thread waits for.

Pullers wait for room, workers and `pull` callers for messages, each station's flusher for results that
must go by themselves. Nothing here touches a socket. Messages call `settle` and `extend` from any thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from ddmq_client.core.acks import Parcel
from ddmq_client.core.intake import Counts, Intake, Source, Station
from ddmq_client.core.places import Offsets, Places
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.received import FetchedQueue, Message, Outcome
from ddmq_client.wire.consuming import Pulled

LEASE_PART = 1 / 3  # of the ack time-out, after which a lease is extended
RIDE_S = 0.002  # a puller waits this long for results to ride on its next pull
IDLE_WAKE_S = 60.0


class Desk:
    """The shared state of one consumer. Safe for many threads."""

    def __init__(self, settings: ConsumerSettings, handlers: bool) -> None:
        self.settings = settings
        self._intake = Intake(
            settings.prefetch,
            math.inf if settings.broadcasting else settings.lease_ms / 1000,
            settings.ack_flush_ms / 1000,
            settings.results_max,
            time.monotonic,
        )
        self._intake.demand = None if handlers else 0
        self._intake.places = self.places = Places() if settings.broadcasting else None
        self._held: dict[int, tuple[Message, float, int]] = {}  # by id(): what workers hold, since when, who
        self._demand_until = 0.0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._due: dict[Station, threading.Condition] = {}
        self._busy = 0  # messages that workers hold
        self.pulling_stopped = False
        self._handing_stopped = False
        self._flushing_stopped = False
        self.refusal: PullError | None = None
        self.last_error: str | None = None

    def station(self, name: str) -> Station:
        """The station of this proxy."""
        with self._lock:
            station = self._intake.station(name)
            self._due.setdefault(station, threading.Condition(self._lock))
            return station

    def counts(self) -> Counts:
        """A copy of the counters."""
        with self._lock:
            return self._intake.counts.copy()

    # Pullers.

    def wait_room(self, source: Source) -> tuple[int, int, Parcel | None] | None:
        """(batch, linger in ms, results to carry) of the next pull; None when the source shall end."""
        with self._lock:
            while not (self.pulling_stopped or source.ended):
                if self._intake.wanted(source, self.settings.max_batch):
                    self._let_results_ride(source)
                    batch = self._intake.wanted(source, self.settings.max_batch)
                    if batch and not (self.pulling_stopped or source.ended):
                        return batch, self._linger_ms(), self._intake.pulling(source)
                else:
                    self._room.wait()
            return None

    def pulled(self, source: Source, answer: Pulled) -> None:
        """A pull was answered."""
        with self._lock:
            self.refusal = None
            self._intake.arrived(source, answer.origin, answer.messages, self.settle, self.extend)
            if answer.messages:
                self._arrived.notify(len(answer.messages))

    def fetched(self, source: Source, group: str, queues: Sequence[FetchedQueue]) -> int:
        """A broadcast fetch was answered; how many messages came."""
        with self._lock:
            self.refusal = None
            count = self._intake.fetched(source, group, queues, self.settle, self.extend)
            if count:
                self._arrived.notify(count)
            return count

    def places_now(self) -> Offsets:
        """Where every queue can go on after a restart (broadcasting)."""
        with self._lock:
            return {} if self.places is None else self.places.safe()

    def fetch_from(self) -> Offsets:
        """Where the next broadcast fetch goes on."""
        with self._lock:
            return {} if self.places is None else self.places.ahead()

    def pull_failed(self, source: Source, parcel: Parcel | None, error: BaseException) -> None:
        """A pull brought no answer."""
        with self._lock:
            self._intake.pull_failed(source, parcel)
            self.last_error = str(error) or repr(error)
            self.refusal = error if isinstance(error, PullError) else None
            self._wake_flusher(source.station.present())

    def pause(self, source: Source, seconds: float) -> None:
        """Wait before the next pull; ends early when the source shall end."""
        until = time.monotonic() + seconds
        with self._lock:
            while not (self.pulling_stopped or source.ended) and time.monotonic() < until:
                self._room.wait(until - time.monotonic())

    # Workers and callers of pull.

    def next(self, count: int) -> list[Message]:
        """Messages for a worker; empty when it shall end. Report `handled` afterwards."""
        with self._lock:
            while True:
                taken = [] if self._handing_stopped else self._take(count)
                if taken or self._handing_stopped:
                    self._busy += len(taken)
                    now, me = time.monotonic(), threading.get_ident()
                    self._held.update((id(message), (message, now, me)) for message in taken)
                    self._extend_aged(taken, now)
                    return taken
                self._arrived.wait()

    def handled(self, messages: Sequence[Message], errors: int = 0) -> None:
        """A worker has finished with messages."""
        with self._lock:
            self._busy -= len(messages)
            for message in messages:
                self._held.pop(id(message), None)
            self._intake.counts.handler_errors += errors
            if self._handing_stopped or self.pulling_stopped:
                self._arrived.notify_all()

    def extend_held(self) -> None:
        """Messages that workers still hold need more time, up to `extend_for_ms` in all."""
        with self._lock:
            since = time.monotonic() - self.settings.extend_for_ms / 1000
            for message, taken_at, _ in self._held.values():
                if taken_at > since:
                    self._extend(message)

    def ask(self, count: int, deadline: float) -> list[Message]:
        """Messages for a caller that waits until the deadline (monotonic seconds)."""
        with self._lock:
            self._intake.asking(count)
            self._demand_until = max(self._demand_until, deadline)
            self._room.notify_all()
            try:
                return self._ask(count, deadline)
            finally:
                self._intake.asked(count)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Messages of `ask` that nobody looked at."""
        with self._lock:
            back = [message for message in messages if message.outcome is None]
            self._intake.put_back(back)
            self._arrived.notify(len(back))

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """What became of a message."""
        with self._lock:
            if not self._intake.settle(message, outcome, delay_ms, reason):
                return False
            source = message.delivery.source
            assert isinstance(source, Source)
            if not source.open:
                self._room.notify_all()
            self._wake_flusher(source.station.present())
            return True

    def extend(self, message: Message) -> bool:
        """A message needs more time."""
        with self._lock:
            return self._extend(message)

    # Flushers.

    def wait_due(self, station: Station) -> Parcel | None:
        """Results that must go by themselves now; None when flushing has stopped, or the proxy is gone."""
        with self._lock:
            due = self._due.get(station)
            while due is not None and not (self._flushing_stopped or station.heir):
                wait = self._intake.submit_due(station)
                if wait == 0.0:
                    parcel = self._intake.take_results(station)
                    if parcel is not None:
                        return parcel
                station.idle = wait is None
                due.wait(wait or IDLE_WAKE_S)
            return None

    def take_rest(self, station: Station) -> Parcel | None:
        """Whatever is still owed to the station, one call's worth."""
        with self._lock:
            return self._intake.take_results(station)

    def submitted(self, station: Station, parcel: Parcel, error: Exception | None) -> None:
        """A submit was answered, or failed: then its results are owed again."""
        with self._lock:
            self._intake.counts.submits += 1
            if error is not None:
                self._intake.counts.submit_errors += 1
                self.last_error = str(error)
                self._intake.give_back(station, parcel)
                self._wake_flusher(station.present())

    def pause_flusher(self, station: Station, seconds: float) -> None:
        """Wait before the next submit after a failed one; ends early when flushing stops."""
        until = time.monotonic() + seconds
        with self._lock:
            while not (self._flushing_stopped or station.heir) and time.monotonic() < until:
                self._due[station].wait(until - time.monotonic())

    def retire(self, gone: Station, heir: Station) -> None:
        """A proxy is gone for good: another one takes and forwards its results. Its flusher ends."""
        with self._lock:
            self._intake.retire(gone, heir)
            self._due.pop(gone).notify_all()
            self._wake_flusher(heir)

    # Stopping, in this order.

    def stop_pulling(self) -> None:
        """Pullers end after the pull that is under way."""
        with self._lock:
            self.pulling_stopped = True
            self._room.notify_all()

    def end(self, source: Source) -> None:
        """This source's puller ends after the pull that is under way."""
        with self._lock:
            source.ended = True
            self._room.notify_all()

    def wait_handled(self, deadline: float, alone: bool = False) -> bool:
        """Until workers have handled everything that waits; False when the time was up first.

        A worker does not wait for what it holds itself; `alone`: it is the only one, nobody handles the rest.
        """
        me = threading.get_ident()
        with self._lock:
            mine = [held for held, _, who in self._held.values() if who == me]
            while self._intake.demand is None and (
                (len(self._intake) and not alone) or self._busy > len(mine)
            ):
                if not self._arrived.wait(deadline - time.monotonic()):
                    return False
            return not (alone and len(self._intake)) and all(message.outcome for message in mine)

    def stop_handing(self) -> None:
        """Workers end after what they hold; callers of `pull` get ClosedError."""
        with self._lock:
            self._handing_stopped = True
            self._arrived.notify_all()

    def stop_flushing(self) -> None:
        """Flushers submit the rest and end."""
        with self._lock:
            self._flushing_stopped = True
            for due in self._due.values():
                due.notify_all()

    def abandon(self) -> int:
        """Count the results that no proxy has taken."""
        with self._lock:
            return self._intake.abandon()

    def _take(self, count: int) -> list[Message]:
        waiting = len(self._intake)
        taken = self._intake.take(count)
        if len(self._intake) < waiting:  # also when all of them had lost their lease
            self._room.notify_all()
        return taken

    def _ask(self, count: int, deadline: float) -> list[Message]:
        while True:
            if self._handing_stopped:
                raise ClosedError("the consumer has been stopped")
            in_time = time.monotonic() < deadline
            taken = self._take(count)
            if taken:
                return taken
            if not in_time:
                if self.refusal is not None:
                    raise self.refusal
                return []
            self._arrived.wait(deadline - time.monotonic())

    def _extend_aged(self, taken: Sequence[Message], now: float) -> None:
        """What waited here has used up a part of its lease: the next round may come too late for it."""
        aged = now - self.settings.lease_ms / 1000 * LEASE_PART
        if self.settings.keeps_leases:
            for message in taken:
                if message.delivery.arrived_at <= aged:
                    self._extend(message)

    def _extend(self, message: Message) -> bool:
        if not self._intake.extend(message):
            return False
        assert isinstance(message.delivery.source, Source)
        self._wake_flusher(message.delivery.source.station.present())
        return True

    def _let_results_ride(self, source: Source) -> None:
        """Handlers that finish within moments spare a call of their own for their results."""
        until = time.monotonic() + RIDE_S
        while source.open and not source.waiting and not self.pulling_stopped:
            if not self._room.wait(until - time.monotonic()):
                return

    def _linger_ms(self) -> int:
        linger_ms = self.settings.linger_ms
        if self._intake.demand is None:
            return linger_ms
        return max(1, min(linger_ms, int((self._demand_until - time.monotonic()) * 1000)))

    def _wake_flusher(self, station: Station) -> None:
        if station.idle or station.prompt or station.book.urgent:
            station.idle = False
            self._due[station].notify()

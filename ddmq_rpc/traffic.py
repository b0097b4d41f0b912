"""What the connections of one server share: the bounds, the sums they are held against, and turns.

Three sums, each with its own answer at the bound, so that no one of them can starve another:
* open bytes, frames of unanswered calls: the next call waits, first come first served, nothing is read;
* partial bytes, frames that have not arrived whole or wait for the sum above: nobody reads on except the
  oldest of them, which so can always finish;
* unsent bytes, answers that clients do not read: the connection that has been at it longest is closed.
The processor's time is shared by address (turns.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ddmq_common.clock import Clock
from ddmq_common.hub_timer import HubTimer
from ddmq_rpc.backlog import Backlog
from ddmq_rpc.calls import OpenMethod
from ddmq_rpc.counts import FaultLog, RpcCounts
from ddmq_rpc.limits import RpcLimits
from ddmq_rpc.turns import Shared, Turns
from ddmq_rpc.wire.codec import Codec


class Closable(Protocol):
    """Who has answers that a client does not read."""

    def close(self) -> None: ...


class BoundedConnection(Closable, Protocol):
    """One client's connection, as the bounds see it."""

    busy: int
    idle_since: float

    def resume_call(self) -> None:
        """Open bytes are under their bound: handle the frame that waited."""

    def resume_reading(self) -> None:
        """There may be room for partial frames again."""


class Traffic:
    """Shared by all connections of one server; everything happens on the hub."""

    def __init__(
        self,
        loop: Any,
        limits: RpcLimits,
        methods: Mapping[bytes, OpenMethod],
        counts: RpcCounts,
        clock: Clock,
        cpu: Callable[[], float] = time.thread_time,
        stopwatch: Callable[[], float] = time.perf_counter,
        shared: Shared | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.methods = methods
        self.counts = counts
        self.now = clock.monotonic
        self.faults = FaultLog(clock.monotonic)
        self.cpu = cpu
        self.stopwatch = stopwatch
        self.turns = Turns(stopwatch, self._arm, lambda: counts.refused("rested"), shared)
        self._timer = HubTimer(loop=loop)
        self.codec = Codec(limits.frame_bytes_max, limits.container_elements_max, limits.decode_cpu_s, cpu)
        self.connections: set[BoundedConnection] = set()
        self.open_calls = 0
        self.open_bytes = 0
        self.open_bytes_max = limits.in_flight_bytes_max
        self.partial: Backlog[BoundedConnection] = Backlog()
        self.unsent: Backlog[Closable] = Backlog()
        self._waiting: deque[BoundedConnection] = deque()
        self._paused: deque[BoundedConnection] = deque()
        self._waking = False

    def make_room(self, address: str) -> bool:
        """Whether one more connection of `address` may come; at a bound another one is closed for it."""
        turns, limits = self.turns, self.limits
        own = turns.shares.get(address)
        mine = 0 if own is None else len(own.members)
        if own is not None and 0 < limits.connections_max_per_address <= mine:
            reason, closed = "connections_per_address", turns.silent_of(own)
        elif len(self.connections) < limits.connections_max:
            return True
        else:
            reason, closed = "connections", turns.least_missed(address)
        if closed is None:
            self.counts.refused(reason)
            return False
        self.counts.refused("gave_way")
        closed.close()
        return True

    def _arm(self, seconds: float) -> None:
        self._timer.once(seconds, self.turns.round)

    def close(self) -> None:
        """Nobody is served any more."""
        for connection in list(self.connections):
            connection.close()
        self._timer.stop()
        self.turns.close()

    def release(self, frame_bytes: int) -> None:
        """A call has been answered."""
        self.open_calls -= 1
        self.open_bytes -= frame_bytes
        if self._waiting and self.open_bytes < self.open_bytes_max:
            self._wake_soon()

    def wait_for_room(self, connection: BoundedConnection) -> None:
        """`connection` has a whole frame and goes on once open bytes are under their bound."""
        self._waiting.append(connection)

    def may_read_on(self, connection: BoundedConnection) -> bool:
        """Whether a connection with a partial frame may read more of it; if not, it will be resumed."""
        if self.partial.total <= self.limits.partial_bytes_max or self.partial.oldest() is connection:
            return True
        self._paused.append(connection)
        return False

    def partial_done(self, connection: BoundedConnection) -> None:
        """Its frame is whole and handed on, or dropped."""
        if self.partial.discard(connection) and self._paused:
            self._wake_soon()

    def keep_unsent(self, connection: Closable, unsent_bytes: int) -> None:
        """An answer, or the rest of one, waits for its client to read."""
        self.unsent.put(connection, unsent_bytes, self.now())
        while self.unsent.total > self.limits.unsent_bytes_max:
            oldest = self.unsent.oldest()
            if oldest is None:
                return
            self.counts.refused("unread_answers")
            oldest.close()

    def sweep(self) -> None:
        """Close who is too slow. Called every half second; costs nothing while nobody is."""
        limits, now = self.limits, self.now()
        for connection in self.partial.since_before(now - limits.frame_read_s):
            self.counts.refused("slow_frame")
            connection.close()
        for reader in self.unsent.since_before(now - limits.answer_write_s):
            self.counts.refused("slow_reader")
            reader.close()
        if limits.idle_s:
            for connection in list(self.connections):
                if connection.idle_since < now - limits.idle_s and not connection.busy:
                    self.counts.refused("idle")
                    connection.close()

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self.loop.run_callback(self._wake)

    def _wake(self) -> None:
        self._waking = False
        while self._waiting and self.open_bytes < self.open_bytes_max:
            self._waiting.popleft().resume_call()
        for _ in range(len(self._paused)):
            self._paused.popleft().resume_reading()

"""The state that the connections of one server share: bounds, the sums held against them, and counters.

Three sums, each with its own answer at the bound, so that no one of them can starve another:
* open bytes, frames of unanswered calls: the next call waits, first come first served, nothing is read;
* partial bytes, frames that are incomplete or wait for the sum above: no connection reads on except the
  oldest of them, which so can always finish;
* unsent bytes, answers that clients do not read: the connection that has been at it longest is closed.
The processor's time is shared by address (time_slices.py).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_common.clock import Clock
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.catalogue import RPC_ABANDONED, RPC_CONNECTIONS, RPC_FAULTS, RPC_REFUSED
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.certificates import CertificateFiles
from ddmq_rpc.api import ErrorKind, MethodRule
from ddmq_rpc.codec import Codec, Method
from ddmq_rpc.envelope import EXCEPTION, REPLY, Envelope
from ddmq_rpc.newcomers import Newcomers
from ddmq_rpc.time_slices import Shared, TimeSlices

DECODE_CPU_S = 0.05  # processor time that one request's arguments may take to decode
_MAY_BE_0 = ("idle_s", "connections_max_per_address")


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The limits of an RPC server on connections, frames and bytes. Raises ValueError that names a wrong
    limit.

    A frame that is too long or too slow, or an answer that the client does not read, closes its connection.
    At the limit of connections, another connection is closed for a new one, or the new one is closed. At the
    byte limits the server stops reading (back pressure).
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    connections_max: int = 10_000
    connections_max_per_address: int = 0  # of one client address; 0 = no bound of its own
    in_flight_bytes_max: int = 256 << 20  # frames of calls that are not answered yet
    partial_bytes_max: int = 64 << 20  # incomplete frames
    unsent_bytes_max: int = 256 << 20  # answers that clients do not read; the oldest connection is closed
    frame_read_s: float = 10.0  # from the first byte of a frame to its last
    answer_write_s: float = 10.0  # for the client to read an answer
    idle_s: float = 0.0  # no request for that long closes the connection; 0 = never
    container_elements_max: int = 16_384  # elements of one list or map of a request

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name in _MAY_BE_0 else 1e-3 if field.name.endswith("_s") else 1
            if not value >= lowest:
                raise ValueError(f"{field.name} is {value}; allowed: at least {lowest:g}")
        if self.frame_bytes_max >= 1 << 31:
            raise ValueError(f"frame_bytes_max is {self.frame_bytes_max}; allowed: at most 2,147,483,647")


log = logging.getLogger("ddmq.rpc")
LOGGED_ERRORS_MAX = 10  # in LOGGED_ERRORS_S; the counts continue
LOGGED_ERRORS_S = 10.0


class ErrorLog:
    """Logs unexpected errors with their traceback, a few per interval, so that clients cannot fill the
    disk."""

    __slots__ = ("_logged", "_now", "_since")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._logged = 0

    def log_exception(self, text: str, *args: object) -> None:
        """Log the exception that is being handled."""
        now = self._now()
        if now - self._since >= LOGGED_ERRORS_S:
            self._since, self._logged = now, 0
        self._logged += 1
        if self._logged <= LOGGED_ERRORS_MAX:
            log.exception(text, *args)


class RpcCounts:
    """The metric cells of one server."""

    __slots__ = ("_registry", "_service", "abandoned", "connections", "errors")

    def __init__(self, registry: Registry, service: str) -> None:
        self._registry = registry
        self._service = service
        self.connections = registry.cell(RPC_CONNECTIONS, service)
        self.abandoned = registry.cell(RPC_ABANDONED, service)
        self.errors = {kind: registry.cell(RPC_FAULTS, service, kind.name.lower()) for kind in ErrorKind}

    def count_rejected(self, reason: str) -> None:
        """Count one rejected frame or connection. `reason`: one of a fixed set."""
        self._registry.cell(RPC_REFUSED, self._service, reason).value += 1


B = TypeVar("B")


class Backlog(Generic[B]):
    """The pending bytes of connections, oldest connection first; `total` is their sum."""

    __slots__ = ("_entries", "total")

    def __init__(self) -> None:
        self._entries: dict[B, tuple[float, int]] = {}  # insertion order is age
        self.total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, connection: B) -> bool:
        return connection in self._entries

    def put(self, connection: B, pending_bytes: int, now: float) -> None:
        """Set the pending bytes of a connection. Its age counts from its first `put`."""
        since, before = self._entries.get(connection, (now, 0))
        self._entries[connection] = (since, pending_bytes)
        self.total += pending_bytes - before

    def discard(self, connection: B) -> bool:
        """Remove a connection and its bytes; return False if it had none."""
        entry = self._entries.pop(connection, None)
        if entry is None:
            return False
        self.total -= entry[1]
        return True

    def oldest_connection(self) -> B | None:
        return next(iter(self._entries), None)

    def older_than(self, moment: float) -> Iterator[B]:
        """Yield the connections from before `moment`, oldest first. They may be discarded meanwhile."""
        for connection, (since, _) in list(self._entries.items()):
            if since >= moment:
                return
            yield connection


class OpenMethod:
    """A method of the service, with its handler, its rule if rights are on, and the envelopes of its
    answers."""

    __slots__ = ("answers", "exceptions", "handler", "method", "rule")

    def __init__(self, method: Method, handler: Any, rule: MethodRule | None = None) -> None:
        self.method = method
        self.handler = handler
        self.rule = rule
        self.answers = Envelope(method.name.encode(), REPLY)
        self.exceptions = Envelope(method.name.encode(), EXCEPTION)


class TlsPort(NamedTuple):
    """The TLS settings of a port. With `required`, clients that speak plain text are rejected."""

    certificates: CertificateFiles
    required: bool


class Closable(Protocol):
    """A connection that can be closed because its client does not read its answers."""

    def close(self) -> None: ...


class BoundedConnection(Closable, Protocol):
    """A client connection, as the server's bounds control it."""

    busy: int
    idle_since: float
    peer: str

    def resume_call(self) -> None:
        """Handle the waiting frame, because the bytes of open calls are under their bound again."""

    def resume_reading(self) -> None:
        """Continue to read a partial frame, if the limit on the total size of partial frames allows it."""

    def recheck_rights(self) -> None:
        """Apply changed rights to the connection and to its waiting call."""


class Traffic:
    """The bounds that all connections of one server share. Used only on the hub."""

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
        callers: CallerTable | None = None,
    ) -> None:
        self.loop = loop
        self.callers = callers
        self.limits = limits
        self.methods = methods
        self.on_closed: Callable[[str], None] | None = None  # the service's, with a connection's peer
        self.tls: TlsPort | None = None  # None: the port is plain text
        self.newcomers: Newcomers[BoundedConnection] = Newcomers()
        self.counts = counts
        self.now = clock.monotonic
        self.error_log = ErrorLog(clock.monotonic)
        self.cpu = cpu
        self.stopwatch = stopwatch
        self.slices = TimeSlices(stopwatch, self._arm_timer, lambda: counts.count_rejected("rested"), shared)
        self._timer = HubTimer(loop=loop)
        self.codec = Codec(limits.frame_bytes_max, limits.container_elements_max, DECODE_CPU_S, cpu)
        self.connections: set[BoundedConnection] = set()
        self.open_calls = 0
        self.open_bytes = 0
        self.open_bytes_max = limits.in_flight_bytes_max
        self.partial: Backlog[BoundedConnection] = Backlog()
        self.unsent: Backlog[Closable] = Backlog()
        self._waiting: deque[BoundedConnection] = deque()
        self._paused: deque[BoundedConnection] = deque()
        self._waking = False

    def admit_connection(self, address: str) -> bool:
        """Return whether one more connection of `address` is accepted.

        At a bound, another one may be closed for it.
        """
        slices, limits = self.slices, self.limits
        own = slices.shares.get(address)
        connections = 0 if own is None else len(own.members)
        if own is not None and 0 < limits.connections_max_per_address <= connections:
            reason, closed = "connections_per_address", slices.silent_of(own)
        elif len(self.connections) < limits.connections_max:
            return True
        else:
            reason, closed = "connections", slices.least_missed(address)
        if closed is None:
            self.counts.count_rejected(reason)
            return False
        self.counts.count_rejected("gave_way")
        closed.close()
        return True

    def join_newcomers(self, connection: BoundedConnection, address: str) -> None:
        """Record a connection to a TLS port that must soon make its first call. At a bound, another one is
        closed for it."""
        displaced = self.newcomers.join(connection, address, self.now())
        if displaced is not None:
            self.counts.count_rejected("gave_way")
            displaced.close()

    def _arm_timer(self, seconds: float) -> None:
        self._timer.once(seconds, self.slices.run_round)

    def close(self) -> None:
        """Close every connection and stop the timers."""
        for connection in list(self.connections):
            connection.close()
        self._timer.stop()
        self.slices.close()

    def release(self, frame_bytes: int) -> None:
        """Release the bytes of an answered call and resume waiting connections."""
        self.open_calls -= 1
        self.open_bytes -= frame_bytes
        if self._waiting and self.open_bytes < self.open_bytes_max:
            self._wake_soon()

    def await_capacity(self, connection: BoundedConnection) -> None:
        """Queue a connection that has a complete frame until the bytes of open calls are under their
        bound."""
        self._waiting.append(connection)

    def may_read_more(self, connection: BoundedConnection) -> bool:
        """Return whether a connection may read more of its partial frame. If not, it is resumed later."""
        if (
            self.partial.total <= self.limits.partial_bytes_max
            or self.partial.oldest_connection() is connection
        ):
            return True
        self._paused.append(connection)
        return False

    def partial_done(self, connection: BoundedConnection) -> None:
        """Remove a connection whose partial frame is complete or was dropped."""
        if self.partial.discard(connection) and self._paused:
            self._wake_soon()

    def keep_unsent(self, connection: Closable, unsent_bytes: int) -> None:
        """Record the unsent bytes of a connection's answer.

        At the bound, close the oldest such connection.
        """
        self.unsent.put(connection, unsent_bytes, self.now())
        while self.unsent.total > self.limits.unsent_bytes_max:
            oldest = self.unsent.oldest_connection()
            if oldest is None:
                return
            self.counts.count_rejected("unread_answers")
            oldest.close()

    def close_slow_connections(self) -> None:
        """Close the connections that are too slow. Called every half second."""
        limits, now = self.limits, self.now()
        for connection in self.partial.older_than(now - limits.frame_read_s):
            self.counts.count_rejected("slow_frame")
            connection.close()
        for reader in self.unsent.older_than(now - limits.answer_write_s):
            self.counts.count_rejected("slow_reader")
            reader.close()
        for newcomer in self.newcomers.list_overdue(now):
            if newcomer not in self.partial:  # that has its own time
                self.counts.count_rejected("no_first_call")
                newcomer.close()
        if limits.idle_s:
            for connection in list(self.connections):
                if connection.idle_since < now - limits.idle_s and not connection.busy:
                    self.counts.count_rejected("idle")
                    connection.close()

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self.loop.run_callback(self._wake_waiting)

    def _wake_waiting(self) -> None:
        self._waking = False
        while self._waiting and self.open_bytes < self.open_bytes_max:
            self._waiting.popleft().resume_call()
        for _ in range(len(self._paused)):
            self._paused.popleft().resume_reading()

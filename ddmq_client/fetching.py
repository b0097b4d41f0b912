"""FetchConsumer: the low-level way to read. The application keeps the place in every queue itself.

    with FetchConsumer("mq-1:9713", "loader") as consumer:
        while running():
            for queue in consumer.fetch(100):
                store(queue.topic, queue.queue, queue.messages)
            consumer.ack()

The proxies share the group's queues out among its consumers. Nothing is leased, filtered by tag, retried or
dead-lettered: messages come in order, queue by queue, from where the client says, and acknowledging means
storing the next offset of a queue. For one thread at a time. `ddmq_client.aio` has the asyncio twin.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from ddmq_client.core.fetching import Assignments, Queue, Round
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, ProxyAddress, parse_addresses
from ddmq_client.core.settings import TIMEOUT_MS_MAX, check, check_text
from ddmq_client.core.verdicts import CallFailed
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.net.calls import Calls
from ddmq_client.net.connection import AGAIN_S, FramedConnection, in_time, resolve
from ddmq_client.process import Home, new_client_id
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.consuming import (
    FetchSettings,
    ack_frame,
    fetch_frame,
    leave_frame,
    read_acked,
    read_fetched,
)
from ddmq_client.wire.producing import ProxyFault

LINGER_MS_MAX = 30_000
ACK_TRIES = 3
LEAVE_S = 1.0
FAILURES = (CallFailed, FrameError, ProxyFault, PullError)


class FetchConsumer:
    """Fetches and acknowledges by offset.

    proxies      as of Consumer; each has other queues, so all are asked, at the same time
    group        the consumer group
    consumer_id  who this is among the group's consumers; made up when absent. A proxy gives the queues of an
                 id that was closed, or stays away for 30 s, to the others
    timeout_ms   for one call, beyond its linger time
    """

    def __init__(
        self,
        proxies: str | Sequence[str],
        group: str,
        *,
        consumer_id: str | None = None,
        timeout_ms: int = 5_000,
    ) -> None:
        """Checks its arguments (OptionError); connects with the first fetch."""
        self._proxies = parse_addresses(proxies, CONSUMER_PORT)
        self._settings = fetch_settings(group, consumer_id, timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._assignments = Assignments(group)
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._addresses: dict[str, ProxyAddress] = {}
        self._connections: dict[str, FramedConnection] = {}
        self._for_acks: dict[str, FramedConnection] = {}  # of their own: a fetch may be waiting
        self._calls = Calls()
        self._home = Home("consumer")
        self._resolve_at = 0.0
        self._closed = False

    @property
    def consumer_id(self) -> str:
        """Who this is among the group's consumers."""
        return self._settings.consumer_id

    @property
    def assignments(self) -> list[Queue]:
        """(topic, queue) of what the proxies gave to this consumer, as of the last fetch."""
        return self._assignments.queues()

    def seek(self, topic: str, queue: str, offset: int) -> None:
        """Fetch this queue from `offset` next; what is out of range moves to the nearest there is."""
        self._assignments.seek(topic, queue, offset)
        for (
            name
        ) in self._calls.waiting():  # from where this queue was: they may last for all their linger time
            self._drop(name)

    def fetch(self, max_messages: int = 32, linger_ms: int = 500) -> list[FetchedQueue]:
        """What there is, up to `max_messages` of each queue; one entry for each queue with messages.

        Waits up to `linger_ms` while there is nothing, and not for proxies that have nothing once there is
        something from others. PullError when a proxy refuses; the last failure when no proxy answers at all.
        """
        check("max_messages", max_messages, 1, 1_000_000)
        check("linger_ms", linger_ms, 1, LINGER_MS_MAX)
        now = time.monotonic()
        fetch = Round(self._assignments, self._connected(), max_messages, now, linger_ms / 1000)
        calls = self._calls
        while True:
            for name in fetch.to_ask(calls.under_way()):
                self._start(name, max_messages, fetch.linger_ms(now))
            answers = calls.ended(0.0)
            if not answers:
                until = fetch.wait_until(time.monotonic(), calls.under_way())
                if until is None:
                    return fetch.result(now)
                answers = calls.ended(until)
            now = time.monotonic()
            for answer in answers:
                fetch.take(answer, now)

    def ack(self, offsets: Mapping[str, Mapping[str, int]] | None = None) -> bool:
        """Store where the group is: topic → queue → next offset; without, after all that was fetched.

        True once it is durable. False when a proxy could not store it in three tries: the messages may come
        again. Queues that are not assigned to this consumer any more are passed over.
        """
        self._home.enter()
        stored = True
        for name, mine in self._assignments.acks(offsets).items():
            deadline = time.monotonic() + self._timeout_s
            if any(self._ack_at(name, mine, deadline) for _ in range(ACK_TRIES)):
                self._assignments.acked(mine)
            else:
                stored = False
        return stored

    def close(self) -> None:
        """Leave, so that the queues go to the others at once, and close. May be called twice."""
        left, self._closed = self._closed, True
        if self._home.left:
            return
        asked = list(self._connections)
        for name in asked:
            self._drop(name)
        for name in [] if left else asked:
            self._leave(name)
        for connection in self._for_acks.values():
            connection.close()
        self._for_acks.clear()

    def __enter__(self) -> FetchConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> dict[str, ProxyAddress]:
        if self._closed:
            raise ClosedError("the consumer has been closed")
        self._home.enter()
        now = time.monotonic()
        if now >= self._resolve_at or not self._addresses:
            wait_s = AGAIN_S if self._addresses else self._timeout_s
            resolved = in_time(self._resolved, self._proxies, now + wait_s)
            found = self._addresses if resolved is None else {str(address): address for address in resolved}
            self._resolve_at = time.monotonic() + (RESOLVE_EVERY_S if found else UNRESOLVED_RETRY_S)
            for name in self._addresses.keys() - found.keys():
                self._drop(name)
                self._assignments.lost(name)
            self._addresses = found
        if not self._addresses:
            raise PullError("no proxy address is known: no name resolves")
        return self._addresses

    def _resolved(self) -> list[ProxyAddress]:
        return resolve(self._proxies, self._known)

    def _start(self, name: str, max_messages: int, linger_ms: int) -> None:
        """Ask this proxy; on a thread of its own where there are others."""
        connection = self._connections.setdefault(name, FramedConnection(self._addresses[name]))
        asked, settings = self._assignments.ask(name), self._settings
        deadline = time.monotonic() + linger_ms / 1000 + self._timeout_s

        def frame(now: float, sequence_id: int) -> bytes:
            return fetch_frame(settings, asked, max_messages, linger_ms, sequence_id)

        def call() -> list[FetchedQueue]:
            try:
                return read_fetched(*connection.call(frame, deadline))
            except (FrameError, ProxyFault):
                connection.close()
                raise

        self._calls.start(name, asked, max_messages, call, alone=len(self._addresses) == 1)

    def _drop(self, name: str) -> None:
        """Nobody waits for this proxy's answer any more."""
        self._calls.forget(name)
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def _ack_at(self, name: str, offsets: Mapping[str, Mapping[str, int]], deadline: float) -> bool:
        address = self._addresses.get(name)
        if address is None or self._closed:
            return False
        connection = self._for_acks.setdefault(name, FramedConnection(address))

        def frame(now: float, sequence_id: int) -> bytes:
            return ack_frame(self._settings, offsets, sequence_id)

        try:
            return read_acked(*connection.call(frame, deadline))
        except FAILURES:
            connection.close()
            return False

    def _leave(self, name: str) -> None:
        """Say so to one proxy; where it does not hear it, the queues go to others after 30 s."""
        address = self._addresses.get(name)
        if address is None:
            return
        connection = self._for_acks.setdefault(name, FramedConnection(address))
        try:
            connection.call(
                lambda now, sequence_id: leave_frame(self._settings, sequence_id), time.monotonic() + LEAVE_S
            )
        except FAILURES:
            connection.close()


def fetch_settings(group: str, consumer_id: str | None, timeout_ms: int) -> FetchSettings:
    """What every call says; OptionError."""
    check_text("group", group)
    check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
    name = new_client_id() if consumer_id is None else consumer_id
    check_text("consumer_id", name)
    return FetchSettings(group, name, name, "clustering")

"""Other producer proxies: who owns which shard, and calls that are passed on to them.

One link per proxy: calls that wait, and a few connections, each worked by one greenlet that sends a call and
reads its answer. Bounded in proxies, connections, waiting calls and time; a link that nobody used for a while
closes. A call that got no answer ends in TryLaterError: what it asks for can be asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gevent
from gevent import socket
from gevent.event import Event

from backend.completion import Completion, succeeded
from backend.port import Backend
from backend.records import QueueRef
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, TryLaterError
from ddmq_common.names import HALF_TOPIC, TRANSACTION_GROUP
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.envelope import FrameRefusedError, Frames
from proxy_producer.wire import SERVICE

HOLDERS_AGE_S = 1.0
LOOKUP_S = 2.0
LINKS_MAX = 256
CONNECTIONS_MAX = 16  # per proxy
CALLS_MAX = 10_000  # waiting, per proxy
CONNECT_S = 1.0
ANSWER_S = 12.0  # a little more than a call may take there
IDLE_S = 60.0
READ_BYTES = 1 << 16
ANSWER_BYTES_MAX = (
    2 * FRAME_BYTES_MAX
)  # a check has all of its transaction, which may have come by two proxies

Done = Callable[[Any, Exception | None], None]
Holders = Mapping[int, str]  # shard → address


class PassedOn(NamedTuple):
    """A call for another proxy."""

    method: str
    request: Any
    done: Done


class Owners:
    """`address`: where others reach this proxy; "" as long as that is not known."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._known: tuple[float, Holders] | None = None
        self._links: dict[str, OwnerLink] = {}
        self._closed = False
        self.address = ""

    def holders(self) -> Completion[Holders]:
        """Who owns which shard, as of at most a second ago."""
        now = self._clock.monotonic()
        if self._known is not None and self._known[0] > now:
            return succeeded(self._known[1])
        found: Completion[Holders] = Completion()

        def answered(asked: Completion[Mapping[QueueRef, str]]) -> None:
            if asked.error is not None:
                found.fail(asked.error)
                return
            by_shard = {queue.queue_id: address for queue, address in asked.value.items()}
            self._known = self._clock.monotonic() + HOLDERS_AGE_S, by_shard
            found.succeed(by_shard)

        try:
            self._backend.holders(TRANSACTION_GROUP, HALF_TOPIC, now + LOOKUP_S).then(answered)
        except DdmqError as error:
            found.fail(error)
        return found

    def forget(self) -> None:
        """What is known of owners is wrong."""
        self._known = None

    def others(self, holders: Holders) -> list[str]:
        """The addresses of other owners."""
        return sorted({address for address in holders.values() if address not in ("", self.address)})

    def call(self, address: str, method: str, request: Any, done: Done) -> None:
        """Pass it on; `done(answer, error)` runs later, from the hub."""
        if self._closed:
            done(None, DrainingError("this proxy is shutting down; ask another one"))
            return
        link = self._links.get(address)
        if link is None:
            self._links = {name: each for name, each in self._links.items() if not each.idle}
            if len(self._links) >= LINKS_MAX:
                done(
                    None, BoundReachedError(f"calls are passed on to {LINKS_MAX} proxies; that is the bound")
                )
                return
            link = self._links[address] = OwnerLink(address)
        link.put(PassedOn(method, request, done))

    def close(self) -> None:
        """End every link."""
        self._closed = True
        for link in self._links.values():
            link.close()


class OwnerLink:
    """The way to one proxy."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._calls: deque[PassedOn] = deque()
        self._arrived = Event()
        self._workers: set[Any] = set()
        self._resting = 0  # workers that wait for a call

    @property
    def idle(self) -> bool:
        """Nothing waits, nobody works."""
        return not self._calls and not self._workers

    def put(self, call: PassedOn) -> None:
        """Take one call."""
        if len(self._calls) >= CALLS_MAX:
            bound = f"{CALLS_MAX} calls wait for {self._address}; that is the bound"
            call.done(None, BoundReachedError(bound))
            return
        self._calls.append(call)
        self._arrived.set()
        if self._resting < len(self._calls) and len(self._workers) < CONNECTIONS_MAX:
            worker = gevent.spawn(self._work)
            self._workers.add(worker)
            worker.rawlink(self._workers.discard)

    def close(self) -> None:
        """Whoever waits is told."""
        workers, self._workers = self._workers, set()
        gevent.killall(list(workers), block=False)
        while self._calls:
            self._calls.popleft().done(None, DrainingError("this proxy is shutting down"))

    def _work(self) -> None:
        connection: socket.socket | None = None
        call: PassedOn | None = None
        try:
            while self._wait():
                call = self._calls.popleft()
                answer, error = None, None
                try:
                    connection = connection or self._connect()
                    answer = self._exchange(connection, call)
                except (OSError, EOFError, FrameRefusedError, ReplyError, ValueError) as failure:
                    error = TryLaterError(f"the proxy at {self._address} cannot be asked now: {failure}")
                    if connection is not None and not isinstance(failure, ReplyError):
                        connection.close()
                        connection = None
                done, call = call.done, None
                done(answer, error)
        finally:
            if call is not None:
                call.done(None, TryLaterError("the connection was ended"))
            if connection is not None:
                connection.close()

    def _wait(self) -> bool:
        """True when there is something to send, False when nothing came for long."""
        self._resting += 1
        try:
            while not self._calls:
                self._arrived.clear()
                if not self._arrived.wait(IDLE_S):
                    return bool(self._calls)
            return True
        finally:
            self._resting -= 1

    def _connect(self) -> socket.socket:
        host, _, port = self._address.rpartition(":")
        made = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(ANSWER_S)
        return made

    def _exchange(self, connection: socket.socket, call: PassedOn) -> Any:
        with gevent.Timeout(ANSWER_S, OSError(f"no answer within {ANSWER_S:.0f} s")):
            connection.sendall(encode_call(producer, SERVICE, call.method, request=call.request))
            frames = Frames(ANSWER_BYTES_MAX)
            frame = None
            while frame is None:
                data = connection.recv(READ_BYTES)
                if not data:
                    raise EOFError("the connection was closed")
                frame = frames.feed(data)
        return decode_reply(producer, SERVICE, frame).result.success

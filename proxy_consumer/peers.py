"""Connections to other consumer proxies, for the results that are passed on to them.

One link per proxy: a queue of calls and a few connections, each worked by one greenlet that takes what
waits, sends it as one `submit`, and reads the answer. Bounded in proxies, connections, calls waiting and
time; a link that nobody used for a while closes. A call that cannot be made or is refused ends in
TryLaterError, and with one that gets no answer those that wait behind it: each would wait as long, and so
would the pull that brought it. Submits are idempotent, so the client may send again what was perhaps taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gevent
from gevent import socket
from gevent.event import Event

from ddmq_client.idl import consumer
from ddmq_common.errors import BoundReachedError, DrainingError, TryLaterError
from ddmq_common.metrics.catalogue import FORWARDED
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.envelope import FrameRefusedError, Frames
from proxy_consumer.answers import IDL, SERVICE
from proxy_consumer.runtime import Runtime

LINKS_MAX = 256
CONNECTIONS_MAX = 2  # per proxy
CALLS_MAX = 10_000  # waiting, per proxy
ELEMENTS_MAX = 64  # linked results of one submit
CONNECT_S = 1.0
ANSWER_S = 2.0  # less than clients wait for their own call, 5 s by default: they hear the reason
IDLE_S = 60.0
ANSWER_BYTES_MAX = 1 << 16
PASSED_ON = (  # of each result
    "context", "successOffsets", "successLeases", "failOffsets", "failLeases", "failDelaysMs", "failReasons",
    "extendOffsets", "extendLeases", "returnOffsets", "returnLeases",
)  # fmt: skip

Done = Callable[[Exception | None], None]


class _Waiting(NamedTuple):
    results: Sequence[Any]
    done: Done


class Peers:
    """The links of one proxy."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._links: dict[str, PeerLink] = {}
        self._closed = False

    def submit(self, address: str, results: Sequence[Any], done: Done) -> None:
        """Pass `results` on; `done` runs later, from the hub, with what went wrong or None."""
        if self._closed:
            done(DrainingError("this proxy is shutting down; send the results to another one"))
            return
        link = self._links.get(address)
        if link is None:
            self._links = {name: each for name, each in self._links.items() if not each.idle}
            if len(self._links) >= LINKS_MAX:
                done(BoundReachedError(f"results are passed on to {LINKS_MAX} proxies; that is the bound"))
                return
            link = self._links[address] = PeerLink(self._runtime, address)
        link.put(_Waiting(results, done))

    def close(self) -> None:
        """End every link."""
        self._closed = True
        for link in self._links.values():
            link.close()


class PeerLink:
    """The way to one proxy."""

    def __init__(self, runtime: Runtime, address: str) -> None:
        self._runtime = runtime
        self.address = address
        self._calls: deque[_Waiting] = deque()
        self._arrived = Event()
        self._workers: set[Any] = set()
        self._resting = 0  # workers that wait for a call
        self._failed = runtime.metrics.cell(FORWARDED, "failed")

    @property
    def idle(self) -> bool:
        """Nothing waits, nobody works."""
        return not self._calls and not self._workers

    def put(self, waiting: _Waiting) -> None:
        """Take one call."""
        if len(self._calls) >= CALLS_MAX:
            waiting.done(BoundReachedError(f"{CALLS_MAX} results wait for {self.address}; that is the bound"))
            return
        self._calls.append(waiting)
        self._arrived.set()
        if not self._resting and len(self._workers) < CONNECTIONS_MAX:
            worker = gevent.spawn(self._work)
            self._workers.add(worker)
            worker.rawlink(self._workers.discard)

    def close(self) -> None:
        """Whoever waits is told."""
        workers, self._workers = self._workers, set()
        gevent.killall(list(workers), block=False)
        while self._calls:
            self._calls.popleft().done(DrainingError("this proxy is shutting down"))

    def _work(self) -> None:
        connection: socket.socket | None = None
        batch: list[_Waiting] = []
        try:
            while self._wait():
                batch = self._take()
                error: Exception | None = None
                try:
                    connection = connection or self._connect()
                    self._call(connection, batch)
                except (
                    OSError,
                    EOFError,
                    FrameRefusedError,
                    ReplyError,
                    ValueError,
                    TryLaterError,
                ) as failure:
                    error = failure
                    if connection is not None and not isinstance(failure, ReplyError | TryLaterError):
                        connection.close()
                        connection = None
                done, batch = batch, []
                if isinstance(error, OSError):
                    done += self._calls
                    self._calls.clear()
                self._finish(done, error)
        finally:
            self._finish(batch, TryLaterError("the connection was ended"))
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

    def _take(self) -> list[_Waiting]:
        batch = [self._calls.popleft()]
        count = len(batch[0].results)
        while self._calls and count + len(self._calls[0].results) <= ELEMENTS_MAX:
            batch.append(self._calls.popleft())
            count += len(batch[-1].results)
        return batch

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        made = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(ANSWER_S)
        return made

    def _call(self, connection: socket.socket, batch: Sequence[_Waiting]) -> None:
        head = linked([result for waiting in batch for result in waiting.results], self._runtime.address)
        with gevent.Timeout(ANSWER_S, OSError(f"no answer within {ANSWER_S:.0f} s")):
            connection.sendall(encode_call(consumer, SERVICE, "submit", result=head))
            frames = Frames(ANSWER_BYTES_MAX)
            frame = None
            while frame is None:
                data = connection.recv(ANSWER_BYTES_MAX)
                if not data:
                    raise EOFError("the connection was closed")
                frame = frames.feed(data)
        answer = decode_reply(consumer, SERVICE, frame).result
        if answer.error is not None:
            said = (answer.error.message or b"").decode("utf-8", "replace")
            raise TryLaterError(f"the proxy at {self.address} says: {said}")

    def _finish(self, batch: Sequence[_Waiting], error: Exception | None) -> None:
        if error is not None and batch:
            self._failed.value += len(batch)
            if not isinstance(error, TryLaterError):
                error = TryLaterError(
                    f"the proxy at {self.address} holds the queue and cannot be reached: {error}"
                )
        for waiting in batch:
            waiting.done(error)


def linked(results: Sequence[Any], forwarded_by: str) -> Any:
    """The results as one linked list of their own, marked as passed on."""
    head = None
    for result in reversed(results):
        head = IDL.ConsumeResult(nextResult=head, **{name: getattr(result, name) for name in PASSED_ON})
    assert head is not None
    head.forwardedBy = forwarded_by
    return head

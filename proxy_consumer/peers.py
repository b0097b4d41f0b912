"""Connections to other consumer proxies, for the results that are passed on to them, and for acknowledgements
that carry messages.

One link per proxy: a queue of calls and a few connections, each worked by one greenlet that takes what
waits, sends it as one `submit`, and reads the answer. Bounded in proxies, connections, calls waiting and
time; a link that nobody used for a while closes. A call that cannot be made or is refused ends in
TryLaterError, and with one that gets no answer those that wait behind it: each would wait as long, and so
would the pull that brought it. Submits are idempotent, so the client may send again what was perhaps taken.
An acknowledgement that carries messages (`reply`) goes alone, over a link of its own kind, with its caller's
time.
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

REPLY_BYTES_MAX = 1 << 20

Done = Callable[[Exception | None], None]


class _Waiting(NamedTuple):
    results: Sequence[Any]
    done: Done


class PassedReply:
    """A ReplyRequest on its way to the proxy that holds the queue. `until`: monotonic seconds."""

    def __init__(self, request: Any, until: float, done: Done) -> None:
        self.results = (request,)
        self.until = until
        self.done = done
        self.sent = False  # it may have been carried out
        self.answer: Any = None  # a ReplyResponse, when `done` says of no error


class Peers:
    """The links of one proxy."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._links: dict[tuple[str, type[PeerLink]], PeerLink] = {}
        self._closed = False

    def submit(self, address: str, results: Sequence[Any], done: Done) -> None:
        """Pass `results` on; `done` runs later, from the hub, with what went wrong or None."""
        self._put(address, PeerLink, _Waiting(results, done))

    def reply(self, address: str, passed: PassedReply) -> None:
        """Pass an acknowledgement with messages on."""
        self._put(address, ReplyLink, passed)

    def _put(self, address: str, kind: type[PeerLink], waiting: _Waiting | PassedReply) -> None:
        if self._closed:
            waiting.done(DrainingError("this proxy is shutting down; send the results to another one"))
            return
        link = self._links.get((address, kind))
        if link is None:
            self._links = {name: each for name, each in self._links.items() if not each.idle}
            if len(self._links) >= LINKS_MAX:
                text = f"results are passed on over {LINKS_MAX} links; that is the bound"
                waiting.done(BoundReachedError(text))
                return
            link = self._links[address, kind] = kind(self._runtime, address)
        link.put(waiting)

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
        self._calls: deque[_Waiting | PassedReply] = deque()
        self._arrived = Event()
        self._workers: set[Any] = set()
        self._resting = 0  # workers that wait for a call
        self._failed = runtime.metrics.cell(FORWARDED, "failed")

    @property
    def idle(self) -> bool:
        """Nothing waits, nobody works."""
        return not self._calls and not self._workers

    def put(self, waiting: _Waiting | PassedReply) -> None:
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
        batch: list[_Waiting | PassedReply] = []
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

    def _take(self) -> list[_Waiting | PassedReply]:
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

    def _call(self, connection: socket.socket, batch: Sequence[_Waiting | PassedReply]) -> None:
        head = linked([result for waiting in batch for result in waiting.results], self._runtime.address)
        frame = encode_call(consumer, SERVICE, "submit", result=head)
        answer = exchanged(connection, frame, ANSWER_S, ANSWER_BYTES_MAX)
        if answer.error is not None:
            said = (answer.error.message or b"").decode("utf-8", "replace")
            raise TryLaterError(f"the proxy at {self.address} says: {said}")

    def _finish(self, batch: Sequence[_Waiting | PassedReply], error: Exception | None) -> None:
        if error is not None and batch:
            self._failed.value += len(batch)
            if not isinstance(error, TryLaterError):
                error = TryLaterError(
                    f"the proxy at {self.address} holds the queue and cannot be reached: {error}"
                )
        for waiting in batch:
            waiting.done(error)


class ReplyLink(PeerLink):
    """The same for acknowledgements with messages, one a call."""

    def _take(self) -> list[_Waiting | PassedReply]:
        return [self._calls.popleft()]

    def _call(self, connection: socket.socket, batch: Sequence[_Waiting | PassedReply]) -> None:
        (passed,) = batch
        assert isinstance(passed, PassedReply)
        left_s = passed.until - self._runtime.now()
        if left_s <= 0:
            raise TryLaterError("its time was up before it was passed on")
        (request,) = passed.results
        request.timeout, request.forwardedBy = max(1, int(left_s * 900)), self._runtime.address
        connection.settimeout(left_s)
        frame = encode_call(consumer, SERVICE, "reply", request=request)
        passed.sent = True
        passed.answer = exchanged(connection, frame, left_s, REPLY_BYTES_MAX).success


def exchanged(connection: socket.socket, frame: bytes, seconds: float, bytes_max: int) -> Any:
    """The result struct that answers a call."""
    with gevent.Timeout(seconds, OSError(f"no answer within {seconds:.1f} s")):
        connection.sendall(frame)
        frames = Frames(bytes_max)
        found = None
        while found is None:
            data = connection.recv(ANSWER_BYTES_MAX)
            if not data:
                raise EOFError("the connection was closed")
            found = frames.feed(data)
    return decode_reply(consumer, SERVICE, found).result


def linked(results: Sequence[Any], forwarded_by: str) -> Any:
    """The results as one linked list of their own, marked as passed on."""
    head = None
    for result in reversed(results):
        head = IDL.ConsumeResult(nextResult=head, **{name: getattr(result, name) for name in PASSED_ON})
    assert head is not None
    head.forwardedBy = forwarded_by
    return head

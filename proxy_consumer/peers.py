"""Connections to other consumer proxies, for the results that are passed on to them, and for acknowledgements
that carry messages.

What waits for a proxy goes as one `submit`. A call that cannot be made or is refused ends in TryLaterError,
and with one that gets no answer those that wait behind it: each would wait as long, and so would the pull
that brought it. Submits are idempotent, so the client may send again what was perhaps taken.
An acknowledgement that carries messages (`reply`) goes alone, over a link of its own kind, with its caller's
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddmq_client.idl import consumer
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, TryLaterError
from ddmq_common.metrics.catalogue import FORWARDED
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.links import CallLink, LinkBounds, Links, exchange_frame
from proxy_consumer.answers import IDL, SERVICE
from proxy_consumer.runtime import Runtime

if TYPE_CHECKING:
    from gevent import socket

CONNECTIONS_MAX = 2  # per proxy
REPLY_CONNECTIONS_MAX = 16  # the same; a reply may wait for a rate, and those of others shall not wait for it
CALLS_MAX = 10_000  # waiting, per proxy
ELEMENTS_MAX = 64  # linked results of one submit
ANSWER_S = 2.0  # less than clients wait for their own call, 5 s by default: they hear the reason
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
        self._links = Links[tuple[str, type[PeerLink]], PeerLink]()

    def submit(self, address: str, results: Sequence[Any], done: Done) -> None:
        """Pass `results` on; `done` runs later, from the hub, with what went wrong or None."""
        self._put(address, PeerLink, _Waiting(results, done))

    def reply(self, address: str, passed: PassedReply) -> None:
        """Pass an acknowledgement with messages on."""
        self._put(address, ReplyLink, passed)

    def _put(self, address: str, kind: type[PeerLink], waiting: _Waiting | PassedReply) -> None:
        try:
            link = self._links.get_link((address, kind), lambda: kind(self._runtime, address))
        except DdmqError as error:
            waiting.done(error)
        else:
            link.put(waiting)

    def close(self) -> None:
        """End the links to all proxies."""
        self._links.close()


class PeerLink(CallLink[_Waiting | PassedReply]):
    """The way to one proxy."""

    together, connections = ELEMENTS_MAX, CONNECTIONS_MAX

    def __init__(self, runtime: Runtime, address: str) -> None:
        super().__init__(address, LinkBounds(self.connections, CALLS_MAX, self.together, ANSWER_S))
        self._runtime = runtime
        self._failed = runtime.metrics.cell(FORWARDED, "failed")

    def take(self) -> list[_Waiting | PassedReply]:
        batch = super().take()
        count = len(batch[0].results)
        while self.waiting and count + len(self.waiting[0].results) <= ELEMENTS_MAX:
            batch.append(self.waiting.popleft())
            count += len(batch[-1].results)
        return batch

    def call(self, connection: socket.socket, batch: list[_Waiting | PassedReply]) -> None:
        head = link_results(
            [result for waiting in batch for result in waiting.results], self._runtime.address
        )
        frame = encode_call(consumer, SERVICE, "submit", result=head)
        answer = exchange_frame(connection, consumer, SERVICE, frame, ANSWER_S, ANSWER_BYTES_MAX)
        if answer.error is not None:
            text = (answer.error.message or b"").decode("utf-8", "replace")
            raise TryLaterError(f"the proxy at {self.address} says: {text}")

    def ended(self, batch: list[_Waiting | PassedReply], error: Exception | None) -> None:
        if isinstance(error, OSError):
            batch = batch + list(self.waiting)
            self.waiting.clear()
        if error is not None and not isinstance(error, BoundReachedError | DrainingError):
            self._failed.value += len(batch)
            if not isinstance(error, TryLaterError):
                why = f"the proxy at {self.address} holds the queue and cannot be reached: {error}"
                error = TryLaterError(why)
        for waiting in batch:
            waiting.done(error)


class ReplyLink(PeerLink):
    """A link for acknowledgements with messages, one a call."""

    together, connections = 1, REPLY_CONNECTIONS_MAX

    def take(self) -> list[_Waiting | PassedReply]:
        return [self.waiting.popleft()]

    def call(self, connection: socket.socket, batch: list[_Waiting | PassedReply]) -> None:
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
        passed.answer = exchange_frame(connection, consumer, SERVICE, frame, left_s, REPLY_BYTES_MAX).success


def link_results(results: Sequence[Any], forwarded_by: str) -> Any:
    """The results as one linked list of their own, marked as passed on."""
    head = None
    for result in reversed(results):
        head = IDL.ConsumeResult(nextResult=head, **{name: getattr(result, name) for name in PASSED_ON})
    assert head is not None
    head.forwardedBy = forwarded_by
    return head

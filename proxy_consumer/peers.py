"""Connections to other consumer proxies, for forwarded results and acknowledgements that carry messages.

All results that wait for a proxy are sent as one `submit`. A call that cannot be made or is rejected fails
with TryLaterError, and a call without a reply also fails the calls that wait behind it: each would wait as
long, and so would the pull that brought it. Submits are idempotent, so the client may repeat results that
were perhaps applied. An acknowledgement that carries messages (`reply`) is sent as a call of its own, over a
separate link, with its caller's time-out.
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
REPLY_CONNECTIONS_MAX = 16  # the same; a reply may wait for a rate limit, and must not delay other replies
CALLS_MAX = 10_000  # waiting calls, per proxy
ELEMENTS_MAX = 64  # results linked in one submit
ANSWER_S = 2.0  # shorter than the clients' own time-out (5 s by default), so that they get the reason
ANSWER_BYTES_MAX = 1 << 16
PASSED_ON = (  # the forwarded fields of each result
    "context", "successOffsets", "successLeases", "failOffsets", "failLeases", "failDelaysMs", "failReasons",
    "extendOffsets", "extendLeases", "returnOffsets", "returnLeases",
)  # fmt: skip

REPLY_BYTES_MAX = 1 << 20

Done = Callable[[Exception | None], None]


class _Waiting(NamedTuple):
    results: Sequence[Any]
    done: Done


class PassedReply:
    """A ReplyRequest that is forwarded to the proxy that owns the queue. `until`: monotonic seconds."""

    def __init__(self, request: Any, until: float, done: Done) -> None:
        self.results = (request,)
        self.until = until
        self.done = done
        self.sent = False  # the request was sent, and may have been carried out
        self.answer: Any = None  # a ReplyResponse, if `done` is called without an error


class Peers:
    """Forwards calls from this proxy to the other consumer proxies."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._links = Links[tuple[str, type[PeerLink]], PeerLink]()

    def submit(self, address: str, results: Sequence[Any], done: Done) -> None:
        """Forward `results` to a proxy; `done` is called later, on the hub, with the error or None."""
        self._put(address, PeerLink, _Waiting(results, done))

    def reply(self, address: str, passed: PassedReply) -> None:
        """Forward an acknowledgement with messages to a proxy."""
        self._put(address, ReplyLink, passed)

    def _put(self, address: str, kind: type[PeerLink], waiting: _Waiting | PassedReply) -> None:
        try:
            link = self._links.get_link((address, kind), lambda: kind(self._runtime, address))
        except DdmqError as error:
            waiting.done(error)
        else:
            link.put(waiting)

    def close(self) -> None:
        """Close the links to all proxies."""
        self._links.close()


class PeerLink(CallLink[_Waiting | PassedReply]):
    """The connections from this proxy to another one, with the calls that wait for a connection."""

    port = "consumer"
    together, connections = ELEMENTS_MAX, CONNECTIONS_MAX

    def __init__(self, runtime: Runtime, address: str) -> None:
        bounds = LinkBounds(self.connections, CALLS_MAX, self.together, ANSWER_S)
        super().__init__(address, bounds, runtime.read_token)
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
            raise TryLaterError(f"the proxy at {self.address} replied: {text}")

    def on_calls_done(self, batch: list[_Waiting | PassedReply], error: Exception | None) -> None:
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
    """A link for acknowledgements with messages, one per call."""

    together, connections = 1, REPLY_CONNECTIONS_MAX

    def take(self) -> list[_Waiting | PassedReply]:
        return [self.waiting.popleft()]

    def call(self, connection: socket.socket, batch: list[_Waiting | PassedReply]) -> None:
        (passed,) = batch
        assert isinstance(passed, PassedReply)
        left_s = passed.until - self._runtime.now()
        if left_s <= 0:
            raise TryLaterError("its time-out passed before it was forwarded")
        (request,) = passed.results
        request.timeout, request.forwardedBy = max(1, int(left_s * 900)), self._runtime.address
        connection.settimeout(left_s)
        frame = encode_call(consumer, SERVICE, "reply", request=request)
        passed.sent = True
        passed.answer = exchange_frame(connection, consumer, SERVICE, frame, left_s, REPLY_BYTES_MAX).success


def link_results(results: Sequence[Any], forwarded_by: str) -> Any:
    """Build the linked list of these results for a `submit`, marked as forwarded."""
    head = None
    for result in reversed(results):
        head = IDL.ConsumeResult(nextResult=head, **{name: getattr(result, name) for name in PASSED_ON})
    assert head is not None
    head.forwardedBy = forwarded_by
    return head

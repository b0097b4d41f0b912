"""Other producer proxies: who owns which shard, and calls that are passed on to them.

A call that got no answer ends in TryLaterError: what it asks for can be asked again. Where that is not so,
its `sent` says whether it can have arrived. Calls of each method have links of their own, so that prepares
which wait for a rate limit hold up no ends.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.completion import Completion, succeeded
from backend.port import Backend
from backend.records import QueueRef
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, TryLaterError
from ddmq_common.names import HALF_TOPIC, TRANSACTION_GROUP
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.links import CallLink, LinkBounds, Links, exchange_frame
from proxy_producer.wire import SERVICE

if TYPE_CHECKING:
    from gevent import socket

HOLDERS_AGE_S = 1.0
LOOKUP_S = 2.0
ANSWER_S = 12.0  # a little more than a call may take there
BOUNDS = LinkBounds(connections=16, calls=10_000, together=1, answer_s=ANSWER_S)
PREPARES = "sendPrepared"
PREPARE_BOUNDS = BOUNDS._replace(connections=64)  # each waits for the disk
ANSWER_BYTES_MAX = 2 * FRAME_BYTES_MAX  # a check has all of its transaction, which two owners may have let in

Done = Callable[[Any, Exception | None], None]
Holders = Mapping[int, str]  # shard → address


@dataclass(slots=True)
class PassedOn:
    """A call for another proxy. `answer`: None until there is one. `sent`: it may have arrived there."""

    method: str
    request: Any
    done: Done
    answer: Any = None
    sent: bool = False


class Owners:
    """`address`: where others reach this proxy; "" as long as that is not known."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._known: tuple[float, Holders] | None = None
        self._asking: Completion[Holders] | None = None
        self._links = Links[tuple[str, str], OwnerLink]()
        self.address = ""

    def holders(self) -> Completion[Holders]:
        """Return the owner of each shard, at most a second old; concurrent callers share one answer."""
        now = self._clock.monotonic()
        if self._known is not None and self._known[0] > now:
            return succeeded(self._known[1])
        if self._asking is not None:
            return self._asking
        shared: Completion[Holders] = Completion()
        self._asking = shared

        def on_answer(asked: Completion[Mapping[QueueRef, str]]) -> None:
            self._asking = None
            if asked.error is not None:
                shared.fail(asked.error)
                return
            by_shard = {queue.queue_id: address for queue, address in asked.value.items()}
            self._known = self._clock.monotonic() + HOLDERS_AGE_S, by_shard
            shared.succeed(by_shard)

        try:
            self._backend.holders(TRANSACTION_GROUP, HALF_TOPIC, now + LOOKUP_S).then(on_answer)
        except DdmqError as error:
            self._asking = None
            shared.fail(error)
        return shared

    def forget(self) -> None:
        """Forget the owners: they have changed."""
        self._known = None

    def others(self, holders: Holders) -> list[str]:
        """The addresses of other owners."""
        return sorted({address for address in holders.values() if address not in ("", self.address)})

    def call(self, address: str, method: str, request: Any, done: Done) -> PassedOn:
        """Pass it on; `done(answer, error)` runs, mostly later, from the hub."""
        passed = PassedOn(method, request, done)
        bounds = PREPARE_BOUNDS if method == PREPARES else BOUNDS
        try:
            link = self._links.get_link((address, method), lambda: OwnerLink(address, bounds))
        except DdmqError as error:
            done(None, error)
        else:
            link.put(passed)
        return passed

    def close(self) -> None:
        """Close every link to other proxies."""
        self._links.close()


class OwnerLink(CallLink[PassedOn]):
    """The way to one proxy."""

    def call(self, connection: socket.socket, batch: list[PassedOn]) -> None:
        (passed,) = batch
        frame = encode_call(producer, SERVICE, passed.method, request=passed.request)
        if passed.method == PREPARES and is_closed(connection):
            raise EOFError("the connection was closed")
        passed.sent = True
        passed.answer = exchange_frame(
            connection, producer, SERVICE, frame, ANSWER_S, ANSWER_BYTES_MAX
        ).success

    def ended(self, batch: list[PassedOn], error: Exception | None) -> None:
        if error is not None and not isinstance(error, TryLaterError | BoundReachedError | DrainingError):
            error = TryLaterError(f"the proxy at {self.address} cannot be asked now: {error}")
        for passed in batch:
            passed.done(passed.answer, error)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection on which nothing is awaited."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))

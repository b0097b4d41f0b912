"""Other producer proxies: who owns which shard, and calls that are passed on to them.

A call without an answer fails with TryLaterError, because most calls can be repeated. For the others, `sent`
says whether the call may have arrived. Each method has its own links, so that prepares which wait for a rate
limit do not delay the ends of transactions.
"""

from __future__ import annotations

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
from ddmq_common.security.connecting import is_closed
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.links import CallLink, LinkBounds, Links, ReadToken, exchange_frame
from proxy_producer.wire import SERVICE

if TYPE_CHECKING:
    from gevent import socket

ADDRESSES_AGE_S = 1.0
LOOKUP_S = 2.0
ANSWER_S = 12.0  # a little more than a call may take there
BOUNDS = LinkBounds(connections=16, calls=10_000, together=1, answer_s=ANSWER_S)
PREPARES = "sendPrepared"
PREPARE_BOUNDS = BOUNDS._replace(connections=64)  # each waits for the disk
ANSWER_BYTES_MAX = (
    2 * FRAME_BYTES_MAX
)  # a check contains its whole transaction, which two owners may have admitted

Done = Callable[[Any, Exception | None], None]
OwnerAddresses = Mapping[int, str]  # shard → address


@dataclass(slots=True)
class ForwardedCall:
    """A call forwarded to another proxy. `answer`: None until it is there.

    `sent`: the call may have arrived.
    """

    method: str
    request: Any
    done: Done
    answer: Any = None
    sent: bool = False


class Owners:
    """Finds the owner of each shard and forwards calls to it.

    `address`: where other proxies reach this one; "" while that is unknown.
    """

    def __init__(self, backend: Backend, clock: Clock, read_token: ReadToken | None = None) -> None:
        self._backend = backend
        self._read_token = read_token
        self._clock = clock
        self._cached_addresses: tuple[float, OwnerAddresses] | None = None
        self._pending_lookup: Completion[OwnerAddresses] | None = None
        self._links = Links[tuple[str, str], OwnerLink]()
        self.address = ""

    def fetch_addresses(self) -> Completion[OwnerAddresses]:
        """Return the owner's address of each shard, at most a second old.

        Concurrent callers share one request.
        """
        now = self._clock.monotonic()
        if self._cached_addresses is not None and self._cached_addresses[0] > now:
            return succeeded(self._cached_addresses[1])
        if self._pending_lookup is not None:
            return self._pending_lookup
        shared: Completion[OwnerAddresses] = Completion()
        self._pending_lookup = shared

        def on_answer(lookup: Completion[Mapping[QueueRef, str]]) -> None:
            self._pending_lookup = None
            if lookup.error is not None:
                shared.fail(lookup.error)
                return
            by_shard = {queue.queue_id: address for queue, address in lookup.value.items()}
            self._cached_addresses = self._clock.monotonic() + ADDRESSES_AGE_S, by_shard
            shared.succeed(by_shard)

        try:
            self._backend.holders(TRANSACTION_GROUP, HALF_TOPIC, now + LOOKUP_S).then(on_answer)
        except DdmqError as error:
            self._pending_lookup = None
            shared.fail(error)
        return shared

    def forget(self) -> None:
        """Drop the cached owners of shards, because the owners have changed."""
        self._cached_addresses = None

    def list_others(self, addresses: OwnerAddresses) -> list[str]:
        """Return the addresses of all owners but this proxy, sorted."""
        return sorted({address for address in addresses.values() if address not in ("", self.address)})

    def call(self, address: str, method: str, request: Any, done: Done) -> ForwardedCall:
        """Forward a call to the proxy at `address`.

        `done(answer, error)` is called on the hub: later, or before this returns if there is no link.
        """
        passed = ForwardedCall(method, request, done)
        bounds = PREPARE_BOUNDS if method == PREPARES else BOUNDS
        try:
            link = self._links.get_link(
                (address, method), lambda: OwnerLink(address, bounds, self._read_token)
            )
        except DdmqError as error:
            done(None, error)
        else:
            link.put(passed)
        return passed

    def close(self) -> None:
        """Close every link to other proxies."""
        self._links.close()


class OwnerLink(CallLink[ForwardedCall]):
    """The connections to one other proxy for one method."""

    port = "producer"

    def call(self, connection: socket.socket, batch: list[ForwardedCall]) -> None:
        (passed,) = batch
        frame = encode_call(producer, SERVICE, passed.method, request=passed.request)
        if passed.method == PREPARES and is_closed(connection):
            raise EOFError("the connection was closed")
        passed.sent = True
        passed.answer = exchange_frame(
            connection, producer, SERVICE, frame, ANSWER_S, ANSWER_BYTES_MAX
        ).success

    def on_calls_done(self, batch: list[ForwardedCall], error: Exception | None) -> None:
        if error is not None and not isinstance(error, TryLaterError | BoundReachedError | DrainingError):
            error = TryLaterError(f"the proxy at {self.address} cannot be asked now: {error}")
        for passed in batch:
            passed.done(passed.answer, error)

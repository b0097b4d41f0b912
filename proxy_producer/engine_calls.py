"""Calls between the processes of one engine, over the producer port (method callEngine).

The proxy does not look into the data: the engine encodes it, and rejects what is not from its own processes.
A call fails with TryLaterError if it certainly did not reach the other process, else with RemoteError.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from backend.completion import Completion
from backend.port import Backend
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, RemoteError, TryLaterError
from ddmq_common.security.connecting import is_closed
from ddmq_rpc.api import Call, ErrorKind
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.links import CallLink, LinkBounds, Links, ReadToken, exchange_frame
from proxy_producer.wire import SERVICE

if TYPE_CHECKING:
    from gevent import socket

log = logging.getLogger("ddmq.producer")
ANSWER_S = 12.0  # a little more than a send may take
METHOD = "callEngine"
BOUNDS = LinkBounds(connections=32, calls=1_000, together=1, answer_s=ANSWER_S)
MIN_TIMEOUT_S = 0.05


class EngineCall(Completion[bytes]):
    """A call to another process. `sent`: it may have arrived."""

    __slots__ = ("answer", "data", "deadline", "sent")

    def __init__(self, data: bytes, deadline: float) -> None:
        super().__init__()
        self.data = data
        self.deadline = deadline
        self.sent = False
        self.answer: bytes | None = None


class EngineCalls:
    """Makes the calls of the engine to its other processes, and answers theirs."""

    def __init__(
        self, backend: Backend, clock: Clock, timeout_ms_max: int, read_token: ReadToken | None = None
    ) -> None:
        self._read_token = read_token
        self._backend = backend
        self._clock = clock
        self._timeout_ms_max = timeout_ms_max
        self._links = Links[str, EngineLink]()

    def call(self, address: str, data: bytes, deadline: float) -> Completion[bytes]:
        """Send `data` to the process at `address` (HOST:PORT); see backend.port.PeerCalls."""
        call = EngineCall(data, deadline)
        try:
            self._links.get_link(address, lambda: EngineLink(address, self._clock, self._read_token)).put(
                call
            )
        except DdmqError as error:
            call.fail(TryLaterError(str(error)))
        return call

    def handle_call(self, call: Call) -> None:
        """Handle a call of callEngine."""
        timeout_ms = min(max(call.args.timeout or 0, 0), self._timeout_ms_max)
        deadline = self._clock.monotonic() + timeout_ms / 1_000

        def on_answer(answer: Completion[bytes]) -> None:
            if answer.error is None:
                call.reply(answer.value)
            else:
                call.reply_error(ErrorKind.PROTOCOL_ERROR, str(answer.error))

        self._backend.take_peer_call(call.args.data or b"", deadline).then(on_answer)

    def close(self) -> None:
        """Close all links; calls in progress fail."""
        self._links.close()


class EngineLink(CallLink[EngineCall]):
    """The connections to one other process."""

    port = "producer"

    def __init__(self, address: str, clock: Clock, read_token: ReadToken | None) -> None:
        super().__init__(address, BOUNDS, read_token)
        self._clock = clock

    def call(self, connection: socket.socket, batch: list[EngineCall]) -> None:
        (call,) = batch
        remaining_s = call.deadline - self._clock.monotonic()
        if remaining_s < MIN_TIMEOUT_S:
            raise TryLaterError("its time was up before it was sent")
        timeout_ms = round(remaining_s * 1_000)
        frame = encode_call(producer, SERVICE, METHOD, data=call.data, timeout=timeout_ms)
        if is_closed(connection):
            raise EOFError("the connection was closed")
        call.sent = True
        seconds = min(ANSWER_S, remaining_s)
        call.answer = exchange_frame(connection, producer, SERVICE, frame, seconds, FRAME_BYTES_MAX).success

    def on_calls_done(self, batch: list[EngineCall], error: Exception | None) -> None:
        for call in batch:
            if call.answer is not None:
                call.succeed(call.answer)
            elif call.sent:
                call.fail(RemoteError(f"the process at {self.address} has not answered: {error}"))
            else:
                call.fail(TryLaterError(f"the process at {self.address} cannot be reached: {error}"))

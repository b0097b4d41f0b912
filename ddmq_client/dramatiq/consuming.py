"""The consumer of one Dramatiq queue: at most `prefetch` messages are with the worker at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

import dramatiq

from ddmq_client.dramatiq.delivered import DeliveredMessage, decode
from ddmq_client.dramatiq.leases import LeaseKeeper
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.net.consumer import Consumer
from ddmq_client.producer import Producer
from ddmq_client.received import Message

_log = logging.getLogger("ddmq_client.dramatiq")
GATHER_S = 0.01  # a pull waits this long for more capacity, so that fast actors do not cause a pull each
STOP_TIMEOUT_MS = 5_000


class DdmqConsumer(dramatiq.Consumer):
    """Iterate over the messages of one queue; Dramatiq's worker threads settle them, in any order."""

    def __init__(
        self,
        queue_name: str,
        client: Consumer,
        producer: Callable[[], Producer],
        leases: LeaseKeeper,
        prefetch: int,
        timeout_ms: int,
    ) -> None:
        """Create a consumer of one queue on `client`, which no other consumer may use.

        `timeout_ms`: how long `next` waits for a message.
        """
        self._queue_name = queue_name
        self._client = client
        self._producer = producer
        self._leases = leases
        self._prefetch = prefetch
        self._timeout_ms = max(1, timeout_ms)
        self._ready: deque[Message] = deque()
        self._unsettled = 0  # messages received and not settled, including those in `_ready`
        self._settled = threading.Condition()
        self._closed = False
        self.is_stopped = False

    def __next__(self) -> DeliveredMessage | None:
        if not self._ready:
            capacity = self._wait_for_capacity()
            if not capacity:
                return None
            self._pull(capacity)
        return self._decode(self._ready.popleft()) if self._ready else None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge the message, in one commit with the messages that middleware enqueued after its
        actor."""
        if isinstance(message, DeliveredMessage):
            message.ack(self._producer())
            self._release(message.delivery)

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Move the message to the dead letters of its queue."""
        if isinstance(message, DeliveredMessage):
            message.nack(self._producer())
            self._release(message.delivery)

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Return messages that no actor has had: other workers get them at once."""
        for message in messages:
            if isinstance(message, DeliveredMessage):
                message.hand_back()
                self._release(message.delivery)

    def close(self) -> None:
        """Return the messages that Dramatiq has not taken, and stop once it has settled the others."""
        while self._ready:
            message = self._ready.popleft()
            message.hand_back()
            self._release(message)
        with self._settled:
            self._closed = True
            is_idle = not self._unsettled
        if is_idle:
            self.stop()

    def stop(self) -> None:
        """Submit the results of settled messages and close the connections."""
        self.is_stopped = True
        self._client.stop(STOP_TIMEOUT_MS)

    def _wait_for_capacity(self) -> int:
        """Return how many messages may be pulled; 0 if the worker has settled none in time."""
        with self._settled:
            self._settled.wait_for(lambda: self._unsettled < self._prefetch, self._timeout_ms / 1000)
            if self._unsettled < self._prefetch:
                self._settled.wait_for(lambda: self._unsettled <= self._prefetch // 2, GATHER_S)
            return self._prefetch - self._unsettled

    def _pull(self, capacity: int) -> None:
        try:
            messages = self._client.pull(capacity, self._timeout_ms)
        except PullError as error:
            raise dramatiq.ConnectionFailed(str(error)) from error
        except ClosedError as error:
            raise dramatiq.ConnectionClosed(str(error)) from error
        with self._settled:
            self._unsettled += len(messages)
        for message in messages:
            self._leases.add(message)
        self._ready.extend(messages)

    def _decode(self, delivery: Message) -> DeliveredMessage | None:
        try:
            return decode(delivery, self._queue_name)
        except dramatiq.DecodeError as error:
            _log.exception("%r is no message of Dramatiq; it becomes a dead letter", delivery)
            delivery.dead_letter(reason=error.error)
            self._release(delivery)
            return None

    def _release(self, delivery: Message) -> None:
        self._leases.remove(delivery)
        with self._settled:
            self._unsettled -= 1
            self._settled.notify_all()
            is_last = self._closed and not self._unsettled
        if is_last:
            self.stop()

"""Extends the leases of the messages of a Dramatiq worker: those in actors, and those that wait for a worker
thread.

An actor may take longer than a lease, which lasts for the group's ack time-out (30 s by default). So a thread
extends each lease when a third of it has passed.
"""

from __future__ import annotations

import threading
import time
from math import inf

from ddmq_client.received import Message, get_lease_start

LEASE_FRACTION = 1 / 3


class LeaseKeeper:
    """Extends the leases of all messages that the workers of one Dramatiq broker are processing.

    Its thread starts with the first message, and ends with `stop`.
    """

    def __init__(self, extend_for_s: float) -> None:
        """Extend the lease of each message for `extend_for_s` after it was received; 0: never."""
        self._extend_for_s = extend_for_s
        self._messages: dict[int, tuple[Message, float]] = {}  # by id(): message, end of its extensions
        self._changed = threading.Condition()
        self._wake_at = inf
        self._thread: threading.Thread | None = None

    def add(self, message: Message) -> None:
        """Start to extend the lease of a message."""
        if not self._extend_for_s:
            return
        with self._changed:
            self._messages[id(message)] = message, time.monotonic() + self._extend_for_s
            if self._thread is None or not self._thread.is_alive():  # none yet, or that of a forked process
                self._thread = threading.Thread(target=self._run, name="ddmq-dramatiq-leases", daemon=True)
                self._thread.start()
            elif extension_due(message) < self._wake_at:
                self._changed.notify()

    def remove(self, message: Message) -> None:
        """Stop extending the lease of a message, because it is settled."""
        with self._changed:
            self._messages.pop(id(message), None)

    def stop(self) -> None:
        """Stop extending the leases of all messages."""
        with self._changed:
            self._thread = None
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._thread is threading.current_thread():
                now = time.monotonic()
                for message, until in self._messages.values():
                    if extension_due(message) <= now < until and not message.lost:
                        message.extend()
                extendable = [
                    message for message, until in self._messages.values() if until > now and not message.lost
                ]
                self._wake_at = min(map(extension_due, extendable), default=inf)
                self._changed.wait(None if self._wake_at == inf else max(0.01, self._wake_at - now))


def extension_due(message: Message) -> float:
    """Return the time at which to extend the message's lease, in monotonic seconds."""
    return get_lease_start(message) + message.delivery.lease_s * LEASE_FRACTION

"""How a member reads: through the writer, or the log's files itself.

`RemoteReads` asks the writer for everything and parks waits there; it serves any engine. A process that
can read the files hands in another `Reads`, which learns the durable position from pushes and answers.
"""

from __future__ import annotations

from typing import Protocol

from backend.completion import Completion
from backend.file_log.sessions.member.link import Link
from backend.file_log.sessions.member.requests import PlainRequest, WaitRequest
from backend.file_log.sessions.wire import codec
from backend.file_log.sessions.wire.protocol import Kind
from backend.port import Wait
from backend.records import QueueRef, ReadBatch
from ddmq_common.clock import Clock


class Reads(Protocol):
    """The reading half of a member. `position` is the durable log position, as last heard."""

    def read(
        self, queue: QueueRef, offset: int, count_max: int, bytes_max: int, completion: Completion[ReadBatch]
    ) -> None:
        """As Backend.read."""

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """As Backend.wait."""

    def on_position(self, position: int) -> None:
        """The durable position is at least this."""

    def on_ready(self, position: int) -> None:
        """A session stands; `position` is where this writer is."""

    def on_topics(self) -> None:
        """Topics came, went or changed."""

    def tick(self) -> None:
        """A good moment for deadlines and cancelled waits."""

    def surrender(self) -> list[WaitRequest]:
        """Waits parked here, taken out."""

    def close(self) -> None:
        """Fail what is parked."""


class RemoteReads:
    """Everything through the writer."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    def read(
        self, queue: QueueRef, offset: int, count_max: int, bytes_max: int, completion: Completion[ReadBatch]
    ) -> None:
        self._link.submit(
            PlainRequest(
                Kind.READ,
                (queue, offset, count_max, bytes_max),
                lambda body: codec.decode_read(queue, body),
                completion,
                lambda backend: backend.read(queue, offset, count_max, bytes_max),
                self._clock.monotonic() + self._link.limits.request_timeout_s,
            )
        )

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        self._link.submit(WaitRequest(queue, offset, deadline, wait))

    def on_position(self, position: int) -> None:
        """Nothing is read here."""

    def on_ready(self, position: int) -> None:
        """Parked waits are sent again with all other requests."""

    def on_topics(self) -> None:
        """Nothing is read here."""

    def tick(self) -> None:
        """The link keeps the deadlines."""

    def surrender(self) -> list[WaitRequest]:
        """They are among the link's requests."""
        return []

    def close(self) -> None:
        """The link fails them."""

"""How a member reads: through the writer, or the log's files itself.

`RemoteReads` asks the writer for everything and parks waits there; it serves any engine. LocalReads (in
local.py) reads the files and asks the writer only for what is not in them.
"""

from __future__ import annotations

from typing import Protocol

from backend.completion import Completion
from backend.file_log.read.picking import Ask
from backend.file_log.sessions.member.link import Link
from backend.file_log.sessions.member.requests import PlainRequest, WaitRequest
from backend.file_log.sessions.wire import codec
from backend.file_log.sessions.wire.protocol import FrameKind
from backend.port import Wait
from backend.records import QueueRef, ReadBatch
from ddmq_common.clock import Clock


class Reads(Protocol):
    """The reading half of a member."""

    def read(self, ask: Ask, completion: Completion[ReadBatch]) -> None:
        """As Backend.read."""

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """As Backend.wait."""

    def on_ready(self) -> None:
        """A session stands, maybe with another writer."""

    def on_ping(self) -> None:
        """Let go of files that were deleted: their space stays taken as long as they are open."""

    def close(self) -> None:
        """Let go of files."""


class RemoteReads:
    """Everything through the writer."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    def read(self, ask: Ask, completion: Completion[ReadBatch]) -> None:
        self._link.submit(
            PlainRequest(
                FrameKind.READ,
                ask,
                lambda body: codec.decode_read(ask.queue, body),
                completion,
                lambda backend: backend.read(*ask[:4], tags=ask.tags),
                self._clock.monotonic() + self._link.limits.request_timeout_s,
            )
        )

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        self._link.submit(WaitRequest(queue, offset, deadline, wait))

    def on_ready(self) -> None:
        """Parked waits are sent again with all other requests."""

    def on_ping(self) -> None:
        """No files are open here."""

    def close(self) -> None:
        """The link fails what is pending."""

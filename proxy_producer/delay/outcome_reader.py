"""Reads one queue of the outcome topic from its end on, as records come.

No greenlet: a wait, a read, and again. What cannot be read is tried again a little later; outcomes that
retention took meanwhile are lost, and their callers are told "pending".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from backend.completion import Completion
from backend.port import Backend, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.delays.command import CommandOutcome, decode_outcome
from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError, DdmqError

WAIT_S = 30.0
AGAIN_S = 0.2
COUNT_MAX, BYTES_MAX = 1_024, 1 << 20
Later = Callable[[float, Callable[[], None]], object]
log = logging.getLogger("ddmq.producer")


class OutcomeReader:
    """`hear` is called with each outcome. `waiting`: how many wait for one here; kept by the owner."""

    __slots__ = (
        "_backend", "_clock", "_closed", "_hear", "_later", "_offset", "_opened", "_wait", "queue", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        queue: QueueRef,
        hear: Callable[[CommandOutcome], None],
        later: Later,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._hear = hear
        self._later = later
        self._opened: Callable[[OutcomeReader], None] | None = None
        self._offset = 0
        self._wait: Wait | None = None
        self._closed = False
        self.queue = queue
        self.waiting = 0

    def open(self, opened: Callable[[OutcomeReader], None]) -> None:
        """Look where the queue ends; `opened(self)` follows when everything after that will be heard."""
        self._opened = opened
        self._look()

    def close(self) -> None:
        """Hear nothing more. May be called twice."""
        self._closed = True
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _look(self) -> None:
        if not self._closed:
            self._backend.bounds((self.queue,)).then(self._looked)

    def _looked(self, answer: Completion[list[Bounds | None]]) -> None:
        if self._closed:
            return
        bounds = None if answer.error is not None else answer.value[0]
        if bounds is None:
            self._later(AGAIN_S, self._look)
            return
        self._offset = bounds.next
        opened, self._opened = self._opened, None
        if opened is not None:
            opened(self)
        self._listen()

    def _listen(self) -> None:
        if not self._closed:
            deadline = self._clock.monotonic() + WAIT_S
            self._wait = self._backend.wait(self.queue, self._offset, deadline)
            self._wait.then(self._woken)

    def _woken(self, wait: Completion[bool]) -> None:
        self._wait = None
        if self._closed:
            return
        if wait.error is not None:
            self._later(AGAIN_S, self._listen)
        elif wait.value:
            self._read()
        else:
            self._listen()

    def _read(self) -> None:
        if not self._closed:
            self._backend.read(self.queue, self._offset, COUNT_MAX, BYTES_MAX).then(self._found)

    def _found(self, read: Completion[ReadBatch]) -> None:
        if self._closed:
            return
        batch = None if read.error is not None else read.value
        if batch is None or batch.status in (ReadStatus.MOVED, ReadStatus.GONE):
            self._later(AGAIN_S, self._look)
            return
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            self._offset = batch.bounds.next
        else:
            self._offset = batch.next_offset
        for delivery in batch.deliveries:
            self._tell(bytes(delivery))
        if batch.status is ReadStatus.DATA:
            self._read()
        else:
            self._listen()

    def _tell(self, delivery: bytes) -> None:
        """One that cannot be read has nobody to be told to; its caller hears "pending"."""
        try:
            outcome = decode_outcome(decode(delivery).value)
        except DdmqError as error:
            kind = "damaged" if isinstance(error, DamagedError) else type(error).__name__
            log.warning(
                "outcome of a delay command cannot be read", extra={"kind": kind, "error": str(error)}
            )
            return
        self._hear(outcome)

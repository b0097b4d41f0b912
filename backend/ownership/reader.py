"""Reads one queue: classifies the answers to reads, and reads and waits one after another until `stop`.

A ReadAnswer has one of four shapes:
* records: those of `batch`; the next read begins at `next_offset`. `missing` counts damaged ones;
* the end: `at_end`, there is nothing at or after `next_offset` yet;
* `oldest`: retention has deleted everything below that offset, and the next read begins there;
* an error: the backend's own, TryLaterError if the queue was deleted or is served elsewhere, and StorageError
  if the queue ends before the read began: the log has lost records that its reader has seen, or this process
  has not followed them yet.

A QueueReader neither remembers an offset nor retries: its owner decides which offset comes next, and after
which pause a read is retried. Records have their own bytes, so they may outlive the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backend.completion import Completion
from backend.port import Backend, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError, StorageError, TryLaterError


class ReadAnswer(NamedTuple):
    """The interpreted answer to a read that began at `start`.

    `expected`: how many records it should have. An engine that is not `gapless` has offsets without a record,
    so there `expected` counts the records that the batch lists. `bounds`: set if `start` is outside of the
    queue.
    """

    start: int
    next_offset: int
    batch: ReadBatch | None = None
    at_end: bool = False
    expected: int = 0
    oldest: int | None = None
    bounds: Bounds | None = None
    error: Exception | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the read gives no information on these offsets: it failed, or the queue is not here."""
        return self.error is not None and self.bounds is None

    def records(self) -> list[StoredRecord]:
        """Return the readable records, without the damaged ones."""
        batch, records = self.batch, list[StoredRecord]()
        for index in range(0 if batch is None else len(batch.offsets)):
            try:
                record = batch.record(index)  # type: ignore[union-attr]
            except DamagedError:
                continue
            records.append(record._replace(delivery=bytes(record.delivery)))
        return records


def interpret_batch(queue: QueueRef, start: int, batch: ReadBatch, gapless: bool) -> ReadAnswer:
    """Interpret the batch returned by a read from `start`. `gapless`: see Backend.gapless."""
    status, end = batch.status, batch.next_offset
    if status is ReadStatus.DATA or status is ReadStatus.NONE:
        expected = end - start if gapless else len(batch.offsets)
        return ReadAnswer(start, end, batch, status is ReadStatus.NONE, expected)
    if status is not ReadStatus.OUT_OF_RANGE or batch.bounds is None:
        error: Exception = TryLaterError(f"queue {queue.queue_id} of {queue.topic} is {status.value}")
        return ReadAnswer(start, start, error=error)
    bounds = batch.bounds
    if bounds.min > start:
        return ReadAnswer(start, bounds.min, oldest=bounds.min, bounds=bounds)
    error = StorageError(
        f"queue {queue.queue_id} of {queue.topic} ends before offset {start}, where its reader is: {bounds}"
    )
    return ReadAnswer(start, start, bounds=bounds, error=error)


def interpret_answer(queue: QueueRef, start: int, answer: Completion[ReadBatch], gapless: bool) -> ReadAnswer:
    """Interpret a settled read from `start`, including one that failed."""
    if answer.error is not None:
        return ReadAnswer(start, start, error=answer.error)
    return interpret_batch(queue, start, answer.value, gapless)


class QueueReader:
    """Reads one queue and waits for its data. One read and one wait may be in progress.

    `on_read(read)` follows each `read`. `on_data(arrived, error)` follows each `wait`; with neither data nor
    an error the deadline has passed. Nothing follows after `stop`. A read that the engine answers at once is
    delivered when the handler of the previous one has returned, so long queues are no deep recursion.
    """

    def __init__(
        self,
        backend: Backend,
        queue: QueueRef,
        on_read: Callable[[ReadAnswer], object],
        on_data: Callable[[bool, Exception | None], object] | None = None,
    ) -> None:
        self._backend = backend
        self._on_read = on_read
        self._on_data = on_data
        self._next: tuple[int, int, int] | None = None
        self._wait: Wait | None = None
        self._starting = self._stopped = False
        self.queue = queue
        self.reading = False

    @property
    def waiting(self) -> bool:
        """Whether a wait for data is in progress."""
        return self._wait is not None

    def read(self, start: int, count_max: int, bytes_max: int) -> None:
        """Read records from `start` on; `on_read` follows. See Backend.read."""
        if self._stopped:
            return
        self._next = start, count_max, bytes_max
        self.reading = True
        if self._starting:
            return
        self._starting = True
        try:
            while self._next is not None and not self._stopped:
                (start, count_max, bytes_max), self._next = self._next, None
                self._start_read(start, count_max, bytes_max)
        finally:
            self._starting = False

    def _start_read(self, start: int, count_max: int, bytes_max: int) -> None:
        def on_answer(answer: Completion[ReadBatch]) -> None:
            if not self._stopped:
                self.reading = False
                self._on_read(interpret_answer(self.queue, start, answer, self._backend.gapless))

        self._backend.read(self.queue, start, count_max, bytes_max).then(on_answer)

    def wait(self, start: int, deadline: float) -> None:
        """Wait until `deadline` (monotonic seconds) for a record at or after `start`; `on_data` follows.

        An earlier wait is replaced without being notified.
        """
        self._cancel_wait()
        if not self._stopped:
            wait = self._wait = self._backend.wait(self.queue, start, deadline)
            wait.then(self._on_wait_done)

    def _on_wait_done(self, wait: Completion[bool]) -> None:
        if self._wait is wait and self._on_data is not None:
            self._wait = None
            self._on_data(wait.error is None and wait.value, wait.error)

    def stop(self) -> None:
        """Make no more callbacks. May be called twice."""
        self._stopped = True
        self.reading = False
        self._cancel_wait()

    def _cancel_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.cancel()

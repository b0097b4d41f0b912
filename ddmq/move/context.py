"""The context that the modules of one move share, and requests to engines that wait for a new writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import gevent

from backend.completion import Completion
from backend.ownership.reader import interpret_batch
from backend.port import Backend
from backend.records import ProgressView, QueueRef, ReadStatus, StoredRecord
from ddmq.move.core.scope import Scope
from ddmq_common.clock import Clock
from ddmq_common.errors import DamagedError, DdmqError, RemoteError, StorageError, TryLaterError
from ddmq_common.names import MOVE_PREFIX

T = TypeVar("T")
WAIT_S = 30.0  # for one answer
PAUSE_S, TRIES = 0.2, 600  # a request that an engine cannot answer now is repeated, for two minutes
READ_COUNT, READ_BYTES = 1_000, 2 << 20
QUEUES_PER_REQUEST = 1_000


class MoveError(DdmqError):
    """The move cannot continue; the text says why, and what to do."""


@dataclass(slots=True)
class MoveTally:
    """The progress of a move so far, for display."""

    copied: int = 0
    copied_bytes: int = 0
    remaining: int = 0  # records that the source had at the last check and that are not copied yet
    passed: Counter[str] = field(default_factory=Counter)  # what was not copied, by why


@dataclass(slots=True)
class MoveContext:
    """The engines, the clock and the identity of one run of `ddmq move`.

    `source_id`: the name of the source in copies. `epoch`: the number of this run; it fences earlier runs.
    `print_line`: prints a line for people.
    """

    source: Backend
    target: Backend
    source_id: str
    clock: Clock
    scope: Scope
    print_line: Callable[[str], None]
    epoch: int = 0
    tally: MoveTally = field(default_factory=MoveTally)

    @property
    def copied_group(self) -> str:
        """The internal group whose progress on a queue of the target records how far the source's queue has
        been copied, as a source offset."""
        return f"{MOVE_PREFIX}{self.source_id}"

    @property
    def pure_group(self) -> str:
        """The internal group whose progress on a queue of the target is the target offset below which all
        records are copies."""
        return f"{MOVE_PREFIX}{self.source_id}%PURE"

    def deadline(self) -> float:
        """Return the deadline of one call, in monotonic seconds."""
        return self.clock.monotonic() + WAIT_S


def wait_for_answer(completion: Completion[T]) -> T:
    """Wait for the completion and return its value. Raises the engine's error, or RemoteError if there is no
    answer in time."""
    try:
        return completion.wait(WAIT_S + 5)
    except TimeoutError as error:
        raise RemoteError(f"the engine has not answered in {WAIT_S + 5:g} s") from error


def request_until_answered(context: MoveContext, request: Callable[[], Completion[T]]) -> T:
    """Return the answer of a request. While the engine has no writer, the request is repeated."""
    for tried in range(TRIES):
        try:
            return wait_for_answer(request())
        except DamagedError:
            raise
        except (TryLaterError, RemoteError, StorageError) as error:
            if tried + 1 == TRIES:
                raise
            if tried % 50 == 5:
                context.print_line(f"waiting: {error}")
            gevent.sleep(PAUSE_S)
    raise AssertionError("not reached")


def views_of(
    context: MoveContext, backend: Backend, group: str, queues: Sequence[QueueRef]
) -> list[ProgressView]:
    """Return the progress of a group on each of these queues."""
    views: list[ProgressView] = []
    for at in range(0, len(queues), QUEUES_PER_REQUEST):
        chunk = queues[at : at + QUEUES_PER_REQUEST]
        answers: list[ProgressView] = request_until_answered(context, partial(backend.progress, group, chunk))
        views += answers
    return views


class RunRead(NamedTuple):
    """The records that one read of a queue returned, and the reasons for gaps between them.

    `next_offset`: the offset after them. `at_end`: the queue has no further record yet. `expired`: the number
    of offsets that retention deleted. `deleted`: the topic was deleted.
    """

    records: list[StoredRecord]
    next_offset: int
    at_end: bool = False
    expired: int = 0
    damaged: int = 0
    deleted: bool = False


def read_run(context: MoveContext, backend: Backend, queue: QueueRef, offset: int, count: int = 0) -> RunRead:
    """Read the records of a queue from `offset` on: at most `count` of them or, if `count` is 0, as many as
    one copy step takes."""
    batch = request_until_answered(
        context, lambda: backend.read(queue, offset, count or READ_COUNT, READ_BYTES)
    )
    if batch.status is ReadStatus.UNKNOWN_QUEUE:
        return RunRead([], offset, at_end=True, deleted=True)
    read = interpret_batch(queue, offset, batch, backend.gapless)
    if read.error is not None:
        raise read.error
    if read.oldest is not None:
        return RunRead([], read.oldest, expired=read.oldest - offset)
    records = read.records()
    damaged = len(batch.offsets) - len(records)
    return RunRead(records, batch.next_offset, at_end=read.at_end, damaged=damaged)


def all_records(
    context: MoveContext, backend: Backend, queue: QueueRef, offset: int, end: int
) -> Iterator[StoredRecord]:
    """Yield every readable record in `[offset, end)`."""
    while offset < end:
        run = read_run(context, backend, queue, offset)
        yield from (record for record in run.records if record.offset < end)
        if run.at_end:
            return
        offset = run.next_offset

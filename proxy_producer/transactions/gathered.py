"""Combines the commits of one round of the hub into one commit of the backend.

Many transactions end at the same time, and sharing a commit saves its fixed cost. If the combined commit is
rejected, nothing was stored, and each part is committed by itself, so that no part fails because of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.completion import Completion
from backend.port import Backend
from backend.records import AppendResult, CommitBatch, NewRecord, ProgressDelta
from ddmq_common.errors import CallerError, DdmqError
from ddmq_common.event_loop import current_loop

PARTS_MAX = 256
BYTES_MAX = 1 << 20  # of records, before the next part begins another commit

Stored = Callable[[Sequence[AppendResult], Exception | None], None]


class CommitPart(NamedTuple):
    """The records and progress of one transaction in a combined commit. `then` is called with the outcome."""

    records: Sequence[NewRecord]
    delta: ProgressDelta
    then: Stored


class GatheredCommits:
    """Combines the commits of one producer proxy. `deadline()` returns that of a commit that starts now."""

    def __init__(self, backend: Backend, deadline: Callable[[], float]) -> None:
        self._backend = backend
        self._deadline = deadline
        self._parts: list[CommitPart] = []
        self._bytes = 0

    def add(self, part: CommitPart) -> None:
        """Commit a part together with others; `part.then(results, error)` is called once."""
        size = sum([len(record.delivery) for record in part.records])
        if self._parts and self._bytes + size > BYTES_MAX:
            self._flush()
        if not self._parts:
            current_loop().run_callback(self._flush)
        self._parts.append(part)
        self._bytes += size
        if len(self._parts) >= PARTS_MAX:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if len(parts) == 1:
            self._commit_alone(parts[0])
        elif parts:
            self._commit_together(parts)

    def _commit_alone(self, part: CommitPart) -> None:
        def on_commit(answer: Completion[list[AppendResult]]) -> None:
            part.then(answer.value if answer.error is None else (), answer.error)

        self._commit(CommitBatch(part.records, (part.delta,)), on_commit)

    def _commit_together(self, parts: list[CommitPart]) -> None:
        def on_commit(answer: Completion[list[AppendResult]]) -> None:
            error = answer.error
            if isinstance(error, CallerError):
                for part in parts:
                    self._commit_alone(part)
                return
            at = 0
            for part in parts:
                end = at + len(part.records)
                part.then(answer.value[at:end] if error is None else (), error)
                at = end

        records = [record for part in parts for record in part.records]
        self._commit(CommitBatch(records, merge_deltas([part.delta for part in parts])), on_commit)

    def _commit(
        self, batch: CommitBatch, on_commit: Callable[[Completion[list[AppendResult]]], None]
    ) -> None:
        try:
            answer = self._backend.commit(batch, self._deadline())
        except DdmqError as error:
            answer = Completion()
            answer.fail(error)
        answer.then(on_commit)


def merge_deltas(deltas: Sequence[ProgressDelta]) -> list[ProgressDelta]:
    """Merge progress deltas so that each queue and epoch has one."""
    whole: dict[tuple[object, int], list[ProgressDelta]] = {}
    for delta in deltas:
        whole.setdefault((delta.queue, delta.epoch), []).append(delta)
    return [_merge_queue(parts) if len(parts) > 1 else parts[0] for parts in whole.values()]


def _merge_queue(parts: Sequence[ProgressDelta]) -> ProgressDelta:
    """Merge deltas of the same queue and epoch."""
    first = parts[0]
    finished = [each for part in parts for each in part.finished]
    attempts = [each for part in parts for each in part.attempts]
    return ProgressDelta(first.group, first.queue, first.epoch, first.generation, finished, attempts)

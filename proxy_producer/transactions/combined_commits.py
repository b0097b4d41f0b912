"""Combines the commits of one round of the hub into one commit of the backend.

Many transactions end at the same time, and sharing a commit saves its fixed cost. If the combined commit is
rejected, nothing was stored, and each transaction is committed alone, so that none fails because of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.completion import Completion
from backend.port import Backend
from backend.records import AppendResult, CommitBatch, NewRecord, ProgressDelta
from ddmq_common.errors import CallerError, DdmqError
from ddmq_common.event_loop import current_loop

COMMITS_MAX = 256
BYTES_MAX = 1 << 20  # of records, before the next transaction begins another combined commit

Stored = Callable[[Sequence[AppendResult], Exception | None], None]


class TransactionCommit(NamedTuple):
    """The records and progress of one transaction in a combined commit. `then` is called with the outcome."""

    records: Sequence[NewRecord]
    delta: ProgressDelta
    then: Stored


class CombinedCommits:
    """Combines the commits of one producer proxy. `deadline()` returns that of a commit that starts now."""

    def __init__(self, backend: Backend, deadline: Callable[[], float]) -> None:
        self._backend = backend
        self._deadline = deadline
        self._commits: list[TransactionCommit] = []
        self._bytes = 0

    def add(self, commit: TransactionCommit) -> None:
        """Commit a transaction together with others; `commit.then(results, error)` is called once."""
        size = sum([len(record.delivery) for record in commit.records])
        if self._commits and self._bytes + size > BYTES_MAX:
            self._flush()
        if not self._commits:
            current_loop().run_callback(self._flush)
        self._commits.append(commit)
        self._bytes += size
        if len(self._commits) >= COMMITS_MAX:
            self._flush()

    def _flush(self) -> None:
        commits, self._commits, self._bytes = self._commits, [], 0
        if len(commits) == 1:
            self._commit_alone(commits[0])
        elif commits:
            self._commit_together(commits)

    def _commit_alone(self, commit: TransactionCommit) -> None:
        def on_commit(answer: Completion[list[AppendResult]]) -> None:
            commit.then(answer.value if answer.error is None else (), answer.error)

        self._commit(CommitBatch(commit.records, (commit.delta,)), on_commit)

    def _commit_together(self, commits: list[TransactionCommit]) -> None:
        def on_commit(answer: Completion[list[AppendResult]]) -> None:
            error = answer.error
            if isinstance(error, CallerError):
                for commit in commits:
                    self._commit_alone(commit)
                return
            at = 0
            for commit in commits:
                end = at + len(commit.records)
                commit.then(answer.value[at:end] if error is None else (), error)
                at = end

        records = [record for commit in commits for record in commit.records]
        self._commit(CommitBatch(records, merge_deltas([commit.delta for commit in commits])), on_commit)

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
    by_queue: dict[tuple[object, int], list[ProgressDelta]] = {}
    for delta in deltas:
        by_queue.setdefault((delta.queue, delta.epoch), []).append(delta)
    return [_merge_queue(same) if len(same) > 1 else same[0] for same in by_queue.values()]


def _merge_queue(deltas: Sequence[ProgressDelta]) -> ProgressDelta:
    """Merge deltas of the same queue and epoch."""
    first = deltas[0]
    finished = [offsets for delta in deltas for offsets in delta.finished]
    attempts = [attempt for delta in deltas for attempt in delta.attempts]
    return ProgressDelta(first.group, first.queue, first.epoch, first.generation, finished, attempts)

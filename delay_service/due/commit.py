"""Due messages to where they belong, and that they are done: one commit.

Where the engine is not atomic the records are appended first, those that were not stored again until all
are, and the progress is committed then: a crash in between fires them twice, never not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.completion import Completion
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord, ProgressDelta, TopicInfo
from ddmq_common.errors import RemoteError

Ended = Callable[[Exception | None], None]


def commit_due(
    backend: Backend,
    dead_topic: Completion[TopicInfo] | None,
    records: Callable[[], list[NewRecord]],
    progress: ProgressDelta,
    deadline: float,
    ended: Ended,
) -> None:
    """`ended(error)` follows once: None when all of it is durable. `dead_topic`: of dead letters among the
    records, which are asked for when it is there. `deadline`: monotonic seconds."""

    def ready(made: Completion[TopicInfo]) -> None:
        if made.error is not None:
            ended(made.error)
        else:
            _store(backend, records(), progress, deadline, ended)

    if dead_topic is None:
        _store(backend, records(), progress, deadline, ended)
    else:
        dead_topic.then(ready)


def _store(
    backend: Backend, records: list[NewRecord], progress: ProgressDelta, deadline: float, ended: Ended
) -> None:
    if backend.capabilities.atomic:
        _commit(backend, records, progress, deadline, ended)
    else:
        _append(backend, records, progress, deadline, ended)


def _commit(
    backend: Backend, records: list[NewRecord], progress: ProgressDelta, deadline: float, ended: Ended
) -> None:
    def stored(answer: Completion[Any]) -> None:
        ended(answer.error)

    backend.commit(CommitBatch(records=records, progress=(progress,)), deadline).then(stored)


def _append(
    backend: Backend, records: list[NewRecord], progress: ProgressDelta, deadline: float, ended: Ended
) -> None:
    def appended(answer: Completion[list[AppendResult]]) -> None:
        if answer.error is not None:
            ended(answer.error)
            return
        pairs = list(zip(records, answer.value, strict=True))
        left = [record for record, result in pairs if result.status is not AppendStatus.STORED]
        if not left:
            _commit(backend, [], progress, deadline, ended)
        elif len(left) < len(records):
            _append(backend, left, progress, deadline, ended)
        else:
            ended(pairs[0][1].error or RemoteError("messages may or may not be stored"))

    backend.append(records, deadline).then(appended)

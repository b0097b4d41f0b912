"""The calls to the backend that both services make: target topics, the commit of due messages, and its
errors.

One commit appends due messages to their topics and records that they have fired. Where the engine is not
atomic the records are appended first, again until all are stored, and the progress is committed after that. A
crash in between fires them twice, but never loses one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Backend
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    TopicInfo,
)
from ddmq_common.errors import FencedError, RemoteError

TOPIC_DELETED = "topic gone"  # why a message becomes a dead letter
REJECTED = "refused"
UNREADABLE = "unreadable"
OnCommitDone = Callable[[Exception | None], None]
CLAIM_ERRORS = (FencedError, RemoteError)  # it is someone else's, or nobody knows what was committed


# --- topics


class TargetTopic(NamedTuple):
    """The facts about an existing topic that fires need. `writable`: it accepts messages now, as far as is
    known.

    `by_key`: the key chooses the queue of a message that names none (ddmq_common/queue_choice.py).
    `unavailable`: why nothing can be committed to it now (Backend.unavailable), or "".
    """

    queues: int
    writable: bool
    by_key: bool = False
    unavailable: str = ""


def target_topic(backend: Backend, topic: str) -> TargetTopic | None:
    """Return the facts about a topic; None if this process does not know it."""
    info = backend.topic(topic)
    if info is None:
        return None
    by_key = not backend.capabilities.topic_order
    return TargetTopic(info.queues, info.writable, by_key, backend.why_unavailable(topic))


# --- the commit


class CommitFailure(Enum):
    """The reaction that a failed commit needs."""

    RETRY = "the same again, later"
    CLAIM_UNCERTAIN = "our claim is over, or nobody knows what was committed: the queue is had anew"
    REJECTED = "something in it is never taken, or not by its topic now"


def classify_failure(
    error: Exception, regranted: bool, rejections: tuple[type[Exception], ...]
) -> CommitFailure:
    """Return the reaction that an error of a commit of due messages needs.

    `regranted`: the queue has been granted again under a newer epoch meanwhile. `rejections`: errors that no
    retry changes.
    """
    if isinstance(error, CLAIM_ERRORS):
        return (
            CommitFailure.RETRY
            if regranted and isinstance(error, FencedError)
            else CommitFailure.CLAIM_UNCERTAIN
        )
    return CommitFailure.REJECTED if isinstance(error, rejections) else CommitFailure.RETRY


def commit_due(
    backend: Backend,
    dead_topic: str,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    on_done: OnCommitDone,
) -> None:
    """Append due records and commit the progress; call `on_done(error)` once, with None when all is durable.

    `dead_topic`: the dead-letter topic among the records, created if needed; "" if there is none. `deadline`:
    monotonic seconds.
    """
    store = _commit if not records or backend.capabilities.atomic else _append

    def on_topic_ready(answer: Completion[TopicInfo]) -> None:
        if answer.error is not None:
            on_done(answer.error)
        else:
            store(backend, records, progress, deadline, on_done)

    if dead_topic:
        ready_topic(backend, dead_topic, 1, deadline).then(on_topic_ready)
    else:
        store(backend, records, progress, deadline, on_done)


def _commit(
    backend: Backend,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    on_done: OnCommitDone,
) -> None:
    batch = CommitBatch(records=records, progress=progress)
    backend.commit(batch, deadline).then(lambda answer: on_done(answer.error))


def _append(
    backend: Backend,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    on_done: OnCommitDone,
) -> None:
    def on_appended(answer: Completion[list[AppendResult]]) -> None:
        if answer.error is not None:
            on_done(answer.error)
            return
        pairs = list(zip(records, answer.value, strict=True))
        remaining = [record for record, result in pairs if result.status is not AppendStatus.STORED]
        if not remaining:
            _commit(backend, [], progress, deadline, on_done)
        elif len(remaining) < len(records):
            _append(backend, remaining, progress, deadline, on_done)
        else:
            on_done(pairs[0][1].error or RemoteError("messages may or may not be stored"))

    backend.append(records, deadline).then(on_appended)

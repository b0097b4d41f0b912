"""What both services ask of the backend: topics, the one commit of what is due; what its error says.

Due messages go to where they belong, and are noted as done, in one commit. Where the engine is not atomic the
records are appended first, those that were not stored again until all are, and the progress is committed
then: a crash in between fires them twice, never not at all.
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

GONE = "topic gone"  # why a message becomes a dead letter
REFUSED = "refused"
UNREADABLE = "unreadable"
Ended = Callable[[Exception | None], None]
CLAIM_ERRORS = (FencedError, RemoteError)  # it is someone else's, or nobody knows what was committed


# --- topics


class TargetTopic(NamedTuple):
    """A topic that is there. `writable`: it takes messages now, as far as is known. `by_key`: a message that
    does not mind its queue goes by its key (ddmq_common/queue_choice.py)."""

    queues: int
    writable: bool
    by_key: bool = False


def target_topic(backend: Backend, topic: str) -> TargetTopic | None:
    """What is known of it; None: there is no such topic."""
    info = backend.topic(topic)
    if info is None:
        return None
    return TargetTopic(info.queues, info.writable, not backend.capabilities.topic_order)


# --- the commit


class Failed(Enum):
    """What an error says of a commit."""

    NOT_NOW = "the same again, later"
    IN_DOUBT = "our claim is over, or nobody knows what was committed: the queue is had anew"
    NOT_THIS = "something in it is never taken, or not by its topic now"


def failed_how(error: Exception, regranted: bool, not_this: tuple[type[Exception], ...]) -> Failed:
    """`regranted`: the commit named an older epoch than its queue was granted to us under meanwhile."""
    if isinstance(error, CLAIM_ERRORS):
        return Failed.NOT_NOW if regranted and isinstance(error, FencedError) else Failed.IN_DOUBT
    return Failed.NOT_THIS if isinstance(error, not_this) else Failed.NOT_NOW


def commit_due(
    backend: Backend,
    dead_topic: str,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    ended: Ended,
) -> None:
    """`ended(error)` follows once: None when all of it is durable. `dead_topic`: of dead letters among the
    records, made if need be; "" when there are none. `deadline`: monotonic seconds."""
    store = _commit if not records or backend.capabilities.atomic else _append

    def ready(made: Completion[TopicInfo]) -> None:
        if made.error is not None:
            ended(made.error)
        else:
            store(backend, records, progress, deadline, ended)

    if dead_topic:
        ready_topic(backend, dead_topic, 1, deadline).then(ready)
    else:
        store(backend, records, progress, deadline, ended)


def _commit(
    backend: Backend,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    ended: Ended,
) -> None:
    batch = CommitBatch(records=records, progress=progress)
    backend.commit(batch, deadline).then(lambda answer: ended(answer.error))


def _append(
    backend: Backend,
    records: list[NewRecord],
    progress: Sequence[ProgressDelta],
    deadline: float,
    ended: Ended,
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

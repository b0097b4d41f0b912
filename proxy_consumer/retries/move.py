"""One spent message on its way out: read, decide, store and finish.

It may be tried again as often as the backend refuses. What is known of an earlier try is kept, so that a
try whose outcome was unknown, or that was stored and not finished, does not store a second copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.internal_topics import ready_topic, schedule_record
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.errors import CallerError, FencedError, NoSuchTopicError, RemoteError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.steps import QueueState
from proxy_consumer.retries.headers import RetryHeaders, dead_letter, headers_after, retry_record
from proxy_consumer.retries.next_hop import DEAD_LETTER, level_of, next_hop
from proxy_consumer.retries.retry_queues import RetryQueues
from proxy_consumer.runtime import Runtime

DLQ_QUEUES = 1
UNKNOWN_BYTES = 1 << 20  # what a message counts that was not delivered since the queue is ours


class MoveSettings(NamedTuple):
    """What a try goes by. `created_ms`: when the subscription was made, 0: not known yet."""

    config: SubscriptionDefaults
    created_ms: int


class MessageMove:
    """`step`: of the retry path, or DEAD_LETTER. `size`: in bytes, about. `gone`: the message itself is not
    there any more, and nothing was stored."""

    def __init__(
        self,
        runtime: Runtime,
        group: str,
        retry_queues: RetryQueues,
        state: QueueState,
        job: UpstreamJob,
        ended: Callable[[MessageMove, Exception | None], None],
    ) -> None:
        """`ended`: called after each try; None: it is stored and finished, or gone."""
        self.state = state
        self.job = job
        self.size = job.size or UNKNOWN_BYTES
        self.step = DEAD_LETTER
        self.gone = False
        self._runtime = runtime
        self._group = group
        self._retry_queues = retry_queues
        self._ended = partial(ended, self)
        self._appended = False
        self._in_doubt = False
        self._bare = False

    def start(self, settings: MoveSettings) -> None:
        """Try (again)."""
        self._settings = settings
        self._try()

    def _try(self) -> None:
        backend = self._runtime.backend
        if self._in_doubt:
            backend.progress(self._group, (self.state.queue,)).then(self._looked)
        elif self._appended:
            self._finish()
        else:
            backend.read(self.state.queue, self.job.offset, 1, 0).then(self._read)

    def _looked(self, views: Completion[list[ProgressView]]) -> None:
        """An earlier try may have been stored: then its finish was, too."""
        if views.error is not None or _is_finished(views.value[0], self.job.offset):
            self._ended(views.error)
        else:
            self._in_doubt = False
            self._try()

    def _read(self, read: Completion[ReadBatch]) -> None:
        if read.error is not None:
            self._ended(read.error)
            return
        batch = read.value
        if batch.status is not ReadStatus.DATA or not batch.offsets or batch.offsets[0] != self.job.offset:
            self.gone = True
            self._ended(None)
            return
        record = batch.record(0)
        headers = headers_after(record, self.job, self._runtime.clock.wall_ms())
        self.step = next_hop(self.job, headers, self._settings.config)
        if self.step == DEAD_LETTER:
            self._to_dead_letters(record, headers)
        else:
            self._to_retry(record, headers._replace(steps=self.step))

    def _to_retry(self, record: StoredRecord, headers: RetryHeaders) -> None:
        levels = self._runtime.levels

        def granted(grant: Completion[QueueRef]) -> None:
            if grant.error is not None:
                self._ended(grant.error)
                return
            created_ms = self._settings.created_ms
            retried = retry_record(self._group, grant.value.queue_id, record, headers, created_ms)
            self._store(schedule_record(retried, level_of(self.step), levels), len(levels))

        self._retry_queues.of(headers.topic).then(granted)

    def _to_dead_letters(self, record: StoredRecord, headers: RetryHeaders) -> None:
        wall_ms, reason = self._runtime.clock.wall_ms(), self.job.reason
        letter = dead_letter(self._group, record, headers, reason, wall_ms, bare=self._bare)
        self._store(letter, DLQ_QUEUES)

    # --- storing

    def _store(self, record: NewRecord, queues: int) -> None:
        def made(topic: Completion[TopicInfo]) -> None:
            if topic.error is not None:
                self._ended(topic.error)
            else:
                self._write(record)

        ready_topic(self._runtime.backend, record.topic, queues, self._runtime.commit_deadline()).then(made)

    def _write(self, record: NewRecord) -> None:
        backend, deadline = self._runtime.backend, self._runtime.commit_deadline()
        if not backend.capabilities.atomic:
            backend.append((record,), deadline).then(self._stored_first)
            return
        batch = CommitBatch(records=(record,), progress=(self._delta(),))
        backend.commit(batch, deadline).then(self._settled)

    def _stored_first(self, appended: Completion[list[AppendResult]]) -> None:
        error = appended.error
        if error is None and appended.value[0].status is not AppendStatus.STORED:
            error = appended.value[0].error or RemoteError("the copy may or may not be stored")
        if error is not None:
            self._refused(error)
        else:
            self._appended = True
            self._finish()

    def _finish(self) -> None:
        batch = CommitBatch(progress=(self._delta(),))
        self._runtime.backend.commit(batch, self._runtime.commit_deadline()).then(self._settled)

    def _delta(self) -> ProgressDelta:
        return self.state.jobs.finish_of(self._group, self.job)

    def _settled(self, committed: Completion[Any]) -> None:
        if committed.error is None:
            self._ended(None)
        else:
            self._in_doubt = isinstance(committed.error, RemoteError)
            self._refused(committed.error)

    def _refused(self, error: Exception) -> None:
        """A dead letter that cannot be stored with its properties is stored without them."""
        too_much = isinstance(error, CallerError) and not isinstance(error, FencedError | NoSuchTopicError)
        if too_much and self.step == DEAD_LETTER and not self._bare:
            self._bare = True
            self._try()
        else:
            self._ended(error)


def _is_finished(view: ProgressView, offset: int) -> bool:
    if view.committed is not None and offset < view.committed:
        return True
    return any(start <= offset < end for start, end in view.finished)

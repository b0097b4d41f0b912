"""One spent message on its way out: read, decide, store and finish.

It may be tried again as often as the backend refuses. What is known of an earlier try is kept, so that a
try whose outcome was unknown, or that was stored and not finished, does not store a second copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.levels import schedule_record
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
from proxy_consumer.core.jobs.upstream_job import UpstreamJob
from proxy_consumer.core.steps import QueueState
from proxy_consumer.departures.letters import dead_letter
from proxy_consumer.departures.trail import Trail, level_of, next_step, retry_record, trail_after

if TYPE_CHECKING:
    from proxy_consumer.departures.undertaker import Undertaker
    from proxy_consumer.runtime import Runtime

DLQ_QUEUES = 1


class Departure:
    """`step`: of the retry path, 0 for a dead letter. `size`: in bytes, about."""

    def __init__(
        self, undertaker: Undertaker, runtime: Runtime, state: QueueState, job: UpstreamJob, size: int
    ) -> None:
        self.state = state
        self.job = job
        self.size = size
        self.step = 0
        self._undertaker = undertaker
        self._runtime = runtime
        self._appended = False
        self._in_doubt = False
        self._bare = False

    def start(self) -> None:
        """Try (again)."""
        if self._in_doubt:
            views = self._runtime.backend.progress(self._undertaker.group, (self.state.queue,))
            views.then(self._looked)
        elif self._appended:
            self._finish()
        else:
            read = self._runtime.backend.read(self.state.queue, self.job.offset, 1, 0)
            read.then(self._read)

    def _looked(self, views: Completion[list[ProgressView]]) -> None:
        """An earlier try may have been stored: then its finish was, too."""
        if views.error is not None:
            self._undertaker.failed(self, views.error)
        elif _is_finished(views.value[0], self.job.offset):
            self._undertaker.done(self)
        else:
            self._in_doubt = False
            self.start()

    def _read(self, read: Completion[ReadBatch]) -> None:
        if read.error is not None:
            self._undertaker.failed(self, read.error)
            return
        batch = read.value
        if batch.status is not ReadStatus.DATA or not batch.offsets or batch.offsets[0] != self.job.offset:
            self._undertaker.gone(self)
            return
        record = batch.record(0)
        trail = trail_after(record, self.job, self._runtime.clock.wall_ms())
        self.step = next_step(trail, self.job, self._undertaker.config)
        if self.step:
            self._to_retry(record, trail._replace(steps=self.step))
        else:
            self._to_dead_letters(record, trail)

    def _to_retry(self, record: StoredRecord, trail: Trail) -> None:
        runtime = self._runtime

        def granted(grant: Completion[QueueRef]) -> None:
            if grant.error is not None:
                self._undertaker.failed(self, grant.error)
                return
            undertaker, queue_id = self._undertaker, grant.value.queue_id
            retried = retry_record(undertaker.group, queue_id, record, trail, undertaker.created_ms)
            scheduled = schedule_record(retried, level_of(self.step), runtime.levels)
            self._store(scheduled, len(runtime.levels))

        self._undertaker.retry_queue(trail.topic).then(granted)

    def _to_dead_letters(self, record: StoredRecord, trail: Trail) -> None:
        letter = dead_letter(
            self._undertaker.group,
            record,
            trail,
            self.job.reason,
            self._runtime.clock.wall_ms(),
            bare=self._bare,
        )
        self._store(letter, DLQ_QUEUES)

    # --- storing

    def _store(self, record: NewRecord, queues: int) -> None:
        def made(topic: Completion[TopicInfo]) -> None:
            if topic.error is not None:
                self._undertaker.failed(self, topic.error)
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
        return self.state.jobs.burial_delta(self._undertaker.group, self.job)

    def _settled(self, committed: Completion[Any]) -> None:
        if committed.error is None:
            self._undertaker.done(self)
        else:
            self._in_doubt = isinstance(committed.error, RemoteError)
            self._refused(committed.error)

    def _refused(self, error: Exception) -> None:
        """A dead letter that cannot be stored with its properties is stored without them."""
        too_much = isinstance(error, CallerError) and not isinstance(error, FencedError | NoSuchTopicError)
        if too_much and not self.step and not self._bare:
            self._bare = True
            self.start()
        else:
            self._undertaker.failed(self, error)


def _is_finished(view: ProgressView, offset: int) -> bool:
    if view.committed is not None and offset < view.committed:
        return True
    return any(start <= offset < end for start, end in view.finished)

"""The retry publisher: takes a subscription's spent jobs from its queues and moves them, a few at a time.

Each message is read once more and moves one step further on the retry path, or to the dead letters. Step n
waits for delay level n + 2: the first 10 s, the sixteenth 2 h. How often and how soon a message is delivered
before it is spent is decided in core/jobs.py.

A move is repeated as often as the backend rejects it, a second later, by the subscription's wake-ups. The
state of earlier attempts is retained, so that an attempt whose outcome was unknown, or that was stored and
not finished, does not store a second copy. An attempt with an unknown outcome may still be in flight: its
outcome is read after another commit of this proxy, because by then it has taken effect or never will
(backend/port.py). The claim to the queue is not released for it, as replies.py does: no caller waits for a
move, and only this proxy knows the state of the job. If a queue is lost, its next owner finds the jobs spent
and moves them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

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
from ddmq_common.errors import CallerError, FencedError, RemoteError, UnknownTopicError
from ddmq_common.metrics.catalogue import DEAD_LETTERS, RETRY_STEPS
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.metric import Metric
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.retry_policy import policy_of
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.retries.headers import RetryHeaders, dead_letter, headers_after, retry_record
from proxy_consumer.retries.retry_queues import RetryQueues
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.commits import SubscriptionBase

DEAD_LETTER = 0
LEVEL_BEFORE_FIRST_STEP = 2  # step 1 waits level 3, 10 s; step 16 waits level 18, 2 h


def next_hop(job: UpstreamJob, headers: RetryHeaders, config: SubscriptionDefaults) -> int:
    """Return the retry step to take, from 1, or DEAD_LETTER; `headers` include the deliveries of the present
    step."""
    policy = policy_of(config, retry_queue=headers.steps > 0)
    waited = max(0, policy.steps_beyond(job.fails) - 1)  # each wait in place counts as a step
    steps = headers.steps + waited
    if job.final or config.order_key or steps >= config.retry_steps:
        return DEAD_LETTER
    return steps + 1


def level_of(step: int) -> int:
    """Return the delay level for which a message waits in `step`."""
    return LEVEL_BEFORE_FIRST_STEP + step


DLQ_QUEUES = 1
UNKNOWN_BYTES = 1 << 20  # assumed size of a message that this proxy has not delivered


class MoveSettings(NamedTuple):
    """The subscription's settings for one attempt to move a message to a retry queue or the dead letters.

    `created_ms`: when the subscription was created; 0: not known yet.
    """

    config: SubscriptionDefaults
    created_ms: int


class MessageMove:
    """Moves a message that has no attempts left in its queue to a retry queue or to the dead letters.

    `step`: of the retry path, or DEAD_LETTER. `size`: approximate bytes. `expired`: the message no longer
    exists, and nothing was stored.
    """

    def __init__(
        self,
        runtime: Runtime,
        group: str,
        retry_queues: RetryQueues,
        queue: SubscribedQueue,
        job: UpstreamJob,
        on_attempt_done: Callable[[MessageMove, Exception | None], None],
    ) -> None:
        """Create the move of a spent message to its retry queue or to the dead letters.

        `on_attempt_done` is called after each attempt; with None if the message is stored and finished, or
        has expired.
        """
        self.queue = queue
        self.job = job
        self.size = job.size or UNKNOWN_BYTES
        self.step = DEAD_LETTER
        self.expired = False
        self._runtime = runtime
        self._group = group
        self._retry_queues = retry_queues
        self._on_attempt_done = partial(on_attempt_done, self)
        self._appended = False
        self._is_uncertain = False
        self._bare = False

    def start(self, settings: MoveSettings) -> None:
        """Start an attempt to move the message, the first or a further one."""
        self._settings = settings
        self._try_move()

    def _try_move(self) -> None:
        backend, deadline = self._runtime.backend, self._runtime.commit_deadline()
        if self._is_uncertain:
            behind = replace(self._build_delta(), finished=())
            backend.commit(CommitBatch(progress=(behind,)), deadline).then(self._read_outcome)
        elif self._appended:
            self._commit_finish()
        else:
            backend.read(self.queue.ref, self.job.offset, 1, 0).then(self._on_read)

    def _read_outcome(self, behind: Completion[list[AppendResult]]) -> None:
        """Read whether an earlier attempt was stored, now that it cannot be in flight any more."""
        if behind.error is not None:
            self._on_attempt_done(behind.error)
        else:
            self._runtime.backend.progress(self._group, (self.queue.ref,)).then(self._on_progress)

    def _on_progress(self, views: Completion[list[ProgressView]]) -> None:
        """End the move if an earlier attempt has finished the message, and repeat it otherwise.

        The copy and the finish are one commit, so that the progress shows whether the copy was stored.
        """
        if views.error is not None or _is_finished(views.value[0], self.job.offset):
            self._on_attempt_done(views.error)
        else:
            self._is_uncertain = False
            self._try_move()

    def _on_read(self, read: Completion[ReadBatch]) -> None:
        if read.error is not None:
            self._on_attempt_done(read.error)
            return
        batch = read.value
        if batch.status is not ReadStatus.DATA or not batch.offsets or batch.offsets[0] != self.job.offset:
            self.expired = True
            self._on_attempt_done(None)
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

        def on_granted(grant: Completion[QueueRef]) -> None:
            if grant.error is not None:
                self._on_attempt_done(grant.error)
                return
            created_ms = self._settings.created_ms
            retried = retry_record(grant.value, record, headers, created_ms)
            self._store_record(schedule_record(retried, level_of(self.step), levels), len(levels))

        self._retry_queues.ready_queue(headers.topic).then(on_granted)

    def _to_dead_letters(self, record: StoredRecord, headers: RetryHeaders) -> None:
        wall_ms, reason = self._runtime.clock.wall_ms(), self.job.reason
        letter = dead_letter(self._group, record, headers, reason, wall_ms, bare=self._bare)
        self._store_record(letter, DLQ_QUEUES)

    # --- storing

    def _store_record(self, record: NewRecord, queues: int) -> None:
        def on_topic_ready(topic: Completion[TopicInfo]) -> None:
            if topic.error is not None:
                self._on_attempt_done(topic.error)
            else:
                self._write_record(record)

        ready_topic(self._runtime.backend, record.topic, queues, self._runtime.commit_deadline()).then(
            on_topic_ready
        )

    def _write_record(self, record: NewRecord) -> None:
        backend, deadline = self._runtime.backend, self._runtime.commit_deadline()
        if not backend.capabilities.atomic:
            backend.append((record,), deadline).then(self._stored_first)
            return
        batch = CommitBatch(records=(record,), progress=(self._build_delta(),))
        backend.commit(batch, deadline).then(self._on_committed)

    def _stored_first(self, appended: Completion[list[AppendResult]]) -> None:
        error = appended.error
        if error is None and appended.value[0].status is not AppendStatus.STORED:
            error = appended.value[0].error or RemoteError("the copy may or may not be stored")
        if error is not None:
            self._on_rejected(error)
        else:
            self._appended = True
            self._commit_finish()

    def _commit_finish(self) -> None:
        batch = CommitBatch(progress=(self._build_delta(),))
        self._runtime.backend.commit(batch, self._runtime.commit_deadline()).then(self._on_committed)

    def _build_delta(self) -> ProgressDelta:
        return self.queue.build_finish(self._group, self.job.offset)

    def _on_committed(self, committed: Completion[Any]) -> None:
        if committed.error is None:
            self._on_attempt_done(None)
        else:
            self._is_uncertain = isinstance(committed.error, RemoteError)
            self._on_rejected(committed.error)

    def _on_rejected(self, error: Exception) -> None:
        """End the attempt, or repeat it if a dead letter was rejected with its properties: it is stored
        without them then."""
        too_much = isinstance(error, CallerError) and not isinstance(error, FencedError | UnknownTopicError)
        if too_much and self.step == DEAD_LETTER and not self._bare:
            self._bare = True
            self._try_move()
        else:
            self._on_attempt_done(error)


def _is_finished(view: ProgressView, offset: int) -> bool:
    if view.committed is not None and offset < view.committed:
        return True
    return any(start <= offset < end for start, end in view.finished)


AT_ONCE_MAX = 256  # concurrent moves of one subscription: they share group commits
BYTES_AT_ONCE_MAX = 16 << 20
RETRY_S = 1.0


class MoveEnd(Enum):
    """The end of the move of a spent job; each value describes it in words."""

    STORED = "the message stands in its next topic"
    EXPIRED = "the message was not there any more"
    FINISHED = "its client's acknowledgement was stored first"
    LOST = "its queue went to another proxy first"


class RetryPublisher:
    """Moves the spent messages of one subscription. `dead_letters`: how many it has stored since the proxy's
    start."""

    def __init__(self, runtime: Runtime, owner: SubscriptionBase) -> None:
        self.dead_letters = 0
        self._runtime = runtime
        self._group = owner.group_name
        self._topic = owner.topic
        self._owner = owner
        self._retry_queues = RetryQueues(runtime, owner.group_name)
        self._waiting: deque[MessageMove] = deque()
        self._cells: dict[tuple[Metric, str], MetricCell] = {}  # by metric, and reason or step
        self._busy = 0
        self._busy_bytes = 0
        self._retry_at = 0.0
        self._watched: dict[UpstreamJob, Completion[MoveEnd]] = {}  # jobs for whose end a caller waits

    def watch_move(self, job: UpstreamJob) -> Completion[MoveEnd]:
        """Return a completion that succeeds when this job has been moved, or need not or cannot be moved any
        more."""
        return self._watched.setdefault(job, Completion())

    def on_finished(self, job: UpstreamJob) -> None:
        """Record that a job need not be moved any more."""
        self._no_longer_watched(job, MoveEnd.FINISHED)

    def _no_longer_watched(self, job: UpstreamJob, end: MoveEnd) -> None:
        watched = self._watched.pop(job, None)
        if watched is not None:
            watched.succeed(end)

    def take_spent(self, queue: SubscribedQueue) -> None:
        """Take the spent jobs of this queue, and start to move them."""
        for job in queue.table.take_spent():
            move = MessageMove(self._runtime, self._group, self._retry_queues, queue, job, self._on_try_done)
            self._waiting.append(move)
        self.start_moves(self._runtime.now())

    def start_moves(self, now: float) -> None:
        """Start waiting moves, up to the bounds on concurrent ones, unless a pause after an error is still
        on."""
        while self._waiting and now >= self._retry_at and self._has_capacity():
            move = self._waiting.popleft()
            if self._owner.buffer.holds_queue(move.queue):
                self._busy += 1
                self._busy_bytes += move.size
                move.start(MoveSettings(self._owner.config, self._owner.created_ms))
            else:
                self._no_longer_watched(move.job, MoveEnd.LOST)

    def _has_capacity(self) -> bool:
        if not self._busy:
            return True
        return self._busy < AT_ONCE_MAX and self._busy_bytes + self._waiting[0].size <= BYTES_AT_ONCE_MAX

    def next_event(self) -> float:
        """Return when `start_moves` can start a waiting move; NEVER if none waits."""
        return self._retry_at if self._waiting and not self._busy else NEVER

    def _on_try_done(self, move: MessageMove, error: Exception | None) -> None:
        """End one attempt; a move that is not (certainly) stored is repeated later, unless its queue is lost
        by then."""
        self._busy -= 1
        self._busy_bytes -= move.size
        if error is not None:
            self._runtime.progress_failed(error)
            self._retry_at = self._runtime.now() + RETRY_S
            self._waiting.append(move)
            self._owner.on_not_moved(move.queue, error, self._retry_at)
            return
        if not move.expired:
            self._count_move(move)
        self._owner.on_moved(move.queue, move.job, expired=move.expired)
        self._no_longer_watched(move.job, MoveEnd.EXPIRED if move.expired else MoveEnd.STORED)
        self.start_moves(self._runtime.now())

    def _count_move(self, move: MessageMove) -> None:
        dead = move.step == DEAD_LETTER
        self.dead_letters += dead
        label = move.job.reason if dead else str(move.step)
        metric = DEAD_LETTERS if dead else RETRY_STEPS
        cell = self._cells.get((metric, label))
        if cell is None:
            cell = self._runtime.metrics.cell(metric, self._group, self._topic, label)
            self._cells[metric, label] = cell
        cell.value += 1

"""Dead letters: messages whose attempts are used up move to `%DLQ%group`.

The topic is made with the first dead letter, also where topics are not created automatically. A dead
letter keeps key, tag, value, message id, born time and the application's properties, and gains these
(none of them a reserved name):

    dead-letter-reason     failed | timed-out
    dead-letter-topic      where it came from: topic, queue number and offset there
    dead-letter-queue
    dead-letter-offset
    dead-letter-attempts   deliveries made
    dead-letter-time       epoch milliseconds

Storing it and finishing the original are one commit where the engine is atomic; elsewhere it is
appended durably first and finished then. Until that is done the message stays unfinished and is
delivered to nobody; what fails is tried again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from backend.capabilities import Durability
from backend.completion import Completion
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ReadBatch,
    ReadStatus,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import DamagedError, FencedError, NoSuchTopicError, RemoteError
from ddmq_common.metrics.catalogue import DEAD_LETTERS
from ddmq_common.names import dlq_topic
from proxy_consumer.core.steps import QueueState
from proxy_consumer.core.upstream_job import UpstreamJob

if TYPE_CHECKING:
    from proxy_consumer.subscription import Subscription

AT_ONCE_MAX = 16  # dead letters of one subscription under way at a time
RETRY_S = 1.0
DLQ_QUEUES = 1


class Undertaker:
    """Moves one subscription's spent jobs, a few at a time."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._line: deque[tuple[QueueState, UpstreamJob]] = deque()
        self._busy = 0
        self._again_at = 0.0
        self.moved = 0

    def take(self, state: QueueState) -> None:
        """Take over what this queue decided to bury."""
        for job in state.jobs.take_burials():
            self._line.append((state, job))
        self.go_on(self._subscription.runtime.now())

    def go_on(self, now: float) -> None:
        """Start what may start now."""
        while self._line and self._busy < AT_ONCE_MAX and now >= self._again_at:
            state, job = self._line.popleft()
            if self._subscription.holds(state):
                self._busy += 1
                Burial(self, self._subscription, state, job).start()

    def done(self, burial: Burial) -> None:
        """Stored and finished."""
        subscription = self._subscription
        self._busy -= 1
        self.moved += 1
        runtime = subscription.runtime
        runtime.metrics.cell(
            DEAD_LETTERS, subscription.group.name, subscription.topic, burial.job.reason
        ).value += 1
        self._finished(burial)

    def gone(self, burial: Burial) -> None:
        """The message itself is not there any more; its finish is owed."""
        self._busy -= 1
        offset = burial.job.offset
        burial.state.jobs.skip([(offset, offset + 1)])
        self._subscription.buffer.tally.expired.value += 1
        self._subscription.owe()
        self._finished(burial)

    def _finished(self, burial: Burial) -> None:
        subscription = self._subscription
        if subscription.holds(burial.state):
            subscription.buffer.buried(burial.state, burial.job)
            subscription.group.serve()
        self.go_on(subscription.runtime.now())

    def failed(self, burial: Burial, error: Exception) -> None:
        """Not stored: again a little later, unless the queue is not ours any more."""
        subscription = self._subscription
        self._busy -= 1
        subscription.runtime.progress_failed(error)
        self._again_at = subscription.runtime.now() + RETRY_S
        self._line.append((burial.state, burial.job))
        subscription.runtime.agenda.set(subscription, self._again_at)
        if isinstance(error, FencedError) and subscription.holds(burial.state):
            subscription.refence(burial.state, lambda: None)


class Burial:
    """One dead letter: read, make the topic if it is missing, store and finish."""

    def __init__(
        self, undertaker: Undertaker, subscription: Subscription, state: QueueState, job: UpstreamJob
    ) -> None:
        self.state = state
        self.job = job
        self._undertaker = undertaker
        self._subscription = subscription
        self._record: NewRecord | None = None
        self._made_topic = False

    def start(self) -> None:
        backend = self._subscription.runtime.backend
        backend.read(self.state.queue, self.job.offset, 1, 0).then(self._read)

    def _read(self, read: Completion[ReadBatch]) -> None:
        if read.error is not None:
            self._undertaker.failed(self, read.error)
            return
        batch = read.value
        if batch.status is not ReadStatus.DATA or not batch.offsets or batch.offsets[0] != self.job.offset:
            self._undertaker.gone(self)
            return
        subscription = self._subscription
        self._record = dead_letter(
            subscription.group.name, batch.record(0), self.job, subscription.runtime.clock.wall_ms()
        )
        if subscription.runtime.backend.topic(self._record.topic) is None:
            self._make_topic()
        else:
            self._store()

    def _make_topic(self) -> None:
        assert self._record is not None
        runtime = self._subscription.runtime
        self._made_topic = True
        info = TopicInfo(self._record.topic, 0, DLQ_QUEUES, durability=Durability.DURABLE)
        runtime.backend.put_topic(info, runtime.commit_deadline()).then(self._topic_made)

    def _topic_made(self, made: Completion[TopicInfo]) -> None:
        if made.error is not None:
            self._undertaker.failed(self, made.error)
        else:
            self._store()

    def _store(self) -> None:
        assert self._record is not None
        runtime = self._subscription.runtime
        deadline = runtime.commit_deadline()
        if runtime.backend.capabilities.atomic:
            delta = self.state.jobs.burial_delta(self._subscription.group.name, self.job)
            batch = CommitBatch(records=(self._record,), progress=(delta,))
            runtime.backend.commit(batch, deadline).then(self._stored)
        else:
            runtime.backend.append((self._record,), deadline).then(self._appended)

    def _appended(self, appended: Completion[list[AppendResult]]) -> None:
        error = appended.error
        if error is None and appended.value[0].status is not AppendStatus.STORED:
            error = appended.value[0].error or RemoteError("the dead letter may or may not be stored")
        if error is not None:
            self._refused(error)
            return
        runtime = self._subscription.runtime
        delta = self.state.jobs.burial_delta(self._subscription.group.name, self.job)
        runtime.backend.commit(CommitBatch(progress=(delta,)), runtime.commit_deadline()).then(self._stored)

    def _stored(self, stored: Completion[Any]) -> None:
        if stored.error is not None:
            self._refused(stored.error)
        else:
            self._undertaker.done(self)

    def _refused(self, error: Exception) -> None:
        if isinstance(error, NoSuchTopicError) and not self._made_topic:
            self._make_topic()
        else:
            self._undertaker.failed(self, error)


def dead_letter(group: str, record: StoredRecord, job: UpstreamJob, wall_ms: int) -> NewRecord:
    """The record to append. A message whose bytes do not parse is kept as it is, without properties."""
    try:
        content = decode(record.delivery)
    except DamagedError:
        delivery, key, tag = record.delivery, b"", b""
    else:
        key, tag = content.key, content.tag
        properties = dict(content.properties) | dead_letter_properties(record, job, wall_ms)
        delivery = encode(key, content.value, tag, properties)
    return NewRecord(
        dlq_topic(group),
        0,
        record.message_id,
        record.born_ms,
        delivery,
        key=key,
        tags=tag,
        flags=record.flags,
        system=dict(record.system) or None,
    )


def dead_letter_properties(record: StoredRecord, job: UpstreamJob, wall_ms: int) -> dict[bytes, bytes]:
    """What a dead letter says about itself."""
    texts = {
        "dead-letter-reason": job.reason,
        "dead-letter-topic": record.topic,
        "dead-letter-queue": str(record.queue_id),
        "dead-letter-offset": str(record.offset),
        "dead-letter-attempts": str(job.fails + job.timeouts),
        "dead-letter-time": str(wall_ms),
    }
    return {name.encode(): text.encode() for name, text in texts.items()}

"""FileLog: the backend port over the files of one directory, in the process that writes them.

It connects the components: the writer (group commits), the queries (reads), the waits, the memberships of
groups, checkpoints, index and retention. Everything belongs to the hub of the thread that opened it; blocking
calls run in native threads. Answers are settled from the hub, never inside the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gevent

from backend.completion import Completion
from backend.engine import TopicAnswer, Watchers, check_topic, local_capabilities
from backend.file_log.commit.packing import PackedFrame
from backend.file_log.commit.requests import (
    AppendRequest,
    CommitRequest,
    TopicRequest,
    rejected_results,
    size_of,
)
from backend.file_log.core.layout import ENTRY_BYTES
from backend.file_log.core.retention import DiskAdmission, Hold
from backend.file_log.holds import DeadLetterHolds, LevelHolds
from backend.file_log.opened import OpenedDirectory
from backend.file_log.options import FileLogOptions
from backend.file_log.start.recovery import Recovered
from backend.file_log.state import TopicState
from backend.log_state import LogFilesState, LogSegment
from backend.ownership.group import Grant
from backend.ownership.memberships import Answered, Memberships, raised_epochs
from backend.port import Backend, FindCall, Health, Join, Membership, MembershipListener, ReadCall, Wait
from backend.records import (
    AppendResult,
    Bounds,
    CommitBatch,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from backend.waits import Waits
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import DdmqError, DrainingError, StorageError, TryLaterError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import (
    DELAY_GROUP,
    DELAY_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_GROUP,
    is_internal,
)
from ddmq_common.native_threads import wait_for_native_work
from ddmq_common.security.quotas import SenderQuota

log = logging.getLogger(__name__)
# Internal topics that clients fill: delayed and prepared sends (retries come by commit), and traces.
_OF_CLIENTS = frozenset((SCHEDULE_TOPIC, DELAY_TOPIC, HALF_TOPIC, TRACE_TOPIC))
STEP_MS = 1_000  # when the wall clock is set forward by this, a checkpoint must record the step
GRANT_S, GRANT_RETRY_S = 10.0, 0.1  # deadline for raising an epoch, and the pause after a failure
REST_S = 0.25  # the longest pause between ticks while only waits have deadlines
CLOSE_WAIT_S = 10.0  # wait for native threads; while one runs, the directory stays locked


class FileLog(Backend):
    """The backend port over one directory, opened for writing; see `backend.file_log.open_log`."""

    def __init__(
        self, opened: OpenedDirectory, options: FileLogOptions, clock: Clock, metrics: Registry
    ) -> None:
        """Start index, checkpoints and retention on a recovered directory."""
        self._clock = clock
        self._options = options
        self.capabilities = local_capabilities(
            "file_log", options.body_bytes_max, options.properties_bytes_max
        )
        self._opened = opened
        state = self._state = opened.state
        self._ahead_ms = state.sends.ahead_ms  # the lead of store times that a checkpoint records
        self._tails, self._index = opened.tails, opened.index
        self._later: Any = gevent.get_hub().loop.run_callback
        self._writer = opened.make_writer(options, clock, metrics, self._on_published, self._on_answered)
        self._queries = opened.make_queries(options, lambda: self._writer.written)
        self._checkpoints = opened.make_checkpointer(self._writer, metrics)
        self._retention = opened.make_retention(
            options, clock, self._writer.store_clock, metrics, self.holds, DeadLetterHolds(self, clock)
        )
        self._waits = Waits(options.waits_max, self._writer.run_guarded)
        self._ownership = Memberships(
            state.queues_of,
            lambda group, queue: state.progress.fence(group, queue).epoch,
            self._raise_epochs,
            self._later,
            lambda retry: gevent.spawn_later(GRANT_RETRY_S, retry),
            clock.monotonic,
            self._tick_on,
            options.topics_max,
        )
        self._hold_sources: list[Callable[[], Iterable[Hold]]] = [
            LevelHolds(self),
            LevelHolds(
                self, DELAY_TOPIC, DELAY_GROUP, "delay commands that the delay service has not stored"
            ),
            LevelHolds(self, HALF_TOPIC, TRANSACTION_GROUP, "messages of transactions that are not decided"),
        ]
        self._watchers = Watchers(self._later)
        self._lock_lost: StorageError | None = None
        self._drains: list[tuple[float, Completion[None]]] = []
        self._draining = self._closed = self._ticking = False
        self._rest_until = NEVER  # while it does not tick: the deadline of the first wait
        self._tick_timer, self._checkpoint_timer = HubTimer(), HubTimer()
        self._checkpoint_timer.every(options.checkpoint_ms / 1000, self._checkpoints.request_checkpoint)
        self._index.start()
        self._retention.start()

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        topic = self._state.topics.get(name)
        return None if topic is None else topic.info

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: topic.info for name, topic in self._state.topics.items()}

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)
        completion: Completion[TopicInfo] = Completion() if into is None else into
        return self._change_topic(info.name, info, deadline, completion, topics_max)

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        return self._change_topic(name, None, deadline, Completion(), None)

    def _change_topic(
        self,
        name: str,
        info: TopicInfo | None,
        deadline: float,
        completion: Completion[Any],
        topics_max: int | None,
    ) -> Completion[Any]:
        error = self._find_write_error()
        if error is not None:
            self._later(completion.fail, error)
            return completion
        bounds = (self._options.topics_max, topics_max)
        request = TopicRequest(name, info, deadline, completion, self._state, self._topic_changed, bounds)
        self._writer.submit(request)
        self._tick_on()
        return completion

    def _topic_changed(self, name: str, deleted: TopicState | None) -> None:
        """Notify the listeners of a created, changed or deleted topic.

        `deleted` is the last state of a deleted topic, else None.
        """
        self._watchers.notify_changed(f"topic/{name}")
        self._ownership.topic_changed(name)
        if deleted is not None:
            error = UnknownTopicError(f"topic {name} was deleted")
            for queue in deleted.queues:
                self._waits.fail(queue, error)
            self._opened.forget_queues(deleted.queues)

    def setting(self, key: str) -> bytes | None:
        return self._state.settings.get(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self._state.settings.items() if key.startswith(prefix)}

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        if self._draining or self._retention.admission is not DiskAdmission.OPEN:
            error = self._find_write_error() or self._find_send_error(records)
            if error is not None:
                self._later(completion.succeed, rejected_results(len(records), error))
                return completion
        self._writer.submit(AppendRequest(records, deadline, completion, size_of(records)))
        if not self._ticking:
            self._tick_on()
        return completion

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        request = CommitRequest(
            batch, deadline, completion, self._state, self._watchers.notify_changed, self._options
        )
        error = self._find_write_error(batch.records)
        if error is not None:
            self._later(completion.fail, error)
            return completion
        self._writer.submit(request)
        if not self._ticking:
            self._tick_on()
        return completion

    def _find_write_error(self, records: Sequence[NewRecord] | None = None) -> DdmqError | None:
        """Return why a write is refused now, or None.

        A commit without records is never refused for lack of space: consumers need progress and settings, and
        these may use the reserve.
        """
        if self._draining:
            return DrainingError("the log is draining; it accepts nothing new")
        return None if records is not None and not records else self._retention.write_error

    def _find_send_error(self, records: Sequence[NewRecord]) -> DdmqError | None:
        """Return why sends of clients are refused now, or None.

        Records that the system writes itself are not refused.
        """
        if all(is_internal(record.topic) and record.topic not in _OF_CLIENTS for record in records):
            return None
        return self._retention.send_error

    def _on_published(self, frame: PackedFrame) -> None:
        """Add the entries of a visible frame to the consume queues and the index; request a checkpoint."""
        changed, tails = self._state.changed_topics, self._tails
        for queue, before in frame.touched:
            changed.add(queue.ref.topic)
            tails.add_bytes(queue, (queue.visible - before) * ENTRY_BYTES)
        tails.on_commit()
        self._index.published(frame, self._opened.segments.last.start)
        stepped = frame.stored_ms - frame.sends_ms >= self._ahead_ms + STEP_MS
        if stepped or frame.end - self._checkpoints.position >= self._options.checkpoint_bytes:
            self._ahead_ms = frame.stored_ms - frame.sends_ms
            self._checkpoints.request_checkpoint()

    def _on_answered(self, frame: PackedFrame) -> None:
        """Wake the waits for data, after the callers of the frame were answered."""
        for queue, _ in frame.touched:
            if queue.waiting:
                self._waits.wake(queue)

    # --- reading

    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        self._queries.read(call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        wait = Wait() if into is None else into
        self._later(self._park, queue, offset, deadline, wait)
        return wait

    def _park(self, ref: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        self._waits.park(self._state.queue(ref), ref, offset, deadline, wait)
        if not self._ticking and self._waits.next_at < self._rest_until:
            self._tick_on()

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self._queries.settle_on_hub(lambda: self._queries.bounds(queues), Completion())

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._queries.settle_off_hub(
            lambda: self._queries.offset_for_time(queue, wall_ms), Completion()
        )

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        return self._queries.settle_off_hub(lambda: self._queries.find(call), Completion())

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        progress = self._state.progress
        return self._queries.settle_on_hub(
            lambda: [progress.view(group, queue) for queue in queues], Completion()
        )

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("the log is draining; no member can join")
        return self._ownership.join(join, listener)

    def _raise_epochs(self, grant: Grant, answered: Answered) -> None:
        batch = CommitBatch((), raised_epochs(grant, self._state.progress))
        self.commit(batch, self._clock.monotonic() + GRANT_S).then(lambda commit: answered(commit.error))

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        return self._queries.settle_on_hub(lambda: self._ownership.holders(group, topic), Completion())

    # --- for the other parts of the system

    @property
    def durable_position(self) -> int:
        """The log position below which all records are durable."""
        return self._writer.durable

    @property
    def recovered(self) -> Recovered:
        """The outcome of the recovery at opening."""
        return self._opened.recovered

    @property
    def damaged_ranges(self) -> int:
        """The number of damaged ranges detected since the log was opened; see `damaged/`."""
        return self._opened.damage.ranges

    def write_checkpoint(self, then: Callable[[], None] | None = None) -> None:
        """Write a checkpoint soon, before its time, then call `then`, also after a failure."""
        self._checkpoints.request_checkpoint(then)

    def publish_entries(self, at_once: bool) -> None:
        """Set whether each commit writes its consume-queue entries, for processes that read the files."""
        self._tails.at_once = at_once
        if at_once:
            self._tails.flush()

    def holds(self) -> list[Hold]:
        """List the holds of retention. Blocks the calling greenlet. Raises StorageError without the lock."""
        if self._lock_lost is None:
            self._lock_lost = self._opened.lock_lost()
        if self._lock_lost is not None:
            self._writer.give_up(self._lock_lost)
            raise self._lock_lost
        checkpoint_hold = [Hold(self.retention_floor(), "the older checkpoint")]
        return checkpoint_hold + [hold for list_holds in self._hold_sources for hold in list_holds()]

    def retention_floor(self) -> int:
        """Return the log position from which segments must be retained: that of the older checkpoint."""
        return self._checkpoints.floor

    # --- the engine itself

    def read_log_state(self) -> LogFilesState | None:
        return self._retention.read_state()

    def clean_log(self, before_ms: int, dry_run: bool) -> list[LogSegment] | None:
        return self._retention.clean(before_ms, dry_run)

    def count_owned_sends(self) -> Mapping[str, SenderQuota]:
        return self._state.sends.count_owned()

    def health(self) -> Health:
        writer = self._writer
        error = (
            writer.failure or self._find_write_error() or self._retention.send_error or writer.growth_error
        )
        if error is not None:
            return Health(False, str(error))
        ranges = self._opened.damage.ranges
        return Health(
            True, f"{ranges} damaged ranges were found since the start; see damaged/" if ranges else ""
        )

    def clock_ms(self) -> int:
        return self._writer.store_clock.now_ms()

    def drain(self, deadline: float) -> Completion[None]:
        drained: Completion[None] = Completion()
        if self._closed:
            self._later(drained.succeed, None)
            return drained
        self._draining = True
        self._waits.fail_all(DrainingError("the log is draining"))
        self._drains.append((deadline, drained))
        self._tick_on()
        self._writer.when_at_rest(self._on_writer_at_rest)
        return drained

    def _on_writer_at_rest(self) -> None:
        if not self._writer.is_idle:
            self._writer.when_at_rest(self._on_writer_at_rest)
            return
        self._checkpoints.request_checkpoint(self._end_drains)

    def _end_drains(self) -> None:
        drains, self._drains = self._drains, []
        for _, drained in drains:
            self._later(drained.succeed, None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._draining = self._queries.closed = self._checkpoints.closed = True
        for timer in (self._tick_timer, self._checkpoint_timer):
            timer.stop()
        self._watchers.clear()
        self._ownership.close()
        self._retention.stop()
        stopped = self._writer.close(CLOSE_WAIT_S)
        self._waits.fail_all(DrainingError("the log was closed"))
        self._end_drains()
        if stopped and wait_for_native_work(CLOSE_WAIT_S):
            self._opened.close()
        else:
            self._opened.abandon(CLOSE_WAIT_S)

    def _tick_on(self) -> None:
        if not self._ticking and not self._closed:
            self._ticking = True
            self._tick_timer.every(self._options.sweep_ms / 1000, self._tick)

    def _tick(self) -> None:
        """Settle the calls past their deadline; tick less often while only waits have deadlines."""
        self._tick_on()  # also when something here fails
        now = self._clock.monotonic()
        self._writer.sweep(now)
        self._waits.sweep(now)
        for deadline, drained in [drain for drain in self._drains if drain[0] <= now]:
            self._drains.remove((deadline, drained))
            drained.fail(TryLaterError("the log could not finish its pending work by the deadline"))
        revoking = self._ownership.sweep(now)
        if self._writer.is_idle and not (revoking or self._drains or self._closed):
            self._rest_until_deadline(now)

    def _rest_until_deadline(self, now: float) -> None:
        self._ticking, self._rest_until = False, self._waits.next_at
        if self._rest_until < NEVER:
            self._tick_timer.once(min(self._rest_until - now, REST_S), self._tick)
        else:
            self._tick_timer.stop()

"""MemoryBackend: the backend port without a disk, on the event loop of its thread.

It follows the port's rules like an engine with a disk: every completion is settled later, from the hub, never
inside the call; writes take effect in the order of the calls, and readers see them no earlier than they are
settled. Its records end with the process; it answers with the durability that the topic requires, so that
proxies run on it unchanged.

Writes take effect later, from the hub. A write that is paused past its deadline is answered "unknown" and
still takes effect when writes resume, like a write whose answer was lost. Deadlines are checked every few
milliseconds of real time against the given clock, so a ManualClock works.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from backend.completion import Completion, guarded
from backend.engine import StoreClock, TopicAnswer, Watchers, check_topic, local_capabilities
from backend.memory.store import MemoryStore
from backend.ownership.group import Grant
from backend.ownership.memberships import Answered, Memberships, raised_epochs
from backend.port import Backend, FindCall, Health, Join, Membership, MembershipListener, ReadCall, Wait
from backend.progress.group_progress import check_delta
from backend.records import (
    AppendResult,
    AppendStatus,
    Bounds,
    CommitBatch,
    Durability,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from backend.waits import Waits
from ddmq_common.clock import Clock, SystemClock
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, RemoteError, UnknownTopicError
from ddmq_common.event_loop import current_loop
from ddmq_common.hub_timer import HubTimer
from ddmq_common.security.quotas import SenderQuota

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The bounds of a memory engine. Appends past `bytes_max` are refused; no record is dropped for them."""

    bytes_max: int = 256 * 1024 * 1024  # delivery bytes of all records
    body_bytes_max: int = 2 * 1024 * 1024
    properties_bytes_max: int = 32 * 1024
    entries_max: int = 10_000  # of topics, settings, progress and memberships, each
    waits_max: int = 100_000
    writes_max: int = 10_000  # appends and commits that are not settled yet
    sweep_ms: int = 5  # the precision of deadlines


class MemoryBackend(Backend):
    """The backend port in memory, and the model for other engines.

    Create it on the thread of the hub that will serve it.
    """

    def __init__(self, clock: Clock | None = None, options: MemoryOptions | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._options = MemoryOptions() if options is None else options
        self.capabilities = local_capabilities(
            "memory", self._options.body_bytes_max, self._options.properties_bytes_max
        )
        self._loop: Any = current_loop()
        later = self._loop.run_callback
        delivery_bytes_max = self._options.body_bytes_max + 2 * self._options.properties_bytes_max
        self._store = MemoryStore(self._options.bytes_max, self._options.entries_max, delivery_bytes_max)
        self._waits = Waits(self._options.waits_max, guarded)
        self._members = Memberships(
            self._store.queues_of,
            lambda group, queue: self._store.progress.fence(group, queue).epoch,
            self._raise_epochs,
            later,
            later,
            self._clock.monotonic,
            self._tick_on,
            self._options.entries_max,
        )
        self._watchers = Watchers(later)
        self._writes = WriteQueue(later)
        self._draining = self._closed = False
        self._timer = HubTimer()
        self._store_clock = StoreClock(self._clock, 0)
        self._store.sends.start(self._store_clock.now_ms(), self._clock.monotonic())
        self._ticking = False

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        topic = self._store.topics.get(name)
        return None if topic is None else topic.info

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: topic.info for name, topic in self._store.topics.items()}

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)

        def act() -> TopicInfo:
            topic = self._store.put_topic(info, topics_max)
            self._topic_changed(info.name)
            return topic

        return self._write(Completion() if into is None else into, deadline, act, may_fail=False)

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        def act() -> None:
            deleted = self._store.delete_topic(name)
            self._topic_changed(name)
            for queue in deleted:
                self._waits.fail(queue, UnknownTopicError(f"topic {name} was deleted"))

        return self._write(Completion(), deadline, act, may_fail=False)

    def setting(self, key: str) -> bytes | None:
        return self._store.settings.get(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self._store.settings.items() if key.startswith(prefix)}

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    def _topic_changed(self, name: str) -> None:
        self._watchers.notify_changed(f"topic/{name}")
        self._members.topic_changed(name)

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        batch = list(records)

        def act() -> list[AppendResult]:
            now = self._clock.monotonic()
            results = self._store.append(batch, self._store_clock.stamp(now), now)
            self._store_clock.confirm_stamp()
            self._loop.run_callback(self._wake_waits, batch)
            return results

        def fail(error: Exception, status: AppendStatus) -> None:
            result = AppendResult(status, -1, Durability.WRITTEN, error)
            completion.succeed([result] * len(batch))

        return self._write(completion, deadline, act, fail)

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        for delta in batch.progress:
            check_delta(delta)

        def act() -> list[AppendResult]:
            now = self._clock.monotonic()
            results = self._store.commit(batch, self._store_clock.stamp(now), now)
            if batch.records:
                self._store_clock.confirm_stamp()
            for key in batch.settings:
                self._watchers.notify_changed(key)
            self._loop.run_callback(self._wake_waits, batch.records)
            return results

        return self._write(Completion() if into is None else into, deadline, act)

    def _write(
        self,
        completion: Completion[T],
        deadline: float,
        act: Callable[[], T],
        fail: Fail | None = None,
        *,
        may_fail: bool = True,
    ) -> Completion[T]:
        """Queue a write whose `act` returns the result, or fail it later; return its completion."""
        write = Write(completion, deadline, act, fail or (lambda error, _: completion.fail(error)), may_fail)
        if self._draining:
            error: DdmqError = DrainingError("the memory engine is draining; it accepts nothing new")
        elif len(self._writes) >= self._options.writes_max:
            error = BoundReachedError(f"{len(self._writes)} writes are waiting; that is the bound")
        else:
            self._enqueue_write(write)
            return completion
        self._loop.run_callback(write.fail, error, AppendStatus.REFUSED)
        return completion

    def _enqueue_write(self, write: Write) -> None:
        self._writes.enqueue_write(write)
        if self._writes.paused:
            self._tick_on()

    # --- reading

    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        self._answer_later(lambda: self._store.read(call), completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        wait = Wait() if into is None else into
        self._loop.run_callback(self._park, queue, offset, deadline, wait)
        return wait

    def _park(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        self._waits.park(self._store.queue(queue), queue, offset, deadline, wait)
        if len(self._waits):
            self._tick_on()

    def _wake_waits(self, records: Sequence[NewRecord]) -> None:
        for name, queue_id in {(record.topic, record.queue_id) for record in records}:
            topic = self._store.topics.get(name)
            if topic is not None and 0 <= queue_id < len(topic.queues):
                self._waits.wake(topic.queues[queue_id])

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self._answer_later(lambda: self._store.bounds(queues))

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._answer_later(lambda: self._store.offset_for_time(queue, wall_ms))

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        return self._answer_later(lambda: self._store.find(call))

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        return self._answer_later(lambda: [self._store.progress.view(group, queue) for queue in queues])

    def _answer_later(self, act: Callable[[], T], into: Completion[T] | None = None) -> Completion[T]:
        completion: Completion[T] = Completion() if into is None else into

        def run() -> None:
            try:
                if self._closed:
                    raise DrainingError("the memory engine is closed")
                value = act()
            except DdmqError as error:
                completion.fail(error)
            else:
                completion.succeed(value)

        self._loop.run_callback(run)
        return completion

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("the memory engine is draining; no member can join")
        return self._members.join(join, listener)

    def _raise_epochs(self, grant: Grant, answered: Answered) -> None:
        for delta in raised_epochs(grant, self._store.progress):
            self._store.progress.apply(delta)
        answered(None)

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        return self._answer_later(lambda: self._members.holders(group, topic))

    # --- the engine itself

    def count_owned_sends(self) -> Mapping[str, SenderQuota]:
        return self._store.sends.count_owned()

    def health(self) -> Health:
        return Health(not self._draining, "draining" if self._draining else "")

    def clock_ms(self) -> int:
        return self._store_clock.now_ms()

    def drain(self, deadline: float) -> Completion[None]:
        drained: Completion[None] = Completion()
        self._draining = True
        self._waits.fail_all(DrainingError("the memory engine is draining"))
        if self._closed:
            self._loop.run_callback(drained.succeed, None)
        else:
            self._enqueue_write(
                Write(drained, deadline, lambda: None, lambda error, _: drained.fail(error), False)
            )
        return drained

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._draining = True
        self._watchers.clear()
        self._members.close()
        self._writes.close(DrainingError("the memory engine was closed"))
        self._waits.fail_all(DrainingError("the memory engine was closed"))
        self._timer.stop()

    def _tick_on(self) -> None:
        if not self._ticking and not self._closed:
            self._ticking = True
            self._timer.every(self._options.sweep_ms / 1000, self._tick)

    def _tick(self) -> None:
        """Settle the calls past their deadline; stop ticking when no call has one."""
        now = self._clock.monotonic()
        self._waits.sweep(now)
        self._writes.expire_writes(now)
        revoking = self._members.sweep(now)
        if not len(self._writes) and not len(self._waits) and not revoking and not self._closed:
            self._timer.stop()
            self._ticking = False


Fail = Callable[[Exception, AppendStatus], None]


class Write(NamedTuple):
    """A write that waits in the memory engine's queue.

    `fail` settles it with an error, in the form that its caller expects.
    """

    completion: Completion[Any]
    deadline: float  # monotonic seconds
    act: Callable[[], Any]
    fail: Fail
    may_fail: bool  # whether it may get the failures that a test requested


class _Failure(NamedTuple):
    error: DdmqError
    status: AppendStatus
    stored: bool


class WriteQueue:
    """Runs the writes of the memory engine in order, in a later iteration of the event loop.

    `run_callback` is that of the event loop.
    """

    def __init__(self, run_callback: Callable[..., Any]) -> None:
        self._run_callback = run_callback
        self._writes: deque[Write] = deque()
        self._failures: deque[_Failure] = deque()
        self._scheduled = False
        self.paused = False

    def __len__(self) -> int:
        return len(self._writes)

    def enqueue_write(self, write: Write) -> None:
        """Queue a write; it takes effect from the hub, after all earlier ones."""
        self._writes.append(write)
        self._schedule()

    def resume_writing(self) -> None:
        """Resume writing, and perform the queued writes."""
        self.paused = False
        self._schedule()

    def fail_next(self, error: DdmqError, status: AppendStatus, times: int, stored: bool) -> None:
        """Fail the next `times` writes that may fail."""
        self._failures.extend([_Failure(error, status, stored)] * times)

    def expire_writes(self, now: float) -> None:
        """Answer the writes past their deadline; they stay queued."""
        for write in list(self._writes):
            if write.deadline <= now and not write.completion.done:
                error = RemoteError("no answer by the deadline; what was sent may be stored or not")
                write.fail(error, AppendStatus.UNKNOWN)

    def close(self, error: Exception) -> None:
        """Fail all queued writes."""
        while self._writes:
            write = self._writes.popleft()
            if not write.completion.done:
                write.completion.fail(error)

    def _schedule(self) -> None:
        if not self._scheduled and not self.paused and self._writes:
            self._scheduled = True
            self._run_callback(self._run)

    def _run(self) -> None:
        """Perform the writes queued until now; those that callbacks add wait for the next call."""
        self._scheduled = False
        try:
            for _ in range(len(self._writes)):
                if self.paused or not self._writes:
                    break
                self._perform_write(self._writes.popleft())
        finally:
            self._schedule()

    def _perform_write(self, write: Write) -> None:
        failure = self._failures.popleft() if self._failures and write.may_fail else None
        value = None
        if failure is None or failure.stored:
            try:
                value = write.act()
            except DdmqError as error:
                if not write.completion.done:
                    write.completion.fail(error)
                return
        if write.completion.done:  # its deadline passed while writing was paused
            return
        if failure is None:
            write.completion.succeed(value)
        else:
            write.fail(failure.error, failure.status)

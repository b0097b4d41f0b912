"""Counts the messages on the retry path: in the delay levels, and, once due, in the retry topics until they
are finished.

The progress of the levels says which messages have fired, and the records name their group and topic, so that
every proxy can count them, also after a restart. A refresh reads at most READS_MAX records; the rest is
counted by the next one, and until then the numbers are a lower bound. Messages that are due and not finished
are the lag of the retry topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from backend.completion import Completion, all_of, followed, gather_results, succeeded
from backend.internal_topics import REAL_TOPIC
from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError
from ddmq_common.names import LEVELS_GROUP, RETRY_PREFIX, SCHEDULE_TOPIC
from proxy_consumer.groups.level_tally import LevelRange, LevelTally, Name, RetryWaiting
from proxy_consumer.retries import headers
from proxy_consumer.retries.headers import since_ms
from proxy_consumer.retries.retry_queues import retry_queues
from proxy_consumer.runtime import Runtime

REFRESH_S = 1.0  # requests within this time get the result of the last refresh
READS_MAX = 16_384
PAGE = 256
PAGE_BYTES = 1 << 20
FIRST_BYTES = 1 << 20


class RetryPath(NamedTuple):
    """Waiting messages by group and topic. `complete`: all were counted; otherwise the numbers are a lower
    bound."""

    waiting: Mapping[Name, RetryWaiting]
    complete: bool


class RetryPaths:
    """The messages on the retry paths of all groups, as counted by this proxy."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tallies: dict[QueueRef, LevelTally] = {}
        self._latest = RetryPath({}, True)
        self._refreshed_at = float("-inf")
        self._pending: Completion[RetryPath] | None = None
        self._reads_left = 0

    def count_waiting(self) -> Completion[RetryPath]:
        """Count the messages on the retry paths. Fails if the backend cannot be read."""
        info = self._runtime.backend.topic(SCHEDULE_TOPIC)
        if self._pending is not None:
            return self._pending
        if info is None or self._runtime.now() < self._refreshed_at + REFRESH_S:
            return succeeded(self._latest)
        lookup = self._pending = Completion[RetryPath]()
        self._refreshed_at, self._reads_left = self._runtime.now(), READS_MAX
        queues = info.refs()
        views = self._runtime.backend.progress(LEVELS_GROUP, queues)
        bounds = self._runtime.backend.bounds(queues)
        all_of([views, bounds]).then(lambda both: self._begin(queues, both.error, views, bounds))
        return lookup

    def _begin(
        self,
        queues: list[QueueRef],
        error: Exception | None,
        views: Completion[list[ProgressView]],
        bounds: Completion[list[Bounds | None]],
    ) -> None:
        if error is not None:
            self._end(error)
            return
        self._tallies = {queue: self._tallies.get(queue) or LevelTally() for queue in queues}
        for queue, view, limits in zip(queues, views.value, bounds.value, strict=True):
            if limits is not None:
                committed = limits.min if view.committed is None else view.committed
                self._tallies[queue].take_progress(committed, view.finished, limits.next)
        self._read_on()

    def _read_on(self) -> None:
        for queue, tally in self._tallies.items():
            missing = tally.missing_range()
            if missing is not None and self._reads_left > 0:
                count = min(PAGE, missing.end - missing.offset)
                read = self._runtime.backend.read(queue, missing.offset, count, PAGE_BYTES)
                read.then(partial(self._was_read, tally, missing))
                return
        due = retry_due(self._runtime)
        due.then(lambda _: self._end(due.error, due))

    def _was_read(self, tally: LevelTally, missing: LevelRange, read: Completion[ReadBatch]) -> None:
        if read.error is not None:
            self._end(read.error)
            return
        batch = read.value
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            end = max(missing.offset + 1, min(batch.bounds.min, missing.end))
        elif batch.status is ReadStatus.DATA:
            end = min(batch.next_offset, missing.end)
        else:
            end = missing.end  # these messages were deleted: none of them waits
        self._reads_left -= max(1, len(batch.offsets))
        tally.add(LevelRange(missing.offset, end), _waiting_rows(batch, end))
        self._read_on()

    def _end(
        self, error: Exception | None, due: Completion[Mapping[Name, RetryWaiting]] | None = None
    ) -> None:
        lookup, self._pending = self._pending, None
        rows: dict[Name, RetryWaiting] = {}
        counts = [tally.count_waiting() for tally in self._tallies.values()]
        if due is not None and error is None:
            counts.append(due.value)
        for count in counts:
            for name, waiting in count.items():
                row = rows.get(name)
                rows[name] = waiting if row is None else row.added_to(waiting)
        complete = error is None and all(tally.missing_range() is None for tally in self._tallies.values())
        self._latest = RetryPath(rows, complete)
        if lookup is not None and error is not None:
            lookup.fail(error)
        elif lookup is not None:
            lookup.succeed(self._latest)


def _waiting_rows(batch: ReadBatch, end: int) -> Iterator[tuple[int, Name, RetryWaiting]]:
    for index, offset in enumerate(batch.offsets):
        if offset >= end:
            return
        try:
            record = batch.record(index)
        except DamagedError:
            continue
        name = _name_of(record)
        if name is not None:
            yield offset, name, RetryWaiting(1, since_ms(record), record.due_ms)


def _name_of(record: StoredRecord) -> Name | None:
    """Return the group and topic of a message on a retry path; None for one that a producer delayed."""
    real = record.system.get(REAL_TOPIC, "")
    if not real.startswith(RETRY_PREFIX):
        return None
    return real.removeprefix(RETRY_PREFIX), record.system.get(headers.TOPIC, "")


class _Late(NamedTuple):
    """A retry queue with unfinished messages, the first of them at `committed`."""

    name: Name
    queue: QueueRef
    committed: int
    messages: int


def retry_due(runtime: Runtime) -> Completion[Mapping[Name, RetryWaiting]]:
    """Count the due and unfinished messages in the retry topics, by group and topic. Fails as the backend
    does.

    This requests progress for every group that ever had a retry queue, the bounds in bulk, and the first
    message of each queue with a lag.
    """
    backend = runtime.backend
    owners = {
        (group, topic): queue
        for group in (
            name.removeprefix(RETRY_PREFIX) for name in backend.topics() if name.startswith(RETRY_PREFIX)
        )
        for topic, queue in retry_queues(runtime, group).items()
    }
    views = gather_results([backend.progress(group, [queue]) for (group, _), queue in owners.items()])
    bounds = backend.bounds(list(owners.values()))

    def on_limits() -> Completion[Mapping[Name, RetryWaiting]]:
        late: list[_Late] = []
        for (name, queue), (view,), limits in zip(owners.items(), views.value, bounds.value, strict=True):
            if limits is not None:
                committed = limits.min if view.committed is None else view.committed
                unfinished = limits.next - committed - sum(end - start for start, end in view.finished)
                if unfinished > 0:
                    late.append(_Late(name, queue, committed, unfinished))
        firsts = gather_results([backend.read(each.queue, each.committed, 1, FIRST_BYTES) for each in late])
        return followed(firsts, lambda: succeeded(build_waiting(zip(late, firsts.value, strict=True))))

    def build_waiting(rows: Iterable[tuple[_Late, ReadBatch]]) -> Mapping[Name, RetryWaiting]:
        now_ms = runtime.clock.wall_ms()
        return {
            each.name: RetryWaiting(each.messages, _since_ms(first, now_ms), now_ms) for each, first in rows
        }

    return followed(all_of([views, bounds]), on_limits)


def _since_ms(first: ReadBatch, now_ms: int) -> int:
    """Return when the first message of a read entered the retry path; `now_ms` if it cannot be read."""
    if first.status is not ReadStatus.DATA or not first.offsets:
        return now_ms
    try:
        return since_ms(first.record(0))
    except DamagedError:
        return now_ms

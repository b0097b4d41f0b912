"""Gauges of waiting messages, per subscription: lag, its age, messages in flight, retrying, blocked keys.

They are filled when the metrics are read (Registry.add_collector), so that a scrape pays for them and not a
message. Only the proxy that owns a subscription's queues reports it: over several proxies the numbers add up,
and the age is the highest. The lag of subscriptions that no proxy owns, because no client pulls, grows all
the same: one proxy reports it for all (unowned.py).

The age of a lag is that of the message at the committed offset. It takes a read, so it is looked up only if
that offset has moved, for at most READS_MAX queues per refresh, those with the oldest value first; the others
keep the store time of an earlier message, so that their age is too high rather than too low.

Values that the backend returns later are set then: a subscription whose queues were released keeps its
numbers until their owner is known, so that a lag does not seem to vanish with its consumers. A snapshot of
the metrics waits a moment after the refresh (Registry.ANSWERS_S).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from backend.completion import Completion
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.order.chains import QueueStream
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.groups.directory import Directory
from proxy_consumer.groups.retry_waiting import RetryPath, RetryPaths
from proxy_consumer.groups.stalled import Stalled
from proxy_consumer.groups.unowned import Name, Unowned, UnownedQueue
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

REFRESH_S = 1.0  # reads of the metrics within this time get the values of the last refresh
Fetched = Callable[[str, str], dict[QueueRef, int]]
METRICS = (
    catalogue.LAG,
    catalogue.LAG_AGE,
    catalogue.INFLIGHT,
    catalogue.RETRYING,
    catalogue.BLOCKED_KEYS,
    catalogue.BLOCKED_KEY_AGE,
    catalogue.PARKED_KEYS,
    catalogue.ACK_SPAN,
)
AGE = METRICS.index(catalogue.LAG_AGE)
READS_MAX = 64
Key = tuple[str, QueueRef]  # group, queue
Late = tuple[str, QueueRef, int]  # group, queue, committed offset


class GaugeValues(NamedTuple):
    """One subscription's gauges, in the order of METRICS. Ages in milliseconds."""

    lag: int = 0
    lag_age_ms: int = 0
    in_flight: int = 0
    retrying: int = 0
    blocked_keys: int = 0
    blocked_key_age_ms: int = 0
    parked_keys: int = 0
    ack_span: int = 0


class Share(NamedTuple):
    """A subscription's part in the gauges of lag.

    `late`: those of its queues that have a lag; `ack_span`: the longest ack span at this proxy.
    """

    subscription: Subscription
    late: list[UnownedQueue]
    ack_span: int = 0


class Gauges:
    """The gauges of one proxy; `fill_gauges` is their collector."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        retry_paths: RetryPaths,
        fetched: Fetched,
    ) -> None:
        """Create the gauges of all groups.

        `fetched(group, topic)` returns the queues that are fetched from here, with their committed offsets.
        """
        self._fetched = fetched
        self._retry_paths = retry_paths
        self._retry_cells: dict[Name, tuple[MetricCell, MetricCell]] = {}
        self._runtime = runtime
        self._directory = directory
        self._cells: dict[Name, tuple[MetricCell, ...]] = {}
        self._oldest = Oldest(runtime, self._on_age)
        self._unowned = Unowned(runtime, self._on_unowned)
        self.stalled = Stalled(runtime, directory.all_subscriptions, fetched)
        self._shares: dict[Name, Share] = {}
        self._refreshed_at = float("-inf")
        self._refreshing = False

    def stop(self) -> None:
        """Stop reporting subscriptions that no proxy owns; another proxy does it then."""
        self._unowned.leave()

    def fill_gauges(self) -> None:
        """Refresh every gauge; values that the backend returns later are set then."""
        now = self._runtime.now()
        if self._refreshing or now < self._refreshed_at + REFRESH_S:
            return
        self._refreshed_at, self._refreshing = now, True
        subscriptions = self._directory.all_subscriptions()
        queues = list({queue for each in subscriptions for queue in self._committed_offsets(each)})
        try:
            lookup = self._runtime.backend.bounds(queues)
        except BaseException:
            self._refreshing = False
            raise
        lookup.then(lambda read: self._on_bounds(queues, read))

    def _on_bounds(self, queues: list[QueueRef], read: Completion[list[Bounds | None]]) -> None:
        self._refreshing = False
        if read.error is not None:
            return  # the gauges keep their last values
        limits = zip(queues, read.value, strict=True)
        nexts = {queue: bounds.next for queue, bounds in limits if bounds is not None}
        shares: dict[Name, Share] = {}
        others: dict[Name, Subscription] = {}
        for each in self._directory.all_subscriptions():
            committed = self._committed_offsets(each)
            if committed:
                ack_span = max((state.ack_map.span for state in own_states(each).values()), default=0)
                shares[_name_of(each)] = Share(each, _find_behind(committed, nexts), ack_span)
            else:
                others[_name_of(each)] = each
        unknown = set()
        for name, rows in self._unowned.find_unowned(others.values()).items():
            if rows is None:
                unknown.add(name)
            elif rows:
                shares[name] = Share(others[name], rows)
        if self._unowned.is_reporter:
            self._retry_paths.count_waiting().then(self._show_retry_paths)
        else:
            self._clear_retry_paths(())
        self._shares = shares
        self._oldest.start_refresh(row for share in shares.values() for row in _late_queues(share))
        self._show_shares(unknown)

    def _on_unowned(self, subscription: Subscription, rows: list[UnownedQueue]) -> None:
        """Set the gauges of a subscription that no proxy owns; with no `rows`, some proxy owns it or it has
        no lag."""
        name = _name_of(subscription)
        if self._committed_offsets(subscription):
            return  # this proxy owns it meanwhile: the next refresh reports it
        if rows:
            share = self._shares[name] = Share(subscription, rows)
            self._oldest.extend_refresh(_late_queues(share))
            self._set(name, self._build_values(share))
        else:
            self._shares.pop(name, None)
            self._clear(name)

    def _on_age(self, group: str, queue: QueueRef) -> None:
        name = group, queue.topic
        share, cells = self._shares.get(name), self._cells.get(name)
        if share is not None and cells is not None:
            cells[AGE].value = self._age_ms(share)

    def _committed_offsets(self, subscription: Subscription) -> dict[QueueRef, int]:
        """Return the committed offsets of the topic's queues that are pulled or fetched from here."""
        offsets = {queue: state.ack_map.committed for queue, state in own_states(subscription).items()}
        return offsets or self._fetched(subscription.group.name, subscription.topic)

    def _show_shares(self, unknown: Set[Name]) -> None:
        for name, share in self._shares.items():
            self._set(name, self._build_values(share))
        for name in self._cells.keys() - self._shares.keys() - unknown:
            self._clear(name)

    def _show_retry_paths(self, counted: Completion[RetryPath]) -> None:
        """Set the gauges of the messages that wait in the delay levels; only one proxy reports them."""
        if counted.error is not None or not self._unowned.is_reporter:
            return  # the gauges keep their last values
        now_ms = self._runtime.clock.wall_ms()
        subscribed = {_name_of(each) for each in self._directory.all_subscriptions()}
        rows = {name: row for name, row in counted.value.waiting.items() if name in subscribed}
        for name, row in rows.items():
            if name not in self._retry_cells:
                cell = self._runtime.metrics.cell
                self._retry_cells[name] = (
                    cell(catalogue.RETRY_WAITING, *name), cell(catalogue.RETRY_WAITING_AGE, *name)
                )  # fmt: skip
            count, age = self._retry_cells[name]
            count.value, age.value = row.messages, max(0, now_ms - row.since_ms)
        self._clear_retry_paths(rows)

    def _clear_retry_paths(self, reported: Container[Name]) -> None:
        for name in [name for name in self._retry_cells if name not in reported]:
            for cell in self._retry_cells.pop(name):
                cell.value = 0

    def _clear(self, name: Name) -> None:
        if name in self._cells:
            self._set(name, GaugeValues())
            del self._cells[name]

    def _build_values(self, share: Share) -> GaugeValues:
        subscription = share.subscription
        keys = count_blocked_keys(subscription, self._runtime.now())
        budget = subscription.buffer.budget
        return GaugeValues(
            lag=sum(row.next - row.committed for row in share.late),
            lag_age_ms=self._age_ms(share),
            in_flight=budget.leased,
            retrying=budget.retrying,
            blocked_keys=keys.number,
            blocked_key_age_ms=int(keys.longest_s * 1000),
            parked_keys=keys.parked,
            ack_span=share.ack_span,
        )

    def _age_ms(self, share: Share) -> int:
        stored_ms = self._oldest.stored_ms(share.subscription.group.name, (row.queue for row in share.late))
        return 0 if stored_ms is None else max(0, self._runtime.clock.wall_ms() - stored_ms)

    def _set(self, name: Name, waiting: GaugeValues) -> None:
        cells = self._cells.get(name)
        if cells is None:
            cells = self._cells[name] = tuple(self._runtime.metrics.cell(each, *name) for each in METRICS)
        for cell, value in zip(cells, waiting, strict=True):
            cell.value = value


def _name_of(subscription: Subscription) -> Name:
    return subscription.group.name, subscription.topic


def own_states(subscription: Subscription) -> dict[QueueRef, SubscribedQueue]:
    """Return the queues of its topic that the subscription owns, without the one of the retry topic."""
    return {queue: state for queue, state in subscription.buffer.queues.items() if not state.retry_queue}


def _late_queues(share: Share) -> Iterator[tuple[str, QueueRef, int]]:
    """Iterate over the group, queue and committed offset of every queue with a lag."""
    for row in share.late:
        yield share.subscription.group.name, row.queue, row.committed


def _find_behind(committed: Mapping[QueueRef, int], nexts: Mapping[QueueRef, int]) -> list[UnownedQueue]:
    """Return the queues that have a lag."""
    return [
        UnownedQueue(queue, offset, nexts[queue])
        for queue, offset in committed.items()
        if nexts.get(queue, 0) > offset
    ]


class BlockedKeys(NamedTuple):
    """Counts of blocked order keys: all, the seconds that the longest is blocked, and the parked ones."""

    number: int
    longest_s: float
    parked: int


_PARKED = (JobState.PARKED, JobState.EXHAUSTED)


def count_blocked_keys(subscription: Subscription, now: float) -> BlockedKeys:
    """Count the order keys that are blocked here because their head failed or was parked.

    A head in its first delivery does not block its key. The longest time begins with the first failure after
    the last acknowledgement of a key, so it continues when one head after the other becomes a dead letter.
    """
    count, parked = 0, 0
    starts: list[float] = []
    streams: dict[QueueStream, None] = {}
    for state, stream in subscription.ordered_streams():
        if not stream.busy:
            continue
        streams[stream] = None
        for offset, job in state.table.jobs.items():
            stopped = job.fails or job.timeouts or job.state in (JobState.PARKED, JobState.SPENT)
            if stopped and offset in stream.busy and stream.is_first(offset):
                count += 1
                parked += job.state in _PARKED
                starts.append(job.since or now)
    for table in dict.fromkeys(stream.ledger.table for stream in streams):
        starts += [since for stream, since in table.failing_heads() if stream in streams]
    return BlockedKeys(count, now - min(starts, default=now), parked)


class Head:
    """The message at the committed offset of one queue. `offset`: that for which `stored_ms` was read, −1 =
    none yet."""

    __slots__ = ("offset", "read_at", "reading", "stored_ms")

    def __init__(self) -> None:
        self.offset = -1
        self.stored_ms = 0  # epoch milliseconds
        self.read_at = 0.0  # monotonic seconds
        self.reading = False


class Oldest:
    """The store times of the messages at the committed offsets of all queues with a lag.

    `on_age(group, queue)` is called whenever one was read.
    """

    def __init__(
        self, runtime: Runtime, on_age: Callable[[str, QueueRef], None], reads_max: int = READS_MAX
    ) -> None:
        self._runtime = runtime
        self._on_age = on_age
        self._reads_max = reads_max
        self._reads_left = reads_max
        self._heads: dict[Key, Head] = {}

    def start_refresh(self, late: Iterable[Late]) -> None:
        """Start a refresh: `late` is every queue with a lag; other queues are forgotten."""
        late = list(late)
        lagging = {(group, queue) for group, queue, _ in late}
        self._heads = {key: head for key, head in self._heads.items() if key in lagging}
        self._reads_left = self._reads_max
        self.extend_refresh(late)

    def extend_refresh(self, late: Iterable[Late]) -> None:
        """Look up further queues with a lag within the same refresh."""
        lagging = {(group, queue): offset for group, queue, offset in late}
        for key in lagging:
            self._heads.setdefault(key, Head())
        moved = [
            (head.read_at, key)
            for key, head in ((key, self._heads[key]) for key in lagging)
            if head.offset != lagging[key] and not head.reading
        ]
        for _, key in sorted(moved)[: self._reads_left]:
            self._reads_left -= 1
            self._read(key, lagging[key])

    def _read(self, key: Key, offset: int) -> None:
        head = self._heads[key]
        head.read_at, head.reading = self._runtime.now(), True
        try:
            read_head = self._runtime.backend.read(key[1], offset, 1, 1)
        except BaseException:
            head.reading = False
            raise
        read_head.then(lambda read: self._read_done(key, head, offset, read))

    def _read_done(self, key: Key, head: Head, offset: int, read: Completion[ReadBatch]) -> None:
        if _take_store_time(head, offset, read):
            self._on_age(*key)

    def stored_ms(self, group: str, queues: Iterable[QueueRef]) -> int | None:
        """Return the store time of the queues' oldest message in epoch milliseconds; None if it is not known
        yet."""
        heads = [self._heads.get((group, queue)) for queue in queues]
        return min((head.stored_ms for head in heads if head is not None and head.stored_ms), default=None)


def _take_store_time(head: Head, offset: int, read: Completion[ReadBatch]) -> bool:
    """Set the store time of a head from a read; return whether the read contains it."""
    head.reading = False
    if read.error is not None or read.value.status is not ReadStatus.DATA or not read.value.offsets:
        return False
    stored_ms = read.value.stored_ms(0)
    if stored_ms:
        head.offset, head.stored_ms = offset, stored_ms
    return bool(stored_ms)

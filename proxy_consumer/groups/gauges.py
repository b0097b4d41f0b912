"""Where messages wait, per subscription: lag, its age, what is in flight, retrying, blocked.

Filled in when somebody looks (Registry.add_collector), so a scrape pays for it and not a message. Only the
proxy that holds a subscription's queues tells of it: over several proxies the numbers add up, ages are the
highest. What no proxy holds, because nobody pulls, grows all the same: of that one proxy tells (unheld.py).

The age of a lag is that of the message at the committed offset. It takes a read, so it is looked up
(oldest.py) only where that offset has moved, for a bounded number of queues per look.

What the backend answers later is set then: a subscription that was let go keeps its numbers until it is known
who holds it, so a lag does not seem to vanish with its consumers. Who takes a picture waits a moment after
the look (Registry.ANSWERS_S).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from backend.completion import Completion
from backend.records import Bounds, QueueRef
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.steps import QueueState
from proxy_consumer.groups.directory import Directory
from proxy_consumer.groups.oldest import Oldest
from proxy_consumer.groups.retry_waiting import RetryPath, RetryPaths
from proxy_consumer.groups.stalled import Stalled
from proxy_consumer.groups.unheld import Name, Row, Unheld
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

LOOK_S = 1.0  # looks that follow sooner show what the last one found
Fetched = Callable[[str, str], dict[QueueRef, int]]
METRICS = (
    catalogue.LAG,
    catalogue.LAG_AGE,
    catalogue.INFLIGHT,
    catalogue.RETRYING,
    catalogue.BLOCKED_KEYS,
    catalogue.BLOCKED_KEY_AGE,
    catalogue.ACK_SPAN,
)
AGE = METRICS.index(catalogue.LAG_AGE)


class Waiting(NamedTuple):
    """One subscription's gauges, in the order of METRICS. Ages in milliseconds."""

    lag: int = 0
    lag_age_ms: int = 0
    in_flight: int = 0
    retrying: int = 0
    blocked_keys: int = 0
    blocked_key_age_ms: int = 0
    ack_span: int = 0


class Behind(NamedTuple):
    """One queue with a lag: all below `committed` is finished, the next message lands at `next`."""

    queue: QueueRef
    committed: int
    next: int


class Share(NamedTuple):
    """What is told of one subscription: `states` of the queues held here, `late`: those with a lag."""

    subscription: Subscription
    states: dict[QueueRef, QueueState]
    late: list[Behind]


class Gauges:
    """The gauges of one proxy; `fill` is the collector."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        retry_paths: RetryPaths,
        fetched: Fetched = lambda _, __: {},
    ) -> None:
        """`fetched(group, topic)`: the queues that are fetched from here, and their committed offsets."""
        self._fetched = fetched
        self._retry_paths = retry_paths
        self._retry_cells: dict[Name, tuple[MetricCell, MetricCell]] = {}
        self._runtime = runtime
        self._directory = directory
        self._cells: dict[Name, tuple[MetricCell, ...]] = {}
        self._oldest = Oldest(runtime, self._aged)
        self._unheld = Unheld(runtime, self._told)
        self.stalled = Stalled(runtime, directory.subscriptions, fetched)
        self._shares: dict[Name, Share] = {}
        self._looked_at = float("-inf")
        self._asking = False

    def stop(self) -> None:
        """Tell of nothing any more but what is held."""
        self._unheld.leave()

    def fill(self) -> None:
        """Set every gauge; what the backend answers later is set then."""
        now = self._runtime.now()
        if self._asking or now < self._looked_at + LOOK_S:
            return
        self._looked_at, self._asking = now, True
        subscriptions = self._directory.subscriptions()
        queues = list({queue for each in subscriptions for queue in self._committed(each)})
        try:
            asked = self._runtime.backend.bounds(queues)
        except BaseException:
            self._asking = False
            raise
        asked.then(lambda found: self._answered(queues, found))

    def _answered(self, queues: list[QueueRef], found: Completion[list[Bounds | None]]) -> None:
        self._asking = False
        if found.error is not None:
            return  # the gauges keep their last values
        limits = zip(queues, found.value, strict=True)
        nexts = {queue: bounds.next for queue, bounds in limits if bounds is not None}
        shares: dict[Name, Share] = {}
        others: dict[Name, Subscription] = {}
        for each in self._directory.subscriptions():
            committed = self._committed(each)
            if committed:
                shares[_name(each)] = Share(each, own_states(each), _behind(committed, nexts))
            else:
                others[_name(each)] = each
        unknown = set()
        for name, rows in self._unheld.look(others.values()).items():
            if rows is None:
                unknown.add(name)
            elif rows:
                shares[name] = _unheld_share(others[name], rows)
        if self._unheld.reports:
            self._retry_paths.look().then(self._show_retry_paths)
        else:
            self._clear_retry_paths(())
        self._shares = shares
        self._oldest.look_up(row for share in shares.values() for row in _late(share))
        self._show(unknown)

    def _told(self, subscription: Subscription, rows: list[Row]) -> None:
        """Nobody holds it, as is known by now; or, without rows, somebody does."""
        name = _name(subscription)
        if self._committed(subscription):
            return  # it is held here meanwhile: the next look tells of it
        if rows:
            share = self._shares[name] = _unheld_share(subscription, rows)
            self._oldest.more(_late(share))
            self._set(name, self._waiting(share))
        else:
            self._shares.pop(name, None)
            self._clear(name)

    def _aged(self, group: str, queue: QueueRef) -> None:
        name = group, queue.topic
        share, cells = self._shares.get(name), self._cells.get(name)
        if share is not None and cells is not None:
            cells[AGE].value = self._age_ms(share)

    def _committed(self, subscription: Subscription) -> dict[QueueRef, int]:
        """The queues of its topic that are pulled or fetched from here, and their committed offsets."""
        found = {
            queue: state.jobs.ack_map.committed
            for queue, state in subscription.buffer.queues.items()
            if not state.retry_queue
        }
        return found or self._fetched(subscription.group.name, subscription.topic)

    def _show(self, unknown: Set[Name]) -> None:
        for name, share in self._shares.items():
            self._set(name, self._waiting(share))
        for name in self._cells.keys() - self._shares.keys() - unknown:
            self._clear(name)

    def _show_retry_paths(self, found: Completion[RetryPath]) -> None:
        """What waits in the delay levels is told by the one proxy that also tells of what nobody holds."""
        if found.error is not None or not self._unheld.reports:
            return  # the gauges keep their last values
        now_ms, known = (
            self._runtime.clock.wall_ms(),
            {_name(each) for each in self._directory.subscriptions()},
        )
        rows = {name: row for name, row in found.value.waiting.items() if name in known}
        for name, row in rows.items():
            if name not in self._retry_cells:
                cell = self._runtime.metrics.cell
                self._retry_cells[name] = (
                    cell(catalogue.RETRY_WAITING, *name), cell(catalogue.RETRY_WAITING_AGE, *name)
                )  # fmt: skip
            count, age = self._retry_cells[name]
            count.value, age.value = row.messages, max(0, now_ms - row.since_ms)
        self._clear_retry_paths(rows)

    def _clear_retry_paths(self, kept: Container[Name]) -> None:
        for name in [name for name in self._retry_cells if name not in kept]:
            for cell in self._retry_cells.pop(name):
                cell.value = 0

    def _clear(self, name: Name) -> None:
        if name in self._cells:
            self._set(name, Waiting())
            del self._cells[name]

    def _waiting(self, share: Share) -> Waiting:
        subscription, states, late = share
        keys, blocked_s = blocked(subscription, self._runtime.now())
        budget = subscription.buffer.budget
        return Waiting(
            lag=sum(row.next - row.committed for row in late),
            lag_age_ms=self._age_ms(share),
            in_flight=budget.leased,
            retrying=budget.retrying,
            blocked_keys=keys,
            blocked_key_age_ms=int(blocked_s * 1000),
            ack_span=max((state.jobs.ack_map.span for state in states.values()), default=0),
        )

    def _age_ms(self, share: Share) -> int:
        stored_ms = self._oldest.stored_ms(share.subscription.group.name, (row.queue for row in share.late))
        return 0 if stored_ms is None else max(0, self._runtime.clock.wall_ms() - stored_ms)

    def _set(self, name: Name, waiting: Waiting) -> None:
        cells = self._cells.get(name)
        if cells is None:
            cells = self._cells[name] = tuple(self._runtime.metrics.cell(each, *name) for each in METRICS)
        for cell, value in zip(cells, waiting, strict=True):
            cell.value = value


def _name(subscription: Subscription) -> Name:
    return subscription.group.name, subscription.topic


def own_states(subscription: Subscription) -> dict[QueueRef, QueueState]:
    """The queues that it holds of its topic; that of the retry topic is not among them."""
    return {queue: state for queue, state in subscription.buffer.queues.items() if not state.retry_queue}


def _unheld_share(subscription: Subscription, rows: Iterable[Row]) -> Share:
    return Share(subscription, {}, [Behind(*row) for row in rows])


def _late(share: Share) -> Iterator[tuple[str, QueueRef, int]]:
    """Group, queue and committed offset of every queue with a lag."""
    for row in share.late:
        yield share.subscription.group.name, row.queue, row.committed


def _behind(committed: Mapping[QueueRef, int], nexts: Mapping[QueueRef, int]) -> list[Behind]:
    """Those of the queues that have a lag."""
    return [
        Behind(queue, offset, nexts[queue])
        for queue, offset in committed.items()
        if nexts.get(queue, 0) > offset
    ]


def blocked(subscription: Subscription, now: float) -> tuple[int, float]:
    """How many order keys stand still here because their head failed or was set aside, and for how many
    seconds the longest of them has. A head that is in flight for the first time blocks nothing yet."""
    count, longest = 0, 0.0
    for state, stream in subscription.streams():
        if not stream.busy:
            continue
        for offset, job in state.jobs.table.jobs.items():
            stopped = job.fails or job.timeouts or job.state in (JobState.PARKED, JobState.SPENT)
            if stopped and offset in stream.busy and stream.leads(offset):
                count += 1
                longest = max(longest, now - job.since if job.since else 0.0)
    return count, longest

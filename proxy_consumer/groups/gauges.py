"""Where messages wait, per subscription: lag, its age, what is in flight, retrying, blocked.

Filled in when somebody looks (Registry.add_collector), so a scrape pays for it and not a message. Only the
proxy that holds a subscription's queues tells of it: over several proxies the numbers add up, ages are the
highest. What no proxy holds, because nobody pulls, grows all the same: of that one proxy tells (unheld.py).

The age of a lag is that of the message at the committed offset. It takes a read, so it is looked up
(oldest.py) only where that offset has moved, for a bounded number of queues per look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.records import Bounds, QueueRef
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Cell
from proxy_consumer.core.jobs.upstream_job import JobState
from proxy_consumer.core.steps import QueueState
from proxy_consumer.groups.directory import Directory
from proxy_consumer.groups.oldest import Oldest
from proxy_consumer.groups.unheld import Unheld
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

LOOK_S = 1.0  # looks that follow sooner show what the last one found
Name = tuple[str, str]  # group, topic
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

    def __init__(self, runtime: Runtime, directory: Directory, fetched: Fetched = lambda _, __: {}) -> None:
        """`fetched(group, topic)`: the queues that are fetched from here, and their committed offsets."""
        self._fetched = fetched
        self._runtime = runtime
        self._directory = directory
        self._cells: dict[Name, tuple[Cell, ...]] = {}
        self._oldest = Oldest(runtime)
        self._unheld = Unheld(runtime)
        self._looked_at = float("-inf")
        self._asking = False

    def stop(self) -> None:
        """Tell of nothing any more but what is held."""
        self._unheld.leave()

    def fill(self) -> None:
        """Set every gauge. Where the backend answers later, they are set then, and shown at the next look."""
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
        shares: list[Share] = []
        others: list[Subscription] = []
        for each in self._directory.subscriptions():
            committed = self._committed(each)
            if committed:
                shares.append(Share(each, own_states(each), _behind(committed, nexts)))
            else:
                others.append(each)
        unheld = self._unheld.look(others)
        for each in others:
            rows = unheld.get(_name(each))
            if rows:
                shares.append(Share(each, {}, [Behind(*row) for row in rows]))
        self._oldest.look_up(
            (share.subscription.group.name, row.queue, row.committed)
            for share in shares
            for row in share.late
        )
        self._show(shares)

    def _committed(self, subscription: Subscription) -> dict[QueueRef, int]:
        """The queues of its topic that are pulled or fetched from here, and their committed offsets."""
        found = {
            queue: state.jobs.ack_map.committed
            for queue, state in subscription.buffer.queues.items()
            if not state.retry_queue
        }
        return found or self._fetched(subscription.group.name, subscription.topic)

    def _show(self, shares: Iterable[Share]) -> None:
        now, wall_ms = self._runtime.now(), self._runtime.clock.wall_ms()
        shown = set()
        for share in shares:
            name = _name(share.subscription)
            shown.add(name)
            self._set(name, self._waiting(share, now, wall_ms))
        for name in self._cells.keys() - shown:
            self._set(name, Waiting())
            del self._cells[name]

    def _waiting(self, share: Share, now: float, wall_ms: int) -> Waiting:
        subscription, states, late = share
        stored_ms = self._oldest.stored_ms(subscription.group.name, (row.queue for row in late))
        keys, blocked_s = blocked(subscription, now)
        budget = subscription.buffer.budget
        return Waiting(
            lag=sum(row.next - row.committed for row in late),
            lag_age_ms=0 if stored_ms is None else max(0, wall_ms - stored_ms),
            in_flight=budget.leased,
            retrying=budget.retrying,
            blocked_keys=keys,
            blocked_key_age_ms=int(blocked_s * 1000),
            ack_span=max((state.jobs.ack_map.span for state in states.values()), default=0),
        )

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
    for lane in subscription.lanes():
        if not lane.busy:
            continue
        for offset, job in lane.state.jobs.jobs.items():
            stopped = job.fails or job.timeouts or job.state in (JobState.HELD, JobState.BURYING)
            if stopped and offset in lane.busy and lane.leads(offset):
                count += 1
                longest = max(longest, now - job.since if job.since else 0.0)
    return count, longest

"""Where messages wait, per subscription: lag, its age, what is in flight, retrying, blocked.

Filled in when somebody looks (Registry.add_collector), so a scrape pays for it and not a message. Only the
proxy that holds a subscription's queues tells of it: over several proxies the numbers add up, ages are the
highest. What no proxy holds, because nobody pulls, grows all the same: of that the leading process tells
(Backend.leads), if a consumer proxy runs in it.

The age of a lag is that of the message at the committed offset. It takes a read, so it is looked up
(oldest.py) only where that offset has moved, for a bounded number of queues per look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.records import Bounds, QueueRef
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Cell
from proxy_consumer.core.jobs.upstream_job import JobState
from proxy_consumer.groups.directory import Directory
from proxy_consumer.groups.oldest import Oldest
from proxy_consumer.groups.unheld import Unheld
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

LOOK_S = 1.0  # looks that follow sooner show what the last one found
Name = tuple[str, str]  # group, topic
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
    """One queue: `next` is where the next message lands, all below `committed` is finished."""

    queue: QueueRef
    committed: int
    next: int


class Gauges:
    """The gauges of one proxy; `fill` is the collector."""

    def __init__(self, runtime: Runtime, directory: Directory) -> None:
        self._runtime = runtime
        self._directory = directory
        self._cells: dict[Name, tuple[Cell, ...]] = {}
        self._next: dict[QueueRef, int] = {}
        self._oldest = Oldest(runtime)
        self._unheld = Unheld(runtime)
        self._looked_at = float("-inf")
        self._asking = False

    def fill(self) -> None:
        """Set every gauge. Where the backend answers later, they are set then, and shown at the next look."""
        now = self._runtime.now()
        if self._asking or now < self._looked_at + LOOK_S:
            return
        self._looked_at, self._asking = now, True
        held = [each for each in self._directory.subscriptions() if _own_queues(each)]
        queues = list({queue for each in held for queue in _own_queues(each)})
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
        self._next = {queue: bounds.next for queue, bounds in limits if bounds is not None}
        behind: dict[Name, list[Behind]] = {}
        others: list[Subscription] = []
        for each in self._directory.subscriptions():
            if _own_queues(each):
                behind[_name(each)] = self._behind(each)
            else:
                others.append(each)
        behind |= {name: [Behind(*row) for row in rows] for name, rows in self._unheld.look(others).items()}
        self._oldest.look_up(_heads(behind))
        self._show(behind)

    def _behind(self, subscription: Subscription) -> list[Behind]:
        rows = []
        for queue in _own_queues(subscription):
            state = subscription.buffer.queues[queue]
            committed = state.jobs.ack_map.committed
            rows.append(Behind(queue, committed, max(self._next.get(queue, 0), committed)))
        return rows

    def _show(self, behind: Mapping[Name, list[Behind]]) -> None:
        subscriptions = {_name(each): each for each in self._directory.subscriptions()}
        now, wall_ms = self._runtime.now(), self._runtime.clock.wall_ms()
        for name, rows in behind.items():
            self._set(name, self._waiting(subscriptions[name], rows, now, wall_ms))
        for name in self._cells.keys() - behind.keys():
            self._set(name, Waiting())
            del self._cells[name]

    def _waiting(
        self, subscription: Subscription, rows: Iterable[Behind], now: float, wall_ms: int
    ) -> Waiting:
        late = [row for row in rows if row.next > row.committed]
        stored_ms = self._oldest.stored_ms(subscription.group.name, (row.queue for row in late))
        keys, blocked_s = blocked(subscription, now)
        own = _own_queues(subscription)
        budget, states = subscription.buffer.budget, subscription.buffer.queues
        return Waiting(
            lag=sum(row.next - row.committed for row in late),
            lag_age_ms=0 if stored_ms is None else max(0, wall_ms - stored_ms),
            in_flight=budget.leased,
            retrying=budget.retrying,
            blocked_keys=keys,
            blocked_key_age_ms=int(blocked_s * 1000),
            ack_span=max((states[queue].jobs.ack_map.span for queue in own), default=0),
        )

    def _set(self, name: Name, waiting: Waiting) -> None:
        cells = self._cells.get(name)
        if cells is None:
            cells = self._cells[name] = tuple(self._runtime.metrics.cell(each, *name) for each in METRICS)
        for cell, value in zip(cells, waiting, strict=True):
            cell.value = value


def _name(subscription: Subscription) -> Name:
    return subscription.group.name, subscription.topic


def _own_queues(subscription: Subscription) -> list[QueueRef]:
    """Those it holds of its topic; the one of the retry topic is not among them."""
    return [queue for queue, state in subscription.buffer.queues.items() if not state.retry_queue]


def _heads(behind: Mapping[Name, list[Behind]]) -> list[tuple[str, QueueRef, int]]:
    return [
        (group, row.queue, row.committed)
        for (group, _), rows in behind.items()
        for row in rows
        if row.next > row.committed
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

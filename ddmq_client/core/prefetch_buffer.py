"""The consumer's middle: messages that arrived and wait for a handler, and results on their way back. Pure.

A ProxyConnection is one proxy: its results, collected until a pull or a submit takes them. A Source is one
puller's share of the buffer: messages that wait here, messages that are open (arrived, not settled). The
callers hold one lock around every call; times are monotonic seconds.

What waits here for longer than a second, or a third of its lease, goes back to its proxy, uncounted and
free for other consumers at once; then fewer are pulled ahead (a source's `window`), until
workers find nothing to do.

Results ride on the next pull of their proxy. They go by themselves (`submit_due`) when the oldest has waited
`flush_s`, or at once when a pull is already waiting at the proxy and its source has nothing open: then no
pull would come to carry them, and the proxy may hold back successors of the same order key until they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from ddmq_client.core.acks import AckBatch, PendingAcks
from ddmq_client.core.instance_offsets import InstanceOffsets
from ddmq_client.received import (
    DeliveryContext,
    FetchedQueue,
    Message,
    Origin,
    Outcome,
    Settling,
    get_lease_end,
)

WAIT_S = 1.0  # a message that waits longer, or a third of its lease, returns for other consumers
LEASE_FRACTION = 1 / 3


@dataclass(slots=True)
class ConsumerCounts:
    """Counters of one consumer since its start."""

    pulled: int = 0
    acked: int = 0
    skipped: int = 0
    failed: int = 0
    extended: int = 0
    returned: int = 0  # unhandled: free for other consumers at once
    late: int = 0  # acks and fails that came after the lease had expired: they did not count
    expired: int = 0  # waited here longer than the lease: not handed out, the proxy redelivers
    results_dropped: int = 0  # of a proxy that cannot be reached: past their bound, or at the end
    pull_errors: int = 0
    submits: int = 0
    submit_errors: int = 0
    handler_errors: int = 0

    def copy(self) -> ConsumerCounts:
        """Return an independent copy of the counters."""
        return replace(self)


class ProxyConnection:
    """A proxy as the buffer sees it: the results that wait to be sent to it."""

    __slots__ = ("failover", "idle", "leave_at", "name", "pending", "prompt", "settles")

    def __init__(self, name: str, results_max: int) -> None:
        self.name = name
        self.pending = PendingAcks(results_max)
        self.idle = True  # its flusher sleeps until it is woken
        self.prompt = False  # submit now: nothing else would carry the results
        self.leave_at = 0.0  # while stopping: when to request the answers of parked pulls (again)
        self.settles = True  # the proxy has the method `settle`
        self.failover: ProxyConnection | None = None  # after this proxy was removed: forwards its results

    def resolve_failover(self) -> ProxyConnection:
        """Return this proxy, or the one that has taken over its results."""
        proxy = self
        while proxy.failover is not None:
            proxy = proxy.failover
        return proxy


class Source:
    """A puller's messages and capacity in the prefetch buffer."""

    __slots__ = ("changed_at", "closing", "open", "parked", "proxy", "topic", "waiting", "window")

    def __init__(self, proxy: ProxyConnection, topic: str | None) -> None:
        self.window: int | None = None  # how many may wait here; None: as many as `prefetch` says
        self.changed_at = 0.0  # the window, monotonic seconds
        self.proxy = proxy
        self.topic = topic
        self.waiting = 0  # arrived, not handed out
        self.open = 0  # arrived, not settled
        self.closing = False  # its puller must end
        self.parked = False  # its pull is at the proxy


class PrefetchBuffer:
    """All proxies, sources and buffered messages of one consumer."""

    def __init__(
        self, prefetch: int, lease_s: float, flush_s: float, results_max: int, clock: Callable[[], float]
    ) -> None:
        """Create an empty buffer.

        `prefetch`: messages that may wait here per source. `clock` returns monotonic seconds.
        """
        self._prefetch = prefetch
        self._lease_s = lease_s
        self._flush_s = flush_s
        self._results_max = results_max
        self._clock = clock
        self._waiting: deque[Message] = deque()
        self._sources: set[Source] = set()  # those with a window smaller than `prefetch`
        self.proxies: dict[str, ProxyConnection] = {}
        self.counts = ConsumerCounts()
        self.demand: int | None = None  # messages requested by waiting callers; None: handlers take all
        self.waiting_callers = 0
        self.idle = 0  # messages that waiting workers would take
        self.paused = False  # nothing is pulled
        self.instance_offsets: InstanceOffsets | None = None  # broadcasting only: then no result is pending

    def __len__(self) -> int:
        return len(self._waiting)

    def get_proxy(self, name: str) -> ProxyConnection:
        """Return the state of the proxy with this name; create it if it is new."""
        connection = self.proxies.get(name)
        if connection is None:
            connection = self.proxies[name] = ProxyConnection(name, self._results_max)
        return connection

    def count_pullable(self, source: Source, batch_max: int) -> int:
        """Return how many messages the source may pull now; 0 if none.

        Whole batches are pulled as long as they fit beside the waiting messages, and no more may wait than
        handlers took in time recently. Without a handler, only requested messages are pulled.
        """
        if self.paused:
            return 0
        if self.demand is None:
            most = max(self._window_of(source), self.idle)
            batch = min(batch_max, most)
            return batch if most - source.waiting >= batch else 0
        waiting = len(self._waiting)
        return min(batch_max, self.demand - waiting) if waiting < self.waiting_callers else 0

    def loop_batch(self, count: int) -> int:
        """Return how many messages to pull for a caller that takes `count` at most, one by one."""
        windows = [source.window for source in self._sources if source.window is not None]
        return max(1, min([count, *windows]))

    def widen_windows(self) -> bool:
        """Double reduced windows, at most once a second, because workers are idle and the buffer is empty."""
        now, grown = self._clock(), False
        for source in [source for source in self._sources if now - source.changed_at >= WAIT_S]:
            window, source.changed_at, grown = max(1, 2 * self._window_of(source)), now, True
            source.window = window if window < self._prefetch else None
            if source.window is None:
                self._sources.discard(source)
        return grown or bool(self._sources)

    def _window_of(self, source: Source) -> int:
        return self._prefetch if source.window is None else source.window

    def add_demand(self, count: int) -> None:
        """Add the demand of a caller for up to `count` messages; a single one satisfies it."""
        assert self.demand is not None
        self.demand += count
        self.waiting_callers += 1

    def remove_demand(self, count: int) -> None:
        """Remove the demand of a caller that received messages or stopped waiting."""
        assert self.demand is not None
        self.demand -= count
        self.waiting_callers -= 1

    def begin_pull(self, source: Source) -> AckBatch | None:
        """Begin a pull; return the results that it carries."""
        source.parked = True
        return self.take_results(source.proxy)

    def add_pulled(
        self,
        source: Source,
        origin: Origin,
        messages: Sequence[Message],
        settling: Settling,
        lease_ms: int | None = None,
    ) -> None:
        """Add the messages of an answered pull; `lease_ms`: the lease duration that the proxy stated."""
        source.parked = False
        if not messages:
            return
        lease_s = self._lease_s if lease_ms is None else lease_ms / 1000
        delivery = DeliveryContext(origin, self._clock(), source, settling, lease_s, lease_ms is not None)
        for message in messages:
            message.delivery = delivery
        self._waiting.extend(messages)
        source.waiting += len(messages)
        source.open += len(messages)
        self.counts.pulled += len(messages)

    def add_fetched(
        self, source: Source, group: str, queues: Sequence[FetchedQueue], settling: Settling
    ) -> int:
        """Add the messages of a broadcast fetch; return their number."""
        assert self.instance_offsets is not None
        source.parked = False
        count = 0
        for fetched in queues:
            offsets = [message.offset for message in fetched.messages]
            self.instance_offsets.record_arrival(fetched.topic, fetched.queue, offsets, fetched.next_offset)
            self.add_pulled(source, Origin(group, fetched.topic, fetched.queue), fetched.messages, settling)
            count += len(offsets)
        return count

    def pull_failed(self, source: Source, acks: AckBatch | None) -> None:
        """Make the results of a failed pull pending again."""
        source.parked = False
        self.counts.pull_errors += 1
        if acks is not None:
            self.give_back(source.proxy, acks)

    def take_messages(self, count: int) -> list[Message]:
        """Remove and return at most `count` messages whose leases are still valid."""
        messages: list[Message] = []
        now = self._clock()
        while self._waiting and len(messages) < count:
            message = self._waiting.popleft()
            source: Source = message.delivery.source
            source.waiting -= 1
            if get_lease_end(message) < now:
                source.open -= 1
                self.counts.expired += 1
            else:
                messages.append(message)
        return messages

    def return_waiting(self, now: float | None = None) -> list[ProxyConnection]:
        """Return buffered messages to their proxies.

        Those that have waited too long by `now` are returned, or all if it is None, but only to proxies that
        state how long their leases last. Returns the proxies that must be notified.
        """
        remaining: deque[Message] = deque()
        proxies: set[ProxyConnection] = set()
        late: set[Source] = set()
        for message in self._waiting:
            if message.delivery.lease_stated and (now is None or wait_until(message) <= now):
                source = self._return_message(message)
                source.waiting -= 1
                proxies.add(source.proxy.resolve_failover())
                late.add(source)
            else:
                remaining.append(message)
        self._waiting = remaining
        for source in late if now is not None else ():
            source.window, source.changed_at = self._window_of(source) // 2, self._clock()
            self._sources.add(source)
        return list(proxies)

    def begin_reply(self, message: Message) -> bool:
        """Begin an acknowledgement with messages; return False if the message is settled or has no lease."""
        if message.outcome is not None or message.replying or message.lease_id is None:
            return False
        message.replying = True
        return True

    def end_reply(self, message: Message, *, stored: bool) -> None:
        """Record a stored acknowledgement; if it was not stored, make the message unsettled again."""
        message.replying = False
        if stored:
            message.outcome = Outcome.ACKED
            message.delivery.source.open -= 1
            self.counts.acked += 1

    def hand_back(self, message: Message) -> bool:
        """Hand a taken message back to its proxy; return False if it is settled or cannot be handed back."""
        if message.outcome is not None or message.replying or not message.delivery.lease_stated:
            return False
        message.outcome = Outcome.HANDED_BACK
        self._return_message(message)
        return True

    def _return_message(self, message: Message) -> Source:
        source: Source = message.delivery.source
        assert message.lease_id is not None
        source.open -= 1
        self.counts.returned += 1
        pending = source.proxy.resolve_failover().pending
        pending.hand_back(message.delivery.origin, message.offset, message.lease_id, self._clock())
        return source

    def next_overdue(self) -> float:
        """Return when `return_waiting` must be called next, unless a worker takes the message before."""
        return min(
            (wait_until(message) for message in self._waiting if message.delivery.lease_stated), default=inf
        )

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """Record the outcome of a message; return False if it already has one."""
        if message.outcome is not None or message.replying:
            return False
        message.outcome = outcome
        delivery = message.delivery
        source: Source = delivery.source
        if outcome is Outcome.ACKED:
            self.counts.acked += 1
        elif outcome is Outcome.FAILED:
            self.counts.failed += 1
        else:
            self.counts.skipped += 1
        source.open -= 1
        if self.instance_offsets is not None:  # nothing is reported; a failed message is counted only
            self.instance_offsets.record_settled(delivery.origin.topic, delivery.origin.queue, message.offset)
            return True
        proxy = source.proxy if source.proxy.failover is None else source.proxy.resolve_failover()
        pending = proxy.pending
        dropped = pending.dropped
        now = self._clock() if pending.since is None else pending.since
        if outcome is Outcome.FAILED:
            pending.add_failure(delivery.origin, message.offset, message.lease_id, delay_ms, now, reason)
        else:
            pending.add_success(delivery.origin, message.offset, message.lease_id, now)
        self.counts.results_dropped += pending.dropped - dropped
        if source.parked and not source.open:
            proxy.prompt = True
        return True

    def is_over(self, message: Message) -> bool:
        """Return whether the message's lease has expired, as far as this client knows."""
        return message.lost or (message.delivery.lease_stated and get_lease_end(message) < self._clock())

    def extend(self, message: Message) -> bool:
        """Record a lease extension; return False if the message is settled or has no lease."""
        if message.outcome is not None or message.lease_id is None:
            return False
        delivery = message.delivery
        pending = delivery.source.proxy.resolve_failover().pending
        dropped = pending.dropped
        message.extended_at = self._clock()
        pending.add_extension(message, message.extended_at)
        self.counts.results_dropped += pending.dropped - dropped
        self.counts.extended += 1
        return True

    def submit_due(self, proxy: ProxyConnection) -> float | None:
        """Return the seconds until the proxy's results must be submitted; 0 for now, None without results."""
        pending = proxy.pending
        if pending.since is None:
            return None
        if proxy.prompt or pending.urgent:
            return 0.0
        return max(0.0, pending.since + self._flush_s - self._clock())

    def take_results(self, proxy: ProxyConnection) -> AckBatch | None:
        """Remove and return the results for one call; call `give_back` if it fails."""
        proxy.prompt = False
        return proxy.pending.take_batch()

    def give_back(self, proxy: ProxyConnection, acks: AckBatch) -> None:
        """Make the results of a failed call pending again."""
        proxy = proxy.resolve_failover()
        dropped = proxy.pending.dropped
        proxy.pending.give_back(acks, self._clock())
        self.counts.results_dropped += proxy.pending.dropped - dropped

    def abandon_results(self) -> int:
        """Drop and count the results that no proxy has accepted; return how many."""
        count = sum(len(proxy.pending) for proxy in self.proxies.values())
        self.counts.results_dropped += count
        return count

    def fail_over(self, removed: ProxyConnection, failover: ProxyConnection) -> None:
        """Move the results of a removed proxy, pending now or later, to another proxy."""
        removed.failover = failover
        if self.proxies.get(removed.name) is removed:
            del self.proxies[removed.name]
        while (acks := removed.pending.take_batch()) is not None:
            self.give_back(removed, acks)


def wait_until(message: Message) -> float:
    """Return the time at which a buffered message should be returned for another consumer."""
    delivery = message.delivery
    return delivery.arrived_at + min(WAIT_S, delivery.lease_s * LEASE_FRACTION)

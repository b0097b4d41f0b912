"""The objects that all parts of one consumer proxy share: backend, clock, timer queue, counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Protocol

from backend.port import Backend
from backend.records import QueueRef
from backend.traces import TraceWriter
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import DEFAULT_LEVELS
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import Histogram, MetricCell
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import RETRY_PREFIX, qid, retry_qid
from ddmq_rpc.links import ReadToken
from proxy_consumer.config import ConsumerConfig
from proxy_consumer.core.held_pulls import LingerWheel
from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.tally import Count, Counter, Observer, Tally
from proxy_consumer.core.timer_queue import TimerQueue
from proxy_consumer.heartbeat import Heartbeat

log = logging.getLogger("ddmq.consumer")
LEASE_ID_BITS = 46  # random bits, so that leases of an earlier process are not mistaken for this one's


class TickTask(Protocol):
    """A task that is run at each tick."""

    def run_tick(self) -> None: ...


class Runtime:
    """The objects shared by the service, its groups and their subscriptions."""

    def __init__(
        self, backend: Backend, config: ConsumerConfig, metrics: Registry, clock: Clock, random: Random
    ) -> None:
        self.backend = backend
        self.config = config
        self.metrics = metrics
        self.clock = clock
        self.levels = DEFAULT_LEVELS  # the waits of the retry path; those of the level scheduler
        self.timers = TimerQueue()
        self.heartbeat = Heartbeat(config.tick_ms / 1000, clock, self.timers)
        self.lease_ids: Iterator[int] = count((random.getrandbits(LEASE_ID_BITS) << 16) + 1)
        self.read_bytes: Counter = Count()  # bytes read and not delivered, over all subscriptions
        self.open_commits = 0
        self.stopping = False  # all queues are being released, and none is acquired any more
        self.lost: dict[tuple[bytes, bytes, bytes], float] = {}  # (group, topic, qid) → until when
        """Recently lost queues, whose results are rejected until their new owner is known."""
        self.traces: TraceWriter | None = None
        self.traced: dict[TickTask, None] = {}  # the traced subscriptions
        self.read_token: ReadToken | None = None  # logs this process in at other proxies
        self.checks_rights = False  # pulls of whole groups were checked topic by topic
        self.address = ""  # HOST:PORT where other proxies reach this one; "": nowhere

    def now(self) -> float:
        """Return the time in monotonic seconds."""
        return self.clock.monotonic()

    def topic_lives(self, ref: QueueRef) -> bool:
        """Whether the topic of a queue still exists, and was not deleted and created again under its name."""
        info = self.backend.topic(ref.topic)
        return info is not None and info.incarnation == ref.incarnation

    def commit_deadline(self) -> float:
        return self.clock.monotonic() + self.config.commit_timeout_ms / 1000

    def linger_s(self, requested_ms: int | None) -> float:
        """Return how many seconds a pull or fetch that finds no message waits, for its requested
        milliseconds."""
        config = self.config
        return min(max(requested_ms or 0, config.linger_min_ms), config.linger_max_ms) / 1000

    def linger_wheel(self) -> LingerWheel:
        """Build a linger wheel that wakes the heartbeat."""
        return LingerWheel(self.config.tick_ms / 1000, self.now(), self.heartbeat.wake_up)

    def qid(self, queue: QueueRef) -> str:
        """Return the queue's name on the wire."""
        if queue.topic.startswith(RETRY_PREFIX):
            return retry_qid(self.backend.cluster, queue.queue_id)
        return qid(self.backend.cluster, self.backend.broker, queue.queue_id)

    def read_ahead(self, count: int) -> tuple[int, int]:
        """Return how many records and bytes to read for a pull of `count` messages."""
        config = self.config
        if count < config.read_ahead_count and self.read_bytes.value < config.read_ahead_bytes_max:
            return config.read_ahead_count // count * count, config.read_ahead_bytes
        return count, max(config.read_ahead_bytes, config.answer_bytes_max)

    def build_tally(self, group: str, topic: str) -> Tally:
        """Build the counters of one subscription from metric cells.

        If an engine has gaps between offsets, an offset without a message is not counted as missing: it is
        the end of a transaction, or was compacted.
        """
        cell = self.metrics.cell
        return Tally(
            delivered=cell(catalogue.DELIVERED, group, topic),
            acked=cell(catalogue.ACKED, group, topic),
            failed=cell(catalogue.FAILED, group, topic),
            timed_out=cell(catalogue.LEASE_TIMEOUTS, group, topic),
            late=self.ignored_cell(group, "late"),
            unknown=self.ignored_cell(group, "unknown offset"),
            pressure=cell(catalogue.SKIPPED, group, topic, "pressure"),
            others=cell(catalogue.SKIPPED, group, topic, "resent to another group"),
            missing=cell(catalogue.SKIPPED, group, topic, "missing") if self.backend.gapless else Count(),
            expired=cell(catalogue.SKIPPED, group, topic, "expired"),
            filtered=cell(catalogue.SKIPPED, group, topic, "filtered"),
            unkeyed=cell(catalogue.UNKEYED, group, topic),
            redelivered=cell(catalogue.REDELIVERED, group, topic),
            returned=cell(catalogue.RETURNED, group, topic),
            process=FirstUse(lambda: self.metrics.histogram(catalogue.PROCESS, group, topic)),
        )

    def build_delivery_metrics(self, group: str, topic: str, tally: Tally) -> DeliveryMetrics:
        """Build the metrics of one subscription's deliveries; `tally` holds its counter of redelivered
        messages."""
        wait = FirstUse(lambda: self.metrics.histogram(catalogue.QUEUE_WAIT, group, topic))
        return DeliveryMetrics(wait, tally.redelivered)

    def ignored_cell(self, group: str, reason: str) -> MetricCell:
        """Return the metric cell for results of a group that changed nothing, by reason."""
        return self.metrics.cell(catalogue.RESULTS_IGNORED, group, reason)

    def progress_failed(self, error: Exception) -> None:
        """Count and log a failed commit of progress."""
        self.metrics.cell(catalogue.PROGRESS_FAILED, type(error).__name__).value += 1
        log.warning("progress not stored", extra={"error": str(error)})


class FirstUse:
    """An Observer that creates its histogram at the first value.

    There may be more subscriptions than label sets of a histogram: an unused subscription takes none.
    """

    def __init__(self, create: Callable[[], Histogram]) -> None:
        self._create = create

    def observe(self, value: float) -> None:
        """Create the histogram and record the first value; later calls go to the histogram directly."""
        observe = self._create().observe
        self.observe = observe  # type: ignore[method-assign]
        observe(value)


class DeliveryMetrics:
    """The metrics of one subscription's deliveries. `wait`: microseconds from store to delivery."""

    __slots__ = ("_redelivered", "_wait")

    def __init__(self, wait: Observer, redelivered: Counter) -> None:
        self._wait = wait
        self._redelivered = redelivered

    def record_delivery(self, delivery: Delivery, wall_ms: int) -> None:
        """Count a delivery at `wall_ms` (epoch milliseconds), and observe how long its messages were
        stored."""
        messages = delivery.messages
        if delivery.queue.retry_queue:
            self._redelivered.value += len(messages.offsets)
            return
        at = 0 if not delivery.redelivered else _first_time(delivery)
        if at is None:
            return
        stored_ms = messages.batch.stored_ms(messages.indexes[at])
        if stored_ms:
            self._wait.observe((wall_ms - stored_ms) * 1e3)


def _first_time(delivery: Delivery) -> int | None:
    """Return the index of the first message in its first delivery; None if there is none."""
    return next((at for at, attempt in enumerate(delivery.attempt_numbers()) if attempt == 1), None)

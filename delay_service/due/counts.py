"""The metric cells of what waits: in the delay levels, and with any due time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.catalogue import Metric
from ddmq_common.metrics.cells import Histogram, MetricCell
from ddmq_common.metrics.registry import Registry
from delay_service.core.fire_command import FireCommand
from delay_service.core.level_targets import LevelFire
from delay_service.store.port import Pending


class DueCounts:
    """What both services count, each in metrics of its own: `failures` and `age`, of levels or shards."""

    failures: Metric
    age: Metric

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._first_ms: dict[int, int | None] = {}  # when the first message is due, by queue, as last known

    def failed(self, what: str, error: Exception) -> None:
        """It is tried again."""
        reason = type(error).__name__ if isinstance(error, DdmqError) else "error"
        self._metrics.cell(self.failures, what, reason).value += 1

    def overdue(
        self, known: Mapping[int, int | None], unknown: Iterable[int], all_known: bool, now_ms: int
    ) -> None:
        """Tell how long ago what waits first was due, queue by queue: what has stopped firing shows here.

        `known`: when it is due, None when nothing waits. One that cannot be asked (it is being opened or
        read, or its claim had anew, again and again where that fails) counts on from what was known of it;
        where nothing was known to wait, from the first time: something may be due in it. `all_known`: what is
        neither is another process's.
        """
        first = self._first_ms
        others = first.keys() - known.keys() - set(unknown) if all_known else set()
        first.update(known)
        for number in unknown:
            if first.get(number) is None:
                first[number] = now_ms
        for number in others:
            first[number] = None
        for number, due_ms in first.items():
            age_ms = 0 if due_ms is None else max(now_ms - due_ms, 0)
            self._metrics.cell(self.age, str(number)).value = age_ms
        for number in others:
            del first[number]


class LevelCounts(DueCounts):
    """Of one level service. Levels count from 1."""

    failures, age = catalogue.LEVELS_FAILED, catalogue.LEVELS_OVERDUE

    def __init__(self, metrics: Registry) -> None:
        super().__init__(metrics)
        self._lateness = metrics.histogram(catalogue.LEVELS_LATENESS)
        self.held: MetricCell = metrics.cell(catalogue.LEVELS_HELD)

    def fired(self, level: int, fires: Sequence[LevelFire], clock_ms: int) -> None:
        """They are durable in their topics, at `clock_ms` of the store's clock."""
        alive = 0
        for fire in fires:
            if fire.put_off_ms:
                self._metrics.cell(catalogue.LEVELS_PUT_OFF, str(level)).value += 1
            elif fire.reason:
                self._metrics.cell(catalogue.LEVELS_DEAD, str(level), fire.reason).value += 1
            else:
                alive += 1
                self._lateness.observe((clock_ms - fire.record.due_ms) * 1_000)
        if alive:
            self._metrics.cell(catalogue.LEVELS_FIRED, str(level)).value += alive

    def lost(self, level: int, reason: str, count: int) -> None:
        """Offsets without a message."""
        self._metrics.cell(catalogue.LEVELS_LOST, str(level), reason).value += count

    def pending(self, level: int, count: int) -> None:
        """So many wait in the level."""
        self._metrics.cell(catalogue.LEVELS_PENDING, str(level)).value = count


class DelayCounts(DueCounts):
    """Of one delay service."""

    failures, age = catalogue.DELAY_FAILED, catalogue.DELAY_OVERDUE

    def __init__(self, metrics: Registry) -> None:
        super().__init__(metrics)
        self._fired: dict[str, tuple[MetricCell, Histogram]] = {}
        self._pending: set[str] = set()
        self._sizes: set[str] = set()
        self.shards: MetricCell = metrics.cell(catalogue.DELAY_SHARDS)
        self.full: MetricCell = metrics.cell(catalogue.DELAY_FULL)
        self.stale: MetricCell = metrics.cell(catalogue.DELAY_STALE)

    def commands(self, tally: Mapping[str, int]) -> None:
        """So many came to these outcomes."""
        for outcome, count in tally.items():
            self._metrics.cell(catalogue.DELAY_ORDERS, outcome).value += count

    def fired(self, fires: Iterable[FireCommand], wall_ms: int) -> None:
        """They are durable in their topics."""
        per_topic = self._fired
        for one in fires:
            if one.reason:
                self._metrics.cell(catalogue.DELAY_DEAD, one.reason).value += 1
                continue
            topic = one.message.topic
            cells = per_topic.get(topic)
            if cells is None:
                cells = per_topic[topic] = (
                    self._metrics.cell(catalogue.DELAY_FIRED, topic),
                    self._metrics.histogram(catalogue.DELAY_LATENESS, topic),
                )
            cells[0].value += 1
            message = one.message
            late_ms = wall_ms - message.due_ms
            if message.due_ms < message.born_ms and not message.occurrence:
                late_ms = wall_ms - message.born_ms  # it was due before it came
            cells[1].observe(max(late_ms, 0) * 1_000)

    def dead(self, reason: str, count: int) -> None:
        """Commands that became dead letters."""
        self._metrics.cell(catalogue.DELAY_DEAD, reason).value += count

    def aside(self, messages: Iterable[Pending]) -> None:
        """They wait for their topic."""
        for message in messages:
            self._metrics.cell(catalogue.DELAY_ASIDE, message.topic).value += 1

    def lost(self, reason: str, count: int) -> None:
        """Commands that should be in the inner topic."""
        self._metrics.cell(catalogue.DELAY_LOST, reason).value += count

    def lag(self, shard: int, count: int) -> None:
        """Commands not taken in."""
        self._metrics.cell(catalogue.DELAY_LAG, str(shard)).value = count

    def pending(self, per_topic: Mapping[str, int]) -> None:
        """What waits in all shards of this process."""
        self._pending = self._gauge(catalogue.DELAY_PENDING, self._pending, per_topic)

    def pending_bytes(self, per_topic: Mapping[str, int]) -> None:
        """How many bytes that is, as `weight` of the store counts them."""
        self._sizes = self._gauge(catalogue.DELAY_PENDING_BYTES, self._sizes, per_topic)

    def _gauge(self, metric: Metric, before: set[str], per_topic: Mapping[str, int]) -> set[str]:
        for topic in before - per_topic.keys():
            self._metrics.cell(metric, topic).value = 0
        for topic, number in per_topic.items():
            self._metrics.cell(metric, topic).value = number
        return set(per_topic)

    def replies_dropped(self, reason: str, count: int) -> None:
        """Their callers are told nothing."""
        self._metrics.cell(catalogue.DELAY_REPLIES_DROPPED, reason).value += count

"""Partitions that do not answer: when their records are refused, and when they go by another producer.

| state       | begins                            | a new append                     | its records go by    |
|-------------|-----------------------------------|----------------------------------|----------------------|
| ANSWERING   | an answer of any kind             | waits for those before it        | the shared producer  |
| SILENT      | REFUSE_S without an answer        | is refused                       | the shared producer  |
| QUARANTINED | its records in flight were purged | is admitted if nothing is        | the quarantine       |
|             |                                   | pending and it may have a leader | producer, one by one |

What is in flight of a silent partition stays with its producer: librdkafka can purge only all partitions of a
producer at once, and if it gave up a single record, it would send others twice. So after RETIRE_S that
producer is retired: it gets no more records, what is in flight to other partitions is answered there, and the
rest is purged DRAIN_S later (see clients/append_producers.py). An answer reopens a partition at once: the
records in flight are the probe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from backend.kafka.clients.append_producers import AppendProducers, ReportingProducer
from backend.kafka.engine.pending_bounds import QueueUsage
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
Queue = tuple[str, int]
REFUSE_S = 2.0  # without an answer
RETIRE_S = 20.0  # without an answer
CHECK_INTERVAL_S = 0.5
FORGET_S = 60.0  # a quarantined partition to which nothing is sent, and that has a leader
QUARANTINED_MAX = 10_000  # beyond that, one to which nothing is sent is forgotten
LEADERS_INTERVAL_S = 1.0
NAMED_MAX = 5  # queues in one line of the log


class PartitionState(IntEnum):
    """See above; ANSWERING is false."""

    ANSWERING = 0
    SILENT = 1
    QUARANTINED = 2


class Partition(QueueUsage):
    """The appends to one partition: what is pending of them, the number of its records in flight, and the
    records that wait.

    `since`: when the records in flight were sent, or one of them was answered last. `silent_since`: the same
    at the time when the state began to be SILENT. `admitted`: the number of the append that was admitted
    last. `expired`: entries of `waiting` whose appends were answered.
    """

    __slots__ = (
        "admitted", "expired", "has_leader", "in_flight", "producer", "silent_since", "since", "state",
        "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = 0
        self.since = self.silent_since = 0.0
        self.waiting: deque[tuple[Any, int]] = deque()
        self.expired = 0
        self.admitted = 0
        self.state = PartitionState.ANSWERING
        self.has_leader = True  # as far as is known
        self.producer: ReportingProducer | None = None

    @property
    def admits_probe(self) -> bool:
        """Whether a partition that does not answer may have a record all the same, to see whether it does."""
        return (
            self.state is PartitionState.QUARANTINED
            and self.has_leader
            and not self.in_flight
            and len(self.waiting) == self.expired
        )

    def why_silent(self, now: float) -> str:
        """Return why nothing of this partition is answered."""
        if not self.has_leader:
            return "its partition has no leader in Kafka"
        if not self.state and not self.in_flight:
            return "they are not sent yet"
        since = self.silent_since if self.state else self.since
        return f"Kafka has not answered what was sent to it for {max(0.0, now - since):.1f} s"


class PartitionWatch:
    """Finds the partitions that do not answer, and retires their producers. Belongs to the hub.

    `partitions` are the appends' own. `kafka_names` has the names of existing topics in Kafka by our names.
    """

    def __init__(
        self,
        partitions: dict[Queue, Partition],
        producers: AppendProducers,
        clock: Clock,
        kafka_name: Callable[[str], str | None],
    ) -> None:
        self._partitions = partitions
        self._producers = producers
        self._clock = clock
        self._kafka_name = kafka_name
        self._not_answering: dict[Queue, Partition] = {}  # of any state but ANSWERING
        self._reopened: list[Queue] = []
        self._leaders_at = 0.0
        self.quarantine_count = 0  # how often a partition was quarantined

    @property
    def not_answering(self) -> Mapping[Queue, Partition]:
        """The partitions that are silent or quarantined."""
        return self._not_answering

    def health_reason(self) -> str:
        """Return a line that lists the queues for which Kafka does not answer; "" if there are none.

        A queue whose partition has a leader is listed only while appends to it are in flight.
        """
        queues = [
            queue
            for queue, partition in self._not_answering.items()
            if partition.in_flight or not partition.has_leader
        ]
        if not queues:
            return ""
        return f"Kafka does not answer for {len(queues)} queues: {_list_queues(queues)}"

    def on_answer(self, queue: Queue, partition: Partition, purged: bool) -> None:
        """Note the report on a record of a partition that is not ANSWERING."""
        if not purged:
            partition.state, partition.has_leader = PartitionState.ANSWERING, True
            self._not_answering.pop(queue, None)
            self._reopened.append(queue)
        elif partition.state is PartitionState.SILENT:
            partition.state = PartitionState.QUARANTINED
            self.quarantine_count += 1

    def check(self) -> None:
        """Note the partitions that have not answered for too long. Called periodically."""
        now = self._clock.monotonic()
        silent: list[Queue] = []
        in_use: set[ReportingProducer] = set()
        retired: set[ReportingProducer] = set()
        for queue, partition in self._partitions.items():
            if not partition.in_flight or partition.producer is None:
                continue
            in_use.add(partition.producer)
            age = now - partition.since
            if age >= REFUSE_S and not partition.state:
                partition.state, partition.silent_since = PartitionState.SILENT, partition.since
                self._not_answering[queue] = partition
                silent.append(queue)
            if age >= RETIRE_S:
                retired.add(partition.producer)
        self._log(silent)
        self._forget_idle(now)
        for producer in retired:
            self._producers.retire_producer(
                producer, f"queues are not answered: {_list_queues(self._not_answering)}"
            )
        is_quarantine_used = any(
            partition.state is PartitionState.QUARANTINED for partition in self._not_answering.values()
        )
        self._producers.check(now, in_use, is_quarantine_used)
        if self._not_answering and now - self._leaders_at >= LEADERS_INTERVAL_S:
            self._leaders_at = now
            self._find_leaders()

    def _log(self, silent: list[Queue]) -> None:
        if silent:
            log.warning(
                "Kafka has not answered for %g s; sends to these %d queues are refused: %s",
                REFUSE_S, len(silent), _list_queues(silent),
            )  # fmt: skip
        reopened, self._reopened = self._reopened, []
        if reopened:
            log.warning("Kafka answers again for %d queues: %s", len(reopened), _list_queues(reopened))

    def _forget_idle(self, now: float) -> None:
        """Forget idle partitions in quarantine: those of deleted topics, and those unused for long."""
        for queue, partition in list(self._not_answering.items()):
            if partition.in_flight or partition.waiting:
                continue
            if (
                (partition.has_leader and now - partition.since >= FORGET_S)
                or len(self._not_answering) > QUARANTINED_MAX
                or self._kafka_name(queue[0]) is None
            ):
                del self._not_answering[queue]
                self._partitions.pop(queue, None)

    def _find_leaders(self) -> None:
        topics: dict[str, list[Queue]] = {}
        for queue in self._not_answering:
            name = self._kafka_name(queue[0])
            if name is not None:
                topics.setdefault(name, []).append(queue)

        def on_leaders(leaders: Mapping[str, frozenset[int]]) -> None:
            for name, numbers in leaders.items():
                for queue in topics[name]:
                    partition = self._not_answering.get(queue)
                    if partition is not None:
                        partition.has_leader = queue[1] in numbers

        self._producers.find_leaders(list(topics), on_leaders)


def _list_queues(queues: Mapping[Queue, Any] | list[Queue]) -> str:
    names = [f"{topic}/{number}" for topic, number in sorted(queues)[:NAMED_MAX]]
    return ", ".join(names) + (" …" if len(queues) > NAMED_MAX else "")

"""FollowerThread: one native thread with one Consumer that brings the system topics' records to the hub.

It reads all their partitions from the beginning, committed records only. Records come to the hub in batches,
in the order of each partition; at the present end of a partition, a row without a record says how far it was
read (markers of transactions have offsets, too). At most BATCHES_MAX batches wait for the hub. If the cluster
is lost, librdkafka reconnects and continues where it was. After any other failure, which is logged, a new
Consumer continues there.

After every error, before it passes on any record, the thread asks for the cluster's id. If the brokers belong
to another cluster than at first, its records are not passed on: they would be mixed with the state of the
first one. The thread then waits until the first cluster is back.

The coordination topic is truncated by time. If that has passed the position that was read, `on_truncated`
reports it on the hub, and reading resumes at the topic's new beginning.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from backend.kafka.clients.admin import SystemTopics, ensure_system_topics
from backend.kafka.errors import LastError
from backend.kafka.options import KafkaOptions

log = logging.getLogger(__name__)
POLL_S = 0.1
PAUSE_S = 0.5
BATCH_MAX = 1_000
BATCHES_MAX = 32
REQUEST_S = 5.0
CHECK_S = 1.0  # until another broker is asked for the cluster's id: rows, and so heartbeats, wait for it
CHECK_PAUSE_S = 0.1
FETCH_WAIT_MS = 500  # data is answered at once; a marker at the end is detected after this time
Partition = tuple[str, int]  # topic, partition


class FollowedRow(NamedTuple):
    """A record of a system topic that the follower thread has read.

    With `is_record` False it only states that the partition was read up to `offset` (exclusive).
    """

    topic: str
    partition: int
    offset: int
    stamp_ms: int
    key: bytes | None
    value: bytes | None
    is_record: bool


class FollowerThread:
    """Follows the system topics in a native thread. The constructor starts it.

    The hub releases `capacity` once for each batch that it has applied. The callbacks run in this thread.
    `on_begun(first)`: the first offset of each partition is known. `on_rows`: the next rows.
    `on_truncated(first)`: the coordination topic now begins at this offset. `on_other_cluster()`: the brokers
    belong to another cluster. `on_failed(reason)`: following failed and is retried.
    """

    def __init__(
        self,
        options: KafkaOptions,
        *,
        on_begun: Callable[[dict[Partition, int]], object],
        on_rows: Callable[[list[FollowedRow]], object],
        on_truncated: Callable[[int], object],
        on_other_cluster: Callable[[], object],
        on_failed: Callable[[str], object],
    ) -> None:
        self._options = options
        self._settings_topic = SystemTopics.named_by(options).settings
        self._cluster_id = ""
        self._must_check_cluster = False
        self._client = options.client_settings()
        self._on_begun = on_begun
        self._on_rows = on_rows
        self._on_truncated = on_truncated
        self._on_other_cluster = on_other_cluster
        self._on_failed = on_failed
        self._stop = False
        self._stopped = threading.Event()
        self._finished = threading.Event()
        self._partitions: list[Partition] = []
        self._next: dict[Partition, int] = {}  # the next offset to read; empty until it was queried
        self.capacity = threading.Semaphore(BATCHES_MAX)
        _thread.start_new_thread(self._run, ())

    def stop(self, wait_s: float) -> bool:
        """Stop the thread and wait for it; return whether it has ended."""
        self._stop = True
        self._stopped.set()
        self.capacity.release()
        return self._finished.wait(wait_s)

    def check_cluster(self) -> None:
        """Ask for the cluster's id before the next rows are passed on. May be called from any thread."""
        self._must_check_cluster = True

    def _run(self) -> None:
        try:
            while not self._stop:
                try:
                    self._run_consumer()
                except Exception as error:  # of any kind: continue at the same offsets
                    log.exception("following the system topics has failed, restarting")
                    self._on_failed(f"following the system topics has failed: {error}")
                    self._stopped.wait(PAUSE_S)
        finally:
            self._finished.set()

    def _run_consumer(self) -> None:
        """Follow with a new Consumer, from where the last one ended, until the thread is stopped."""
        if not self._next:
            counts = self._ensure_topics()
            self._partitions = [(name, number) for name, count in counts.items() for number in range(count)]
        consumer = Consumer(
            {
                "fetch.queue.backoff.ms": 5,
                **self._client,
                "group.id": self._options.names.system_group("follower"),  # nothing is committed under it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "error_cb": lambda error: self.check_cluster(),
            }
        )
        try:
            while not self._next and not self._stop:
                self._find_first_offsets(consumer)
            if self._next and self._await_own_cluster(consumer):
                consumer.assign(
                    [TopicPartition(*partition, offset) for partition, offset in self._next.items()]
                )
                self._follow_rows(consumer)
        finally:
            consumer.close()

    def _ensure_topics(self) -> dict[str, int]:
        """Create missing system topics and return each one's number of partitions.

        Empty if the thread is stopped.
        """
        last_error = LastError(self._options)
        admin = AdminClient({**self._client, "error_cb": last_error})  # type: ignore[dict-item]

        def on_error(error: BaseException) -> None:
            at = self._options.bootstrap
            self._on_failed(f"the cluster at {at} does not answer: {last_error.reason_for(error)}")

        return ensure_system_topics(admin, self._options, lambda: self._stop, on_error)

    def _find_first_offsets(self, consumer: Consumer) -> None:
        """Query the first offset of every partition, if the brokers answer."""
        try:
            if not self._cluster_id:
                self._cluster_id = self._query_cluster_id(consumer)
            first = {partition: self._query_bounds(consumer, partition)[0] for partition in self._partitions}
        except KafkaException as error:
            self._on_failed(f"the system topics cannot be read: {error.args[0].str()}")
            return
        self._on_begun(first)
        self._next.update(first)

    def _query_cluster_id(self, consumer: Consumer) -> str:
        return consumer.list_topics(self._settings_topic, timeout=CHECK_S).cluster_id or ""

    def _is_own_cluster(self, consumer: Consumer) -> bool:
        """Return whether the brokers belong to the cluster that was followed first; wait for an answer."""
        while not self._stop:
            self._must_check_cluster = False
            try:
                cluster_id = self._query_cluster_id(consumer)
            except KafkaException:
                self._stopped.wait(CHECK_PAUSE_S)
                continue
            if cluster_id in ("", self._cluster_id):
                return True
            self._on_other_cluster()
            break
        return False

    def _await_own_cluster(self, consumer: Consumer) -> bool:
        """Wait until the brokers belong to the cluster that was followed first; False if stopped."""
        while not self._stop:
            if self._is_own_cluster(consumer):
                return True
            self._stopped.wait(PAUSE_S)
        return False

    def _query_bounds(self, consumer: Consumer, partition: Partition) -> tuple[int, int]:
        bounds = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=REQUEST_S)
        if bounds is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return bounds

    def _follow_rows(self, consumer: Consumer) -> None:
        while not self._stop:
            first = consumer.poll(POLL_S)
            if first is None:
                continue
            messages = [first, *consumer.consume(BATCH_MAX, 0)]
            errors = [error for message in messages if (error := message.error()) is not None]
            self._must_check_cluster |= any(error.code() != KafkaError._PARTITION_EOF for error in errors)
            if self._must_check_cluster and not self._is_own_cluster(consumer):
                return  # the records may be the other cluster's; a new Consumer reads from the same offsets
            rows = [row for message in messages if (row := self._to_row(consumer, message)) is not None]
            if rows:
                self.capacity.acquire()
                self._on_rows(rows)
                self._next.update({(row.topic, row.partition): row.offset + row.is_record for row in rows})

    def _to_row(self, consumer: Consumer, message: Message) -> FollowedRow | None:
        error = message.error()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None:
            stamp = message.timestamp()[1]
            return FollowedRow(topic, partition, offset, stamp, message.key(), message.value(), True)  # type: ignore[arg-type]
        if error.code() == KafkaError._PARTITION_EOF:
            return FollowedRow(topic, partition, offset, 0, None, None, False)  # type: ignore[arg-type]
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._reassign_partition(consumer, (str(topic), int(partition or 0)))
        else:
            self._on_failed(f"following the system topics: {error.str()}")
        return None

    def _reassign_partition(self, consumer: Consumer, partition: Partition) -> None:
        """Continue a partition at another offset, because its next offset no longer exists."""
        first, end = self._query_bounds(consumer, partition)
        if partition[0] == SystemTopics.named_by(self._options).coordination:
            at = first
            self._on_truncated(at)
        else:
            at = min(max(first, self._next[partition]), end)
            log.error(
                "%s of %s has lost records that it must keep: it was read up to %d and has %d to %d; "
                "look at the topic's configuration",
                partition[1], partition[0], self._next[partition], first, end,
            )  # fmt: skip
        self._next[partition] = at
        consumer.incremental_unassign([TopicPartition(*partition)])
        consumer.incremental_assign([TopicPartition(*partition, at)])

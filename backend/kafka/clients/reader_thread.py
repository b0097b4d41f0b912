"""ReaderThread: one native thread with one Consumer, which reads the partitions that the hub assigns.

The Consumer belongs to this thread; the hub talks to it by commands in a deque. A partition is assigned at an
offset and never sought (a seek far back takes 0.2 s, an assignment 1 to 2 ms). Without partitions the thread
sleeps until a command comes; with some, a command waits for the end of a poll, which takes as long as a
broker may keep an empty answer, but at most POLL_MAX_S.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from backend.kafka.clients.bridge import Bridge
from backend.kafka.options import KafkaOptions
from backend.kafka.records import KafkaRecord
from backend.records import Bounds

log = logging.getLogger(__name__)
POLL_MAX_S = 0.1
FETCH_WAIT_MS = 10  # how long a broker may keep an empty answer; until then no other offset can be requested
QUIET_FETCH_WAIT_MS = 500
PAUSE_S = 0.5  # after a failure
REQUEST_S = 5.0  # how long the brokers may take to report the bounds of a partition
CHUNK_MESSAGES_MAX = 512  # messages handed over at a time
Partition = tuple[str, int]  # Kafka's name of the topic, and the number


class StreamChunk:
    """The next records of one stream, then optionally the partition's end, or the error that ends it."""

    __slots__ = ("bounds", "end", "error", "records", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.records: list[KafkaRecord] = []
        self.end: int | None = None
        self.error: KafkaError | None = None
        self.bounds: Bounds | None = None  # with an error: the offset is outside of these


class _Assigned:
    __slots__ = ("paused", "serial", "start", "topic_id")

    def __init__(self, serial: int, start: int, topic_id: bytes) -> None:
        self.serial = serial
        self.paused = False
        self.start = start
        self.topic_id = topic_id


class ReaderThread:
    """A native thread that reads partitions and passes the chunks to `on_chunks` on the hub.

    `fetch_wait_ms`: how long a broker waits for data before it answers a request of this thread. New data is
    answered at once. A stream that begins, and the end of a partition, may be delayed by that time.
    """

    def __init__(
        self,
        options: KafkaOptions,
        bridge: Bridge,
        on_chunks: Callable[[list[StreamChunk]], object],
        name: str,
        fetch_wait_ms: int = FETCH_WAIT_MS,
    ) -> None:
        self._options = options
        self._bridge = bridge
        self._on_chunks = on_chunks
        self._name = name
        self._fetch_wait_ms = fetch_wait_ms
        self._poll_s = min(POLL_MAX_S, fetch_wait_ms / 1000)
        self._commands: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._finished = threading.Event()
        self._stop = False
        self._assigned: dict[Partition, _Assigned] = {}
        self._consumer: Any = None
        _thread.start_new_thread(self._run, ())

    # --- from the hub

    def begin_stream(self, partition: Partition, serial: int, offset: int, topic_id: bytes) -> None:
        """Read a partition from `offset` on as stream `serial`; its earlier stream in this thread ends."""
        self._add_command(self._begin_stream, partition, _Assigned(serial, offset, topic_id))

    def end_stream(self, partition: Partition, serial: int) -> None:
        """Stop reading stream `serial` of a partition; does nothing if a newer stream has begun there."""
        self._add_command(self._end_stream, partition, serial)

    def set_paused(self, partition: Partition, serial: int, paused: bool) -> None:
        """Pause or resume fetching for stream `serial` of a partition."""
        self._add_command(self._set_paused, partition, serial, paused)

    def report_high(self, partition: Partition, serial: int, report: Callable[[int, int], object]) -> None:
        """Call `report(serial, offset)` on the hub with the offset after the partition's last record.

        The records of open transactions count. This requests nothing from a broker.
        """
        self._add_command(self._report_high, partition, serial, report)

    def request_stop(self) -> None:
        """Request the end of the thread without waiting for it."""
        self._stop = True
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """End the thread and wait for it, at most `timeout_s`."""
        self.request_stop()
        if not self._finished.wait(timeout_s):
            log.warning("%s has not ended within %g s", self._name, timeout_s)

    def _add_command(self, act: Callable[..., object], *arguments: Any) -> None:
        self._commands.append((act, arguments))
        self._wake.set()

    # --- in the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                try:
                    self._run_consumer()
                except Exception as error:  # whatever it was: streams begin again, with a new consumer
                    log.exception("%s has failed, restarting", self._name)
                    self._fail_all(error)
                    self._wake.wait(PAUSE_S)
        finally:
            self._finished.set()

    def _run_consumer(self) -> None:
        self._consumer = Consumer(self._consumer_settings())
        try:
            while not self._stop:
                if not self._assigned:
                    self._wake.wait()
                self._wake.clear()
                self._run_commands()
                if self._assigned:
                    self._poll()
        finally:
            self._consumer.close()

    def _fail_all(self, error: Exception) -> None:
        chunks = [StreamChunk(assigned.serial) for assigned in self._assigned.values()]
        for chunk in chunks:
            chunk.error = KafkaError(KafkaError._FAIL, f"the reader has failed: {error!r}", False, True)
        self._assigned.clear()
        if chunks:
            self._bridge.call(self._on_chunks, chunks)

    def _consumer_settings(self) -> dict[str, Any]:
        return {
            **self._options.client_settings(),
            "group.id": self._options.names.system_group(
                "reader"
            ),  # required by librdkafka; nothing is committed under it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": self._fetch_wait_ms,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 16 << 10,
            "allow.auto.create.topics": False,
        }

    def _run_commands(self) -> None:
        while self._commands:
            act, arguments = self._commands.popleft()
            try:
                act(*arguments)
            except KafkaException:
                log.warning("%s: %s was refused", self._name, act.__name__, exc_info=True)

    def _report_high(self, partition: Partition, serial: int, report: Callable[[int, int], object]) -> None:
        """Report the end of a partition as the brokers last stated it, including open transactions."""
        assigned = self._assigned.get(partition)
        if assigned is not None and assigned.serial == serial:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            self._bridge.call(report, serial, high)

    def _begin_stream(self, partition: Partition, assigned: _Assigned) -> None:
        if partition in self._assigned:
            self._unassign_partition(partition)
        self._assigned[partition] = assigned
        self._consumer.incremental_assign([TopicPartition(*partition, assigned.start)])

    def _end_stream(self, partition: Partition, serial: int) -> None:
        assigned = self._assigned.get(partition)
        if assigned is not None and assigned.serial == serial:
            self._unassign_partition(partition)

    def _unassign_partition(self, partition: Partition) -> None:
        """Stop consuming a partition, and resume it if paused.

        A pause would outlive the assignment and block the next one.
        """
        where = [TopicPartition(*partition)]
        if self._assigned.pop(partition).paused:
            self._consumer.resume(where)
        self._consumer.incremental_unassign(where)

    def _set_paused(self, partition: Partition, serial: int, paused: bool) -> None:
        assigned = self._assigned.get(partition)
        if assigned is not None and assigned.serial == serial:
            assigned.paused = paused
            act = self._consumer.pause if paused else self._consumer.resume
            act([TopicPartition(*partition)])

    def _poll(self) -> None:
        first = self._consumer.poll(self._poll_s)
        if first is None:
            return
        chunks: dict[Partition, StreamChunk] = {}
        for message in (first, *self._consumer.consume(CHUNK_MESSAGES_MAX - 1, 0)):
            self._add_message(chunks, message)
        if chunks:
            self._bridge.call(self._on_chunks, list(chunks.values()))

    def _add_message(self, chunks: dict[Partition, StreamChunk], message: Any) -> None:
        error = message.error()
        if message.topic() is None:
            log.warning("%s: %s", self._name, error)
            return
        partition = (message.topic(), message.partition())
        assigned = self._assigned.get(partition)
        if assigned is None:
            return
        chunk = chunks.get(partition)
        if chunk is None:
            chunk = chunks[partition] = StreamChunk(assigned.serial)
        if error is None:
            if message.offset() >= assigned.start:
                chunk.records.append(KafkaRecord(message, assigned.topic_id))
                chunk.end = None  # that was before it
        elif error.code() == KafkaError._PARTITION_EOF:
            chunk.end = message.offset()
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            chunk.error, chunk.bounds = error, self._query_bounds(partition)
        else:
            chunk.error = error

    def _query_bounds(self, partition: Partition) -> Bounds | None:
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=REQUEST_S)
        except KafkaException:
            return None
        return Bounds(low, high)

"""KafkaState: settings, progress and assignments as followed, on the hub, and the barrier `catch_up`.

It applies the rows of FollowerThread.

A barrier is settled once every record that was answered before the barrier began has been followed. For this,
a mark is written to each partition, acknowledged by all replicas in sync, and the barrier waits until the
marks were followed. A deposed broker that has not noticed this still answers where a partition ends, and
serves reads up to there; but it cannot accept a mark. Answered records may be behind a transaction that is
still open; the barrier then waits until the transaction has ended, or its owner was fenced. Calls that come
while marks are being written wait for the next marks.
"""

from __future__ import annotations

import _thread
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from backend.completion import Completion, failed
from backend.kafka.clients.admin import SystemTopics
from backend.kafka.clients.follower import FollowedRow, FollowerThread, Partition
from backend.kafka.clients.writing import MARK_KEY
from backend.kafka.coordination.events import decode_event
from backend.kafka.coordination.table import CoordinationLog, PlacedEvent
from backend.kafka.options import KafkaOptions
from backend.kafka.state.tables import ProgressState, SettingsState
from ddmq_common.errors import DamagedError, DrainingError, RemoteError, StorageError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
Call = Callable[..., None]  # from any thread: run this on the hub, in order
RETRY_S = 0.3
LOG_EVERY = 100_000  # records between two lines about the progress of the start


class KafkaState:
    """The settings, progress and assignments that this process has read from the system topics.

    `ready`: the state was read up to its end once, and the brokers belong to its cluster. `reason`: why it is
    not ready, or "". `other_cluster`: what is wrong while the brokers belong to another cluster, or "". Until
    they belong to the first one again, nothing is read, and barriers fail.
    """

    def __init__(
        self,
        options: KafkaOptions,
        call: Call,
        *,
        on_setting_changed: Callable[[str], object],
        on_info_changed: Callable[[str], object],
        on_event: Callable[[PlacedEvent], object],
        on_log_truncated: Callable[[], object],
        on_other_cluster: Callable[[], object],
        on_ready: Callable[[], object],
    ) -> None:
        self.system_topics = SystemTopics.named_by(options)
        self._settings, self.progress = SettingsState(), ProgressState()
        self.coordination = CoordinationLog(0)
        self._was_read = False
        self.other_cluster = ""
        self.reason = f"Kafka at {options.bootstrap} is being asked for the system topics"
        self.progress_partitions = 0  # of the progress topic
        self.record_count = 0
        self._call = call
        self._on_setting_changed = on_setting_changed
        self._on_info_changed = on_info_changed
        self._on_event = on_event
        self._on_log_truncated = on_log_truncated
        self._on_ready = on_ready
        self._next: dict[Partition, int] = {}
        self._closed = False
        client = options.client_settings()
        self._barriers = Barriers(client, call, self._next)
        self._thread = FollowerThread(
            options,
            on_begun=lambda first: call(self._on_begun, first),
            on_rows=lambda rows: call(self._apply_rows, rows),
            on_truncated=lambda first: call(self._on_truncated, first),
            on_other_cluster=lambda: call(on_other_cluster),
            on_failed=lambda reason: call(self._set_reason, reason),
        )

    @property
    def ready(self) -> bool:
        """Whether the state was read up to its end, and the brokers belong to its cluster."""
        return self._was_read and not self.other_cluster

    @property
    def settings(self) -> Mapping[str, bytes]:
        """The settings by key, as far as they have been read."""
        return self._settings.settings

    @property
    def topic_infos(self) -> Mapping[str, bytes]:
        """The stored settings of topics by name, as far as they have been read."""
        return self._settings.topic_infos

    def stop(self, wait_s: float) -> None:
        """Stop following the topics; pending barriers fail."""
        self._closed = True
        self._barriers.close()
        if not self._thread.stop(wait_s):
            log.warning("the thread that follows the system topics did not end in %g s", wait_s)

    # --- records that this process wrote

    def apply_written_setting(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        """Apply a setting that this process has written, before it is read back from the topic."""
        if self._settings.followed.record_written(partition, offset, key):
            self._apply_setting(key, value)

    def holds_setting(self, key: bytes, value: bytes) -> bool:
        """Return whether the settings topic holds this value under `key`."""
        return self._settings.holds_record(key, value)

    def catch_up(self) -> Completion[None]:
        """Return a completion that succeeds once every record acknowledged by now was read."""
        return failed(RemoteError(self.other_cluster)) if self.other_cluster else self._barriers.add()

    def set_other_cluster(self, reason: str) -> None:
        """Set what is wrong while the brokers belong to another cluster; "" when they do not any more."""
        self.other_cluster = reason
        self._thread.check_cluster()

    # --- rows from the thread, on the hub

    def _on_begun(self, first: dict[Partition, int]) -> None:
        self._next.update(first)
        self.progress_partitions = sum(topic == self.system_topics.progress for topic, _ in first)
        self.coordination = CoordinationLog(first[self.system_topics.coordination, 0])
        self.catch_up().then(self._on_first_barrier)

    def _on_first_barrier(self, barrier: Completion[None]) -> None:
        if self._closed:
            return
        if barrier.error is not None:
            self._set_reason(str(barrier.error))
            HubTimer(ref=False).once(RETRY_S, lambda: self.catch_up().then(self._on_first_barrier))
            return
        self._was_read, self.reason = True, ""
        log.info("the system topics were followed to their end: %d records", self.record_count)
        self._on_ready()

    def _apply_rows(self, rows: list[FollowedRow]) -> None:
        self._thread.capacity.release()
        if self._closed:
            return
        for row in rows:
            if row.is_record:
                self._apply(row)
                self._next[row.topic, row.partition] = row.offset + 1
            else:
                self._next[row.topic, row.partition] = row.offset
        before, self.record_count = self.record_count, self.record_count + len(rows)
        if not self._was_read and before // LOG_EVERY != self.record_count // LOG_EVERY:
            log.info("following the system topics: %d records so far", self.record_count)
        if self._was_read:
            self.reason = ""
        self._barriers.advance()

    def _apply(self, row: FollowedRow) -> None:
        if row.key == MARK_KEY:
            return
        if row.topic == self.system_topics.coordination:
            event = None if row.value is None else decode_event(row.value)
            if event is not None:
                self._on_event(PlacedEvent(row.offset, row.stamp_ms, event))
            return
        key = row.key or b""
        try:
            if row.topic == self.system_topics.progress:
                if self.progress.followed.record_followed(row.partition, row.offset, key):
                    self.progress.apply(key, row.value)
            elif self._settings.followed.record_followed(row.partition, row.offset, key):
                self._apply_setting(key, row.value)
        except (DamagedError, StorageError) as error:
            log.error("skipping %s of %s, offset %d: %s", row.topic, row.partition, row.offset, error)

    def _apply_setting(self, key: bytes, value: bytes | None) -> None:
        setting, topic = self._settings.apply(key, value)
        if setting is not None:
            self._on_setting_changed(setting)
        if topic is not None:
            self._on_info_changed(topic)

    def _on_truncated(self, first: int) -> None:
        log.warning("the coordination topic begins at %d now: all assignments are lost", first)
        self.coordination = CoordinationLog(first)
        self._next[self.system_topics.coordination, 0] = first
        self._on_log_truncated()

    def _set_reason(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s", reason)
        self.reason = reason


WRITE_MS = 5_000
Ends = dict[Partition, int]  # the offset behind a mark


class _MarkWriter:
    """The thread that writes the marks of barriers. `call` runs a function on the hub, from any thread."""

    def __init__(self, client: Mapping[str, object], call: Call) -> None:
        self._config = {
            **client, "acks": "all", "enable.idempotence": False, "linger.ms": 0,
            "message.timeout.ms": WRITE_MS,
        }  # fmt: skip
        self._call = call
        self._jobs: queue.SimpleQueue[tuple[Sequence[Partition], Call] | None] = queue.SimpleQueue()
        self._producer: Producer | None = None
        _thread.start_new_thread(self._run, ())

    def write(self, partitions: Sequence[Partition], then: Call) -> None:
        """Write a mark to each partition; then call `then(ends, error)` on the hub.

        `ends` are the offsets after the marks; `error` is None, or why not all were written.
        """
        self._jobs.put((partitions, then))

    def close(self) -> None:
        """Accept no more jobs; a running job still finishes."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            partitions, then = job
            try:
                ends, error = self._write_marks(partitions)
            except Exception as failed:  # of any kind: the waiting calls retry
                ends, error = {}, str(failed)
            if error is not None:
                self._producer = None  # the next producer queries the leaders
            self._call(then, ends, error)

    def _write_marks(self, partitions: Sequence[Partition]) -> tuple[Ends, str | None]:
        if self._producer is None:
            self._producer = Producer(self._config)
        ends: Ends = {}
        errors: list[str] = []

        def on_report(partition: Partition, error: KafkaError | None, message: Any) -> None:
            if error is None:
                ends[partition] = message.offset() + 1
            else:
                errors.append(error.str())

        for partition in partitions:
            topic, number = partition
            self._producer.produce(topic, None, MARK_KEY, number, on_delivery=partial(on_report, partition))
        self._producer.flush(WRITE_MS / 1000 + 1)
        missing = [f"{topic} [{number}]" for topic, number in partitions if (topic, number) not in ends]
        return ends, None if not missing else f"{', '.join(errors) or 'no answer'} ({', '.join(missing)})"


class _BarrierRound:
    """Barriers that share their marks.

    All are settled when `left`, the partitions not yet read so far, is empty.
    """

    def __init__(self, waiting: list[Completion[None]]) -> None:
        self.completions = waiting
        self.missing: Ends = {}


class Barriers:
    """Settles each call once all records acknowledged before it were read, in every partition of `followed`.

    `client`: how librdkafka's clients are configured.
    """

    def __init__(self, client: Mapping[str, object], call: Call, followed: Mapping[Partition, int]) -> None:
        self._marks = _MarkWriter(client, call)
        self._followed = followed
        self._next_completions: list[Completion[None]] = []
        self._writing: _BarrierRound | None = None
        self._open_rounds: list[_BarrierRound] = []
        self._closed = False

    def add(self) -> Completion[None]:
        """Return a completion that succeeds once every record acknowledged by now was read."""
        completion: Completion[None] = Completion()
        if self._closed:
            completion.fail(DrainingError("the Kafka engine was closed"))
        else:
            self._next_completions.append(completion)
            self.advance()
        return completion

    def advance(self) -> None:
        """Settle the barriers whose marks were read, and write the next marks if possible."""
        self._settle_reached()
        if self._writing is not None or not self._next_completions or self._closed:
            return
        partitions = list(self._followed)
        if not partitions:
            return
        barrier_round = self._writing = _BarrierRound(self._next_completions)
        self._next_completions = []
        self._marks.write(partitions, partial(self._on_marks_written, barrier_round))

    def close(self) -> None:
        """Fail every pending barrier."""
        self._closed = True
        self._marks.close()
        waiting = [*self._next_completions, *(self._writing.completions if self._writing else [])]
        waiting += [each for barrier_round in self._open_rounds for each in barrier_round.completions]
        self._next_completions, self._open_rounds, self._writing = [], [], None
        for completion in waiting:
            completion.fail(DrainingError("the Kafka engine was closed"))

    def _on_marks_written(self, barrier_round: _BarrierRound, ends: Ends, error: str | None) -> None:
        if self._writing is not barrier_round:
            return
        self._writing = None
        if error is None:
            barrier_round.missing = ends
            self._open_rounds.append(barrier_round)
        else:
            for completion in barrier_round.completions:
                completion.fail(RemoteError(f"where the system topics end is not known: {error}"))
        self.advance()

    def _settle_reached(self) -> None:
        if not self._open_rounds:
            return
        reached = []
        for barrier_round in self._open_rounds:
            barrier_round.missing = {
                partition: end
                for partition, end in barrier_round.missing.items()
                if self._followed.get(partition, 0) < end
            }
            if not barrier_round.missing:
                reached.append(barrier_round)
        self._open_rounds = [
            barrier_round for barrier_round in self._open_rounds if barrier_round not in reached
        ]
        for barrier_round in reached:
            for completion in barrier_round.completions:
                completion.succeed(None)

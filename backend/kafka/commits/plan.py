"""CommitPlan: several commits checked one after the other, and the records of Kafka that they make. Pure.

Each commit is checked against the state as the earlier ones of the plan leave it, and joins the plan as a
whole or not at all. The state itself does not change until Kafka has answered: `apply_stored` then gets the
offsets.

Progress is written as complete states, one for each group and queue, however many commits changed it. A state
of more than PROGRESS_BYTES_MAX is not truncated: a commit that would make it larger is rejected with
BoundReachedError (none of it is stored, so nothing acknowledged is lost) until lower offsets are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.engine import ROOT, check_absent, check_limits, check_settings
from backend.kafka.records import ProducerRecord
from backend.kafka.state.followed import KafkaState
from backend.kafka.state.tables import (
    PROGRESS_BYTES_MAX,
    encode_record,
    progress_partition,
    setting_key,
    topic_key,
    wrap_value,
)
from backend.kafka.topic_info import TopicRegistry
from backend.progress.group_progress import Fence, GroupProgress, Key, check_fence
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef
from ddmq_common.errors import BoundReachedError, FencedError, TopicUnavailableError, UnknownTopicError

SETTINGS_MAX = 100_000
PROGRESS_MAX = 1_000_000  # pairs of group and queue
_GROWTH_PER_RANGE = 2 * 1036  # bytes that one finished range can add at most: two pages
EpochFloor = Callable[[Key, int], int]


class OffsetEntry(NamedTuple):
    """A record that states the offsets of a commit's other records, in the same transaction.

    It is written to `queue` after the others are. `encode` converts their offsets into its value, in a native
    thread. `is_current()`: whether the commit may still be sent; asked on the hub each time before it is.
    """

    queue: QueueRef
    encode: Callable[[Sequence[int]], bytes]
    is_current: Callable[[], bool]


class CommitPlan:
    """Commits that are checked against the state and go to Kafka together.

    `epoch_floor(key, epoch)` returns the lowest epoch under which this process may still write the progress
    of a group and queue; `epoch` is that of the progress change.
    """

    def __init__(self, state: KafkaState, topics: TopicRegistry, epoch_floor: EpochFloor) -> None:
        self._state = state
        self._topics = topics
        self._epoch_floor = epoch_floor
        self.progress: dict[Key, GroupProgress] = {}
        self._settings: dict[str, bytes | None] = {}
        self._infos: dict[str, bytes | None] = {}
        self._dropped: list[tuple[Key, bytes]] = []
        self.records: list[NewRecord] = []
        self._progress_rows: list[tuple[Key, bytes, bytes | None]] = []
        self._state_records: list[ProducerRecord] = []
        self._entries: list[tuple[str, OffsetEntry, int, int]] = []  # topic, and range of records

    def __bool__(self) -> bool:
        changes = self.progress or self._settings or self._infos or self._dropped
        return bool(self.records or self._entries or changes)

    @property
    def needs_transaction(self) -> bool:
        """Whether the records of the plan must be stored all or none."""
        return bool(self.records or self._settings or self._infos or self._entries)

    # --- adding

    def add(self, batch: CommitBatch, entry: OffsetEntry | None = None) -> None:
        """Add a commit to the plan. Raises the errors of Backend.commit; the plan is then unchanged."""
        if entry is not None:
            self._check_entry(entry)
        fences = self._check_fences(batch.progress)
        for record in batch.records:
            error = self._topics.rejection_of(record)
            if error is not None:
                raise error
        self._check_available(batch.records)
        self._check_settings(batch)
        self._check_bounds(batch.progress, fences)
        for delta in batch.progress:
            self._copy_progress((delta.group, delta.queue)).apply(delta)
        self._settings.update(batch.settings)
        if entry is not None:
            start = len(self.records)
            name = self._topics.kafka_name(entry.queue.topic)
            self._entries.append((name, entry, start, start + len(batch.records)))
        self.records += batch.records

    def put_topic_info(self, name: str, value: bytes | None) -> None:
        """Store `value` as the settings of the topic `name`; None deletes them."""
        self._infos[name] = value

    def drop_progress(self, topic: str, incarnation: int) -> None:
        """Delete the progress of all groups on a deleted topic."""
        self._dropped += self._state.progress.find_of_topic(topic, incarnation)

    def _check_entry(self, entry: OffsetEntry) -> None:
        queue = entry.queue
        if not entry.is_current():
            raise FencedError(f"queue {queue.queue_id} of {queue.topic} is no longer held as it was")
        if self._topics.find_queue_topic(queue) is None:
            raise UnknownTopicError(f"queue {queue} of an entry does not exist (any more)")
        reason = self._topics.unavailable.reason_of(queue.topic)
        if reason:
            raise TopicUnavailableError({queue.topic: reason})

    def _check_fences(self, deltas: Sequence[ProgressDelta]) -> dict[Key, Fence]:
        fences: dict[Key, Fence] = {}
        for delta in deltas:
            key = (delta.group, delta.queue)
            if self._topics.find_queue_topic(delta.queue) is None:
                raise UnknownTopicError(f"queue {delta.queue} of a progress delta does not exist (any more)")
            fences[key] = check_fence(fences.get(key) or self._find_fence(key, delta.epoch), delta)
        return fences

    def _find_fence(self, key: Key, epoch: int) -> Fence:
        changed = self.progress.get(key)
        fence = self._state.progress.find_fence(key) if changed is None else changed.fence
        floor = self._epoch_floor(key, epoch)
        return fence if floor <= fence.epoch else Fence(floor, fence.generation)

    def _check_available(self, records: Sequence[NewRecord]) -> None:
        reason_of = self._topics.unavailable.reason_of
        topics = {record.topic: reason for record in records if (reason := reason_of(record.topic))}
        if topics:
            raise TopicUnavailableError(topics)

    def _check_settings(self, batch: CommitBatch) -> None:
        check_settings(batch.settings, self._has_setting, self._count_settings(ROOT), SETTINGS_MAX)
        check_limits(batch.limits, batch.settings, self._has_setting, self._count_settings)
        check_absent([key for key in batch.absent if self._has_setting(key)], batch.absent)

    def _count_settings(self, folder: str) -> int:
        """Count the settings under `folder`, including the changes of the plan so far."""
        stored = self._state.settings
        count = len(stored) if folder == ROOT else sum(key.startswith(folder) for key in stored)
        for key, value in self._settings.items():
            if key.startswith(folder):
                count += (value is not None) - (key in stored)
        return count

    def _has_setting(self, key: str) -> bool:
        if key in self._settings:
            return self._settings[key] is not None
        return key in self._state.settings

    def _check_bounds(self, deltas: Sequence[ProgressDelta], fences: dict[Key, Fence]) -> None:
        stored = self._state.progress
        if len(stored) + len(self.progress) + len(fences) > PROGRESS_MAX:
            new_keys = {key for key in (*self.progress, *fences) if key not in stored}
            if len(stored) + len(new_keys) > PROGRESS_MAX and any(key in new_keys for key in fences):
                raise BoundReachedError(
                    f"{len(stored)} pairs of group and queue have progress, the bound is {PROGRESS_MAX} pairs"
                )
        for delta in deltas:
            key = (delta.group, delta.queue)
            progress = self.progress.get(key) or stored.get(key) or GroupProgress()
            acks = progress.acks
            growth = len(delta.finished) * _GROWTH_PER_RANGE + len(delta.attempts) * 12
            if acks.weight + growth > PROGRESS_BYTES_MAX and delta.reset_to is None:
                after = acks.copy()
                after.finish(delta.finished)
                if after.weight > max(PROGRESS_BYTES_MAX, acks.weight):
                    raise BoundReachedError(
                        f"progress of group {delta.group} on {delta.queue.topic} queue {delta.queue.queue_id}"
                        f" takes {after.weight} bytes, the bound is {PROGRESS_BYTES_MAX} bytes: finish"
                        f" offset {acks.committed} and those after it first"
                    )

    def _copy_progress(self, key: Key) -> GroupProgress:
        progress = self.progress.get(key)
        if progress is None:
            stored = self._state.progress.get(key)
            progress = self.progress[key] = GroupProgress() if stored is None else stored.copy()
            progress.fence = self._state.progress.find_fence(key)
        return progress

    # --- records and their answer

    def to_producer_records(self) -> list[ProducerRecord]:
        """Return all Kafka records of the plan, those of `records` first. May be called once."""
        state, topics = self._state, self._state.system_topics
        for key, progress in self.progress.items():
            self._progress_rows.append((key, *encode_record(key, progress)))
        self._progress_rows += [
            (key, data, None) for key, data in state.progress.find_outdated(self.progress)
        ]
        self._progress_rows += [(key, data, None) for key, data in self._dropped]
        self._state_records = [
            ProducerRecord(topics.progress, progress_partition(key, state.progress_partitions), data, value)
            for key, data, value in self._progress_rows
        ]
        for keys, values in ((setting_key, self._settings), (topic_key, self._infos)):
            for name, value in values.items():
                data = None if value is None else wrap_value(value)
                self._state_records.append(ProducerRecord(topics.settings, 0, keys(name), data))
        return [self._topics.to_producer_record(record) for record in self.records] + self._state_records

    @property
    def has_entries(self) -> bool:
        """Whether `to_entry_records` returns any."""
        return bool(self._entries)

    def to_entry_records(self, offsets: Sequence[int]) -> list[ProducerRecord]:
        """Return the entries, once the records before have these offsets. Called in a native thread."""
        return [
            ProducerRecord(name, entry.queue.queue_id, None, entry.encode(offsets[start:end]))
            for name, entry, start, end in self._entries
        ]

    def apply_stored(self, offsets: Sequence[int]) -> None:
        """Apply the plan to the state after Kafka stored its records at these offsets, in their order."""
        state = self._state
        for index, record in enumerate(self._state_records):
            offset = offsets[len(self.records) + index]
            assert record.key is not None
            if record.topic == state.system_topics.settings:
                state.apply_written_setting(record.partition, offset, record.key, record.value)
            elif state.progress.followed.record_written(record.partition, offset, record.key):
                progress = None if record.value is None else self.progress.get(self._progress_rows[index][0])
                state.progress.apply(record.key, record.value, progress)

    def is_stored(self) -> bool | None:
        """Return whether the caught-up state contains the plan's records; None if that cannot be decided."""
        state = self._state
        signs = [
            state.progress.holds_record(record.key, record.value)
            if record.topic == state.system_topics.progress
            else state.holds_setting(record.key, record.value)
            for record in self._state_records
            if record.key is not None and record.value is not None
        ]
        if False in signs:
            return False
        return None if not signs or None in signs else True
